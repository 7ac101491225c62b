//! Vectors of f32, so that one generic function is every level of an algorithm: the same operations in the same
//! order per lane, each rounded to f32, none fused. Functions over [`Lanes`] are `#[inline(always)]` and reach their
//! instructions by being inlined into a function that enables them.

#[cfg(target_arch = "x86_64")]
use std::arch::x86_64::*;

/// `N` f32, a multiple of 8.
pub(crate) trait Lanes: Copy {
    /// What [`Self::mark`] notes bits in.
    type Marks: Copy;
    /// Lanes: 8 or 16.
    const N: usize;
    /// Whether eight of these and two more fit the registers.
    const MANY: bool;
    /// `x` in every lane.
    fn splat(x: f32) -> Self;
    /// No bits.
    fn no_marks() -> Self::Marks;
    /// `low` in lanes 0..8, `high` in lanes 8..16 where there are any.
    fn pair(low: f32, high: f32) -> Self;
    /// The first `N` of a slice that has them.
    fn load(from: &[f32]) -> Self;
    /// To the first `N` of a slice that has them.
    fn store(self, to: &mut [f32]);
    /// Lane by lane.
    fn add(self, other: Self) -> Self;
    /// Lane by lane.
    fn sub(self, other: Self) -> Self;
    /// Lane by lane.
    fn mul(self, other: Self) -> Self;
    /// `self` where it is less, else `other`.
    fn min(self, other: Self) -> Self;
    /// `self` where it is greater, else `other`.
    fn max(self, other: Self) -> Self;
    /// `yes` where `self` and `other` are equal, else `no`.
    fn select_eq(self, other: Self, yes: Self, no: Self) -> Self;
    /// Bit i is set where lane i of both is equal.
    fn equal(self, other: Self) -> u32;
    /// Lanes 1, 0, 3, 2, …
    fn swap_pairs(self) -> Self;
    /// Notes `bit` where any lane of both is equal.
    fn mark(self, other: Self, bit: u32, marks: &mut Self::Marks);
    /// The bits that were noted.
    fn marked(marks: Self::Marks) -> u32;
    /// `index` where `self` and `other` are equal and `found` is not less, else `found`. None of them is negative.
    #[inline(always)]
    fn least_where_equal(self, other: Self, index: f32, found: Self) -> Self {
        self.select_eq(other, Self::splat(index), found).min(found)
    }
}

/// Plain Rust: eight lanes.
#[derive(Clone, Copy)]
pub(super) struct Plain([f32; 8]);

impl Plain {
    #[inline(always)]
    fn zip(self, other: Self, f: impl Fn(f32, f32) -> f32) -> Self {
        Self(std::array::from_fn(|i| f(self.0[i], other.0[i])))
    }
}

impl Lanes for Plain {
    type Marks = u32;
    #[inline(always)]
    fn no_marks() -> u32 {
        0
    }
    #[inline(always)]
    fn mark(self, other: Self, bit: u32, marks: &mut u32) {
        *marks |= if self.equal(other) != 0 { bit } else { 0 };
    }
    #[inline(always)]
    fn marked(marks: u32) -> u32 {
        marks
    }
    const N: usize = 8;
    const MANY: bool = false;
    #[inline(always)]
    fn splat(x: f32) -> Self {
        Self([x; 8])
    }
    #[inline(always)]
    fn pair(low: f32, _: f32) -> Self {
        Self([low; 8])
    }
    #[inline(always)]
    fn load(from: &[f32]) -> Self {
        let from = &from[..8];
        Self(std::array::from_fn(|i| from[i]))
    }
    #[inline(always)]
    fn store(self, to: &mut [f32]) {
        to[..8].copy_from_slice(&self.0);
    }
    #[inline(always)]
    fn add(self, other: Self) -> Self {
        self.zip(other, |a, b| a + b)
    }
    #[inline(always)]
    fn sub(self, other: Self) -> Self {
        self.zip(other, |a, b| a - b)
    }
    #[inline(always)]
    fn mul(self, other: Self) -> Self {
        self.zip(other, |a, b| a * b)
    }
    #[inline(always)]
    fn min(self, other: Self) -> Self {
        self.zip(other, |a, b| if a < b { a } else { b })
    }
    #[inline(always)]
    fn max(self, other: Self) -> Self {
        self.zip(other, |a, b| if a > b { a } else { b })
    }
    #[inline(always)]
    fn select_eq(self, other: Self, yes: Self, no: Self) -> Self {
        Self(std::array::from_fn(|i| if self.0[i] == other.0[i] { yes.0[i] } else { no.0[i] }))
    }
    #[inline(always)]
    fn equal(self, other: Self) -> u32 {
        (0..8).fold(0, |bits, i| bits | u32::from(self.0[i] == other.0[i]) << i)
    }
    #[inline(always)]
    fn swap_pairs(self) -> Self {
        Self(std::array::from_fn(|i| self.0[i ^ 1]))
    }
}

