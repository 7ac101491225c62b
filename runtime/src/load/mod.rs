//! Loading: a container into the arenas of the cards of this run, verified on the way.
//!
//! Two ways lead there. [`LoadMode::Read`] reads each segment with `pread` straight into an owned allocation and
//! hashes the bytes where they lie while they are still in the cache: one pass, and the bytes that were verified
//! are the bytes that are used. [`LoadMode::Map`] maps the file, which copies nothing and shares pages between
//! processes; what is mapped can change or vanish while it is used (see [`LoadMode::Map`]).
//!
//! [`Places`] says where everything goes. Mostly that is as it was packed; cards that a container was not packed for
//! get their blobs one by one.

mod again;
mod anew;
mod arena;
mod choose;
mod damage;
mod lift;
mod pieces;
mod places;
mod progress;
mod queues;
mod report;
mod verify;
mod weights;

pub use arena::Arena;
pub use damage::Damage;
pub use lift::{Fill, Hashed, Lift};
pub use places::{BankPlace, CardPlace, Places, Slot, TensorPlace};
pub use progress::{Progress, SoFar, size_text};
pub use report::{CardReport, LoadReport};
pub use verify::Verify;
pub use weights::Weights;

pub(crate) use again::again;
pub(crate) use choose::{Beside, Chosen, Wish, choose, needs, trial};

use crate::{Container, Result, RuntimeError};
use damage::Place;
use gantry_formats::container::ContainerError;
use gantry_formats::source::ReadAt;
use memmap2::MmapMut;
use pieces::Piece;
use progress::Counter;
use queues::Queues;
use std::collections::VecDeque;
use std::ops::Range;
use std::time::Instant;

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

/// Bytes of a card's arena that stay in their file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Left {
    /// The card of this run.
    pub card: usize,
    /// Inside its arena.
    pub range: Range<u64>,
}

/// Brings everything in `container` to its place in memory of this process.
///
/// Each card has a queue of its own, and all are served at the same time. Where the places are those that it was packed
/// with, segments are read as a whole; else blob by blob, each verified by its own hash.
///
/// # Errors
/// [`RuntimeError::Placement`] for places that are not those of this container; a card's file that is missing or cannot
/// be read, [`RuntimeError::Damage`] where bytes are not those that were written, [`RuntimeError::Allocation`].
pub fn load(container: &Container, places: &Places, options: &LoadOptions) -> Result<(Weights, LoadReport)> {
    if options.verify == Verify::Device {
        return Err(RuntimeError::Setting(
            "the host's memory is verified by the host; give --verify full".into(),
        ));
    }
    let bring = |pieces: Vec<Vec<Piece>>, counter: &Counter<'_>, found: &mut Vec<Place>| match options.mode {
        LoadMode::Read => read(container, places, pieces, options, counter, found),
        LoadMode::Map => map(container, pieces, options, counter, found),
    };
    let (arenas, mut left, report) = bring_all(container, places, options, pieces::PIECE, bring)?;
    if options.mode == LoadMode::Map {
        // The mapping has it.
        left.clear();
    }
    Ok((Weights::new(arenas, left), report))
}

