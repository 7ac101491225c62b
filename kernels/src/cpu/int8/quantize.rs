//! Activations as int8 with a scale per row.

use std::ops::Range;

use crate::cpu::disjoint::Disjoint;
use crate::cpu::groups::Groups;
use crate::cpu::isa::{Isa, Kernel};
use crate::cpu::lanes::{LANES, Simd};
use crate::cpu::math::FORK;
use crate::cpu::pool::Pool;

/// Quants of a row are followed by zeros up to a multiple of it, so that a kernel needs no end of a row.
const ROW_ALIGN: usize = 32;

/// Quantized rows `[rows][cols]`: per row `amax = max|x|`, `d = amax/127` (f32), `q = round(x · (1/d))`, halves
/// away from zero, |q| <= 127.
///
/// A row so small that 1/d overflows (amax < 3.8e-37) becomes zero; a row that holds a NaN or an infinity gets the
/// scale NaN, so that whatever it touches is NaN rather than wrong.
///
/// The buffers are kept: quantizing again into the same value allocates only when it grows.
#[derive(Debug, Default)]
pub struct I8Rows {
    rows: usize,
    cols: usize,
    /// `[rows][cols to a multiple of 32]`, zeros after `cols`.
    quants: Vec<i8>,
    /// `[rows]`.
    scales: Vec<f32>,
    /// `[rows]`: -128 · Σ q modulo 2^32, what an unsigned w + 128 adds too much.
    offsets: Vec<i32>,
}

impl I8Rows {
    /// No rows; no memory.
    pub fn new() -> Self {
        Self::default()
    }

    /// Hold `x`, row-major with `cols` columns, quantized. Several rows are shared among the threads.
    ///
    /// # Panics
    /// Where `cols` is 0 or does not divide the length of `x`.
    pub fn quantize(&mut self, isa: Isa, pool: &Pool, x: &[f32], cols: usize) {
        assert!(cols > 0 && x.len().is_multiple_of(cols), "{} values are not rows of {cols}", x.len());
        (self.rows, self.cols) = (x.len() / cols, cols);
        let stride = self.stride();
        self.quants.resize(self.rows * stride, 0);
        self.scales.resize(self.rows, 0.0);
        self.offsets.resize(self.rows, 0);
        let quants = Disjoint::new(&mut self.quants);
        let scales = Disjoint::new(&mut self.scales);
        let offsets = Disjoint::new(&mut self.offsets);
        pool.for_chunks(self.rows, FORK.div_ceil(cols), |range| {
            for row in range {
                // SAFETY: the row exists and no other thread has it; `stride` quants belong to it.
                let (quants, scale, offset) = unsafe {
                    (quants.slice(row * stride, stride), scales.slice(row, 1), offsets.slice(row, 1))
                };
                (scale[0], offset[0]) = isa.run(Row { x: &x[row * cols..][..cols], quants });
            }
        });
    }

    /// Hold `rows` rows of `cols` columns that were quantized elsewhere: `read` writes their quants, as
    /// [`padded_quants`](Self::padded_quants) gives them, and their scales.
    ///
    /// # Errors
    /// Those of `read`; the rows are then of no use.
    pub fn fill<E>(
        &mut self,
        rows: usize,
        cols: usize,
        read: impl FnOnce(&mut [i8], &mut [f32]) -> Result<(), E>,
    ) -> Result<(), E> {
        (self.rows, self.cols) = (rows, cols);
        let stride = self.stride();
        let groups =
            Groups { quants: &mut self.quants, scales: &mut self.scales, offsets: &mut self.offsets };
        groups.fill(rows, stride, read)
    }

    /// Rows: tokens.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Columns: n_in.
    pub fn cols(&self) -> usize {
        self.cols
    }

    /// The quants of a row, `cols` of them, each within ±127.
    ///
    /// # Panics
    /// Where the row does not exist.
    pub fn quants(&self, row: usize) -> &[i8] {
        &self.quants[row * self.stride()..][..self.cols]
    }