/// AVX2: eight lanes. Private to [`super`], which makes and uses values only inside functions that enable AVX2.
#[cfg(target_arch = "x86_64")]
#[derive(Clone, Copy)]
pub(super) struct Avx2(__m256);

// SAFETY of every block below: the type is named only in functions that enable AVX2, which a `Level` vouches for;
// loads and stores are unaligned and of slices whose length the line before has checked.
#[cfg(target_arch = "x86_64")]
impl Lanes for Avx2 {
    type Marks = __m256;
    const N: usize = 8;
    const MANY: bool = true;
    #[inline(always)]
    fn splat(x: f32) -> Self {
        // SAFETY: see above.
        Self(unsafe { _mm256_set1_ps(x) })
    }
    #[inline(always)]
    fn pair(low: f32, _: f32) -> Self {
        Self::splat(low)
    }
    #[inline(always)]
    fn load(from: &[f32]) -> Self {
        let from = &from[..8];
        // SAFETY: see above.
        Self(unsafe { _mm256_loadu_ps(from.as_ptr()) })
    }
    #[inline(always)]
    fn store(self, to: &mut [f32]) {
        let to = &mut to[..8];
        // SAFETY: see above.
        unsafe { _mm256_storeu_ps(to.as_mut_ptr(), self.0) }
    }
    #[inline(always)]
    fn add(self, other: Self) -> Self {
        // SAFETY: see above.
        Self(unsafe { _mm256_add_ps(self.0, other.0) })
    }
    #[inline(always)]
    fn sub(self, other: Self) -> Self {
        // SAFETY: see above.
        Self(unsafe { _mm256_sub_ps(self.0, other.0) })
    }
    #[inline(always)]
    fn mul(self, other: Self) -> Self {
        // SAFETY: see above.
        Self(unsafe { _mm256_mul_ps(self.0, other.0) })
    }
    #[inline(always)]
    fn min(self, other: Self) -> Self {
        // SAFETY: see above.
        Self(unsafe { _mm256_min_ps(self.0, other.0) })
    }
    #[inline(always)]
    fn max(self, other: Self) -> Self {
        // SAFETY: see above.
        Self(unsafe { _mm256_max_ps(self.0, other.0) })
    }
    #[inline(always)]
    fn select_eq(self, other: Self, yes: Self, no: Self) -> Self {
        // SAFETY: see above.
        Self(unsafe { _mm256_blendv_ps(no.0, yes.0, _mm256_cmp_ps::<_CMP_EQ_OQ>(self.0, other.0)) })
    }
    #[inline(always)]
    fn equal(self, other: Self) -> u32 {
        // SAFETY: see above.
        unsafe { _mm256_movemask_ps(_mm256_cmp_ps::<_CMP_EQ_OQ>(self.0, other.0)) as u32 }
    }
    #[inline(always)]
    fn swap_pairs(self) -> Self {
        // SAFETY: see above.
        Self(unsafe { _mm256_permute_ps::<0b10_11_00_01>(self.0) })
    }
    #[inline(always)]
    fn no_marks() -> __m256 {
        // SAFETY: see above.
        unsafe { _mm256_setzero_ps() }
    }
    #[inline(always)]
    fn mark(self, other: Self, bit: u32, marks: &mut __m256) {
        // SAFETY: see above.
        unsafe {
            let equal = _mm256_cmp_ps::<_CMP_EQ_OQ>(self.0, other.0);
            let bit = _mm256_castsi256_ps(_mm256_set1_epi32(bit as i32));
            *marks = _mm256_or_ps(*marks, _mm256_and_ps(equal, bit));
        }
    }
    #[inline(always)]
    fn marked(marks: __m256) -> u32 {
        let mut lanes = [0.0_f32; 8];
        // SAFETY: see above; the array is 32 bytes.
        unsafe { _mm256_storeu_ps(lanes.as_mut_ptr(), marks) }
        let [a, b, c, d, e, f, g, h] = lanes.map(f32::to_bits);
        ((a | b) | (c | d)) | ((e | f) | (g | h))
    }
    #[inline(always)]
    fn least_where_equal(self, other: Self, index: f32, found: Self) -> Self {
        // Numbers that are not negative order like their bits, and all bits set are above them.
        // SAFETY: see above.
        unsafe {
            let differs = _mm256_cmp_ps::<_CMP_NEQ_UQ>(self.0, other.0);
            let index = _mm256_castps_si256(_mm256_or_ps(differs, _mm256_set1_ps(index)));
            Self(_mm256_castsi256_ps(_mm256_min_epu32(index, _mm256_castps_si256(found.0))))
        }
    }
}

