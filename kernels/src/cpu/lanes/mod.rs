//! Sixteen `f32` lanes: the one vocabulary in which the float kernels are written.
//!
//! Every operation is one IEEE operation per lane, rounded to nearest even, with no contraction into a fused
//! multiply-add; every reduction is one fixed tree. So a kernel over [`Simd`] gives the same bits from each
//! implementation. (A NaN is a NaN everywhere, but its payload is not part of that promise.)

mod portable;
pub(super) use portable::Portable;

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
#[cfg(target_arch = "x86_64")]
pub(super) use avx2::Avx2;
#[cfg(target_arch = "x86_64")]
pub(super) use avx512::Avx512;

/// Lanes of [`Simd::F`].
pub(super) const LANES: usize = 16;

/// Operations on 16 lanes. A value of the implementing type proves that the processor has its instructions.
///
/// The `unsafe` methods touch memory through a pointer: the caller guarantees that the stated number of
/// elements is readable (or writable) there; no alignment is needed.
pub(super) trait Simd: Copy + Send + Sync + 'static {
    /// 16 × f32.
    type F: Copy;
    /// 16 × f64.
    type D: Copy;
    /// Whether 16 values of `F` and their operands fit in registers.
    const WIDE: bool;

    fn splat(self, x: f32) -> Self::F;
    fn add(self, a: Self::F, b: Self::F) -> Self::F;
    fn sub(self, a: Self::F, b: Self::F) -> Self::F;
    fn mul(self, a: Self::F, b: Self::F) -> Self::F;
    fn div(self, a: Self::F, b: Self::F) -> Self::F;
    /// `a < b ? a : b` per lane: b where either is NaN.
    fn min(self, a: Self::F, b: Self::F) -> Self::F;
    /// `a > b ? a : b` per lane: b where either is NaN.
    fn max(self, a: Self::F, b: Self::F) -> Self::F;
    /// The bits of each lane, shifted left by 23: moves a small integer into the exponent.
    fn shift_left_23(self, a: Self::F) -> Self::F;
    /// Each lane to the nearest integer, halves away from zero.
    fn round_away(self, a: Self::F) -> Self::F;
    /// Per lane the larger of |a| and |b|, compared as integers: NaN > infinity > every finite value.
    fn max_magnitude(self, a: Self::F, b: Self::F) -> Self::F;

    /// Each lane negated where its bit of `which` is set.
    fn negate(self, a: Self::F, which: u16) -> Self::F;
    /// For len = 1, 2, 4, 8 every pair of lanes (u, v) at distance len becomes (u + v, u - v).
    fn butterflies(self, a: Self::F) -> Self::F;

    /// Sum of the lanes: lanes i and i+8, then i and i+4, i+2, i+1.
    fn sum(self, a: Self::F) -> f32;
    /// [`Simd::sum`] of each of 16 vectors, in lane i that of vector i.
    fn sum16(self, a: [Self::F; 16]) -> Self::F;
    /// The largest lane, in the order of `sum`, with `max`.
    fn max_lane(self, a: Self::F) -> f32;
    /// The largest lane by magnitude, as for [`Simd::max_magnitude`].
    fn max_magnitude_lane(self, a: Self::F) -> f32;

    fn zero_d(self) -> Self::D;
    /// `d + a`, a widened to f64.
    fn add_d(self, d: Self::D, a: Self::F) -> Self::D;
    /// `d + a·a`, a widened to f64 (so the square is exact).
    fn add_square_d(self, d: Self::D, a: Self::F) -> Self::D;
    /// Sum of the lanes in the order of `sum`.
    fn sum_d(self, d: Self::D) -> f64;

    /// Ask for the line at `p` into the second-level cache; any address will do.
    #[inline(always)]
    fn prefetch(self, p: *const u8) {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: every x86-64 has SSE; a prefetch does not fault.
        unsafe {
            std::arch::x86_64::_mm_prefetch::<{ std::arch::x86_64::_MM_HINT_T1 }>(p.cast())
        };
        #[cfg(not(target_arch = "x86_64"))]
        let _ = p;
    }

    /// # Safety
    /// 16 × f32 readable at `p`.
    unsafe fn load(self, p: *const f32) -> Self::F;
    /// # Safety
    /// 16 × IEEE half readable at `p`.
    unsafe fn load_f16(self, p: *const u16) -> Self::F;
    /// # Safety
    /// 16 × i8 readable at `p`.
    #[inline(always)]
    unsafe fn load_i8(self, p: *const i8) -> Self::F {
        let mut lanes = [0f32; LANES];
        // SAFETY: the caller's; `lanes` holds 16.
        unsafe {
            let values = p.cast::<[i8; LANES]>().read_unaligned();
            lanes.iter_mut().zip(values).for_each(|(lane, v)| *lane = f32::from(v));
            self.load(lanes.as_ptr())
        }
    }
    /// # Safety
    /// 16 × bfloat16 readable at `p`.
    unsafe fn load_bf16(self, p: *const u16) -> Self::F;
    /// # Safety
    /// 16 × f32 writable at `p`.
    unsafe fn store(self, p: *mut f32, a: Self::F);
    /// Each lane rounded to nearest even, as an i8; the lanes lie within ±127.5.
    ///
    /// # Safety
    /// 16 × i8 writable at `p`.
    unsafe fn store_i8(self, p: *mut i8, a: Self::F);

    /// The first `n` lanes from `p`, the rest +0.
    ///
    /// # Safety
    /// `n` × f32 readable at `p`, n ≤ 16.
    #[inline(always)]
    unsafe fn load_part(self, p: *const f32, n: usize) -> Self::F {
        if n == LANES {
            // SAFETY: the caller's.
            return unsafe { self.load(p) };
        }
        let mut lanes = [0f32; LANES];
        // SAFETY: the caller's; `lanes` holds 16.
        unsafe {
            std::ptr::copy_nonoverlapping(p.cast::<u8>(), lanes.as_mut_ptr().cast::<u8>(), n * 4);
            self.load(lanes.as_ptr())
        }
    }

    /// # Safety
    /// `n` × f32 writable at `p`, n ≤ 16.
    #[inline(always)]
    unsafe fn store_part(self, p: *mut f32, n: usize, a: Self::F) {
        if n == LANES {
            // SAFETY: the caller's.
            return unsafe { self.store(p, a) };
        }
        let mut lanes = [0f32; LANES];
        // SAFETY: the caller's; `lanes` holds 16.
        unsafe {
            self.store(lanes.as_mut_ptr(), a);
            std::ptr::copy_nonoverlapping(lanes.as_ptr(), p, n);
        }
    }
}
