//! Progress on anything that takes longer than a moment: a bar on terminals, plain lines elsewhere.

use crate::output;
use crate::units;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::io::IsTerminal;
use std::time::{Duration, Instant};

/// Nothing is shown before this long.
const PATIENCE: Duration = Duration::from_secs(1);
/// Time between plain lines.
const LINE_EVERY: Duration = Duration::from_secs(5);

/// Shows how far a known number of bytes has come, on stderr.
#[derive(Debug)]
pub(crate) struct Progress {
    what: &'static str,
    total: u64,
    begin: Instant,
    bar: Option<ProgressBar>,
    last_line: Instant,
}

impl Progress {
    /// Starts counting; `what` is a verb: `packing`.
    pub(crate) fn new(what: &'static str, total: u64) -> Self {
        let begin = Instant::now();
        Self { what, total, begin, bar: None, last_line: begin }
    }

    /// Shows that `done` bytes are through.
    pub(crate) fn show(&mut self, done: u64) {
        let elapsed = self.begin.elapsed();
        if elapsed < PATIENCE {
            return;
        }
        if std::io::stderr().is_terminal() {
            let (what, total, begin) = (self.what, self.total, self.begin);
            self.bar.get_or_insert_with(|| bar(what, total, begin)).set_position(done);
        } else if self.last_line.elapsed() >= LINE_EVERY
            || self.last_line == self.begin && elapsed.as_secs() >= 2
        {
            self.last_line = Instant::now();
            let seconds = elapsed.as_secs_f64();
            let rate = done as f64 / seconds;
            let left =
                if done > 0 { (self.total.saturating_sub(done) as f64 / rate).ceil() as u64 } else { 0 };
            let (at, of, rate) = (units::bytes(done), units::bytes(self.total), units::bytes(rate as u64));
            let percent = (done as u128 * 100).checked_div(self.total.into()).unwrap_or(100);
            output::note(format_args!("{}: {at} of {of} ({percent}%), {rate}/s, {left} s left", self.what));
        }
    }

    /// Takes the bar away.
    pub(crate) fn clear(&mut self) {
        if let Some(bar) = self.bar.take() {
            bar.finish_and_clear();
        }
    }
}

fn bar(what: &'static str, total: u64, begin: Instant) -> ProgressBar {
    let template = "{msg} {wide_bar} {binary_bytes}/{binary_total_bytes} {binary_bytes_per_sec} {eta} left";
    let style = ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar());
    ProgressBar::with_draw_target(Some(total), ProgressDrawTarget::stderr())
        .with_style(style)
        .with_message(what)
        .with_elapsed(begin.elapsed())
}