/// Brings everything in `container` to its place in arenas of cards; gives what stays in its files.
///
/// # Errors
/// As [`load`], and what the cards say.
pub(crate) fn lift(
    container: &Container,
    places: &Places,
    options: &LoadOptions,
    cards: Box<dyn Lift>,
) -> Result<(Weights, LoadReport)> {
    let host = |card: usize| places.cards.get(card).is_some_and(|card| card.spec.host);
    let hosts = (0..places.cards.len()).any(host);
    if hosts && options.mode == LoadMode::Map {
        let what = "what a card of the host (cpu) holds beside other cards is read; give --load read";
        return Err(RuntimeError::Setting(what.into()));
    }
    let bring = |pieces: Vec<Vec<Piece>>, counter: &Counter<'_>, found: &mut Vec<Place>| {
        // The host's own cards are filled as if they were alone.
        let (mut lifted, mut own) = (Vec::new(), Vec::new());
        for (card, pieces) in pieces.into_iter().enumerate() {
            let (mine, theirs) = if host(card) { (pieces, Vec::new()) } else { (Vec::new(), pieces) };
            own.push(mine);
            lifted.push(theirs);
        }
        let mut times = match options.mode {
            LoadMode::Read => lift::read(container, (options, &*cards), counter, lifted, found)?,
            LoadMode::Map => lift::map(container, (options, &*cards), counter, found)?,
        };
        if !hosts {
            return Ok((Vec::new(), times));
        }
        let mut alone = places.clone();
        alone.cards.iter_mut().filter(|card| !card.spec.host).for_each(|card| card.bytes = 0);
        // What devices verify in their memory, the host does in its own.
        let verify = if options.verify == Verify::Device { Verify::Full } else { options.verify };
        let how = LoadOptions { verify, ..options.clone() };
        let (arenas, own_times) = read(container, &alone, own, &how, counter, found)?;
        times
            .iter_mut()
            .zip(own_times)
            .enumerate()
            .filter(|(card, _)| host(*card))
            .for_each(|(_, (time, own))| *time = own);
        Ok((arenas, times))
    };
    let (arenas, left, report) = bring_all(container, places, options, cards.piece(), bring)?;
    Ok((Weights::lifted(cards, arenas, left), report))
}

