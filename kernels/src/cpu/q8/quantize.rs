//! Activations as int8 with a scale per 32.

use std::ops::Range;

use super::BLOCK;
use crate::cpu::disjoint::Disjoint;
use crate::cpu::groups::Groups;
use crate::cpu::isa::{Isa, Kernel};
use crate::cpu::lanes::{LANES, Simd};
use crate::cpu::pool::Pool;

/// Quantized rows `[rows][cols]`: per 32 columns `amax = max|x|`, `d = amax/127` (f32, kept as f32),
/// `q = round(x · (1/d))` to nearest even, |q| <= 127.
///
/// A block so small that 1/d overflows (amax < 3.8e-37) becomes zero; a block that holds a NaN or an infinity
/// gets the scale NaN, so that whatever it touches is NaN rather than wrong.
///
/// The buffers are kept: quantizing again into the same value allocates only when it grows.
#[derive(Debug, Default)]
pub struct Q8Rows {
    rows: usize,
    cols: usize,
    /// `[rows][cols]`, each within ±127: the sums of the AVX2 kernel rely on there being no -128.
    quants: Vec<i8>,
    /// `[rows][cols/32]`.
    scales: Vec<f32>,
    /// `[rows][cols/32]`: -128 · Σ q, what an unsigned w + 128 adds too much.
    offsets: Vec<i32>,
}

impl Q8Rows {
    /// No rows; no memory.
    pub fn new() -> Self {
        Self::default()
    }

    /// Hold `x`, row-major with `cols` columns, quantized. Several rows are shared among the threads.
    ///
    /// # Panics
    /// Where `cols` is 0 or no multiple of 32, or does not divide the length of `x`.
    pub fn quantize(&mut self, isa: Isa, pool: &Pool, x: &[f32], cols: usize) {
        assert!(cols > 0 && cols.is_multiple_of(BLOCK), "{cols} columns are not blocks of {BLOCK}");
        assert!(x.len().is_multiple_of(cols), "{} values are not rows of {cols}", x.len());
        (self.rows, self.cols) = (x.len() / cols, cols);
        let blocks = x.len() / BLOCK;
        self.quants.resize(x.len(), 0);
        self.scales.resize(blocks, 0.0);
        self.offsets.resize(blocks, 0);
        let quants = Disjoint::new(&mut self.quants);
        let scales = Disjoint::new(&mut self.scales);
        let offsets = Disjoint::new(&mut self.offsets);
        // 256 blocks take about 2 µs, the price of a fork.
        pool.for_chunks(blocks, 256.max(blocks / (8 * pool.threads())), |range| {
            let n = range.len();
            // SAFETY: the range lies within `blocks` and no other thread has it; 32 quants belong to each.
            let (quants, scales, offsets) = unsafe {
                (
                    quants.slice(range.start * BLOCK, n * BLOCK),
                    scales.slice(range.start, n),
                    offsets.slice(range.start, n),
                )
            };
            isa.run(Blocks { x: &x[range.start * BLOCK..range.end * BLOCK], quants, scales, offsets });
        });
    }

    /// Hold `rows` rows of `cols` columns that were quantized elsewhere: `read` writes their quants and scales, laid out
    /// as [`quants`](Self::quants) and [`scales`](Self::scales) are.
    ///
    /// # Errors
    /// Those of `read`; the rows are then of no use.
    ///
    /// # Panics
    /// Where `cols` is no multiple of 32.
    pub fn fill<E>(
        &mut self,
        rows: usize,
        cols: usize,
        read: impl FnOnce(&mut [i8], &mut [f32]) -> Result<(), E>,
    ) -> Result<(), E> {
        assert!(cols.is_multiple_of(BLOCK), "{cols} columns are not blocks of {BLOCK}");
        (self.rows, self.cols) = (rows, cols);
        let groups =
            Groups { quants: &mut self.quants, scales: &mut self.scales, offsets: &mut self.offsets };
        groups.fill(rows * (cols / BLOCK), BLOCK, read)
    }

    /// Rows: tokens.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Columns: n_in.
    pub fn cols(&self) -> usize {
        self.cols
    }

