//! What a card keeps of one sequence.

use super::driver::{CardError, Context, DeviceMemory, Stream};
use super::undo::Undo;
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
    /// Of a state, what takes tokens back.
    undo: Option<Undo>,
}

/// A sequence on a card.
pub(super) struct CardSequence {
    pub(super) tokens: Vec<u32>,
    memory: DeviceMemory,
    /// By [`KeptId`].
    places: Vec<Place>,
    /// Position of the states, where there are some: the tokens after it can be taken back.
    at: usize,
    /// First byte of the trunk's streams of the last token, where the block that drafts goes on from them.
    carry: Option<u64>,
    /// Their bytes, and whether they are there.
    carry_bytes: u64,
    is_carried: bool,
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

/// Rows that a token needs, those that are kept so that tokens can be taken back, and bytes.
fn conv(shape: ConvShape, settings: &Settings) -> (usize, usize, u64) {
    let reach = ((shape.taps - 1) * shape.dilation).max(1);
    let rows = reach.saturating_add(settings.window);
    (reach, rows, (rows as u64).saturating_mul(shape.channels as u64).saturating_mul(4))
}

fn delta(shape: DeltaShape) -> u64 {
    [shape.value_heads, shape.dim, shape.dim, 4].iter().fold(1, |n, m| u64::saturating_mul(n, *m as u64))
}

impl Place {
    /// Of what another card keeps: nothing here depends on it.
    const ELSEWHERE: Self = Self { at: 0, capacity: 1, reach: 0, ratio: usize::MAX, undo: None };
}

/// Where everything that is this card's `own` lies, and bytes in all.
fn places(kept: &[Kept], settings: &Settings, own: impl Fn(usize) -> bool) -> (Vec<Place>, u64) {
    let mut next = 0u64;
    let mut take = |bytes: u64| {
        let at = next;
        next = next.saturating_add(bytes).saturating_add(ALIGN - 1) / ALIGN * ALIGN;
        at
    };
    let place = |(id, kept): (usize, &Kept)| match *kept {
        _ if !own(id) => Place::ELSEWHERE,
        Kept::Cache(shape) => {
            let (capacity, bytes) = cache(shape, settings);
            let reach = shape.window.map_or(0, |w| w.saturating_sub(1));
            Place { at: take(bytes), capacity, reach, ratio: shape.ratio, undo: None }
        }
        Kept::Conv(shape) => {
            let (reach, capacity, bytes) = conv(shape, settings);
            Place { at: take(bytes), capacity, reach, ratio: 1, undo: None }
        }
        Kept::Delta(shape) => {
            let at = take(delta(shape));
            let undo = (settings.window > 0).then(|| Undo::new(shape, settings.window, &mut take));
            Place { at, capacity: 0, reach: 0, ratio: 1, undo }
        }
    };
    let places = kept.iter().enumerate().map(place).collect();
    (places, next)
}

/// Bytes of the streams that the block that drafts goes on from; 0 where it does not draft.
pub(super) fn carry_bytes(program: &Program, settings: &Settings) -> u64 {
    let drafts = settings.window > 0 && program.draft.is_some();
    if drafts { program.values(program.residual) as u64 * 4 } else { 0 }
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

impl CardSequence {
    pub(super) fn new(
        context: &Arc<Context>,
        stream: &Arc<Stream>,
        program: &Program,
        settings: &Settings,
        own: impl Fn(usize) -> bool,
    ) -> Result<Self> {
        let (places, end) = places(&program.kept, settings, own);
        let carry_bytes = carry_bytes(program, settings);
        let carry = (carry_bytes > 0).then_some(end);
        let bytes = end.saturating_add(carry_bytes);
        let memory = DeviceMemory::new(context, bytes, "what a sequence keeps")?;
        // Nothing reads a row before it is written; but what is saved must be the same each time.
        memory.fill(0..bytes, 0, stream)?;
        stream.synchronize()?;
        Ok(Self {
            tokens: Vec::new(),
            memory,
            places,
            at: 0,
            carry,
            carry_bytes,
            is_carried: false,
            stream: Arc::clone(stream),
            settings: *settings,
        })
    }

    /// Where something is kept.
    pub(super) fn at(&self, id: KeptId) -> u64 {
        self.memory.address() + self.places[id.0].at
    }

    /// Where a run of `tokens` tokens writes a state: elsewhere, where they may be taken back.
    pub(super) fn after(&self, id: KeptId, tokens: usize) -> u64 {
        match self.places[id.0].undo {
            Some(undo) if tokens <= self.settings.window => self.memory.address() + undo.copy,
            _ => self.at(id),
        }
    }

    /// What takes tokens of a state back.
    pub(super) fn undo(&self, id: KeptId) -> Option<Undo> {
        self.places[id.0].undo.map(|undo| undo.from(self.memory.address()))
    }

    /// Position of the states: the tokens from there on are repeated before others are taken.
    pub(super) fn states_at(&self) -> usize {
        self.at
    }

    /// A run has taken the tokens from position `start` on.
    pub(super) fn ran(&mut self, start: usize) {
        let end = self.tokens.len();
        if end == start {
            // What is still to be repeated stays so.
            return;
        }
        self.at = if end - start <= self.settings.window { start } else { end };
    }

    /// Forgets what came after `position`, but not what is carried; whether that can be.
    pub(super) fn take_back(&mut self, position: usize) -> bool {
        let carried = self.is_carried;
        let done = self.rewind(position) == position;
        self.is_carried = carried && done;
        done
    }

    /// Where the streams of the last token go, for the block that drafts; `None` where it does not draft. They are there
    /// from now on.
    pub(super) fn carry(&mut self) -> Option<u64> {
        self.is_carried = self.carry.is_some();
        self.carry.map(|at| self.memory.address() + at)
    }

    /// Where they are: zeros, where there are none.
    pub(super) fn carried(&mut self, stream: &Stream) -> Result<Option<u64>, CardError> {
        if let Some(at) = self.carry.filter(|_| !self.is_carried) {
            self.memory.fill(at..at + self.carry_bytes, 0, stream)?;
        }
        Ok(self.carry())
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

    /// Begins anew.
    pub(super) fn forget(&mut self) {
        self.tokens.clear();
        (self.at, self.is_carried) = (0, false);
    }

    /// A hash of how all is kept: what was saved is read in no other way.
    fn shape(&self) -> [u8; 32] {
        let Settings { context, kv, window, .. } = self.settings;
        let places = self.places.iter().map(|p| format!("{} {} {}", p.at, p.capacity, p.ratio));
        let text = format!("{context} {kv:?} {window} {}", places.collect::<Vec<_>>().join(","));
        gantry_formats::hash::hash(text.as_bytes())
    }

    /// Whether everything that a token at `position` needs is still there.
    pub(super) fn remembers(&self, position: usize) -> bool {
        let end = self.tokens.len();
        self.places.iter().all(|place| match place.capacity {
            0 => self.at <= position,
            rows => {
                position.saturating_sub(place.reach).saturating_add(rows.saturating_mul(place.ratio)) >= end
            }
        })
    }
}

const MAGIC: &[u8; 8] = b"GANTRYSC";
const VERSION: u32 = 2;

impl Sequence for CardSequence {
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
        self.at = self.at.min(position);
        self.is_carried = false;
        position
    }

    /// `GANTRYSC`, the version, the hash of how all is kept, the position of states, whether streams are carried, the number
    /// of tokens and they, all bytes, BLAKE3.
    fn save(&self, out: &mut Vec<u8>) -> Result<()> {
        let begin = out.len();
        out.extend_from_slice(MAGIC);
        out.extend_from_slice(&VERSION.to_le_bytes());
        out.extend_from_slice(&self.shape());
        out.extend_from_slice(&(self.at as u64).to_le_bytes());
        out.extend_from_slice(&u64::from(self.is_carried).to_le_bytes());
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

/// What was saved.
pub(super) struct Parsed<'a> {
    pub(super) tokens: Vec<u32>,
    at: usize,
    is_carried: bool,
    memory: &'a [u8],
}

impl CardSequence {
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
            return Err(SavedFault::Options("what is kept has another shape, as with another --kv, or drafts (--spec) where there were none").into());
        }
        let (numbers, rest) = rest.split_first_chunk::<24>().ok_or_else(shorter)?;
        let mut numbers = numbers.as_chunks().0.iter().map(|b| usize::try_from(u64::from_le_bytes(*b)));
        let mut number = || numbers.next().and_then(|n| n.ok()).ok_or_else(shorter);
        let (at, is_carried, count) = (number()?, number()? == 1, number()?);
        let bytes = count.checked_mul(4).filter(|n| *n <= rest.len()).ok_or_else(shorter)?;
        let (tokens, memory) = rest.split_at(bytes);
        if memory.len() as u64 != self.memory.bytes() || count > self.settings.context {
            return Err(SavedFault::Options("what is kept has another size").into());
        }
        let repeated = count.checked_sub(at);
        if repeated.is_none_or(|n| n > self.settings.window) {
            return Err(SavedFault::Malformed("what it keeps is not that of its tokens").into());
        }
        let tokens = tokens.as_chunks().0.iter().map(|b| u32::from_le_bytes(*b)).collect();
        Ok(Parsed { tokens, at, is_carried: is_carried && self.carry.is_some(), memory })
    }

    pub(super) fn take(&mut self, saved: Parsed<'_>) -> Result<()> {
        let Parsed { tokens, at, is_carried, memory } = saved;
        if let Err(error) = self.memory.write(0, memory, &self.stream) {
            // Some of it may be there.
            self.forget();
            return Err(error.into());
        }
        (self.tokens, self.at, self.is_carried) = (tokens, at, is_carried);
        Ok(())
    }
}
