//! Delays at every step of the protocol, so that tests meet orders that a quiet machine hardly shows.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// A step of the protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Point {
    /// A place is free; its words are not written yet.
    BeforeWords,
    /// Between words, in bulk copies too.
    WithinWords,
    /// The words are written; the flag is not.
    BeforeFlag,
    /// The flag is written.
    AfterFlag,
    /// Nobody has looked at the flag yet.
    BeforeWait,
    /// The flag is there.
    AfterWait,
    /// Between reads, in bulk copies too.
    WithinReads,
    /// All is read; the acknowledge is not given.
    BeforeTaken,
}

/// Delays of pseudo-random kind and length. Off unless installed with `with_delays`; what is off costs a branch.
///
/// The n-th delay is a function of seed, n and place; which thread takes it is up to the system.
#[derive(Debug)]
pub struct Delays {
    seed: u64,
    longest: Duration,
    taken: AtomicU64,
}

impl Delays {
    /// Delays of at most `longest` (and what the system's timer adds).
    pub fn new(seed: u64, longest: Duration) -> Self {
        Self { seed, longest, taken: AtomicU64::new(0) }
    }

    /// How many there were.
    pub fn taken(&self) -> u64 {
        self.taken.load(Ordering::Relaxed)
    }

    /// Waits for a while, or not at all.
    pub fn at(&self, point: Point) {
        let n = self.taken.fetch_add(1, Ordering::Relaxed);
        let dice = mixed(self.seed ^ mixed(n.wrapping_mul(8).wrapping_add(point as u64)));
        match dice % 32 {
            0 => {
                let nanos = u64::try_from(self.longest.as_nanos()).unwrap_or(u64::MAX);
                std::thread::sleep(Duration::from_nanos((dice >> 8) % nanos.saturating_add(1).max(1)));
            }
            1..8 => std::thread::yield_now(),
            8..16 => (0..(dice >> 8) & 0xff).for_each(|_| std::hint::spin_loop()),
            _ => {}
        }
    }
}

/// SplitMix64's finalizer (Steele, Lea, Flood: Fast splittable pseudorandom number generators, 2014).
fn mixed(x: u64) -> u64 {
    let x = x.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}