/// What is common to every way in: everything that is checked before and after bytes are brought.
fn bring_all(
    container: &Container,
    places: &Places,
    options: &LoadOptions,
    size: u64,
    bring: impl FnOnce(Vec<Vec<Piece>>, &Counter<'_>, &mut Vec<Place>) -> Result<Loaded>,
) -> Result<(Vec<Arena>, Vec<weights::LeftFile>, LoadReport)> {
    let start = Instant::now();
    places.check(container)?;
    let as_packed = places.are_as_packed(container);
    if options.mode == LoadMode::Map && !as_packed {
        return Err(RuntimeError::Setting(
            "a mapped file stays as it was packed, so that nothing in it goes to other cards; give --load read, or \
             the cards that it was packed for"
                .into(),
        ));
    }
    for card in 0..container.header().cards.len() {
        container.card(card)?;
    }
    container.check_unchanged()?;
    let mut found = match options.verify {
        Verify::None => Vec::new(),
        Verify::Full | Verify::Device | Verify::Index => verify::outer_padding(container)?,
    };
    let cards = 0..places.cards.len();
    let pieces: Vec<Vec<Piece>> = match as_packed {
        true => cards.map(|card| pieces::cut(container, card, size)).collect(),
        false => cards.map(|card| pieces::gather(container, places, card, size)).collect(),
    };
    let bytes: Vec<u64> = pieces.iter().map(|all| all.iter().map(Piece::len).sum()).collect();
    let counter = Counter::new(options.progress.as_ref(), bytes.iter().copied());
    let (arenas, times) = bring(pieces, &counter, &mut found)?;
    container.check_unchanged()?;
    if let Some(damage) = Damage::new(found) {
        return Err(RuntimeError::Damage(Box::new(damage)));
    }
    let left = weights::left(container, places, options)?;
    let cards = bytes.iter().zip(times).map(|(&bytes, time)| CardReport { bytes, time }).collect();
    let report = LoadReport {
        bytes: bytes.iter().sum(),
        time: start.elapsed(),
        mode: options.mode,
        verified: options.verify,
        cards,
    };
    Ok((arenas, left, report))
}

/// Whether all of a piece stays in its file.
fn stays(options: &LoadOptions, card: usize, piece: &Piece) -> bool {
    let place = piece.place();
    let within = |l: &Left| l.card == card && l.range.start <= place.start && place.end <= l.range.end;
    options.left.iter().any(within)
}

/// Arenas, and how long each took.
type Loaded = (Vec<Arena>, Vec<std::time::Duration>);

fn read(
    container: &Container,
    places: &Places,
    pieces: Vec<Vec<Piece>>,
    options: &LoadOptions,
    counter: &Counter<'_>,
    found: &mut Vec<Place>,
) -> Result<Loaded> {
    let failed = |bytes, source| RuntimeError::Allocation { what: "a card's arena", bytes, source };
    let mut memory = Vec::with_capacity(places.cards.len());
    for card in &places.cards {
        let too_large = |_| failed(card.bytes, std::io::ErrorKind::OutOfMemory.into());
        let bytes = usize::try_from(card.bytes).map_err(too_large)?;
        memory.push((Arena::writable(bytes).map_err(|e| failed(card.bytes, e))?, bytes));
    }
    let full = options.verify == Verify::Full;
    let shares = memory.iter_mut().zip(pieces).map(|((memory, _), pieces)| share(memory, pieces));
    let queues = Queues::new(shares.collect());
    queues.run(options.threads, found, |card, (piece, bytes): (Piece, &mut [u8]), found| {
        let source = container.card(piece.from)?;
        let fetch = |into: &mut [u8]| {
            let read = source.file.read_exact_at(source.offset + piece.range.start, into);
            read.map_err(|e| shortened(container, e))
        };
        let len = piece.len();
        if stays(options, card, &piece) {
            // Its pages are never touched, so they take no memory.
            if full {
                let mut passing = vec![0; bytes.len()];
                fetch(&mut passing)?;
                verify::piece(container, card, &piece, &passing, found);
            }
        } else {
            fetch(bytes)?;
            if full {
                verify::piece(container, card, &piece, bytes, found);
            }
        }
        counter.add(card, len);
        Ok::<_, ContainerError>(())
    })?;
    let times = queues.times().collect();
    drop(queues);
    let seal = |(memory, bytes)| Arena::sealed(memory, bytes).map_err(|e| failed(bytes as u64, e));
    Ok((memory.into_iter().map(seal).collect::<Result<_>>()?, times))
}

/// Gives each piece its own bytes of an arena, in which pieces ascend.
fn share(memory: &mut MmapMut, pieces: Vec<Piece>) -> VecDeque<(Piece, &mut [u8])> {
    let mut rest = &mut memory[..];
    let mut at = 0;
    let mut work = VecDeque::with_capacity(pieces.len());
    for piece in pieces {
        let place = piece.place();
        let (head, tail) = rest.split_at_mut((place.end - at) as usize);
        work.push_back((piece, &mut head[(place.start - at) as usize..]));
        rest = tail;
        at = place.end;
    }
    work
}

fn map(
    container: &Container,
    pieces: Vec<Vec<Piece>>,
    options: &LoadOptions,
    counter: &Counter<'_>,
    found: &mut Vec<Place>,
) -> Result<Loaded> {
    let mut arenas = Vec::with_capacity(pieces.len());
    for card in 0..pieces.len() {
        arenas.push(Arena::mapped(&container.card(card)?, container.path())?);
    }
    if options.verify != Verify::Full {
        let times = vec![std::time::Duration::ZERO; arenas.len()];
        return Ok((arenas, times));
    }
    arenas.iter().for_each(Arena::will_need);
    let queues = Queues::new(pieces.into_iter().map(VecDeque::from).collect());
    queues.run(options.threads, found, |card, piece: Piece, found| {
        let range = piece.range.start as usize..piece.range.end as usize;
        verify::piece(container, card, &piece, &arenas[card].bytes()[range], found);
        counter.add(card, piece.len());
        Ok::<_, ContainerError>(())
    })?;
    let times = queues.times().collect();
    Ok((arenas, times))
}

/// A file that ends early was longer when it was opened.
fn shortened(container: &Container, source: std::io::Error) -> ContainerError {
    if source.kind() == std::io::ErrorKind::UnexpectedEof {
        let what = "it is shorter than when it was opened".to_string();
        return ContainerError::Integrity { region: "file changed while reading".into(), what };
    }
    ContainerError::Io { path: container.path().into(), source }
}
