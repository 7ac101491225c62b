//! Reads every byte of an opened container and compares it with the hash table.
//!
//! Threads take spans of neighbouring stretches and padding, read each with one `pread` into a buffer of their
//! own, and hash it while it is in the cache.

use super::damage::Mark;
use crate::buffer::Buffer;
use crate::parallel;
use crate::progress::Progress;
use crate::unpack::changed;
use anyhow::Context;
use gantry_formats::container::{Container, Stretch};
use gantry_formats::source::{FileSource, ReadAt};
use std::ops::Range;
use std::sync::Mutex;

/// Bytes read at a time: one stretch of a large blob, or as many small blobs as fit. They are hashed while they are
/// in the core's own cache.
const SPAN: u64 = 1 << 20;

/// A part of a file that is read at once: stretches in order, zeros between and after them.
struct Span<'c> {
    file: &'c FileSource,
    /// 0 for the index file, card + 1 for a card's own.
    file_index: u32,
    bytes: Range<u64>,
    /// First byte of the segment that the stretches are in.
    segment: u64,
    stretches: Vec<Stretch>,
}

/// Bytes of the files that are there.
pub(super) fn total_bytes(container: &Container) -> u64 {
    let cards = 0..container.header().cards.len();
    let own = cards.filter(|_| container.split_cards()).filter_map(|card| container.card(card).ok());
    container.header().file_bytes + own.map(|c| c.file.len()).sum::<u64>()
}

/// Compares every stretch and every padding byte of the cards that are there; gives what does not match.
///
/// # Errors
/// Where a file cannot be read, or changed meanwhile.
pub(super) fn scan(container: &Container, threads: usize, progress: &Progress) -> anyhow::Result<Vec<Mark>> {
    let marks = Mutex::new(Vec::new());
    let work = |buffer: &mut Buffer, span: Span<'_>| {
        let len = (span.bytes.end - span.bytes.start) as usize;
        let bytes = buffer.take(len);
        let read = span.file.read_exact_at(span.bytes.start, bytes).map_err(changed);
        read.with_context(|| format!("cannot read {len} bytes at {}", span.bytes.start))?;
        let found = check(container, &span, bytes);
        if !found.is_empty() {
            marks.lock().unwrap_or_else(|e| e.into_inner()).extend(found);
        }
        progress.add(len as u64);
        Ok(())
    };
    parallel::for_each(threads, spans(container), Buffer::default, work)?;
    container.check_unchanged()?;
    Ok(marks.into_inner().unwrap_or_else(|e| e.into_inner()))
}

fn mark(stretch: &Stretch, all_zero: bool) -> Mark {
    let block = (stretch.offset / gantry_formats::hash::SUBTREE) as u32;
    Mark::Blob { blob: stretch.blob as u32, block, all_zero }
}

fn check(container: &Container, span: &Span<'_>, bytes: &[u8]) -> Vec<Mark> {
    let mut marks = Vec::new();
    let mut at = 0;
    let zeros = |from: usize, to: usize, marks: &mut Vec<Mark>| {
        let padding = &bytes[from..to];
        if !is_zero(padding) {
            let first = padding.iter().position(|b| *b != 0).unwrap_or(0);
            let last = padding.iter().rposition(|b| *b != 0).unwrap_or(0);
            let base = span.bytes.start + from as u64;
            let (from, to) = (base + first as u64, base + last as u64 + 1);
            marks.push(Mark::Padding { file: span.file_index, from, to });
        }
    };
    for stretch in &span.stretches {
        let blob = container.table().blobs()[stretch.blob];
        let start = (span.segment + blob.offset + stretch.offset - span.bytes.start) as usize;
        zeros(at, start, &mut marks);
        at = start + stretch.bytes as usize;
        let part = &bytes[start..at];
        if !container.stretch_is_intact(stretch, part) {
            marks.push(mark(stretch, !part.is_empty() && is_zero(part)));
        }
    }
    zeros(at, bytes.len(), &mut marks);
    marks
}

/// Whether all bytes are zero, many at a time.
pub(super) fn is_zero(bytes: &[u8]) -> bool {
    bytes.chunks(4096).all(|chunk| chunk.iter().fold(0, |all, b| all | b) == 0)
}

/// Every byte of every file that is there, once, except header pages and sections.
fn spans(container: &Container) -> impl Iterator<Item = Span<'_>> + Send {
    let index = container.index_file();
    let padding = container.index_padding().into_iter().flat_map(move |range| zeros(index, 0, range));
    let cards = (0..container.header().cards.len()).filter_map(|card| {
        let source = container.card(card).ok()?;
        let file_index = if container.split_cards() { card as u32 + 1 } else { 0 };
        let before = container.card_file_padding(card).into_iter();
        let before = before.flat_map(move |range| zeros(source.file, file_index, range));
        Some(before.chain(segment(container, card, source.file, file_index)))
    });
    padding.chain(cards.flatten())
}

/// Zeros in pieces of at most a span.
fn zeros(file: &FileSource, file_index: u32, range: Range<u64>) -> impl Iterator<Item = Span<'_>> + use<'_> {
    let starts = (range.start..range.end).step_by(SPAN as usize);
    starts.map(move |start| Span {
        file,
        file_index,
        bytes: start..range.end.min(start + SPAN),
        segment: 0,
        stretches: Vec::new(),
    })
}

/// One card's segment in spans.
fn segment<'c>(
    container: &'c Container,
    card: usize,
    file: &'c FileSource,
    file_index: u32,
) -> impl Iterator<Item = Span<'c>> {
    let entry = container.header().cards[card];
    let end = entry.offset + entry.bytes;
    let mut at = entry.offset;
    let mut stretches = container.stretches(card).peekable();
    let place = move |s: &Stretch| entry.offset + container.table().blobs()[s.blob].offset + s.offset;
    std::iter::from_fn(move || {
        let start = at;
        let mut taken = Vec::new();
        // A stretch is never longer than a span; a gap before it may be, and then goes on its own.
        while let Some(next) = stretches.next_if(|s| place(s) + s.bytes <= start + SPAN) {
            at = place(&next) + next.bytes;
            taken.push(next);
        }
        if taken.is_empty() {
            at = stretches.peek().map_or(end, place).min(start + SPAN);
        }
        let empty = at == start && taken.is_empty();
        let bytes = start..at;
        (!empty).then_some(Span { file, file_index, bytes, segment: entry.offset, stretches: taken })
    })
}
