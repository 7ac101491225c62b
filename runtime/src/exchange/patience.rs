//! Waiting that ends.

use super::word::Word;
use std::time::{Duration, Instant};

/// Rounds of spinning: some microseconds, which is what an answer takes that is almost there.
const SPINS: u32 = 32;
/// Pauses of the processor in a round.
const PAUSES: u32 = 8;
/// Rounds after which a waiter has also offered its core often enough.
const YIELDS: u32 = SPINS + 64;
/// The shortest and the longest sleep. Below the shortest, the system's timer takes longer than the sleep.
const SLEEPS: (Duration, Duration) = (Duration::from_micros(20), Duration::from_millis(1));
/// The most that one round counts. A process that was stopped (Ctrl-Z) or starved finds a long time gone by in which
/// the card that it waits for did not run either.
const COUNTED: Duration = Duration::from_millis(100);

/// How long to wait for another card.
///
/// A waiter spins a little, then offers its core to others, then sleeps, for an eighth of the time waited so far and
/// at most a millisecond: it is late by a small share of its wait, and where there are more threads than cores those
/// that compute get them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Patience {
    /// The longest wait. Time in which the waiter itself did not run hardly counts.
    pub bound: Duration,
}

impl Default for Patience {
    /// Ten minutes. A card that fails says so and nobody waits for it, so that this ends only what hangs; and where
    /// cards take turns by layers, one waits while another computes its whole share of a long prompt.
    fn default() -> Self {
        Self { bound: Duration::from_secs(600) }
    }
}

/// Who waits for whom: for the message, should it be in vain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Who {
    /// The card that waits.
    pub waiting: usize,
    /// The card that it waits for.
    pub for_card: usize,
    /// The layer in which it does; `None` outside of layers.
    pub layer: Option<u32>,
}

/// What a waiter does between two looks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pause {
    /// Stay on the core.
    Spin,
    /// Let another thread have the core.
    Yield,
    /// Sleep.
    Sleep(Duration),
}

impl Pause {
    /// Does it.
    pub fn take(self) {
        match self {
            Self::Spin => (0..PAUSES).for_each(|_| std::hint::spin_loop()),
            Self::Yield => std::thread::yield_now(),
            Self::Sleep(time) => std::thread::sleep(time),
        }
    }

    fn of(round: u32, waited: Duration) -> Self {
        match round {
            0..SPINS => Self::Spin,
            SPINS..YIELDS => Self::Yield,
            _ => Self::Sleep((waited / 8).clamp(SLEEPS.0, SLEEPS.1)),
        }
    }
}

impl Patience {
    /// Looks until `look` has found something, or fails with the time that passed.
    pub(crate) fn until<W: Word, T>(&self, mut look: impl FnMut() -> Option<T>) -> Result<T, Duration> {
        if let Some(found) = look() {
            return Ok(found);
        }
        let start = Instant::now();
        let (mut waited, mut counted) = (Duration::ZERO, Duration::ZERO);
        let mut round = 0u32;
        loop {
            W::pause(Pause::of(round, waited));
            round = round.saturating_add(1);
            if let Some(found) = look() {
                return Ok(found);
            }
            let now = start.elapsed();
            counted = counted.saturating_add(now.saturating_sub(waited).min(COUNTED));
            waited = now;
            if counted >= self.bound {
                return Err(waited);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{COUNTED, Patience, Pause, SPINS, Word, YIELDS};
    use std::cell::Cell;
    use std::sync::atomic::AtomicU32;
    use std::time::{Duration, Instant};

    #[test]
    fn looks_before_it_waits() {
        let none = Patience { bound: Duration::ZERO };
        assert_eq!(none.until::<AtomicU32, _>(|| Some(7)), Ok(7));
        let looks = Cell::new(0);
        let second = || {
            looks.set(looks.get() + 1);
            (looks.get() == 2).then_some(())
        };
        assert_eq!(none.until::<AtomicU32, _>(second), Ok(()), "one more look after the bound");
    }

    #[test]
    fn ends_at_the_bound() {
        let bound = Duration::from_millis(30);
        let start = Instant::now();
        let after = Patience { bound }.until::<AtomicU32, ()>(|| None).unwrap_err();
        assert!(after >= bound && after <= start.elapsed());
    }

    #[test]
    fn spins_then_yields_then_sleeps_longer_and_longer() {
        let at = |round, ms| Pause::of(round, Duration::from_millis(ms));
        assert_eq!(at(0, 0), Pause::Spin);
        assert_eq!(at(SPINS - 1, 0), Pause::Spin);
        assert_eq!(at(SPINS, 0), Pause::Yield);
        assert_eq!(at(YIELDS - 1, 9), Pause::Yield);
        assert_eq!(at(YIELDS, 0), Pause::Sleep(Duration::from_micros(20)));
        assert_eq!(at(YIELDS, 2), Pause::Sleep(Duration::from_micros(250)));
        assert_eq!(at(u32::MAX, 9_000), Pause::Sleep(Duration::from_millis(1)));
    }

    /// A word whose pauses take long, as those of a process that is stopped.
    struct Stopped(AtomicU32);

    impl Word for Stopped {
        fn new(value: u32) -> Self {
            Self(AtomicU32::new(value))
        }
        fn get(&self) -> u32 {
            Word::get(&self.0)
        }
        fn set(&self, value: u32) {
            self.0.set(value);
        }
        fn acquire(&self) -> u32 {
            self.0.acquire()
        }
        fn release(&self, value: u32) {
            self.0.release(value);
        }
        fn pause(_: Pause) {
            std::thread::sleep(COUNTED * 2);
        }
    }

    #[test]
    fn time_in_which_the_waiter_did_not_run_hardly_counts() {
        let looks = Cell::new(0);
        let third = || {
            looks.set(looks.get() + 1);
            (looks.get() == 3).then_some(())
        };
        // Two pauses take 400 ms and count for 200.
        let patience = Patience { bound: COUNTED * 3 };
        let start = Instant::now();
        assert_eq!(patience.until::<Stopped, _>(third), Ok(()));
        assert!(start.elapsed() > patience.bound);
    }
}
