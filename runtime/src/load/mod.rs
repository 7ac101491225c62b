//! Loading: a container's segments into arenas, verified on the way.
//!
//! Two ways lead there. [`LoadMode::Read`] reads each segment with `pread` straight into an owned allocation and
//! hashes the bytes where they lie while they are still in the cache: one pass, and the bytes that were verified
//! are the bytes that are used. [`LoadMode::Map`] maps the file, which copies nothing and shares pages between
//! processes; what is mapped can change or vanish while it is used (see [`LoadMode::Map`]).

mod arena;
mod damage;
mod pieces;
mod progress;
mod verify;
mod weights;

pub use arena::Arena;
pub use damage::Damage;
pub use progress::{Progress, size_text};
pub use verify::Verify;
pub use weights::Weights;

use crate::{Container, Result, RuntimeError};
use damage::Place;
use gantry_formats::container::ContainerError;
use gantry_formats::source::ReadAt;
use pieces::Piece;
use progress::Counter;
use std::collections::VecDeque;
use std::ops::Range;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// How bytes come into memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LoadMode {
    /// Read into memory of our own, verified there.
    #[default]
    Read,
    /// Map the files, verify through the mapping. For instant restarts from a warm page cache.
    ///
    /// The price: a file that another process truncates while it is mapped ends this process with SIGBUS, and
    /// one that it overwrites changes weights after they were verified. Use it for files that nobody writes.
    Map,
}

/// How to load.
#[derive(Clone, Debug)]
pub struct LoadOptions {
    /// The way in.
    pub mode: LoadMode,
    /// How much is verified.
    pub verify: Verify,
    /// Threads that read and hash.
    pub threads: usize,
    /// Who is told how far it is.
    pub progress: Option<Progress>,
    /// What stays in its file, to be read by row: verified on the way, not kept.
    pub left: Vec<Left>,
}

/// Bytes of a segment that stay in their file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Left {
    /// The card whose segment it is.
    pub card: usize,
    /// Inside the segment.
    pub range: Range<u64>,
}

/// What loading did.
#[derive(Clone, Copy, Debug)]
pub struct LoadReport {
    /// Bytes of all segments.
    pub bytes: u64,
    /// How long it took.
    pub time: Duration,
    /// The way in.
    pub mode: LoadMode,
    /// What was verified.
    pub verified: Verify,
}

impl LoadReport {
    /// 10⁹ bytes per second.
    pub fn gb_per_s(&self) -> f64 {
        self.bytes as f64 / 1e9 / self.time.as_secs_f64().max(1e-9)
    }
}

impl std::fmt::Display for LoadReport {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let how = match self.mode {
            LoadMode::Read => "read",
            LoadMode::Map => "mapped",
        };
        let what = match (self.verified, self.mode) {
            (Verify::Full, LoadMode::Read) => "every byte verified where it is used",
            (Verify::Full, LoadMode::Map) => "every byte verified through the mapping",
            (Verify::Index, _) => "only the index verified",
            (Verify::None, _) => "weights not verified",
        };
        write!(f, "{how} {} in {:.3} s", size_text(self.bytes), self.time.as_secs_f64())?;
        // A mapping that nobody looked through yet has no speed.
        if self.mode == LoadMode::Read || self.verified == Verify::Full {
            write!(f, " ({:.2} GB/s)", self.gb_per_s())?;
        }
        write!(f, ", {what}")
    }
}

/// Brings every segment of `container` into memory, in order of card.
///
/// # Errors
/// A card's file that is missing or cannot be read, [`RuntimeError::Damage`] where bytes are not those that were
/// written, [`RuntimeError::Allocation`].
pub fn load(container: &Container, options: &LoadOptions) -> Result<(Weights, LoadReport)> {
    let start = Instant::now();
    let cards = container.header().cards.len();
    for card in 0..cards {
        container.card(card)?;
    }
    container.check_unchanged()?;
    let mut arenas = Vec::with_capacity(cards);
    let mut found = match options.verify {
        Verify::None => Vec::new(),
        Verify::Full | Verify::Index => verify::outer_padding(container)?,
    };
    let bytes = container.header().cards.iter().map(|c| c.bytes).sum();
    let counter = Counter::new(options.progress.as_ref(), bytes);
    for card in 0..cards {
        arenas.push(match options.mode {
            LoadMode::Read => read(container, card, options, &counter, &mut found)?,
            LoadMode::Map => map(container, card, options, &counter, &mut found)?,
        });
    }
    container.check_unchanged()?;
    if let Some(damage) = Damage::new(found) {
        return Err(RuntimeError::Damage(Box::new(damage)));
    }
    let files = weights::files(container, options)?;
    let report = LoadReport { bytes, time: start.elapsed(), mode: options.mode, verified: options.verify };
    Ok((Weights::new(arenas, files), report))
}

