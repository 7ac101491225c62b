//! Verification of what lies in memory, piece by piece.

use super::damage::Place;
use super::pieces::Piece;
use crate::Container;
use gantry_formats::container::ContainerError;
use gantry_formats::source::ReadAt;
use std::ops::Range;

/// How much is verified while loading.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Verify {
    /// Every byte: header, sections, every blob as it lies in memory, and that padding is zero.
    #[default]
    Full,
    /// Every byte as well, blobs by the card itself in its own memory: the way there is covered too.
    Device,
    /// Header, sections and padding of the index file; the blobs are taken as they are.
    Index,
    /// Only what opening a container always verifies: header, manifest, metadata and hash table.
    None,
}

/// Compares a piece in memory, loaded for the card `to`, with the hash table, and its padding with zero.
pub(super) fn piece(container: &Container, to: usize, piece: &Piece, bytes: &[u8], found: &mut Vec<Place>) {
    for (stretch, range) in piece.parts(container) {
        let part = &bytes[range];
        if !container.stretch_is_intact(stretch, part) {
            found.push(Place::stretch(container, (piece.from, to), stretch, part));
        }
    }
    padding(container, piece, bytes, found);
}

/// Compares what lies between the stretches of a piece with zero.
pub(super) fn padding(container: &Container, piece: &Piece, bytes: &[u8], found: &mut Vec<Place>) {
    let card = piece.from;
    let mut check = |range: Range<usize>| {
        if bytes[range.clone()].iter().any(|&b| b != 0) {
            let start = piece.range.start;
            let range = start + range.start as u64..start + range.end as u64;
            found.push(Place::padding(card, &format!("card {card}, segment"), range));
        }
    };
    let mut at = 0;
    for (_, range) in piece.parts(container) {
        check(at..range.start);
        at = range.end;
    }
    check(at..bytes.len());
}

/// Compares what lies between the blobs of card `card`'s segment with zero.
pub(super) fn segment_padding(container: &Container, card: usize, segment: &[u8], found: &mut Vec<Place>) {
    for range in container.segment_padding(card) {
        if segment[range.start as usize..range.end as usize].iter().any(|&b| b != 0) {
            found.push(Place::padding(card, &format!("card {card}, segment"), range));
        }
    }
}

/// Checks the zero padding outside segments: in the index file, and before the segment in each card's own file.
pub(super) fn outer_padding(container: &Container) -> Result<Vec<Place>, ContainerError> {
    let mut found = Vec::new();
    for range in container.index_padding() {
        if !is_zero(container.index_file(), range.clone()).map_err(|e| io(container, e))? {
            found.push(Place::padding(0, "index file", range));
        }
    }
    for card in 0..container.header().cards.len() {
        if let Some(range) = container.card_file_padding(card)
            && !is_zero(container.card(card)?.file, range.clone()).map_err(|e| io(container, e))?
        {
            found.push(Place::padding(card, &format!("card {card}, its file"), range));
        }
    }
    Ok(found)
}

fn io(container: &Container, source: std::io::Error) -> ContainerError {
    ContainerError::Io { path: container.path().into(), source }
}

fn is_zero(file: &dyn ReadAt, range: Range<u64>) -> std::io::Result<bool> {
    let mut buffer = vec![0; 64 << 10];
    let mut at = range.start;
    while at < range.end {
        let take = (range.end - at).min(buffer.len() as u64) as usize;
        file.read_exact_at(at, &mut buffer[..take])?;
        if buffer[..take].iter().any(|&b| b != 0) {
            return Ok(false);
        }
        at += take as u64;
    }
    Ok(true)
}