/// AVX-512 F: sixteen lanes. Private to [`super`], as [`Avx2`] is.
#[cfg(target_arch = "x86_64")]
#[derive(Clone, Copy)]
pub(super) struct Avx512(__m512);

// SAFETY of every block below: as for `Avx2`, with AVX-512 F.
#[cfg(target_arch = "x86_64")]
impl Lanes for Avx512 {
    type Marks = u32;
    #[inline(always)]
    fn no_marks() -> u32 {
        0
    }
    #[inline(always)]
    fn mark(self, other: Self, bit: u32, marks: &mut u32) {
        *marks |= if self.equal(other) != 0 { bit } else { 0 };
    }
    #[inline(always)]
    fn marked(marks: u32) -> u32 {
        marks
    }
    const N: usize = 16;
    const MANY: bool = true;
    #[inline(always)]
    fn splat(x: f32) -> Self {
        // SAFETY: see above.
        Self(unsafe { _mm512_set1_ps(x) })
    }
    #[inline(always)]
    fn pair(low: f32, high: f32) -> Self {
        // SAFETY: see above.
        Self(unsafe { _mm512_mask_blend_ps(0xff00, _mm512_set1_ps(low), _mm512_set1_ps(high)) })
    }
    #[inline(always)]
    fn load(from: &[f32]) -> Self {
        let from = &from[..16];
        // SAFETY: see above.
        Self(unsafe { _mm512_loadu_ps(from.as_ptr()) })
    }
    #[inline(always)]
    fn store(self, to: &mut [f32]) {
        let to = &mut to[..16];
        // SAFETY: see above.
        unsafe { _mm512_storeu_ps(to.as_mut_ptr(), self.0) }
    }
    #[inline(always)]
    fn add(self, other: Self) -> Self {
        // SAFETY: see above.
        Self(unsafe { _mm512_add_ps(self.0, other.0) })
    }
    #[inline(always)]
    fn sub(self, other: Self) -> Self {
        // SAFETY: see above.
        Self(unsafe { _mm512_sub_ps(self.0, other.0) })
    }
    #[inline(always)]
    fn mul(self, other: Self) -> Self {
        // SAFETY: see above.
        Self(unsafe { _mm512_mul_ps(self.0, other.0) })
    }
    #[inline(always)]
    fn min(self, other: Self) -> Self {
        // SAFETY: see above.
        Self(unsafe { _mm512_min_ps(self.0, other.0) })
    }
    #[inline(always)]
    fn max(self, other: Self) -> Self {
        // SAFETY: see above.
        Self(unsafe { _mm512_max_ps(self.0, other.0) })
    }
    #[inline(always)]
    fn select_eq(self, other: Self, yes: Self, no: Self) -> Self {
        // SAFETY: see above.
        Self(unsafe { _mm512_mask_blend_ps(_mm512_cmp_ps_mask::<_CMP_EQ_OQ>(self.0, other.0), no.0, yes.0) })
    }
    #[inline(always)]
    fn equal(self, other: Self) -> u32 {
        // SAFETY: see above.
        unsafe { u32::from(_mm512_cmp_ps_mask::<_CMP_EQ_OQ>(self.0, other.0)) }
    }
    #[inline(always)]
    fn swap_pairs(self) -> Self {
        // SAFETY: see above.
        Self(unsafe { _mm512_permute_ps::<0b10_11_00_01>(self.0) })
    }
}
