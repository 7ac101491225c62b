//! Tiles of other orders, brought into that of `i8.frag.vnni16`.

use super::{LINE, Planes, WORD};
use crate::cpu::matrix::TILE;

/// Where the bytes of a tile are. Every order repeats itself along the columns, every 32 or 64 of them, at a fixed
/// distance: `Order::offset` of one period and that distance say all, and no formula is repeated here.
pub(super) struct Loader {
    /// Byte of row i, columns 4j.. of the period, from the first byte of the tile's first row: `[period/4][16]`.
    words: Vec<[usize; TILE]>,
    /// Bytes from a period to the next.
    step: usize,
    /// Bytes from a column to the next inside a word: 1, or words are not in one piece.
    column: usize,
    /// Bytes from the first of the tile's first row on that one period may name.
    extent: usize,
}

impl Loader {
    pub(super) fn new(w: &Planes<'_>) -> Self {
        let period = w.order.col_tile() as usize;
        let origin = w.offset(0, 0);
        let words: Vec<[usize; TILE]> =
            (0..period / WORD).map(|j| std::array::from_fn(|row| w.offset(row, j * WORD) - origin)).collect();
        let step = if w.padded_cols() > period { w.offset(0, period) - origin } else { 0 };
        let column = w.offset(0, 1) - origin;
        let last = words.iter().flatten().max().expect("a period has words");
        let extent = last + (WORD - 1) * column + 1;
        Loader { words, step, column, extent }
    }

    /// The first columns of tile `index`, as many as `out` has room for: `out` is `[cols/4][16][4]`.
    pub(super) fn load(&self, w: &Planes<'_>, index: usize, out: &mut [u8]) {
        let mut from = &w.quants()[w.offset(index * TILE, 0)..];
        let mut periods = out.chunks_mut(self.words.len() * LINE).peekable();
        while let Some(out) = periods.next() {
            assert!(from.len() >= self.extent);
            let start = from.as_ptr();
            for (line, words) in out.as_chunks_mut::<LINE>().0.iter_mut().zip(&self.words) {
                for (out, &at) in line.as_chunks_mut::<WORD>().0.iter_mut().zip(words) {
                    // SAFETY: at + 3·column < extent, and so many bytes are there (asserted).
                    *out = unsafe {
                        if self.column == 1 {
                            start.add(at).cast::<[u8; WORD]>().read()
                        } else {
                            std::array::from_fn(|i| *start.add(at + i * self.column))
                        }
                    };
                }
            }
            if periods.peek().is_some() {
                from = &from[self.step..];
            }
        }
    }
}
