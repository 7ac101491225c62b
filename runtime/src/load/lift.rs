//! Lifting: bytes into the memory of cards that the host does not see.

use super::arena::Arena;
use super::damage::Place;
use super::pieces::Piece;
use super::progress::Counter;
use super::queues::Queues;
use super::{LoadOptions, Verify, shortened, stays, verify};
use crate::{Container, Result, RuntimeError};
use gantry_formats::container::Stretch;
use gantry_formats::source::ReadAt;
use std::any::Any;
use std::collections::VecDeque;
use std::ops::Range;
use std::time::Duration;

/// A part of a mapping that is pinned and copied at once: long enough that pinning costs little beside the copy, short
/// enough that several threads pin while others copy. A multiple of every page size.
const MAPPED: u64 = 32 << 20;

/// A stretch as it lies on a card, to be hashed there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hashed {
    /// First byte in the card's arena.
    pub at: u64,
    /// First byte inside its blob.
    pub offset: u64,
    /// Length: at most 1 MiB.
    pub bytes: u64,
    /// Whether it is a whole blob, whose hash the table has; else its chaining value.
    pub whole: bool,
}

impl Hashed {
    /// `stretch`, whose first byte lies at `at`.
    pub fn of(container: &Container, stretch: &Stretch, at: u64) -> Self {
        let whole = stretch.bytes == container.table().blobs()[stretch.blob].bytes;
        Self { at, offset: stretch.offset, bytes: stretch.bytes, whole }
    }
}

/// Writes bytes where a card copies them from.
pub type Fill<'a> = dyn FnMut(&mut [u8]) -> Result<()> + 'a;

/// Cards whose arenas are filled through memory of the host that they copy from.
pub trait Lift: Send + Sync {
    /// Pieces are about this long.
    fn piece(&self) -> u64;
    /// Gets ready for a card: pieces of at most `longest` bytes, `total` in all, and what will be hashed, in the order of
    /// the pieces.
    fn begin(&self, card: usize, longest: usize, total: u64, hashed: &[Hashed]) -> Result<()>;
    /// Brings `len` bytes to `at`, then hashes some of what was announced. Comes back when `fill` is through with them, not
    /// when the card is. Called by several threads at once.
    fn put(&self, card: usize, at: u64, len: usize, hashed: Range<usize>, fill: &mut Fill<'_>) -> Result<()>;
    /// Brings a stretch of a mapping, which begins and ends on pages, straight to `at`, and comes back when it is there.
    /// Then hashes some of what was announced. Called by several threads at once.
    fn put_mapped(&self, card: usize, at: u64, bytes: &[u8], hashed: Range<usize>) -> Result<()>;
    /// Hashes some of what was announced and is not hashed yet, now that all of it was brought.
    fn hash_rest(&self, card: usize, hashed: Range<usize>) -> Result<()>;
    /// Waits for the card, and gives the hashes of everything that was announced and brought.
    fn finish(&self, card: usize) -> Result<Vec<[u8; 32]>>;
    /// What lies at `at` now.
    fn read(&self, card: usize, at: u64, into: &mut [u8]) -> Result<()>;
    /// Itself, for the device that made it.
    fn into_any(self: Box<Self>) -> Box<dyn Any + Send + Sync>;
}

/// What is announced for a card, and what it stands for.
#[derive(Default)]
struct Announced {
    hashed: Vec<Hashed>,
    /// By index: the card that it was packed for, and what.
    sources: Vec<(usize, Stretch)>,
}

impl Announced {
    fn add(&mut self, container: &Container, from: usize, stretch: &Stretch, at: u64) {
        self.hashed.push(Hashed::of(container, stretch, at));
        self.sources.push((from, *stretch));
    }

