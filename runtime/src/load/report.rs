//! What loading did, for people and programs.

use super::{LoadMode, Verify, size_text};
use std::fmt;
use std::time::Duration;

/// What loading did.
#[derive(Clone, Debug)]
pub struct LoadReport {
    /// Bytes that were loaded: all segments, or all blobs that went to other cards.
    pub bytes: u64,
    /// How long it took.
    pub time: Duration,
    /// The way in.
    pub mode: LoadMode,
    /// What was verified.
    pub verified: Verify,
    /// The same by card, each of which has a queue of its own; all are served at the same time.
    pub cards: Vec<CardReport>,
}

/// What loading a card did.
#[derive(Clone, Copy, Debug)]
pub struct CardReport {
    /// Bytes that were loaded for it.
    pub bytes: u64,
    /// From the first moment of work for it to the last.
    pub time: Duration,
}

impl LoadReport {
    /// 10⁹ bytes per second.
    pub fn gb_per_s(&self) -> f64 {
        rate(self.bytes, self.time)
    }

    /// Whether bytes went through this process, so that there is a speed: a mapping that nobody looked through yet
    /// has none.
    pub fn has_speed(&self) -> bool {
        self.mode == LoadMode::Read || matches!(self.verified, Verify::Full | Verify::Device)
    }

    /// A line for each card, where there are several.
    pub fn by_card(&self) -> Vec<String> {
        let line = |(card, report): (usize, &CardReport)| {
            let (seconds, size) = (report.time.as_secs_f64(), size_text(report.bytes));
            match self.has_speed() && report.bytes > 0 {
                true => format!("card {card}: {size} in {seconds:.3} s ({:.2} GB/s)", report.gb_per_s()),
                false => format!("card {card}: {size}"),
            }
        };
        let cards = self.cards.iter().enumerate().filter(|_| self.cards.len() > 1);
        cards.map(line).collect()
    }
}

impl CardReport {
    /// 10⁹ bytes per second.
    pub fn gb_per_s(&self) -> f64 {
        rate(self.bytes, self.time)
    }
}

fn rate(bytes: u64, time: Duration) -> f64 {
    bytes as f64 / 1e9 / time.as_secs_f64().max(1e-9)
}

impl fmt::Display for LoadReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let how = match self.mode {
            LoadMode::Read => "read",
            LoadMode::Map => "mapped",
        };
        let what = match (self.verified, self.mode) {
            (Verify::Full, LoadMode::Read) => "every byte verified in place",
            (Verify::Full, LoadMode::Map) => "every byte verified as mapped",
            (Verify::Device, _) => "every byte verified on the card",
            (Verify::Index, _) => "only the index verified",
            (Verify::None, _) => "weights not verified",
        };
        write!(f, "{how} {} in {:.3} s", size_text(self.bytes), self.time.as_secs_f64())?;
        if self.has_speed() {
            write!(f, " ({:.2} GB/s)", self.gb_per_s())?;
        }
        write!(f, ", {what}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_of_several_cards_has_a_line_of_its_own() {
        let card = |bytes, ms| CardReport { bytes, time: Duration::from_millis(ms) };
        let mut report = LoadReport {
            bytes: 3_000_000,
            time: Duration::from_millis(4),
            mode: LoadMode::Read,
            verified: Verify::Full,
            cards: vec![card(2_000_000, 4), card(1_000_000, 2), card(0, 0)],
        };
        let lines = [
            "card 0: 1.9 MiB in 0.004 s (0.50 GB/s)",
            "card 1: 976.6 KiB in 0.002 s (0.50 GB/s)",
            "card 2: 0 B",
        ];
        assert_eq!(report.by_card(), lines);
        assert!(
            report.to_string().starts_with("read 2.9 MiB in 0.004 s (0.75 GB/s), every byte"),
            "{report}"
        );
        report.mode = LoadMode::Map;
        report.verified = Verify::Index;
        assert_eq!(report.by_card()[0], "card 0: 1.9 MiB");
        report.cards.truncate(1);
        assert!(report.by_card().is_empty());
    }
}
