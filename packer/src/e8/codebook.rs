//! The codebook in the orders that the search wants.
//!
//! The search works with half the codebook's values, 2..31, so that value = step·h. An entry's product with a group
//! is the sum of two pairs' products, and there are only 64 different pairs. For one step the entries of equal norm
//! differ by their product alone: of each of the 64 norms only the largest product matters, for all 16 steps.

use gantry_formats::block::iq3xxs_grid;
use std::sync::LazyLock;

/// Half the codebook's values, ascending.
pub(super) const LEVELS: [f32; 8] = [2.0, 6.0, 10.0, 14.0, 18.0, 22.0, 26.0, 31.0];

/// Different norms.
pub(super) const NORMS: usize = 64;

/// An entry as two pairs of level numbers, 8·first + second, and the number of its norm.
#[derive(Clone, Copy, Default)]
pub(super) struct Entry {
    pub(super) pairs: [u8; 2],
    pub(super) norm: u8,
}

pub(super) struct Codebook {
    /// By index.
    pub(super) entries: [Entry; 256],
    /// Half the codebook's values, by index.
    pub(super) halves: [[f32; 4]; 256],
    /// The sums of squares of `halves`, by number.
    pub(super) norms: [f32; NORMS],
    /// The pairs of the entries, ordered by the number of their norm.
    pub(super) by_norm: [[u8; 2]; 256],
    /// How many entries each norm has.
    pub(super) counts: [usize; NORMS],
}

pub(super) static CODEBOOK: LazyLock<Codebook> = LazyLock::new(|| {
    let grid = iq3xxs_grid();
    let halves = grid.map(|row| row.map(|g| f32::from(g) * 0.5));
    let level = |h: f32| LEVELS.iter().position(|&l| l == h).unwrap_or(0) as u8;
    let square = |row: &[f32; 4]| row.iter().map(|h| (h * h) as u32).sum::<u32>();
    let mut found: Vec<(usize, u32)> = Vec::new();
    for norm in halves.iter().map(square) {
        match found.iter_mut().find(|(_, n)| *n == norm) {
            Some((count, _)) => *count += 1,
            None => found.push((1, norm)),
        }
    }
    // Norms with the same number of entries side by side: a loop over each then takes the same turns for a while.
    found.sort_unstable();
    let mut book = Codebook {
        entries: [Entry::default(); 256],
        halves,
        norms: [f32::INFINITY; NORMS],
        by_norm: [[0; 2]; 256],
        counts: [0; NORMS],
    };
    let mut at = 0;
    for (number, &(count, norm)) in found.iter().enumerate() {
        (book.norms[number], book.counts[number]) = (norm as f32, count);
        for (entry, row) in book.entries.iter_mut().zip(&halves).filter(|(_, row)| square(row) == norm) {
            let [a, b, c, d] = row.map(level);
            *entry = Entry { pairs: [8 * a + b, 8 * c + d], norm: number as u8 };
            book.by_norm[at] = entry.pairs;
            at += 1;
        }
    }
    book
});

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_entry_is_in_one_norm() {
        assert_eq!(CODEBOOK.counts.iter().sum::<usize>(), 256);
        for (entry, halves) in CODEBOOK.entries.iter().zip(&CODEBOOK.halves) {
            let levels = entry.pairs.map(|p| [LEVELS[usize::from(p >> 3)], LEVELS[usize::from(p & 7)]]);
            assert_eq!(levels.as_flattened(), halves);
            let norm: f32 = halves.iter().map(|h| h * h).sum();
            assert_eq!(CODEBOOK.norms[usize::from(entry.norm)], norm);
        }
    }
}
