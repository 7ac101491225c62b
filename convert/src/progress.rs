//! A progress line on stderr, for what takes longer than a second.

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

const QUIET: Duration = Duration::from_secs(1);

/// Bytes done out of a total. Nothing is drawn where stderr is no terminal.
pub(crate) struct Progress {
    bar: ProgressBar,
    start: Instant,
    shown: AtomicBool,
}

impl Progress {
    /// Starts counting to `total` bytes.
    pub(crate) fn new(what: &'static str, total: u64) -> Self {
        let bar = ProgressBar::with_draw_target(Some(total), ProgressDrawTarget::hidden());
        let line = "{prefix} {bar:24} {bytes} of {total_bytes}, {bytes_per_sec}, {eta} left";
        if let Ok(style) = ProgressStyle::with_template(line) {
            bar.set_style(style.progress_chars("=> "));
        }
        bar.set_prefix(what);
        Self { bar, start: Instant::now(), shown: AtomicBool::new(false) }
    }

    /// `bytes` more are done.
    pub(crate) fn add(&self, bytes: u64) {
        if !self.shown.load(Ordering::Relaxed)
            && self.start.elapsed() > QUIET
            && !self.shown.swap(true, Ordering::Relaxed)
        {
            self.bar.set_draw_target(ProgressDrawTarget::stderr_with_hz(5));
        }
        self.bar.inc(bytes);
    }

    /// Time since the start.
    pub(crate) fn seconds(&self) -> f64 {
        self.start.elapsed().as_secs_f64()
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}