    /// `[rows][cols]`, each within ±127.
    pub fn quants(&self) -> &[i8] {
        &self.quants
    }

    /// `[rows][cols/32]`.
    pub fn scales(&self) -> &[f32] {
        &self.scales
    }

    /// Some of its rows.
    ///
    /// # Panics
    /// Where they do not exist.
    pub(in crate::cpu) fn slice(&self, rows: Range<usize>) -> Q8Slice<'_> {
        let blocks = self.cols / BLOCK;
        Q8Slice {
            rows: rows.len(),
            cols: self.cols,
            quants: &self.quants[rows.start * self.cols..rows.end * self.cols],
            scales: &self.scales[rows.start * blocks..rows.end * blocks],
            offsets: &self.offsets[rows.start * blocks..rows.end * blocks],
        }
    }

    /// The named rows one after another.
    ///
    /// # Panics
    /// Where one does not exist.
    pub(in crate::cpu) fn gather(&self, rows: &[u32]) -> Q8Rows {
        let mut out = Q8Rows { rows: rows.len(), cols: self.cols, ..Q8Rows::default() };
        for &row in rows {
            let row = self.slice(row as usize..row as usize + 1);
            out.quants.extend_from_slice(row.quants);
            out.scales.extend_from_slice(row.scales);
            out.offsets.extend_from_slice(row.offsets);
        }
        out
    }
}

/// Consecutive rows of [`Q8Rows`], in its formats.
#[derive(Clone, Copy)]
pub(in crate::cpu) struct Q8Slice<'a> {
    rows: usize,
    cols: usize,
    quants: &'a [i8],
    scales: &'a [f32],
    offsets: &'a [i32],
}

impl<'a> Q8Slice<'a> {
    /// Rows: tokens.
    pub(in crate::cpu) fn rows(&self) -> usize {
        self.rows
    }

    /// Columns: n_in.
    pub(in crate::cpu) fn cols(&self) -> usize {
        self.cols
    }

    /// `[rows][cols]`, each within ±127.
    pub(in crate::cpu) fn quants(&self) -> &'a [i8] {
        self.quants
    }

    /// `[rows][cols/32]`.
    pub(in crate::cpu) fn scales(&self) -> &'a [f32] {
        self.scales
    }

    /// `[rows][cols/32]`: -128 · Σ q.
    #[cfg(target_arch = "x86_64")]
    pub(in crate::cpu) fn offsets(&self) -> &'a [i32] {
        self.offsets
    }
}

struct Blocks<'a> {
    x: &'a [f32],
    quants: &'a mut [i8],
    scales: &'a mut [f32],
    offsets: &'a mut [i32],
}

impl Kernel for Blocks<'_> {
    type Out = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let blocks = self.x.as_chunks::<BLOCK>().0.iter().zip(self.quants.as_chunks_mut::<BLOCK>().0);
        for ((x, q), (scale, offset)) in blocks.zip(self.scales.iter_mut().zip(self.offsets)) {
            // SAFETY: a block holds 32 = 2 × LANES values.
            let (a, b) = unsafe { (s.load(x.as_ptr()), s.load(x.as_ptr().add(LANES))) };
            let amax = s.max_magnitude_lane(s.max_magnitude(a, b));
            let mut d = amax / 127.0;
            let mut inverse = 1.0 / d;
            if !amax.is_finite() {
                (d, inverse) = (f32::NAN, 0.0);
            } else if !inverse.is_finite() {
                (d, inverse) = (0.0, 0.0);
            }
            if inverse == 0.0 {
                q.fill(0);
                (*scale, *offset) = (d, 0);
                continue;
            }
            // |x·(1/d)| <= 127·(1 + 3 roundings), which rounds to 127 at most.
            let by = s.splat(inverse);
            // SAFETY: as above, for 32 quants.
            unsafe {
                s.store_i8(q.as_mut_ptr(), s.mul(a, by));
                s.store_i8(q.as_mut_ptr().add(LANES), s.mul(b, by));
            }
            let sum: i32 = q.iter().map(|&q| i32::from(q)).sum();
            (*scale, *offset) = (d, -128 * sum);
        }
    }
}
