//! The host's side of ways between NVIDIA cards and a card in the host's memory: what the kernels of
//! `kernels/device/exchange.c` do at their end, done here by a thread.

use super::loaded::Loaded;
use super::peers::{Peers, missing, state};
use super::ways::{ALIGN, COUNT, END, Link, Room, SLOT, STRETCHES};
use crate::backend::RunOptions;
use crate::backend::cpu::{Cpu, HostLoaded, Ways};
use crate::exchange::{Awaited, Epoch, ExchangeError, Late, Patience, State, Who};
use crate::load::Weights;
use crate::model::program::{CardPrograms, ExpertCheck, Step};
use crate::{Result, RuntimeError};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// How long a flag is looked at without a pause: longer than a card takes for what lies between two layers' experts.
const KEEN: Duration = Duration::from_millis(1);

/// Words of an end.
const WORDS: usize = END as usize / 4;

/// All ways of the card `card`, which is the host's.
pub(super) struct HostWays {
    pub(super) peers: Arc<Peers>,
    pub(super) card: usize,
}

/// The epoch after the last one that an end's own card counted.
fn next_epoch(end: &[AtomicU32]) -> Epoch {
    Epoch::new(end[COUNT].load(Ordering::Relaxed)).map_or(Epoch::FIRST, Epoch::next)
}

/// Waits until the other card has written `expected` to an end.
fn wait(end: &[AtomicU32], expected: Epoch, patience: &Patience, who: Who) -> Result<(), Late> {
    let mut found = State::Nothing;
    let start = Instant::now();
    let mut look = || {
        found = state(end[0].load(Ordering::Acquire));
        (found == State::At(expected) || found == State::Failed).then_some(())
    };
    let mut came = look();
    while came.is_none() && start.elapsed() < KEEN.min(patience.bound) {
        std::hint::spin_loop();
        came = look();
    }
    let after = match came {
        Some(()) => Duration::ZERO,
        None => patience.until::<AtomicU32, ()>(look).err().unwrap_or(Duration::ZERO),
    };
    let expected = State::At(expected);
    match found == expected {
        true => Ok(()),
        false => Err(Late { who, awaited: Awaited::Words, found, expected, after }),
    }
}

/// A way as the host sees it.
#[derive(Clone, Copy)]
struct Seen<'a> {
    words: &'a [AtomicU32],
    /// At the card that writes, and at the one that reads.
    ends: [&'a [AtomicU32]; 2],
    launches: &'a [u64],
}

impl<'a> Seen<'a> {
    fn of(link: &'a Link) -> Self {
        let ends = link.ends.each_ref().map(Room::words);
        Self { words: link.words.words(), ends, launches: &link.launches }
    }

    /// The ends of a slot.
    fn ends(&self, slot: usize) -> [&'a [AtomicU32]; 2] {
        self.ends.map(|end| &end[slot * WORDS..][..WORDS])
    }
}

/// Takes a message of these stretches, each rounded up to a multiple of 16 bytes.
fn take(
    seen: Seen<'_>,
    lengths: &[u64],
    (patience, who): (&Patience, Who),
    into: &mut Vec<u32>,
) -> Result<(), Late> {
    into.clear();
    for (chunk, first) in lengths.chunks(STRETCHES).zip(seen.launches) {
        let bytes: u64 = chunk.iter().sum();
        for slot in 0..bytes.div_ceil(SLOT) {
            let at = (first + slot) as usize;
            let [far, own] = seen.ends(at);
            let epoch = next_epoch(own);
            wait(own, epoch, patience, who)?;
            let words = (bytes - slot * SLOT).min(SLOT) as usize / 4;
            let from = &seen.words[at * SLOT as usize / 4..][..words];
            into.extend(from.iter().map(|word| word.load(Ordering::Relaxed)));
            own[COUNT].store(epoch.get(), Ordering::Relaxed);
            far[0].store(epoch.get(), Ordering::Release);
        }
    }
    Ok(())
}

/// Puts a row on a board.
fn put(seen: Seen<'_>, row: usize, values: &[f32]) {
    let [own, far] = seen.ends(row);
    let epoch = next_epoch(own);
    let words = &seen.words[row * values.len()..][..values.len()];
    words.iter().zip(values).for_each(|(word, value)| word.store(value.to_bits(), Ordering::Relaxed));
    own[COUNT].store(epoch.get(), Ordering::Relaxed);
    far[0].store(epoch.get(), Ordering::Release);
}

/// The host's card beside `cards`, for which it computes experts.
///
/// # Errors
/// Where it is given anything else, or what it computes is to be compared.
pub(super) fn loaded(
    host: &Cpu,
    cards: &[Arc<Loaded>],
    programs: &CardPrograms,
    weights: &Arc<Weights>,
    run: &RunOptions,
) -> Result<HostLoaded> {
    if run.check != ExpertCheck::Off {
        return Err(RuntimeError::Setting(
            "experts of the host's card (cpu) are computed in another order than an NVIDIA card's, so that there is \
             nothing to compare; leave --ep-verify and --ep-self out"
                .into(),
        ));
    }
    let (card, first) = (cards.len(), cards.first().ok_or_else(|| missing((0, 0)))?);
    let program = &first.program;
    let own = programs.body.lists.get(card).into_iter().flatten();
    let scales = own.flat_map(|step| match step {
        Step::Experts { products, .. } => products.iter().filter_map(|p| p.scale).collect(),
        _ => Vec::new(),
    });
    let mut vectors = vec![Vec::new(); program.vectors.len()];
    for id in scales {
        let of = cards.get(program.vectors[id.0].card).ok_or_else(|| missing((card, 0)))?;
        vectors[id.0] = of.vector_values(id)?;
    }
    HostLoaded::new(host, card, (program, programs), weights, vectors)
}

