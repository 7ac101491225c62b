//! The product of float weights with float activations, in the order that [`super::product::gemm`] states.

use std::marker::PhantomData;
use std::ops::Range;

use super::disjoint::Disjoint;
#[cfg(target_arch = "x86_64")]
use super::isa::Level;
use super::isa::{Isa, Kernel};
use super::lanes::{LANES, Simd};
use super::matrix::TILE;

#[cfg(target_arch = "x86_64")]
mod avx2;

/// A float format of weights, widened exactly to f32.
pub(super) trait Element: Sync {
    const BYTES: usize;
    /// # Safety
    /// 16 elements readable at `p`, any alignment.
    unsafe fn load<S: Simd>(s: S, p: *const u8) -> S::F;
    /// Half of that.
    ///
    /// # Safety
    /// AVX2 and F16C; 8 elements readable at `p`, any alignment.
    #[cfg(target_arch = "x86_64")]
    unsafe fn eight(p: *const u8) -> std::arch::x86_64::__m256;
}

pub(super) struct F32;
pub(super) struct F16;
pub(super) struct Bf16;

impl Element for F32 {
    const BYTES: usize = 4;
    #[inline(always)]
    unsafe fn load<S: Simd>(s: S, p: *const u8) -> S::F {
        // SAFETY: the caller's.
        unsafe { s.load(p.cast()) }
    }
    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    unsafe fn eight(p: *const u8) -> std::arch::x86_64::__m256 {
        // SAFETY: the caller's.
        unsafe { avx2::f32s(p) }
    }
}
impl Element for F16 {
    const BYTES: usize = 2;
    #[inline(always)]
    unsafe fn load<S: Simd>(s: S, p: *const u8) -> S::F {
        // SAFETY: the caller's.
        unsafe { s.load_f16(p.cast()) }
    }
    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    unsafe fn eight(p: *const u8) -> std::arch::x86_64::__m256 {
        // SAFETY: the caller's.
        unsafe { avx2::f16s(p) }
    }
}
impl Element for Bf16 {
    const BYTES: usize = 2;
    #[inline(always)]
    unsafe fn load<S: Simd>(s: S, p: *const u8) -> S::F {
        // SAFETY: the caller's.
        unsafe { s.load_bf16(p.cast()) }
    }
    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    unsafe fn eight(p: *const u8) -> std::arch::x86_64::__m256 {
        // SAFETY: the caller's.
        unsafe { avx2::bf16s(p) }
    }
}

/// The first `n` < 16 elements, the other lanes +0.
///
/// # Safety
/// `n` elements readable at `p`.
#[inline(always)]
unsafe fn load_part<E: Element, S: Simd>(s: S, p: *const u8, n: usize) -> S::F {
    let mut bytes = [0u8; LANES * 4];
    // SAFETY: the caller's; 16 elements of at most 4 bytes fit, and zero bytes are +0 in each format.
    unsafe {
        std::ptr::copy_nonoverlapping(p, bytes.as_mut_ptr(), n * E::BYTES);
        E::load(s, bytes.as_ptr())
    }
}

/// A product; lengths are checked by `gemm`. Output `row` of `token` is y\[token · stride + row\].
pub(super) struct Job<'a> {
    pub(super) rows: usize,
    pub(super) stride: usize,
    pub(super) cols: usize,
    pub(super) weights: &'a [u8],
    pub(super) x: &'a [f32],
    pub(super) y: Disjoint<'a, f32>,
}

/// All tokens of some tiles of 16 rows. One token is bound by memory: all lanes at once read each line once.
pub(super) fn tiles<E: Element>(isa: Isa, job: &Job<'_>, tiles: Range<usize>) {
    #[cfg(target_arch = "x86_64")]
    if let Level::Avx2(proof) = isa.0
        && job.x.len() > job.cols
    {
        return avx2::tiles::<E>(proof, job, tiles);
    }
    isa.run(Tiles { job, tiles, element: PhantomData::<E> });
}

/// [`tiles`] over 16 lanes.
struct Tiles<'a, E> {
    job: &'a Job<'a>,
    tiles: Range<usize>,
    element: PhantomData<E>,
}

