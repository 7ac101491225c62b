//! What is loaded, cut into pieces that are read and verified on their own.

use super::Places;
use gantry_formats::container::{Container, Stretch};
use std::ops::Range;

/// Pieces are about this long where this process hashes them: large enough that a `pread` call costs nothing beside its copy, small enough that
/// the bytes are still in the core's own cache when they are hashed.
pub(super) const PIECE: u64 = 1 << 20;

/// A range of a segment with the whole stretches that lie in it; what no stretch covers is padding.
#[derive(Debug)]
pub(super) struct Piece {
    /// The card whose segment it is: one that the container was packed for.
    pub(super) from: usize,
    /// Inside the segment.
    pub(super) range: Range<u64>,
    /// First byte in the arena that it is loaded into.
    pub(super) at: u64,
    /// In order of offset.
    pub(super) stretches: Vec<Stretch>,
}

/// Cuts card `card`'s segment, which is its arena, about every `size` bytes. The pieces follow each other and cover it.
pub(super) fn cut(container: &Container, card: usize, size: u64) -> Vec<Piece> {
    let end = container.header().cards[card].bytes;
    let new = |range: Range<u64>, stretches| Piece { from: card, at: range.start, range, stretches };
    let mut pieces = Vec::new();
    let mut piece = new(0..0, Vec::new());
    for stretch in container.stretches(card) {
        let start = container.table().blobs()[stretch.blob].offset + stretch.offset;
        let stop = start + stretch.bytes;
        if !piece.stretches.is_empty() && stop - piece.range.start > size {
            piece.range.end = start;
            pieces.push(std::mem::replace(&mut piece, new(start..stop, Vec::new())));
        }
        piece.range.end = stop;
        piece.stretches.push(stretch);
    }
    piece.range.end = end;
    // Alignment can leave more padding than one read should take, behind the last stretch of a sparse segment.
    let mut at = piece
        .stretches
        .last()
        .map_or(piece.range.start, |s| container.table().blobs()[s.blob].offset + s.offset + s.bytes);
    while end - at > 2 * size {
        piece.range.end = at + size;
        at = piece.range.end;
        pieces.push(std::mem::replace(&mut piece, new(at..end, Vec::new())));
    }
    if !piece.range.is_empty() {
        pieces.push(piece);
    }
    pieces
}

/// What the arena of `card` takes from wherever it was packed, in the order of the arena. Blobs that follow each other
/// there as they do in their segment are read together, with the padding between them, about `size` bytes at a time.
pub(super) fn gather(container: &Container, places: &Places, card: usize, size: u64) -> Vec<Piece> {
    let blobs = container.table().blobs();
    let mut pieces: Vec<Piece> = Vec::new();
    for (base, blob) in places.on_card(container, card) {
        let from = blobs[blob].card as usize;
        for stretch in container.stretches_of(blob) {
            let start = blobs[blob].offset + stretch.offset;
            let range = start..start + stretch.bytes;
            let at = base + stretch.offset;
            let follows = |piece: &&mut Piece| {
                let before = piece.stretches.last().is_some_and(|last| is_next(container, last, &stretch));
                before
                    && piece.from == from
                    && at.checked_sub(piece.at) == Some(range.start - piece.range.start)
                    && range.end - piece.range.start <= size
            };
            match pieces.last_mut().filter(follows) {
                Some(piece) => {
                    piece.range.end = range.end;
                    piece.stretches.push(stretch);
                }
                None => pieces.push(Piece { from, range, at, stretches: vec![stretch] }),
            }
        }
    }
    pieces
}

/// Whether nothing but padding lies between two stretches of a segment.
fn is_next(container: &Container, before: &Stretch, after: &Stretch) -> bool {
    let ends = before.offset + before.bytes == container.table().blobs()[before.blob].bytes;
    match after.offset {
        0 => ends && after.blob == before.blob + 1,
        offset => after.blob == before.blob && offset == before.offset + before.bytes,
    }
}

impl Piece {
    /// Length in bytes.
    pub(super) fn len(&self) -> u64 {
        self.range.end - self.range.start
    }

    /// Where it lies in the arena.
    pub(super) fn place(&self) -> Range<u64> {
        self.at..self.at + self.len()
    }

    /// The stretches of this piece with their ranges inside it.
    pub(super) fn parts<'a>(
        &'a self,
        container: &'a Container,
    ) -> impl Iterator<Item = (&'a Stretch, Range<usize>)> {
        self.stretches.iter().map(move |s| {
            let start = (container.table().blobs()[s.blob].offset + s.offset - self.range.start) as usize;
            (s, start..start + s.bytes as usize)
        })
    }
}
