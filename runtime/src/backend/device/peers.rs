//! Mailboxes and boards in the memory of cards that reach each other's: the protocol of [`crate::exchange`], kept by the
//! kernels of `kernels/device/exchange.c`.

use super::driver::{CardError, DeviceMemory, Pinned, Stream};
use super::exchange::Exchange;
use super::kernels::Args;
use super::loaded::{Loaded, wrong};
use super::steps::{Around, Runner};
use super::ways::{ALIGN, END, Link, NOTE, SLOT, STRETCHES, Sizes, Way};
use crate::backend::RunOptions;
use crate::backend::cpu::Differ;
use crate::exchange::{Awaited, Epoch, ExchangeError, Late, State, Who};
use crate::model::program::{BufferId, CardPrograms, Holders, Step};
use crate::{Result, RuntimeError};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// A card.
struct Card {
    /// Not 0 once something was wrong.
    trouble: DeviceMemory,
    /// For what is done beside its runs.
    aside: Arc<Stream>,
}

/// Links between cards that reach each other's memory, and the host's.
pub(super) struct Peers {
    mail: BTreeMap<Way, Link>,
    boards: BTreeMap<Way, Link>,
    cards: Vec<Card>,
    /// Of each card, what it found wrong first.
    reports: Mutex<Pinned>,
    reports_at: u64,
    patience: Duration,
}

/// What a launch was for: of a report.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Tag {
    who: Who,
    /// A board, not a mailbox.
    board: bool,
}

/// Bits of a card's number and of a layer's in a tag.
const CARD: u32 = 12;
const LAYER: u32 = 24;

impl Tag {
    fn number(self) -> usize {
        let layer = self.who.layer.map_or(0, |layer| layer as usize + 1) & ((1 << LAYER) - 1);
        let cards = self.who.waiting << CARD | self.who.for_card;
        (cards << LAYER | layer) << 1 | usize::from(self.board)
    }

    fn of(number: u64) -> Self {
        let field = |shift: u32, bits: u32| (number >> shift) as usize & ((1 << bits) - 1);
        let layer = field(1, LAYER).checked_sub(1).map(|layer| layer as u32);
        let who = Who { waiting: field(1 + LAYER + CARD, CARD), for_card: field(1 + LAYER, CARD), layer };
        Self { who, board: number & 1 == 1 }
    }
}

/// Kinds of what is wrong, as kernels report them.
const LATE_WORDS: u32 = 1;
const LATE_TAKEN: u32 = 2;
const DIFFERS: u32 = 3;

impl Peers {
    /// Links for all that the lists of `programs` exchange in runs of up to `tokens` tokens.
    ///
    /// # Errors
    /// Where a card has no memory for them.
    pub(super) fn new(
        cards: &[Arc<Loaded>],
        programs: &CardPrograms,
        tokens: usize,
        run: &RunOptions,
    ) -> Result<Self> {
        let Some(first) = cards.first() else { return Err(missing((0, 0))) };
        let Sizes { mail: letters, boards: rows } = Sizes::of(&first.program, programs, tokens);
        // One beyond them is the host's.
        let ends = |way: Way| [way.0, way.1].map(|card| cards.get(card).map(|card| &**card));
        let (mut mail, mut boards) = (BTreeMap::new(), BTreeMap::new());
        for (way, launches) in letters {
            let mut words = 0u64;
            let first_slots = launches.iter().map(|bytes| {
                let first = words / SLOT;
                words = words.saturating_add(*bytes);
                first
            });
            let first_slots = first_slots.collect();
            mail.insert(way, Link::new(ends(way), (words / SLOT, words), first_slots)?);
        }
        for (way, (rows, words)) in rows {
            boards.insert(way, Link::new(ends(way), (rows, words), Vec::new())?);
        }
        let card = |card: &Arc<Loaded>| {
            let trouble = DeviceMemory::new(&card.context, 4, "what cards give each other")?;
            Ok(Card { trouble, aside: Arc::clone(&card.aside) })
        };
        let states = cards.iter().map(card).collect::<Result<Vec<_>, CardError>>()?;
        let reports = Pinned::new(&first.context, 8 * cards.len(), "what cards report")?;
        let reports_at = reports.as_ptr().expose_provenance() as u64;
        let patience = run.patience.bound;
        let peers = Self { mail, boards, cards: states, reports: Mutex::new(reports), reports_at, patience };
        peers.reset()?;
        Ok(peers)
    }

    fn links(&self) -> impl Iterator<Item = (Way, &Link)> {
        self.mail.iter().chain(&self.boards).map(|(way, link)| (*way, link))
    }

