//! What verification in the load path found.

use gantry_formats::container::{Container, Stretch};
use gantry_formats::exit::{Exit, ExitCode};
use std::fmt;
use std::ops::Range;

/// The first damage found, and how much there is.
#[derive(Debug)]
pub struct Damage {
    first: Place,
    /// Number of damaged stretches found before loading stopped.
    count: usize,
}

/// One damaged stretch.
#[derive(Clone, Debug)]
pub(super) struct Place {
    /// Order of report: card, then offset in the segment.
    pub(super) card: usize,
    pub(super) at: u64,
    what: String,
}

impl Damage {
    /// The damage at `places` (one or more, in any order).
    pub(super) fn new(mut places: Vec<Place>) -> Option<Self> {
        places.sort_by_key(|p| (p.card, p.at));
        // What is loaded for several cards is found as often, and damaged once.
        places.dedup_by_key(|p| (p.card, p.at));
        let count = places.len();
        places.into_iter().next().map(|first| Self { first, count })
    }
}

impl Place {
    /// A stretch of the segment of `card` whose bytes, loaded for the card `to`, do not hash to what the table says.
    pub(super) fn stretch(
        container: &Container,
        (card, goal): (usize, usize),
        stretch: &Stretch,
        bytes: &[u8],
    ) -> Self {
        let blob = &container.table().blobs()[stretch.blob];
        let from = stretch.offset;
        let to = from + stretch.bytes;
        let block = from / gantry_formats::hash::SUBTREE;
        let zero = if bytes.iter().all(|&b| b == 0) { "; all of it is zero" } else { "" };
        let moved = if card == goal { String::new() } else { format!("; loaded for card {goal}") };
        let what = format!(
            "card {card}, {}, block {block}: bytes {from}..{to} of {} do not match their BLAKE3 (segment bytes \
             {}..{}){zero}{moved}",
            container.blob_name(stretch.blob),
            blob.bytes,
            blob.offset + from,
            blob.offset + to,
        );
        Self { card, at: blob.offset + from, what }
    }

    /// Padding that is not zero. `region` names what it belongs to.
    pub(super) fn padding(card: usize, region: &str, range: Range<u64>) -> Self {
        let what = format!("{region}: padding bytes {}..{} are not zero", range.start, range.end);
        Self { card, at: range.start, what }
    }
}

impl fmt::Display for Damage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.first.what)?;
        if self.count > 1 {
            write!(f, "; {} damaged places were found before loading stopped", self.count)?;
        }
        write!(f, "; the file is damaged (`gantry verify` lists everything), convert or copy it again")
    }
}

impl ExitCode for Damage {
    fn exit(&self) -> Exit {
        Exit::Integrity
    }
}