impl<E: Element> Kernel for Tiles<'_, E> {
    type Out = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let job = self.job;
        let tokens = job.x.len() / job.cols;
        let end = (self.tiles.end * TILE).min(job.rows);
        let mut row = self.tiles.start * TILE;
        // 16 sums at once, as 16 rows of one token or 4 rows of 4 tokens, where registers hold them.
        while S::WIDE && tokens == 1 && row + 16 <= end {
            sixteen::<16, 1, E, S>(s, job, row, 0);
            row += 16;
        }
        while row + 4 <= end {
            let mut token = 0;
            while S::WIDE && token + 4 <= tokens {
                sixteen::<4, 4, E, S>(s, job, row, token);
                token += 4;
            }
            while token + 2 <= tokens {
                block::<4, 2, E, S>(s, job, row, token);
                token += 2;
            }
            if token < tokens {
                block::<4, 1, E, S>(s, job, row, token);
            }
            row += 4;
        }
        while row < end {
            for token in 0..tokens {
                block::<1, 1, E, S>(s, job, row, token);
            }
            row += 1;
        }
    }
}

/// The lane sums of R rows × T tokens, before the tree.
#[inline(always)]
fn lane_sums<const R: usize, const T: usize, E: Element, S: Simd>(
    s: S,
    job: &Job<'_>,
    row: usize,
    token: usize,
) -> [[S::F; T]; R] {
    debug_assert!(row + R <= job.rows && (token + T) * job.cols <= job.x.len());
    let mut sums = [[s.splat(0.0); T]; R];
    // SAFETY: the rows and tokens exist (asserted above, by the loops of `run`), each has `cols` elements, and
    // every access below ends at column k + 16 <= cols or has cols - k elements.
    unsafe {
        let w = job.weights.as_ptr().add(row * job.cols * E::BYTES);
        let x = job.x.as_ptr().add(token * job.cols);
        let mut k = 0;
        while k + LANES <= job.cols {
            let mut xs = [s.splat(0.0); T];
            for (t, lanes) in xs.iter_mut().enumerate() {
                *lanes = s.load(x.add(t * job.cols + k));
            }
            for (r, sums) in sums.iter_mut().enumerate() {
                // R rows are R streams, more than hardware follows; the next R rows are one.
                if T == 1 && (r * LANES * E::BYTES).is_multiple_of(64) {
                    s.prefetch(w.wrapping_add((R * job.cols + R * k + r * LANES) * E::BYTES));
                }
                let w = E::load(s, w.add((r * job.cols + k) * E::BYTES));
                for (sum, &x) in sums.iter_mut().zip(&xs) {
                    *sum = s.add(*sum, s.mul(w, x));
                }
            }
            k += LANES;
        }
        let rest = job.cols - k;
        if rest > 0 {
            for (r, sums) in sums.iter_mut().enumerate() {
                let w = load_part::<E, S>(s, w.add((r * job.cols + k) * E::BYTES), rest);
                for (t, sum) in sums.iter_mut().enumerate() {
                    *sum = s.add(*sum, s.mul(w, s.load_part(x.add(t * job.cols + k), rest)));
                }
            }
        }
    }
    sums
}

#[inline(always)]
fn block<const R: usize, const T: usize, E: Element, S: Simd>(s: S, job: &Job<'_>, row: usize, token: usize) {
    let sums = lane_sums::<R, T, E, S>(s, job, row, token);
    for (r, sums) in sums.into_iter().enumerate() {
        for (t, sum) in sums.into_iter().enumerate() {
            // SAFETY: row + r < rows and token + t < tokens; no other thread has these rows.
            unsafe { *job.y.at((token + t) * job.stride + row + r) = s.sum(sum) };
        }
    }
}

/// [`block`] with R·T = 16: one tree for all sums.
#[inline(always)]
fn sixteen<const R: usize, const T: usize, E: Element, S: Simd>(
    s: S,
    job: &Job<'_>,
    row: usize,
    token: usize,
) {
    const { assert!(R * T == 16) };
    let sums = lane_sums::<R, T, E, S>(s, job, row, token);
    let mut by_token = [s.splat(0.0); 16];
    for (i, sum) in by_token.iter_mut().enumerate() {
        *sum = sums[i % R][i / R];
    }
    let mut out = [0f32; 16];
    // SAFETY: `out` holds 16.
    unsafe { s.store(out.as_mut_ptr(), s.sum16(by_token)) };
    for (t, out) in out.chunks_exact(R).enumerate() {
        // SAFETY: rows row..row + R of token + t exist; no other thread has these rows.
        unsafe { job.y.slice((token + t) * job.stride + row, R) }.copy_from_slice(out);
    }
}