    /// The quants of all rows, each padded with zeros to a multiple of 32.
    pub fn padded_quants(&self) -> &[i8] {
        &self.quants
    }

    /// `[rows]`.
    pub fn scales(&self) -> &[f32] {
        &self.scales
    }

    fn stride(&self) -> usize {
        self.cols.next_multiple_of(ROW_ALIGN)
    }

    /// Some of its rows.
    ///
    /// # Panics
    /// Where they do not exist.
    pub(in crate::cpu) fn slice(&self, rows: Range<usize>) -> I8Slice<'_> {
        let stride = self.stride();
        I8Slice {
            stride,
            quants: &self.quants[rows.start * stride..rows.end * stride],
            scales: &self.scales[rows.clone()],
            offsets: &self.offsets[rows],
        }
    }

    /// The named rows one after another.
    ///
    /// # Panics
    /// Where one does not exist.
    pub(in crate::cpu) fn gather(&self, rows: &[u32]) -> I8Rows {
        let mut out = I8Rows { rows: rows.len(), cols: self.cols, ..I8Rows::default() };
        for &row in rows {
            let row = self.slice(row as usize..row as usize + 1);
            out.quants.extend_from_slice(row.quants);
            out.scales.extend_from_slice(row.scales);
            out.offsets.extend_from_slice(row.offsets);
        }
        out
    }
}

/// Consecutive rows of [`I8Rows`], in its formats.
#[derive(Clone, Copy)]
pub(in crate::cpu) struct I8Slice<'a> {
    /// Columns to a multiple of 32.
    stride: usize,
    quants: &'a [i8],
    scales: &'a [f32],
    offsets: &'a [i32],
}

impl<'a> I8Slice<'a> {
    /// Rows: tokens.
    pub(in crate::cpu) fn rows(&self) -> usize {
        self.scales.len()
    }

    /// Quants from a row to the next: columns to a multiple of 32.
    pub(super) fn stride(&self) -> usize {
        self.stride
    }

    /// `[rows][stride]`, each within ±127, 0 past the columns.
    pub(super) fn quants(&self) -> &'a [i8] {
        self.quants
    }

    /// `[rows]`.
    pub(super) fn scales(&self) -> &'a [f32] {
        self.scales
    }

    /// `[rows]`: -128 · Σ q modulo 2^32.
    #[cfg(target_arch = "x86_64")]
    pub(super) fn offsets(&self) -> &'a [i32] {
        self.offsets
    }
}

struct Row<'a> {
    x: &'a [f32],
    quants: &'a mut [i8],
}

impl Kernel for Row<'_> {
    /// Scale and offset.
    type Out = (f32, i32);

    #[inline(always)]
    fn run<S: Simd>(self, s: S) -> (f32, i32) {
        self.quants[self.x.len()..].fill(0);
        let mut largest = s.splat(0.0);
        for x in self.x.chunks(LANES) {
            // SAFETY: a chunk holds its length, at most 16; the lanes past it are 0.
            largest = s.max_magnitude(largest, unsafe { s.load_part(x.as_ptr(), x.len()) });
        }
        let amax = s.max_magnitude_lane(largest);
        let d = amax / 127.0;
        let inverse = 1.0 / d;
        if !amax.is_finite() || !inverse.is_finite() {
            self.quants.fill(0);
            return (if amax.is_finite() { 0.0 } else { f32::NAN }, 0);
        }
        // |x·(1/d)| <= 127·(1 + 3 roundings), which rounds to 127 at most.
        let by = s.splat(inverse);
        for (x, q) in self.x.chunks(LANES).zip(self.quants.chunks_mut(LANES)) {
            // SAFETY: a chunk of x holds its length, at most 16; rows of quants are whole chunks of 16.
            unsafe {
                let x = s.load_part(x.as_ptr(), x.len());
                s.store_i8(q.as_mut_ptr(), s.round_away(s.mul(x, by)));
            }
        }
        let sum = self.quants.iter().fold(0i32, |sum, &q| sum.wrapping_add(i32::from(q)));
        (d, sum.wrapping_mul(-128))
    }
}
