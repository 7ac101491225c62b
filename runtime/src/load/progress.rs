//! How far loading has come, for whoever waits.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Is told how many bytes are through, of how many. Called from all loading threads, for every MiB or so.
#[derive(Clone)]
pub struct Progress(Arc<Tell>);

type Tell = dyn Fn(u64, u64) + Send + Sync;

impl Progress {
    /// Calls `tell(done, total)`.
    pub fn new(tell: impl Fn(u64, u64) + Send + Sync + 'static) -> Self {
        Self(Arc::new(tell))
    }
}

impl fmt::Debug for Progress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Progress")
    }
}

/// Counts what is through.
pub(super) struct Counter<'a> {
    progress: Option<&'a Progress>,
    done: AtomicU64,
    total: u64,
}

impl<'a> Counter<'a> {
    pub(super) fn new(progress: Option<&'a Progress>, total: u64) -> Self {
        Self { progress, done: AtomicU64::new(0), total }
    }

    /// `bytes` more are through.
    pub(super) fn add(&self, bytes: u64) {
        if let Some(progress) = self.progress {
            let done = self.done.fetch_add(bytes, Ordering::Relaxed) + bytes;
            (progress.0)(done, self.total);
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
        let progress = Progress::new(move |done, total| seen.store(done * 100 + total, Ordering::Relaxed));
        let counter = Counter::new(Some(&progress), 9);
        counter.add(2);
        counter.add(3);
        assert_eq!(told.load(Ordering::Relaxed), 509);
    }
}
