//! Tables of n-grams, which stay in their files: which rows a token has, and reading them.

use super::host::{bad, view};
use crate::Result;
use crate::load::Weights;
use crate::model::program::{self, Matrix, Program, Step, StepKind};
use gantry_kernels::cpu::{self as kernels, Pool};
use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

/// Tokens of the longest n-gram.
const LONGEST: usize = 8;

/// Reads that are worth waking a thread for: each takes about a microsecond.
const READS: usize = 64;

/// A table that stays in its file, and which of its rows a token has: one for each head.
pub(super) struct NgramTable {
    pub(super) table: Matrix,
    hash: kernels::Ngram,
    /// By plane: its first byte in the card's arena, and bytes of a row.
    planes: Vec<(usize, usize)>,
}

/// The tables of a program, by the index of their hashes: each step has hashes of its own.
pub(super) fn tables(program: &Program) -> Result<BTreeMap<usize, NgramTable>> {
    let each = program.steps().filter_map(|step| match step {
        Step::Ngram { table, hash, .. } => Some((table, *hash)),
        _ => None,
    });
    each.map(|(table, hash)| Ok((hash, NgramTable::new(table, &program.ngrams[hash])?))).collect()
}

impl NgramTable {
    fn new(table: &Matrix, hash: &program::Ngram) -> Result<Self> {
        if hash.size > LONGEST {
            return Err(bad(table, format!("n-grams of {} tokens, at most {LONGEST} are hashed", hash.size)));
        }
        let planes = table.layout.planes(table.stored_rows as u64, table.cols as u64);
        let planes =
            planes.ok_or_else(|| bad(table, format!("{} columns in layout {}", table.cols, table.layout)))?;
        let plane = |p: &gantry_formats::layout::Plane| {
            let each = p.bytes as usize / table.stored_rows.max(1);
            (table.offset + p.offset as usize, each)
        };
        let hash = kernels::Ngram {
            size: hash.size,
            eos: hash.eos,
            multipliers: hash.multipliers.clone(),
            offsets: hash.offsets.clone(),
            vocabs: hash.vocabs.clone(),
        };
        Ok(Self { planes: planes.iter().map(plane).collect(), table: table.clone(), hash })
    }

    /// Rows of a token.
    pub(super) fn heads(&self) -> usize {
        self.hash.offsets.len()
    }