impl Ways for HostWays {
    fn receive(
        &self,
        from: usize,
        layer: Option<usize>,
        stretches: &[u64],
        words: &mut Vec<u32>,
    ) -> Result<()> {
        let way = (from, self.card);
        let link = self.peers.mail(way)?;
        let who =
            Who { waiting: self.card, for_card: from, layer: layer.and_then(|l| u32::try_from(l).ok()) };
        let padded: Vec<u64> = stretches.iter().map(|bytes| bytes.next_multiple_of(ALIGN)).collect();
        let patience = Patience { bound: self.peers.patience() };
        let taken = take(Seen::of(link), &padded, (&patience, who), words);
        taken.map_err(|late| RuntimeError::Exchange(ExchangeError::Late(late)))
    }

    fn give(&self, to: usize, rows: &mut dyn Iterator<Item = (usize, &[f32])>) -> Result<()> {
        let link = self.peers.board((self.card, to))?;
        let seen = Seen::of(link);
        for (row, values) in rows {
            if (row + 1) * WORDS > seen.ends[0].len() || (row + 1) * values.len() > seen.words.len() {
                return Err(missing((self.card, to)));
            }
            put(seen, row, values);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What a way's memory would be, with `slots` slots and so many words.
    struct Memory {
        words: Vec<AtomicU32>,
        ends: [Vec<AtomicU32>; 2],
        launches: Vec<u64>,
    }

    impl Memory {
        fn new(slots: usize, words: usize, launches: &[u64]) -> Self {
            let zeros = |n: usize| (0..n).map(|_| AtomicU32::new(0)).collect::<Vec<_>>();
            let ends = [zeros(slots * WORDS), zeros(slots * WORDS)];
            Self { words: zeros(words), ends, launches: launches.to_vec() }
        }

        fn seen(&self) -> Seen<'_> {
            let ends = self.ends.each_ref().map(Vec::as_slice);
            Seen { words: &self.words, ends, launches: &self.launches }
        }
    }

    fn who() -> Who {
        Who { waiting: 1, for_card: 0, layer: Some(3) }
    }

    /// As `gantry_exchange_send` does for a slot, once what it sent before was taken.
    fn send(seen: Seen<'_>, slot: usize, values: &[u32]) {
        let [own, far] = seen.ends(slot);
        while own[0].load(Ordering::Acquire) != own[COUNT].load(Ordering::Relaxed) {
            std::thread::yield_now();
        }
        let to = &seen.words[slot * SLOT as usize / 4..];
        to.iter().zip(values).for_each(|(word, value)| word.store(*value, Ordering::Relaxed));
        let epoch = next_epoch(own).get();
        own[COUNT].store(epoch, Ordering::Relaxed);
        far[0].store(epoch, Ordering::Release);
    }

    /// Messages of two launches, the first of two slots, again and again: each is the one that was sent.
    #[test]
    fn messages_come_in_order_and_whole() {
        let lengths = [SLOT, 64, 16, 16, 16, 16, 48];
        let memory = Memory::new(3, 3 * SLOT as usize / 4, &[0, 2]);
        let seen = memory.seen();
        let rounds = 500u32;
        let of = |round: u32, n: usize, more: u32| (0..n as u32).map(move |i| round * 7 + i + more);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for round in 0..rounds {
                    let slots = [SLOT as usize / 4, 32, 12];
                    for (slot, n) in slots.into_iter().enumerate() {
                        send(seen, slot, &of(round, n, slot as u32).collect::<Vec<_>>());
                    }
                }
            });
            let mut words = Vec::new();
            for round in 0..rounds {
                take(seen, &lengths, (&Patience::default(), who()), &mut words).unwrap();
                let want = of(round, SLOT as usize / 4, 0).chain(of(round, 32, 1)).chain(of(round, 12, 2));
                assert!(words.iter().copied().eq(want), "round {round}");
            }
        });
    }

    #[test]
    fn a_card_that_has_failed_or_is_late_is_named() {
        let memory = Memory::new(1, SLOT as usize / 4, &[0]);
        let bound = Patience { bound: Duration::from_millis(20) };
        let late = take(memory.seen(), &[16], (&bound, who()), &mut Vec::new()).unwrap_err();
        assert_eq!((late.found, late.who), (State::Nothing, who()));
        assert!(late.after >= bound.bound);
        memory.ends[1][0].store(u32::MAX, Ordering::Release);
        let late = take(memory.seen(), &[16], (&Patience::default(), who()), &mut Vec::new()).unwrap_err();
        assert_eq!((late.found, late.after), (State::Failed, Duration::ZERO));
    }

    /// As `gantry_exchange_collect` looks at them.
    #[test]
    fn a_row_stands_under_its_own_flag() {
        let memory = Memory::new(4, 4 * 3, &[]);
        for turn in 1..4u32 {
            let values = |row: usize| [turn as f32, row as f32, -0.0];
            [3, 1].into_iter().for_each(|row| put(memory.seen(), row, &values(row)));
            for row in [1usize, 3] {
                assert_eq!(memory.ends[1][row * WORDS].load(Ordering::Acquire), turn);
                let bits = memory.words[row * 3..][..3].iter().map(|w| w.load(Ordering::Relaxed));
                assert!(bits.eq(values(row).map(f32::to_bits)));
            }
            assert_eq!(memory.ends[1][0].load(Ordering::Acquire), 0, "a row that was not put");
        }
    }
}
