//! What a card keeps of one sequence.

use super::driver::{Context, DeviceMemory, Stream};
use super::workspace::most_tokens;
use crate::Result;
use crate::backend::{KeptBytes, KvType, Sequence, Settings};
use crate::model::program::{CacheShape, ConvShape, DeltaShape, Kept, KeptId, Program};
use crate::session::SavedFault;
use std::sync::Arc;

/// Beginnings of what is kept are multiples of this.
const ALIGN: u64 = 256;

/// One thing kept: rings of rows by position, or a state.
#[derive(Clone, Copy, Debug)]
pub(super) struct Place {
    /// First byte in the sequence's memory.
    at: u64,
    /// Rows of a ring: position p is in row p modulo this. 0: a state.
    pub(super) capacity: usize,
    /// Positions before its own that a token needs.
    reach: usize,
    /// Positions of the sequence for each row.
    ratio: usize,
}

/// A sequence on a card.
pub(super) struct CudaSequence {
    pub(super) tokens: Vec<u32>,
    memory: DeviceMemory,
    /// By [`KeptId`].
    places: Vec<Place>,
    stream: Arc<Stream>,
    settings: Settings,
}

/// How a cache keeps its values.
pub(super) fn kept_type(shape: CacheShape, settings: &Settings) -> KvType {
    if shape.exact { KvType::F32 } else { settings.kv }
}

/// Bytes between planes, at most: those of int8 begin at multiples of 16.
fn apart(shape: CacheShape, settings: &Settings) -> u64 {
    if kept_type(shape, settings) == KvType::Int8 { 4 * 16 } else { 0 }
}

/// Bytes of a row of a cache.
pub(super) fn row_bytes(shape: CacheShape, settings: &Settings) -> u64 {
    kept_type(shape, settings).bytes(shape.values() as u64, shape.rows() as u64)
}

fn cache(shape: CacheShape, settings: &Settings) -> (usize, u64) {
    let all = (settings.context / shape.ratio).max(1);
    // A batch is written before it is read, and must not push out what its first token sees.
    let rows = shape.window.map_or(all, |w| all.min(w.saturating_add(most_tokens(settings))));
    let bytes = row_bytes(shape, settings).saturating_mul(rows as u64);
    (rows, bytes.saturating_add(apart(shape, settings)))
}

fn conv(shape: ConvShape) -> (usize, u64) {
    let rows = ((shape.taps - 1) * shape.dilation).max(1);
    (rows, (rows as u64).saturating_mul(shape.channels as u64).saturating_mul(4))
}

fn delta(shape: DeltaShape) -> u64 {
    [shape.value_heads, shape.dim, shape.dim, 4].iter().fold(1, |n, m| u64::saturating_mul(n, *m as u64))
}

impl Place {
    /// Of what another card keeps: nothing here depends on it.
    const ELSEWHERE: Self = Self { at: 0, capacity: 1, reach: 0, ratio: usize::MAX };
}

/// Where everything that is this card's `own` lies, and bytes in all.
fn places(kept: &[Kept], settings: &Settings, own: impl Fn(usize) -> bool) -> (Vec<Place>, u64) {
    let mut next = 0u64;
    let place = |(id, kept): (usize, &Kept)| {
        if !own(id) {
            return Place::ELSEWHERE;
        }
        let (capacity, bytes, reach, ratio) = match *kept {
            Kept::Cache(shape) => {
                let (rows, bytes) = cache(shape, settings);
                (rows, bytes, shape.window.map_or(0, |w| w.saturating_sub(1)), shape.ratio)
            }
            Kept::Conv(shape) => {
                let (rows, bytes) = conv(shape);
                (rows, bytes, rows, 1)
            }
            Kept::Delta(shape) => (0, delta(shape), 0, 1),
        };
        let at = next;
        next = next.saturating_add(bytes).saturating_add(ALIGN - 1) / ALIGN * ALIGN;
        Place { at, capacity, reach, ratio }
    };
    let places = kept.iter().enumerate().map(place).collect();
    (places, next)
}

/// Bytes of something that a sequence keeps.
pub(super) fn kept_bytes(kept: &Kept, settings: &Settings) -> KeptBytes {
    let (_, whole) = places(std::slice::from_ref(kept), settings, |_| true);
    match *kept {
        Kept::Cache(shape) if shape.window.is_none() => {
            let row = row_bytes(shape, settings);
            // An entry stands for several positions, there is room for one at least, and all begins aligned.
            let fixed = row.saturating_add(ALIGN).saturating_add(apart(shape, settings));
            KeptBytes { whole, position: row.div_ceil(shape.ratio as u64), fixed }
        }
        _ => KeptBytes { whole, position: 0, fixed: whole },
    }
}

impl CudaSequence {
    pub(super) fn new(
        context: &Arc<Context>,
        stream: &Arc<Stream>,
        program: &Program,
        settings: &Settings,
        own: impl Fn(usize) -> bool,
    ) -> Result<Self> {
        let (places, bytes) = places(&program.kept, settings, own);
        let memory = DeviceMemory::new(context, bytes, "what a sequence keeps")?;
        // Nothing reads a row before it is written; but what is saved must be the same each time.
        memory.fill(0..bytes, 0, stream)?;
        stream.synchronize()?;
        Ok(Self { tokens: Vec::new(), memory, places, stream: Arc::clone(stream), settings: *settings })
    }