    fn lock(&self) -> MutexGuard<'_, Pinned> {
        self.reports.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sets all ends and the cards' words of trouble to bytes of `value`, beside what the cards do.
    fn fill(&self, value: u8) -> Result<(), CardError> {
        let mut done = Ok(());
        // As far as it goes, whatever fails: cards wait for it.
        let mut and = |result: Result<(), CardError>| {
            if done.is_ok() {
                done = result;
            }
        };
        for ((from, to), link) in self.links() {
            for (end, card) in link.ends.iter().zip([from, to]) {
                and(end.fill(value, self.cards.get(card).map(|card| &*card.aside)));
            }
        }
        for card in &self.cards {
            and(card.trouble.fill(0..card.trouble.bytes(), value, &card.aside));
        }
        for card in &self.cards {
            and(card.aside.synchronize());
        }
        done
    }

    fn common(&self, card: usize) -> [u64; 2] {
        [self.cards[card].trouble.address(), self.reports_at + 8 * card as u64]
    }

    fn nanoseconds(&self) -> usize {
        usize::try_from(self.patience.as_nanos()).unwrap_or(usize::MAX >> 1)
    }

    /// Sends a message, or receives one.
    fn message(
        &self,
        runner: &Runner,
        loaded: &Loaded,
        (way, sends): (Way, bool),
        (layer, ids): (Option<usize>, &[BufferId]),
        n: usize,
    ) -> Result<()> {
        let link = self.mail(way)?;
        let for_card = if sends { way.1 } else { way.0 };
        let who = Who { waiting: loaded.card, for_card, layer: layer.and_then(|l| u32::try_from(l).ok()) };
        let tag = Tag { who, board: false }.number();
        let at = |id: &BufferId| [runner.buffers.at(*id), runner.buffers.scales(*id)];
        let both = ids.iter().flat_map(|id| at(id).into_iter().zip(loaded.program.buffers[id.0].bytes(n)));
        let stretches: Vec<(u64, u64)> = both
            .filter(|(_, bytes)| *bytes > 0)
            .map(|(at, bytes)| (at, bytes.next_multiple_of(ALIGN)))
            .collect();
        let [own, far] = if sends { [0, 1] } else { [1, 0] };
        for (chunk, first) in stretches.chunks(STRETCHES).zip(&link.launches) {
            let mut addresses = [0; STRETCHES + 5];
            let mut long = [0; STRETCHES + 2];
            for (i, (at, bytes)) in chunk.iter().enumerate() {
                (addresses[i], long[i]) = (*at, *bytes as usize);
            }
            let [trouble, report] = self.common(loaded.card);
            let ends = [own, far].map(|i: usize| link.ends[i].address() + first * END);
            addresses[STRETCHES..].copy_from_slice(&[
                link.words.address() + first * SLOT,
                ends[0],
                ends[1],
                trouble,
                report,
            ]);
            long[STRETCHES..].copy_from_slice(&[self.nanoseconds(), tag]);
            let slots = long[..STRETCHES].iter().sum::<usize>().div_ceil(SLOT as usize);
            let name = if sends { "gantry_exchange_send" } else { "gantry_exchange_receive" };
            runner.launch(loaded, name, [slots, 1, 1], &Args::at(&addresses).long(&long))?;
        }
        Ok(())
    }

    /// How long a card waits for another.
    pub(super) fn patience(&self) -> Duration {
        self.patience
    }

    pub(super) fn mail(&self, way: Way) -> Result<&Link> {
        self.mail.get(&way).ok_or_else(|| missing(way))
    }

    pub(super) fn board(&self, way: Way) -> Result<&Link> {
        self.boards.get(&way).ok_or_else(|| missing(way))
    }

    fn give(
        &self,
        runner: &Runner,
        around: &Around<'_, '_>,
        to: usize,
        (holders, ids, y): (&Holders, BufferId, BufferId),
        n: usize,
    ) -> Result<()> {
        let loaded = around.loaded;
        let link = self.board((loaded.card, to))?;
        let (width, used) = (loaded.program.buffers[y.0].width, loaded.program.values(ids));
        let addresses = [
            runner.buffers.at(y),
            runner.buffers.at(ids),
            around.batch.positions(),
            loaded.turns(holders, loaded.card)?,
            link.words.address(),
            link.ends[0].address(),
            link.ends[1].address(),
            self.common(loaded.card)[0],
        ];
        let args = Args::at(&addresses).long(&[width]).int(&[width, used, holders.experts()]);
        runner.launch(loaded, "gantry_exchange_return", [n * used, 1, 1], &args)
    }

    fn collect(
        &self,
        runner: &Runner,
        around: &Around<'_, '_>,
        (from, layer, compare): (usize, Option<usize>, bool),
        (holders, ids, y): (&Holders, BufferId, BufferId),
        n: usize,
    ) -> Result<()> {
        let loaded = around.loaded;
        let link = self.board((from, loaded.card))?;
        let (width, used) = (loaded.program.buffers[y.0].width, loaded.program.values(ids));
        let layer = layer.and_then(|l| u32::try_from(l).ok());
        let who = Who { waiting: loaded.card, for_card: from, layer };
        let [trouble, report] = self.common(loaded.card);
        let addresses = [
            runner.buffers.at(y),
            runner.buffers.at(ids),
            around.batch.positions(),
            loaded.turns(holders, from)?,
            link.words.address(),
            link.ends[1].address(),
            trouble,
            report,
        ];
        let long = [width, self.nanoseconds(), Tag { who, board: true }.number()];
        let args = Args::at(&addresses).long(&long).int(&[width, used, holders.experts()]);
        let name = if compare { "gantry_exchange_compare" } else { "gantry_exchange_collect" };
        runner.launch(loaded, name, [n * used, 1, 1], &args)
    }

