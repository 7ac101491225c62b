//! How far loading has come, for whoever waits.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Is told how many bytes are through, of how many. Called from all loading threads, for every MiB or so.
#[derive(Clone)]
pub struct Progress(Arc<Tell>);

type Tell = dyn Fn(&SoFar) + Send + Sync;

impl Progress {
    /// Calls `tell` again and again.
    pub fn new(tell: impl Fn(&SoFar) + Send + Sync + 'static) -> Self {
        Self(Arc::new(tell))
    }
}

impl fmt::Debug for Progress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Progress")
    }
}

/// How far loading has come.
#[derive(Debug)]
pub struct SoFar {
    /// By card: bytes that are through, and all.
    cards: Vec<(AtomicU64, u64)>,
}

impl SoFar {
    /// Nothing yet of `totals` bytes, by card.
    pub fn new(totals: impl IntoIterator<Item = u64>) -> Self {
        Self { cards: totals.into_iter().map(|total| (AtomicU64::new(0), total)).collect() }
    }

    /// `bytes` more are through for `card`.
    pub fn add(&self, card: usize, bytes: u64) {
        if let Some((done, _)) = self.cards.get(card) {
            done.fetch_add(bytes, Ordering::Relaxed);
        }
    }

    /// Bytes that are through, and all, by card.
    pub fn by_card(&self) -> impl ExactSizeIterator<Item = (u64, u64)> + '_ {
        self.cards.iter().map(|(done, total)| (done.load(Ordering::Relaxed), *total))
    }

    /// The same of all cards together.
    pub fn all(&self) -> (u64, u64) {
        self.by_card().fold((0, 0), |all, card| (all.0 + card.0, all.1.saturating_add(card.1)))
    }
}

/// Counts what is through, and tells.
pub(super) struct Counter<'a> {
    progress: Option<&'a Progress>,
    so_far: SoFar,
}

impl<'a> Counter<'a> {
    pub(super) fn new(progress: Option<&'a Progress>, totals: impl IntoIterator<Item = u64>) -> Self {
        Self { progress, so_far: SoFar::new(totals) }
    }

    /// `bytes` more are through for `card`.
    pub(super) fn add(&self, card: usize, bytes: u64) {
        if let Some(progress) = self.progress {
            self.so_far.add(card, bytes);
            (progress.0)(&self.so_far);
        }
    }
}

/// Bytes in binary units: `138.1 MiB`.
pub fn size_text(bytes: u64) -> String {
    const UNITS: [&str; 6] = ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    if bytes < 1024 {
        return format!("{bytes} B");
    }
    let (mut value, mut unit) = (bytes as f64, "B");
    for next in UNITS {
        // What would round to 1024.0 is 1.0 of the next one.
        if value < 1023.95 {
            break;
        }
        value /= 1024.0;
        unit = next;
    }
    format!("{value:.1} {unit}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_units() {
        let sizes = [
            (0, "0 B"),
            (1023, "1023 B"),
            (1536, "1.5 KiB"),
            ((1 << 20) - 1, "1.0 MiB"),
            (3 << 30, "3.0 GiB"),
        ];
        for (bytes, text) in sizes {
            assert_eq!(size_text(bytes), text);
        }
    }

    #[test]
    fn what_is_through_adds_up() {
        let told = Arc::new(AtomicU64::new(0));
        let seen = Arc::clone(&told);
        let progress = Progress::new(move |so_far| {
            let (done, total) = so_far.all();
            let second = so_far.by_card().nth(1).map_or(0, |card| card.0);
            seen.store((done * 100 + total) * 10 + second, Ordering::Relaxed);
        });
        let counter = Counter::new(Some(&progress), [5, 4]);
        counter.add(0, 2);
        counter.add(1, 3);
        assert_eq!(told.load(Ordering::Relaxed), 5093);
    }
}
