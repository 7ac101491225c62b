//! Filling arenas: reading threads write into a ring of pinned memory, from which a card copies in a stream of its own
//! and, where it is to verify, hashes in another what has arrived.

use super::driver::{
    Arg, CardError, Context, DeviceMemory, Event, Function, Module, Pinned, Registered, Start, Stream,
};
use crate::load::{Fill, Hashed, Lift};
use crate::{Result, RuntimeError};
use std::any::Any;
use std::collections::VecDeque;
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};

/// A piece: long enough that reading and copying it cost much more than starting to.
const PIECE: u64 = 2 << 20;

/// Streams that hash: a piece keeps but a few multiprocessors busy.
const HASHING: usize = 16;

/// Pinned memory of a card at most, whatever the model's size.
const RING: u64 = 128 << 20;

/// Bytes behind an arena that the hash kernel may read, never use.
const BEHIND: u64 = 64;

/// What the hash kernel takes for each stretch: `Stretch` of `blake3.c`.
const DESCRIBED: usize = 24;

/// Cards that are being filled.
pub(crate) struct CardLift {
    /// None for one in the host's memory, which is filled without this.
    cards: Vec<Option<Card>>,
    /// Threads that will read.
    threads: usize,
}

struct Card {
    // First, for a stream that goes away waits for what it was given, which is about all that follows.
    copies: Stream,
    hashes: Vec<Stream>,
    context: Arc<Context>,
    arena: DeviceMemory,
    kernel: Function,
    begun: OnceLock<Begun>,
}

/// What a card has from the moment that it is known what comes.
struct Begun {
    ring: Ring,
    /// Descriptions of all stretches, and room for their hashes.
    stretches: DeviceMemory,
    values: DeviceMemory,
    count: usize,
    /// Whose turn it is among the streams that hash.
    turn: AtomicUsize,
}

/// Stretches as the hash kernel takes them.
pub(super) fn described(hashed: &[Hashed]) -> Vec<u8> {
    let mut described = Vec::with_capacity(hashed.len() * DESCRIBED);
    for h in hashed {
        described.extend_from_slice(&h.at.to_le_bytes());
        described.extend_from_slice(&(h.offset / 1024).to_le_bytes());
        described.extend_from_slice(&(h.bytes as u32).to_le_bytes());
        described.extend_from_slice(&u32::from(h.whole).to_le_bytes());
    }
    described
}

/// Slots that are free, those that are longest free first.
struct Ring {
    free: Mutex<VecDeque<Slot>>,
    returned: Condvar,
}

/// Pinned memory, and the moment from which on it may be written again.
struct Slot {
    memory: Pinned,
    copied: Event,
}

impl Ring {
    fn lock(&self) -> MutexGuard<'_, VecDeque<Slot>> {
        self.free.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for a slot whose copy is done.
    fn take(&self) -> Result<Slot, CardError> {
        let mut free = self.lock();
        let slot = loop {
            match free.pop_front() {
                Some(slot) => break slot,
                None => free = self.returned.wait(free).unwrap_or_else(PoisonError::into_inner),
            }
        };
        drop(free);
        match slot.copied.synchronize() {
            Ok(()) => Ok(slot),
            Err(e) => {
                // Others wait for it, and will find the same.
                self.give(slot);
                Err(e)
            }
        }
    }

    fn give(&self, slot: Slot) {
        self.lock().push_back(slot);
        self.returned.notify_one();
    }
}

/// A slot that goes back whatever happens: others wait for it.
struct Lent<'a> {
    ring: &'a Ring,
    slot: Option<Slot>,
}

impl Drop for Lent<'_> {
    fn drop(&mut self) {
        if let Some(slot) = self.slot.take() {
            self.ring.give(slot);
        }
    }
}

impl CardLift {
    /// Arenas of these bytes, one on each card; none for a card of the host.
    ///
    /// # Errors
    /// [`CardError::OutOfMemory`] says which has too little.
    pub(crate) fn new(cards: &[(Option<Arc<Context>>, u64)], threads: usize) -> Result<Self, CardError> {
        let card = |(context, bytes): &(Option<Arc<Context>>, u64)| {
            let Some(context) = context else { return Ok(None) };
            let kernel = Module::new(context)?.function("gantry_blake3")?;
            let arena = DeviceMemory::new(context, bytes.saturating_add(BEHIND), "a card's arena")?;
            let copies = Stream::new(context)?;
            let hashes = (0..HASHING).map(|_| Stream::new(context)).collect::<Result<_, CardError>>()?;
            let (context, begun) = (Arc::clone(context), OnceLock::new());
            Ok(Some(Card { context, arena, copies, hashes, kernel, begun }))
        };
        Ok(Self { cards: cards.iter().map(card).collect::<Result<_, CardError>>()?, threads })
    }

    /// The arenas, filled.
    pub(crate) fn into_arenas(self) -> Vec<DeviceMemory> {
        self.cards.into_iter().flatten().map(|card| card.arena).collect()
    }

    fn card(&self, card: usize) -> Result<&Card> {
        let missing = || RuntimeError::Placement(format!("card {card} has no memory of its own"));
        self.cards.get(card).and_then(Option::as_ref).ok_or_else(missing)
    }

