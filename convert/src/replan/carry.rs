//! Carries blobs from one container to another as they are: read in large pieces, hashed in passing, written where
//! they go. What has to be changed on the way is only read and hashed here.

use super::Repack;
use crate::buffer::Buffer;
use crate::failure::Refusal;
use crate::pack::output::Outputs;
use crate::parallel;
use crate::plan::{BlobPlan, Plan};
use crate::progress::Progress;
use crate::unpack::changed;
use anyhow::{Context, Result};
use gantry_formats::container::{Container, Stretch};
use gantry_formats::exit::Exit;
use gantry_formats::source::ReadAt;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

/// Bytes that are read at once: large enough for the disk, small enough to stay in the last-level cache between
/// reading, hashing and writing.
const SPAN: u64 = 4 << 20;

/// Bytes after which what was written is put on disk, so that the disk works while more is carried.
const SYNC: u64 = 64 << 20;

/// Neighbouring stretches of one card.
struct Span {
    card: usize,
    /// Bytes of the card's segment.
    bytes: Range<u64>,
    stretches: Vec<Stretch>,
}

/// Carries every old blob that a new one is made of.
///
/// # Errors
/// Integrity where bytes are not those that were hashed; where the container cannot be read or the output not be
/// written.
pub(super) fn carry(work: Repack<'_>, progress: &Progress) -> Result<()> {
    let Repack { old: container, plan, origins, outputs, threads, .. } = work;
    let mut goals: Vec<Option<Vec<usize>>> = vec![None; container.table().blobs().len()];
    for (new, origin) in origins.iter().enumerate() {
        let list = goals[origin.old].get_or_insert_default();
        if origin.same {
            list.push(new);
        }
    }
    let carrier = Carrier { container, plan, goals: &goals, outputs };
    let (through, syncing) = (AtomicU64::new(0), Mutex::new(()));
    let cards = 0..container.header().cards.len();
    let spans = cards.flat_map(|card| spans(container, card, &goals));
    parallel::for_each(threads, spans, Buffer::default, |buffer, span: Span| {
        work.go_on()?;
        let bytes = buffer.take((span.bytes.end - span.bytes.start) as usize);
        carrier.read(&span, bytes)?;
        carrier.write(&span, bytes)?;
        let len = bytes.len() as u64;
        progress.add(len);
        let before = through.fetch_add(len, Ordering::Relaxed);
        // One thread waits for the disk, the others go on.
        if before / SYNC != (before + len) / SYNC
            && let Ok(_alone) = syncing.try_lock()
        {
            outputs.sync().context("cannot sync the output")?;
        }
        Ok(())
    })
}

/// The stretches of a card's blobs that are needed, in spans.
fn spans<'c>(
    container: &'c Container,
    card: usize,
    goals: &'c [Option<Vec<usize>>],
) -> impl Iterator<Item = Span> + use<'c> {
    let blobs = container.table().blobs();
    let place = |s: &Stretch| blobs[s.blob].offset + s.offset;
    let mut stretches = container.stretches(card).filter(|s| goals[s.blob].is_some()).peekable();
    std::iter::from_fn(move || {
        let first = stretches.next()?;
        let start = place(&first);
        let mut end = start + first.bytes;
        let mut taken = vec![first];
        while let Some(next) = stretches.next_if(|s| place(s) + s.bytes <= start + SPAN) {
            end = place(&next) + next.bytes;
            taken.push(next);
        }
        Some(Span { card, bytes: start..end, stretches: taken })
    })
}

struct Carrier<'a> {
    container: &'a Container,
    plan: &'a Plan,
    /// By old blob: the new ones that are the same; `None` where it is not needed.
    goals: &'a [Option<Vec<usize>>],
    outputs: &'a Outputs,
}

/// Bytes of a span that are written at once.
#[derive(Clone, Copy, Debug)]
struct Run {
    card: usize,
    /// First byte in the new segment.
    at: u64,
    from: usize,
    to: usize,
    /// The last new blob in it.
    blob: usize,
}

impl Run {
    /// Whether `next` follows in both containers, with nothing but padding between.
    fn is_followed_by(&self, next: &Run) -> bool {
        let same_step = self.at.checked_add((next.from - self.from) as u64) == Some(next.at);
        self.card == next.card && same_step && next.blob.wrapping_sub(self.blob) <= 1
    }
}

