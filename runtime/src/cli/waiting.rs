//! Something to look at while a large model is loaded: one changing line on a terminal, lines elsewhere.

use gantry_runtime::load::{Progress, SoFar, size_text};
use std::io::{IsTerminal, Write};
use std::sync::Mutex;
use std::time::{Duration, Instant};

/// Nothing is shown before this long.
const PATIENCE: Duration = Duration::from_secs(1);
/// Between two states of the line on a terminal.
const REDRAW: Duration = Duration::from_millis(100);
/// Between two lines elsewhere.
const LINE: Duration = Duration::from_secs(5);

/// Takes the whole line away.
const CLEAR: &str = "\r\x1b[K";

/// Shows how loading goes on; the line goes away with it.
pub(crate) fn progress() -> Progress {
    let begin = Instant::now();
    let terminal = std::io::stderr().is_terminal();
    let first = begin + if terminal { PATIENCE } else { LINE };
    let shown = Shown { terminal, state: Mutex::new(State { next: first, drawn: false }) };
    Progress::new(move |so_far| shown.tell(so_far, begin))
}

struct Shown {
    terminal: bool,
    state: Mutex<State>,
}

struct State {
    next: Instant,
    /// Whether there is a line to take away.
    drawn: bool,
}

impl Shown {
    fn tell(&self, so_far: &SoFar, begin: Instant) {
        // Whoever finds another thread drawing goes on loading.
        let Ok(mut state) = self.state.try_lock() else { return };
        let now = Instant::now();
        if now < state.next {
            return;
        }
        state.next = now + if self.terminal { REDRAW } else { LINE };
        let text = text(so_far, now - begin);
        if self.terminal {
            state.drawn = true;
            let _ = write!(std::io::stderr(), "{CLEAR}{text}");
        } else {
            eprintln!("{text}");
        }
    }
}

impl Drop for Shown {
    fn drop(&mut self) {
        if self.state.get_mut().is_ok_and(|s| s.drawn) {
            let _ = write!(std::io::stderr(), "{CLEAR}");
        }
    }
}

/// Columns of a terminal that is as wide as most.
const WIDTH: usize = 80;

fn text(so_far: &SoFar, time: Duration) -> String {
    let (done, total) = so_far.all();
    let rate = done as f64 / time.as_secs_f64().max(1e-9);
    let left = (total.saturating_sub(done) as f64 / rate.max(1.0)).ceil();
    let percent =
        |(done, total): (u64, u64)| (u128::from(done) * 100).checked_div(total.into()).unwrap_or(100);
    let line = format!(
        "loading: {} of {} ({}%), {:.2} GB/s, {left} s left",
        size_text(done),
        size_text(total),
        percent((done, total)),
        rate / 1e9
    );
    let cards: Vec<String> = so_far.by_card().map(|card| percent(card).to_string()).collect();
    let cards = format!("{line}; cards {}%", cards.join(" "));
    if so_far.by_card().len() > 1 && cards.len() <= WIDTH { cards } else { line }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_line_says_how_far_how_fast_and_how_long() {
        let so_far = SoFar::new([4 << 30]);
        so_far.add(0, 1 << 30);
        let line = text(&so_far, Duration::from_secs(2));
        assert_eq!(line, "loading: 1.0 GiB of 4.0 GiB (25%), 0.54 GB/s, 6 s left");
        assert!(text(&SoFar::new([0]), Duration::ZERO).contains("(100%)"));
    }

    #[test]
    fn several_cards_are_told_apart_where_the_line_has_room() {
        let so_far = SoFar::new([2 << 30, 1 << 30, 1 << 30]);
        so_far.add(0, 1 << 30);
        so_far.add(2, 1 << 30);
        let line = text(&so_far, Duration::from_secs(2));
        assert_eq!(line, "loading: 2.0 GiB of 4.0 GiB (50%), 1.07 GB/s, 2 s left; cards 50 0 100%");
        let many = text(&SoFar::new([1 << 30; 56]), Duration::from_secs(2));
        assert!(many.len() <= WIDTH && !many.contains("cards"), "{many}");
    }
}