    /// Hashes some stretches once `after` has come.
    #[allow(unsafe_code, reason = "a launch")]
    fn hash(&self, card: usize, hashed: Range<usize>, after: Option<&Event>) -> Result<()> {
        let card = self.card(card)?;
        let begun = card.begun()?;
        if hashed.is_empty() {
            return Ok(());
        }
        let turn = begun.turn.fetch_add(1, Ordering::Relaxed) % HASHING;
        let stream = &card.hashes[turn];
        after.map_or(Ok(()), |event| stream.wait(event))?;
        let first = hashed.start as u64;
        let args = [
            Arg::U64(card.arena.address()),
            Arg::U64(begun.stretches.address() + first * DESCRIBED as u64),
            Arg::U64(begun.values.address() + first * 32),
        ];
        let groups = hashed.len() as u32;
        // SAFETY: each stretch lies in the arena, which has room behind it, and has a description and a value; all
        // of them outlive the stream.
        unsafe { card.kernel.launch(stream, [groups, 1, 1], (card.kernel.group(), 0), Start::After, &args) }?;
        Ok(())
    }
}

impl Card {
    fn begun(&self) -> Result<&Begun> {
        self.begun
            .get()
            .ok_or_else(|| RuntimeError::Placement("a card gets bytes before it was told of".into()))
    }
}

impl Lift for CardLift {
    fn piece(&self) -> u64 {
        PIECE
    }

    fn begin(&self, card: usize, longest: usize, total: u64, hashed: &[Hashed]) -> Result<()> {
        let card = self.card(card)?;
        let slot = longest.max(1);
        // One for each thread to write and one for the card to copy; no more than there is to bring.
        let most = (total / slot as u64 + 1).min(RING / slot as u64).max(1);
        let count = (2 * self.threads as u64).clamp(1, most);
        let slots = (0..count).map(|_| {
            let memory = Pinned::new(&card.context, slot, "the ring that a card copies from")?;
            Ok(Slot { memory, copied: Event::new(&card.context, false)? })
        });
        let slots = slots.collect::<Result<VecDeque<_>, CardError>>()?;
        let described = described(hashed);
        let table = "the table of what a card hashes";
        let stretches = DeviceMemory::new(&card.context, described.len() as u64, table)?;
        stretches.write(0, &described, &card.copies)?;
        let values = DeviceMemory::new(&card.context, 32 * hashed.len() as u64, table)?;
        let ring = Ring { free: Mutex::new(slots), returned: Condvar::new() };
        let begun = Begun { ring, stretches, values, count: hashed.len(), turn: AtomicUsize::new(0) };
        card.begun
            .set(begun)
            .map_err(|_| RuntimeError::Placement("a card was told twice of what comes".into()))
    }

    #[allow(unsafe_code, reason = "an asynchronous copy")]
    fn put(&self, card: usize, at: u64, len: usize, hashed: Range<usize>, fill: &mut Fill<'_>) -> Result<()> {
        let of = self.card(card)?;
        let begun = of.begun()?;
        let mut lent = Lent { ring: &begun.ring, slot: Some(begun.ring.take()?) };
        let Some(slot) = &mut lent.slot else { return Ok(()) };
        let done = fill(&mut slot.memory[..len]).and_then(|()| {
            // SAFETY: the slot is written again only after `copied`, and freed only after its stream was waited for.
            unsafe { of.arena.write_async(at, &slot.memory[..len], &of.copies) }?;
            slot.copied.record(&of.copies)?;
            self.hash(card, hashed, Some(&slot.copied))
        });
        if done.is_err() {
            // Nothing says any longer when the copy is done, if there was one.
            let _ = of.copies.synchronize();
        }
        done
    }

    #[allow(unsafe_code, reason = "an asynchronous copy")]
    fn put_mapped(&self, card: usize, at: u64, bytes: &[u8], hashed: Range<usize>) -> Result<()> {
        let of = self.card(card)?;
        let pinned = Registered::new(&of.context, bytes)?;
        let copied = Event::new(&of.context, false)?;
        // SAFETY: the mapping stays, pinned, until the copy was waited for.
        unsafe { of.arena.write_async(at, &pinned, &of.copies) }?;
        let given = copied.record(&of.copies).map_err(Into::into);
        let given = given.and_then(|()| self.hash(card, hashed, Some(&copied)));
        // Whatever became of the rest, the copy may be under way. An event that was not recorded waits for nothing.
        let done = if given.is_ok() { copied.synchronize() } else { of.copies.synchronize() };
        given.and(done.map_err(Into::into))
    }

    fn hash_rest(&self, card: usize, hashed: Range<usize>) -> Result<()> {
        self.card(card)?.copies.synchronize()?;
        self.hash(card, hashed, None)
    }

    fn finish(&self, card: usize) -> Result<Vec<[u8; 32]>> {
        let card = self.card(card)?;
        card.copies.synchronize()?;
        card.hashes.iter().try_for_each(Stream::synchronize)?;
        let begun = card.begun()?;
        let mut values = vec![0; 32 * begun.count];
        if begun.count > 0 {
            begun.values.read(0, &mut values, &card.copies)?;
        }
        Ok(values.as_chunks().0.to_vec())
    }

    fn read(&self, card: usize, at: u64, into: &mut [u8]) -> Result<()> {
        let card = self.card(card)?;
        Ok(card.arena.read(at, into, &card.copies)?)
    }

    fn into_any(self: Box<Self>) -> Box<dyn Any + Send + Sync> {
        self
    }
}