impl Carrier<'_> {
    fn place(&self, stretch: &Stretch) -> u64 {
        self.container.table().blobs()[stretch.blob].offset + stretch.offset
    }

    /// Reads a span, compares it with the hash table, and makes what lies between its stretches zero.
    fn read(&self, span: &Span, bytes: &mut [u8]) -> Result<()> {
        let card = self.container.card(span.card)?;
        card.file.read_exact_at(card.offset + span.bytes.start, bytes).map_err(changed)?;
        let mut at = 0;
        for stretch in &span.stretches {
            let start = (self.place(stretch) - span.bytes.start) as usize;
            let end = start + stretch.bytes as usize;
            bytes[at..start].fill(0);
            if !self.container.stretch_is_intact(stretch, &bytes[start..end]) {
                let text = format!(
                    "{} is not intact: card {} {}: its bytes {}..{} are not those that were written; nothing was kept",
                    self.container.path().display(),
                    span.card,
                    self.container.blob_name(stretch.blob),
                    stretch.offset,
                    stretch.offset + stretch.bytes
                );
                return Err(Refusal::new(Exit::Integrity, text));
            }
            at = end;
        }
        Ok(())
    }

    fn write(&self, span: &Span, bytes: &[u8]) -> Result<()> {
        let placed = span.stretches.iter().map(|s| (s, (self.place(s) - span.bytes.start) as usize));
        runs(self.goals, &self.plan.blobs, placed).into_iter().try_for_each(|run| self.put(run, bytes))
    }

    fn put(&self, run: Run, bytes: &[u8]) -> Result<()> {
        let at = self.plan.segment(run.card).offset + run.at;
        let written = self.outputs.card(run.card).write_all_at(&bytes[run.from..run.to], at);
        written.context("cannot write the output")
    }
}

/// What is written of a span, whose stretches are given with where they begin in its bytes.
fn runs<'s>(
    goals: &[Option<Vec<usize>>],
    blobs: &[BlobPlan],
    stretches: impl Iterator<Item = (&'s Stretch, usize)>,
) -> Vec<Run> {
    let mut out = Vec::new();
    let mut open: Option<Run> = None;
    for (stretch, from) in stretches {
        let news = goals[stretch.blob].as_deref().unwrap_or_default();
        if news.is_empty() {
            // Its bytes are no padding: nothing is written across them.
            out.extend(open.take());
        }
        for (i, &new) in news.iter().enumerate() {
            let blob = &blobs[new];
            let (at, to) = (blob.offset + stretch.offset, from + stretch.bytes as usize);
            let run = Run { card: blob.card, at, from, to, blob: new };
            match &mut open {
                _ if i > 0 => out.push(run),
                // Neighbours that stay neighbours are written together, with the zeros between them.
                Some(o) if o.is_followed_by(&run) => (o.to, o.blob) = (to, new),
                _ => out.extend(open.replace(run)),
            }
        }
    }
    out.extend(open);
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The runs of old blobs, each (first byte in the span, bytes, new blob and its offset if it is kept).
    fn runs_of(old: &[(usize, u64, Option<u64>)]) -> Vec<(u64, Range<usize>)> {
        let (mut goals, mut blobs, mut stretches) = (Vec::new(), Vec::new(), Vec::new());
        for (blob, (from, bytes, new)) in old.iter().enumerate() {
            goals.push(Some(new.iter().map(|_| blobs.len()).collect()));
            blobs.extend(new.map(|offset| BlobPlan { card: 0, offset, bytes: *bytes }));
            stretches.push((Stretch { blob, offset: 0, bytes: *bytes }, *from));
        }
        let runs = runs(&goals, &blobs, stretches.iter().map(|(s, from)| (s, *from)));
        runs.into_iter().map(|run| (run.at, run.from..run.to)).collect()
    }

    #[test]
    fn neighbours_are_written_together_with_their_padding() {
        assert_eq!(runs_of(&[(0, 100, Some(512)), (128, 64, Some(640))]), [(512, 0..192)]);
        assert_eq!(runs_of(&[(0, 100, Some(512)), (128, 64, Some(704))]), [(512, 0..100), (704, 128..192)]);
    }

    #[test]
    fn a_changed_blob_between_neighbours_is_not_written_into_their_padding() {
        let old = [(0, 100, Some(512)), (128, 32, None), (256, 64, Some(768))];
        assert_eq!(runs_of(&old), [(512, 0..100), (768, 256..320)]);
    }
}