    /// What a card reported, with the note of the first slot that has one.
    fn explain(&self, card: usize, report: u64) -> Result<RuntimeError> {
        let (kind, Tag { who, board }) = ((report >> 60) as u32, Tag::of(report & (u64::MAX >> 4)));
        // What was taken is noted where it was sent from, all else where it is read.
        let (way, end) = match kind {
            LATE_TAKEN => ((who.waiting, who.for_card), 0),
            _ => ((who.for_card, who.waiting), 1),
        };
        let link = if board { self.boards.get(&way) } else { self.mail.get(&way) };
        let ends = &link.ok_or_else(|| missing(way))?.ends[end];
        let words = ends.read(&self.cards[card].aside)?;
        let slots = words.chunks_exact(END as usize / 4).map(|slot| &slot[NOTE..]);
        let note = slots.into_iter().find(|note| note[0] == kind);
        let note = note.ok_or_else(|| wrong("program", "a card reports what it has no note of".into()))?;
        let &[_, found, expected, at, expert, token, ..] = note else { return Err(missing(way)) };
        if kind == DIFFERS {
            let values = [found, expected].map(f32::from_bits);
            let place = (token as usize, expert, at as usize);
            let differ = Differ::new(who.for_card, who.layer.map(|l| l as usize), place, values);
            return Ok(RuntimeError::Experts(Box::new(differ)));
        }
        let awaited = if kind == LATE_WORDS { Awaited::Words } else { Awaited::Taken };
        let found = state(found);
        let after = if found == State::Failed { Duration::ZERO } else { self.patience };
        let late = Late { who, awaited, found, expected: state(expected), after };
        Ok(RuntimeError::Exchange(ExchangeError::Late(late)))
    }
}

pub(super) fn state(word: u32) -> State {
    match Epoch::new(word) {
        Some(epoch) => State::At(epoch),
        None if word == 0 => State::Nothing,
        None => State::Failed,
    }
}

pub(super) fn missing((from, to): Way) -> RuntimeError {
    wrong("program", format!("no link leads from card {from} to card {to}"))
}

/// How little an error says beside others of the same run: one that only heard that another card failed says least.
pub(super) fn rank(error: &RuntimeError) -> u8 {
    match error {
        RuntimeError::Exchange(ExchangeError::Late(late)) if late.found == State::Failed => 2,
        RuntimeError::Exchange(_) => 1,
        _ => 0,
    }
}

impl Exchange for Peers {
    fn step(&self, runner: &Runner, around: &Around<'_, '_>, step: &Step, n: usize) -> Result<()> {
        let loaded = around.loaded;
        match step {
            Step::Send { to, layer, buffers } => {
                self.message(runner, loaded, ((loaded.card, *to), true), (*layer, buffers), n)
            }
            Step::Receive { from, layer, buffers } => {
                self.message(runner, loaded, ((*from, loaded.card), false), (*layer, buffers), n)
            }
            Step::Return { to, holders, ids, y } => self.give(runner, around, *to, (holders, *ids, *y), n),
            Step::Collect { from, layer, holders, ids, y, compare } => from.iter().try_for_each(|from| {
                self.collect(runner, around, (*from, *layer, *compare), (holders, *ids, *y), n)
            }),
            _ => Err(super::look_back::unsupported(step)),
        }
    }

    fn abort(&self) {
        // A card that is lost says so when it is waited for.
        let _ = self.fill(0xff);
    }

    fn check(&self) -> Result<()> {
        let reports: Vec<u64> = self.lock().as_chunks().0.iter().map(|b| u64::from_le_bytes(*b)).collect();
        let wrong = reports.into_iter().enumerate().filter(|(_, report)| *report != 0);
        let errors = wrong.map(|(card, report)| self.explain(card, report).unwrap_or_else(|e| e));
        errors.min_by_key(rank).map_or(Ok(()), Err)
    }

    fn reset(&self) -> Result<()> {
        self.lock().fill(0);
        Ok(self.fill(0)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tags_say_who_waits_for_whom_and_where() {
        for layer in [None, Some(0), Some(4095)] {
            for (waiting, for_card) in [(0, 1), (1, 0), (4095, 17)] {
                for board in [false, true] {
                    let tag = Tag { who: Who { waiting, for_card, layer }, board };
                    assert!(tag.number() < 1 << 60);
                    assert_eq!(Tag::of(tag.number() as u64), tag);
                }
            }
        }
    }
}
