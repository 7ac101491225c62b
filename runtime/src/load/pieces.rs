//! A segment cut into pieces that are read and verified on their own.

use gantry_formats::container::{Container, Stretch};
use std::ops::Range;

/// Pieces are about this long: large enough that a `pread` call costs nothing beside its copy, small enough that
/// the bytes are still in the core's own cache when they are hashed.
const PIECE: u64 = 1 << 20;

/// A range of a segment with the whole stretches that lie in it; what no stretch covers is padding.
#[derive(Debug)]
pub(super) struct Piece {
    /// Inside the segment.
    pub(super) range: Range<u64>,
    /// In order of offset.
    pub(super) stretches: Vec<Stretch>,
}

/// Cuts card `card`'s segment. The pieces follow each other and cover it.
pub(super) fn cut(container: &Container, card: usize) -> Vec<Piece> {
    let end = container.header().cards[card].bytes;
    let mut pieces = Vec::new();
    let mut piece = Piece { range: 0..0, stretches: Vec::new() };
    for stretch in container.stretches(card) {
        let start = container.table().blobs()[stretch.blob].offset + stretch.offset;
        let stop = start + stretch.bytes;
        if !piece.stretches.is_empty() && stop - piece.range.start > PIECE {
            piece.range.end = start;
            let next = Piece { range: start..stop, stretches: Vec::new() };
            pieces.push(std::mem::replace(&mut piece, next));
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
    while end - at > 2 * PIECE {
        piece.range.end = at + PIECE;
        at = piece.range.end;
        pieces.push(std::mem::replace(&mut piece, Piece { range: at..end, stretches: Vec::new() }));
    }
    if !piece.range.is_empty() {
        pieces.push(piece);
    }
    pieces
}

impl Piece {
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