    /// Waits for the card, and compares what it hashed with the table.
    fn compare(
        &self,
        container: &Container,
        lift: &dyn Lift,
        card: usize,
        found: &mut Vec<Place>,
    ) -> Result<()> {
        let values = lift.finish(card)?;
        for (((from, stretch), hashed), value) in self.sources.iter().zip(&self.hashed).zip(values) {
            if !container.stretch_hashes_to(stretch, &value) {
                let mut bytes = vec![0; stretch.bytes as usize];
                lift.read(card, hashed.at, &mut bytes)?;
                found.push(Place::stretch(container, (*from, card), stretch, &bytes));
            }
        }
        Ok(())
    }
}

/// A piece with its stretches' indices among those that are announced.
struct Item {
    piece: Piece,
    hashed: Range<usize>,
}

/// Reads everything into memory that the cards copy from; gives how long each took.
pub(super) fn read(
    container: &Container,
    (options, lift): (&LoadOptions, &dyn Lift),
    counter: &Counter<'_>,
    pieces: Vec<Vec<Piece>>,
    found: &mut Vec<Place>,
) -> Result<Vec<Duration>> {
    let device = options.verify == Verify::Device;
    let mut all = Vec::with_capacity(pieces.len());
    let mut queues = Vec::with_capacity(pieces.len());
    for (card, pieces) in pieces.into_iter().enumerate() {
        let mut announced = Announced::default();
        let mut items = VecDeque::with_capacity(pieces.len());
        let (mut longest, mut total) = (0, 0);
        for piece in pieces {
            let first = announced.hashed.len();
            if !stays(options, card, &piece) {
                longest = longest.max(piece.len());
                total += piece.len();
                let parts = piece.parts(container).filter(|_| device);
                for (stretch, range) in parts {
                    announced.add(container, piece.from, stretch, piece.at + range.start as u64);
                }
            }
            items.push_back(Item { piece, hashed: first..announced.hashed.len() });
        }
        if !items.is_empty() {
            lift.begin(card, longest as usize, total, &announced.hashed)?;
        }
        all.push(announced);
        queues.push(items);
    }
    let busy: Vec<bool> = queues.iter().map(|items| !items.is_empty()).collect();
    let queues = Queues::new(queues);
    queues.run(options.threads, found, |card, Item { piece, hashed }: Item, found| {
        let len = piece.len() as usize;
        let mut fill = |into: &mut [u8]| -> Result<()> {
            let source = container.card(piece.from)?;
            let read = source.file.read_exact_at(source.offset + piece.range.start, into);
            read.map_err(|e| shortened(container, e))?;
            match options.verify {
                Verify::Full => verify::piece(container, card, &piece, into, found),
                // The card hashes blobs; what lies between them is little.
                Verify::Device => verify::padding(container, &piece, into, found),
                Verify::Index | Verify::None => {}
            }
            Ok(())
        };
        if stays(options, card, &piece) {
            let mut passing = vec![0; len];
            fill(&mut passing)?;
            if device {
                verify::piece(container, card, &piece, &passing, found);
            }
        } else {
            lift.put(card, piece.at, len, hashed, &mut fill)?;
        }
        counter.add(card, len as u64);
        Ok::<_, RuntimeError>(())
    })?;
    for (card, announced) in all.iter().enumerate().filter(|(card, _)| busy[*card]) {
        announced.compare(container, lift, card, found)?;
    }
    Ok(queues.times().collect())
}

/// Lets the cards copy from mappings of the files; gives how long each took.
pub(super) fn map(
    container: &Container,
    (options, lift): (&LoadOptions, &dyn Lift),
    counter: &Counter<'_>,
    found: &mut Vec<Place>,
) -> Result<Vec<Duration>> {
    let cards = container.header().cards.len();
    let device = options.verify == Verify::Device;
    if options.verify == Verify::Full {
        let what = "what cards copy from a mapping is verified by the cards; give --verify device";
        return Err(RuntimeError::Setting(what.into()));
    }
    let arenas = (0..cards).map(|card| Arena::mapped(&container.card(card)?, container.path()));
    let arenas = arenas.collect::<Result<Vec<_>, _>>()?;
    let mut all = Vec::with_capacity(cards);
    let mut queues = Vec::with_capacity(cards);
    for (card, arena) in arenas.iter().enumerate() {
        let bytes = arena.bytes().len() as u64;
        if !arena.bytes().as_ptr().addr().is_multiple_of(rustix::param::page_size()) {
            let what = "the segments of this container do not begin on pages, so that no card copies from a mapping \
                        of them; give --load read";
            return Err(RuntimeError::Setting(what.into()));
        }
        let mut announced = Announced::default();
        for stretch in container.stretches(card).filter(|_| device) {
            let at = container.table().blobs()[stretch.blob].offset + stretch.offset;
            announced.add(container, card, &stretch, at);
        }
        // Of each part the stretches that lie within it; those that cross its end wait until all are there.
        let ends = |h: &Hashed| h.at + h.bytes;
        let mut queue = VecDeque::new();
        let mut crossing = Vec::new();
        let mut next = 0;
        for start in (0..bytes).step_by(MAPPED as usize) {
            let end = bytes.min(start + MAPPED);
            let hashed = &announced.hashed;
            let first = next;
            next += hashed[next..].iter().take_while(|h| h.at < end).count();
            let within = first + hashed[first..next].iter().take_while(|h| ends(h) <= end).count();
            crossing.extend(within..next);
            queue.push_back((start..end, first..within));
        }
        lift.begin(card, 0, 0, &announced.hashed)?;
        all.push((announced, crossing));
        queues.push(queue);
    }
    let queues = Queues::new(queues);
    queues.run(options.threads, found, |card, (range, hashed): (Range<u64>, Range<usize>), _| {
        let part = &arenas[card].bytes()[range.start as usize..range.end as usize];
        lift.put_mapped(card, range.start, part, hashed)?;
        counter.add(card, range.end - range.start);
        Ok::<_, RuntimeError>(())
    })?;
    for (card, (announced, crossing)) in all.iter().enumerate() {
        for &index in crossing {
            lift.hash_rest(card, index..index + 1)?;
        }
        if device {
            verify::segment_padding(container, card, arenas[card].bytes(), found);
        }
        announced.compare(container, lift, card, found)?;
    }
    Ok(queues.times().collect())
}