fn read(
    container: &Container,
    card: usize,
    options: &LoadOptions,
    counter: &Counter<'_>,
    found: &mut Vec<Place>,
) -> Result<Arena> {
    let source = container.card(card)?;
    let failed = |e| RuntimeError::Allocation { what: "a card's arena", bytes: source.bytes, source: e };
    let bytes = usize::try_from(source.bytes).map_err(|_| failed(std::io::ErrorKind::OutOfMemory.into()))?;
    let mut memory = Arena::writable(bytes).map_err(failed)?;
    let mut work = VecDeque::new();
    let mut rest = &mut memory[..bytes];
    for piece in pieces::cut(container, card) {
        let (head, tail) = rest.split_at_mut((piece.range.end - piece.range.start) as usize);
        work.push_back((piece, head));
        rest = tail;
    }
    let full = options.verify == Verify::Full;
    let stays = |piece: &Piece| {
        let within = |l: &&Left| l.range.start <= piece.range.start && piece.range.end <= l.range.end;
        options.left.iter().filter(|l| l.card == card).any(|l| within(&l))
    };
    each(work, options.threads, found, |(piece, bytes): (Piece, &mut [u8]), found| {
        if stays(&piece) {
            // Its pages are never touched, so they take no memory.
            if full {
                let mut passing = vec![0; bytes.len()];
                let read = source.file.read_exact_at(source.offset + piece.range.start, &mut passing);
                read.map_err(|e| shortened(container, e))?;
                verify::piece(container, card, &piece, &passing, found);
            }
            counter.add(bytes.len() as u64);
            return Ok(());
        }
        let read = source.file.read_exact_at(source.offset + piece.range.start, bytes);
        read.map_err(|e| shortened(container, e))?;
        if full {
            verify::piece(container, card, &piece, bytes, found);
        }
        counter.add(bytes.len() as u64);
        Ok(())
    })?;
    Arena::sealed(memory, bytes).map_err(failed)
}

fn map(
    container: &Container,
    card: usize,
    options: &LoadOptions,
    counter: &Counter<'_>,
    found: &mut Vec<Place>,
) -> Result<Arena> {
    let arena = Arena::mapped(&container.card(card)?, container.path())?;
    if options.verify == Verify::Full {
        arena.will_need();
        let bytes = arena.bytes();
        each(pieces::cut(container, card).into(), options.threads, found, |piece, found| {
            let range = piece.range.start as usize..piece.range.end as usize;
            verify::piece(container, card, &piece, &bytes[range.clone()], found);
            counter.add(range.len() as u64);
            Ok(())
        })?;
    }
    Ok(arena)
}

/// A file that ends early was longer when it was opened.
fn shortened(container: &Container, source: std::io::Error) -> ContainerError {
    if source.kind() == std::io::ErrorKind::UnexpectedEof {
        let what = "it is shorter than when it was opened".to_string();
        return ContainerError::Integrity { region: "file changed while reading".into(), what };
    }
    ContainerError::Io { path: container.path().into(), source }
}

/// Works on all items with several threads. The first error ends it.
fn each<T: Send>(
    items: VecDeque<T>,
    threads: usize,
    found: &mut Vec<Place>,
    work: impl Fn(T, &mut Vec<Place>) -> Result<(), ContainerError> + Sync,
) -> Result<(), ContainerError> {
    let threads = threads.clamp(1, items.len().max(1));
    let items = Mutex::new(items);
    // A thread that panics takes the whole load with it, so a poisoned queue is never used wrongly.
    let next = || items.lock().unwrap_or_else(PoisonError::into_inner).pop_front();
    let run = || {
        let mut found = Vec::new();
        while let Some(item) = next() {
            if let Err(e) = work(item, &mut found) {
                items.lock().unwrap_or_else(PoisonError::into_inner).clear();
                return Err(e);
            }
        }
        Ok(found)
    };
    std::thread::scope(|scope| {
        let others: Vec<_> = (1..threads).map(|_| scope.spawn(run)).collect();
        let mut result = run().map(|mine| found.extend(mine));
        for other in others {
            match other.join() {
                Ok(Ok(theirs)) => found.extend(theirs),
                Ok(Err(e)) => result = result.and(Err(e)),
                Err(panic) => std::panic::resume_unwind(panic),
            }
        }
        result
    })
}