    /// Where something is kept.
    pub(super) fn at(&self, id: KeptId) -> u64 {
        self.memory.address() + self.places[id.0].at
    }

    /// All of it.
    pub(super) fn memory(&self) -> &DeviceMemory {
        &self.memory
    }

    /// How.
    pub(super) fn place(&self, id: KeptId) -> Place {
        self.places[id.0]
    }

    pub(super) fn settings(&self) -> &Settings {
        &self.settings
    }

    /// A hash of how all is kept: what was saved is read in no other way.
    fn shape(&self) -> [u8; 32] {
        let Settings { context, batch, kv, .. } = self.settings;
        let places = self.places.iter().map(|p| format!("{} {} {}", p.at, p.capacity, p.ratio));
        let text = format!("{context} {batch} {kv:?} {}", places.collect::<Vec<_>>().join(","));
        gantry_formats::hash::hash(text.as_bytes())
    }

    /// Whether everything that a token at `position` needs is still there.
    pub(super) fn remembers(&self, position: usize) -> bool {
        let end = self.tokens.len();
        self.places.iter().all(|place| match place.capacity {
            0 => position == end,
            rows => {
                position.saturating_sub(place.reach).saturating_add(rows.saturating_mul(place.ratio)) >= end
            }
        })
    }
}

const MAGIC: &[u8; 8] = b"GANTRYSC";
const VERSION: u32 = 1;

impl Sequence for CudaSequence {
    fn tokens(&self) -> &[u32] {
        &self.tokens
    }

    fn rewind(&mut self, position: usize) -> usize {
        if position >= self.tokens.len() {
            return self.tokens.len();
        }
        // A state starts anew with the token at position 0, and rows before it are read by none.
        let position = if self.remembers(position) { position } else { 0 };
        self.tokens.truncate(position);
        position
    }

    /// `GANTRYSC`, the version, the hash of how all is kept, the number of tokens and they, all bytes, BLAKE3.
    fn save(&self, out: &mut Vec<u8>) -> Result<()> {
        let begin = out.len();
        out.extend_from_slice(MAGIC);
        out.extend_from_slice(&VERSION.to_le_bytes());
        out.extend_from_slice(&self.shape());
        out.extend_from_slice(&(self.tokens.len() as u64).to_le_bytes());
        out.extend(self.tokens.iter().flat_map(|t| t.to_le_bytes()));
        let bytes = out.len();
        out.resize(bytes + self.memory.bytes() as usize, 0);
        self.memory.read(0, &mut out[bytes..], &self.stream)?;
        let hash = gantry_formats::hash::hash(&out[begin..]);
        out.extend_from_slice(&hash);
        Ok(())
    }

    fn restore(&mut self, saved: &[u8]) -> Result<()> {
        let saved = self.parse(saved)?;
        self.take(saved)
    }
}

/// Tokens and all bytes that were saved.
type Parsed<'a> = (Vec<u32>, &'a [u8]);

impl CudaSequence {
    /// What was saved, if this sequence can take it.
    pub(super) fn parse<'a>(&self, saved: &'a [u8]) -> Result<Parsed<'a>> {
        let shorter = || SavedFault::Malformed("it ends early");
        let (content, hash) = saved.split_last_chunk::<32>().ok_or_else(shorter)?;
        if gantry_formats::hash::hash(content) != *hash {
            return Err(SavedFault::Damaged("its hash is another").into());
        }
        let rest = content.strip_prefix(MAGIC);
        let rest = rest.ok_or(SavedFault::Options("it was saved on another kind of device"))?;
        let (version, rest) = rest.split_first_chunk::<4>().ok_or_else(shorter)?;
        match u32::from_le_bytes(*version) {
            VERSION => {}
            found => return Err(SavedFault::Version { found, known: VERSION }.into()),
        }
        let (shape, rest) = rest.split_first_chunk::<32>().ok_or_else(shorter)?;
        if *shape != self.shape() {
            return Err(SavedFault::Options("what is kept has another shape").into());
        }
        let (count, rest) = rest.split_first_chunk::<8>().ok_or_else(shorter)?;
        let count = usize::try_from(u64::from_le_bytes(*count)).map_err(|_| shorter())?;
        let bytes = count.checked_mul(4).filter(|n| *n <= rest.len()).ok_or_else(shorter)?;
        let (tokens, memory) = rest.split_at(bytes);
        if memory.len() as u64 != self.memory.bytes() || count > self.settings.context {
            return Err(SavedFault::Options("what is kept has another size").into());
        }
        Ok((tokens.as_chunks().0.iter().map(|b| u32::from_le_bytes(*b)).collect(), memory))
    }

    pub(super) fn take(&mut self, (tokens, memory): Parsed<'_>) -> Result<()> {
        if let Err(error) = self.memory.write(0, memory, &self.stream) {
            // Some of it may be there.
            self.tokens.clear();
            return Err(error.into());
        }
        self.tokens = tokens;
        Ok(())
    }
}