    /// Bytes of a row, by plane of its layout.
    pub(super) fn planes(&self) -> impl Iterator<Item = usize> + '_ {
        self.planes.iter().map(|(_, bytes)| *bytes)
    }

    /// The rows of the token at `position`, of a sequence of which `tokens` are all so far.
    pub(super) fn rows(&self, tokens: &[u32], position: usize, rows: &mut [u64]) {
        let mut window = [None; LONGEST];
        for (back, seen) in window[..self.hash.size].iter_mut().enumerate() {
            *seen = position.checked_sub(back).and_then(|p| tokens.get(p).copied());
        }
        self.hash.rows(&window[..self.hash.size], rows);
    }

    /// Reads what plane `plane` has of a row.
    pub(super) fn read(&self, weights: &Weights, plane: usize, row: u64, into: &mut [u8]) -> Result<()> {
        let table = &self.table;
        let outside = || bad(table, format!("row {row} lies outside of its {} rows", table.rows.len()));
        let index = usize::try_from(row).ok().filter(|r| *r < table.rows.len()).ok_or_else(outside)?;
        let (first, bytes) = self.planes[plane];
        let read = weights.read(table.card, first + (table.rows.start + index) * bytes, into);
        read.map_err(|e| bad(table, format!("row {row} cannot be read from the container's file: {e}")))
    }

    /// The values of a row; `bytes` is room for what is stored of it.
    pub(super) fn values(
        &self,
        weights: &Weights,
        row: u64,
        bytes: &mut Vec<u8>,
        out: &mut [f32],
    ) -> Result<()> {
        let table = &self.table;
        // One row's planes stand as those of a matrix of one row.
        let single = table.layout.planes(1, table.cols as u64).unwrap_or_default();
        bytes.clear();
        bytes.resize(table.layout.bytes(1, table.cols as u64).unwrap_or(0) as usize, 0);
        for (plane, (single, each)) in single.iter().zip(self.planes()).enumerate() {
            self.read(weights, plane, row, &mut bytes[single.offset as usize..][..each])?;
        }
        view(StepKind::Rows, table, 1, bytes)?.dequantize_row(0, out);
        Ok(())
    }

    /// The values of the rows of some tokens from position `start` on, those of a token side by side: `[tokens][heads]
    /// [cols]`. `tokens` are all of the sequence.
    ///
    /// # Errors
    /// That of the first row that cannot be read, whatever threads met.
    pub(super) fn all_values(
        &self,
        (weights, pool): (&Weights, &Pool),
        tokens: &[u32],
        start: usize,
        out: &mut [f32],
    ) -> Result<()> {
        let cols = self.table.cols;
        self.each_token(pool, out, self.heads() * cols, |t, out| {
            let (mut rows, mut bytes) = (vec![0; self.heads()], Vec::new());
            self.rows(tokens, start + t, &mut rows);
            let mut each = rows.iter().zip(out.chunks_exact_mut(cols));
            each.try_for_each(|(row, out)| self.values(weights, *row, &mut bytes, out))
        })
    }

    /// Fills the `width` values of each token of `out` through several threads, where that is worth it.
    ///
    /// # Errors
    /// Of the tokens that have one, the first token's.
    pub(super) fn each_token<T: Send>(
        &self,
        pool: &Pool,
        out: &mut [T],
        width: usize,
        fill: impl Fn(usize, &mut [T]) -> Result<()> + Sync,
    ) -> Result<()> {
        let first = Mutex::new(None);
        let chunk = READS.div_ceil(self.heads() * self.planes.len().max(1));
        pool.for_rows(out, width, chunk, |t, out| {
            if let Err(error) = fill(t, out) {
                let mut first = first.lock().unwrap_or_else(PoisonError::into_inner);
                if first.as_ref().is_none_or(|(before, _)| t < *before) {
                    *first = Some((t, error));
                }
            }
        });
        first.into_inner().unwrap_or_else(PoisonError::into_inner).map_or(Ok(()), |(_, error)| Err(error))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::load::Weights;
    use gantry_formats::block::GgmlType;
    use gantry_formats::layout::Layout;

    /// A table of `stored` rows of 32 values, of which all but the first two belong to it, and its hashes.
    fn table(stored: usize, layout: Layout, vocabs: [u64; 4]) -> NgramTable {
        let rows = 2..stored;
        let table =
            Matrix { name: "t".into(), card: 0, offset: 64, stored_rows: stored, rows, cols: 32, layout };
        let hash = program::Ngram {
            size: 3,
            eos: 2,
            multipliers: vec![5, 7, 11],
            offsets: vec![0, 3, 6, 9],
            vocabs: vocabs.to_vec(),
        };
        NgramTable::new(&table, &hash).unwrap()
    }

    /// Quants that tell their row and column, and one scale for each row.
    fn split(stored: usize) -> Vec<u8> {
        let mut bytes = vec![0; 64];
        bytes.extend((0..stored * 32).map(|i| (i / 32 * 3 + i % 32) as u8));
        bytes.resize(64 + (stored * 32).next_multiple_of(256), 0);
        bytes.extend((0..stored).flat_map(|row| half::f16::from_f32(row as f32).to_le_bytes()));
        bytes
    }

    #[test]
    fn rows_are_those_of_the_hashes_whoever_reads_them() {
        let stored = 14;
        let table = table(stored, Layout::Q8_0Split { plane_align: 256 }, [3; 4]);
        let weights = Weights::of(&[split(stored)]).unwrap();
        let tokens: Vec<u32> = (0..300).map(|i| i * i % 13).collect();
        let (start, count) = (11, 280);
        let mut want = Vec::new();
        for position in start..start + count {
            let mut rows = [0; 4];
            table.rows(&tokens, position, &mut rows);
            for row in rows.map(|row| row as usize + 2) {
                want.extend((0..32).map(|i| ((row * 3 + i) as u8 as i8) as f32 * row as f32));
            }
        }
        assert!(want.chunks(32).any(|row| row != &want[..32]), "all rows are one");
        for threads in [1, 4] {
            let mut found = vec![f32::NAN; want.len()];
            table.all_values((&weights, &Pool::new(threads)), &tokens, start, &mut found).unwrap();
            assert_eq!(found, want, "{threads} threads");
        }
    }

    #[test]
    fn the_first_row_that_cannot_be_read_is_named_whoever_met_it() {
        let stored = 8;
        // Rows 9 to 11 are asked for, there are 6.
        let table = table(stored, Layout::Raw(GgmlType::F32), [1, 1, 1, 3]);
        let weights = Weights::of(&[vec![0; 64 + stored * 128]]).unwrap();
        let tokens: Vec<u32> = (0..200).collect();
        let mut first = [0; 4];
        table.rows(&tokens, 0, &mut first);
        let row = first.iter().find(|row| **row >= 6).expect("a row that is not there");
        for threads in [1, 4] {
            let mut out = vec![0.0; 200 * 128];
            let error = table.all_values((&weights, &Pool::new(threads)), &tokens, 0, &mut out).unwrap_err();
            assert!(error.to_string().contains(&format!("row {row} lies outside of its 6 rows")), "{error}");
        }
    }
}
