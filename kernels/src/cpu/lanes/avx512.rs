//! The lanes as one AVX-512 register.

use std::arch::x86_64::*;

use super::{LANES, Simd};

/// AVX-512 F, BW, VL, DQ, VNNI (and AVX2, F16C): a value exists only where all were detected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::cpu) struct Avx512(());

impl Avx512 {
    /// The proof, where the processor has the features.
    pub(in crate::cpu) fn detect() -> Option<Self> {
        (is_x86_feature_detected!("avx512f")
            && is_x86_feature_detected!("avx512bw")
            && is_x86_feature_detected!("avx512vl")
            && is_x86_feature_detected!("avx512dq")
            && is_x86_feature_detected!("avx512vnni")
            && is_x86_feature_detected!("avx2")
            && is_x86_feature_detected!("f16c"))
        .then_some(Avx512(()))
    }
}

/// An intrinsic of the features that an [`Avx512`] proves, without access to memory.
macro_rules! lane {
    ($e:expr) => {{
        // SAFETY: `self` proves that the processor has the features; nothing else is asked.
        unsafe { $e }
    }};
}

impl Simd for Avx512 {
    type F = __m512;
    type D = [__m512d; 2];
    const WIDE: bool = true;

    #[inline(always)]
    fn splat(self, x: f32) -> __m512 {
        lane!(_mm512_set1_ps(x))
    }
    #[inline(always)]
    fn add(self, a: __m512, b: __m512) -> __m512 {
        lane!(_mm512_add_ps(a, b))
    }
    #[inline(always)]
    fn sub(self, a: __m512, b: __m512) -> __m512 {
        lane!(_mm512_sub_ps(a, b))
    }
    #[inline(always)]
    fn mul(self, a: __m512, b: __m512) -> __m512 {
        lane!(_mm512_mul_ps(a, b))
    }
    #[inline(always)]
    fn div(self, a: __m512, b: __m512) -> __m512 {
        lane!(_mm512_div_ps(a, b))
    }
    #[inline(always)]
    fn min(self, a: __m512, b: __m512) -> __m512 {
        lane!(_mm512_min_ps(a, b))
    }
    #[inline(always)]
    fn max(self, a: __m512, b: __m512) -> __m512 {
        lane!(_mm512_max_ps(a, b))
    }
    #[inline(always)]
    fn shift_left_23(self, a: __m512) -> __m512 {
        lane!(_mm512_castsi512_ps(_mm512_slli_epi32::<23>(_mm512_castps_si512(a))))
    }
    #[inline(always)]
    fn round_away(self, a: __m512) -> __m512 {
        // What truncation leaves is exact; a half or more of it moves one further from zero.
        lane!({
            let whole = _mm512_roundscale_ps::<{ _MM_FROUND_TO_ZERO | _MM_FROUND_NO_EXC }>(a);
            let up =
                _mm512_cmp_ps_mask::<_CMP_GE_OQ>(_mm512_abs_ps(_mm512_sub_ps(a, whole)), _mm512_set1_ps(0.5));
            let one = _mm512_or_ps(_mm512_set1_ps(1.0), _mm512_and_ps(a, _mm512_set1_ps(-0.0)));
            _mm512_mask_add_ps(whole, up, whole, one)
        })
    }
    #[inline(always)]
    fn max_magnitude(self, a: __m512, b: __m512) -> __m512 {
        lane!({
            let (a, b) = (_mm512_castps_si512(_mm512_abs_ps(a)), _mm512_castps_si512(_mm512_abs_ps(b)));
            _mm512_castsi512_ps(_mm512_max_epi32(a, b))
        })
    }

    #[inline(always)]
    fn negate(self, a: __m512, which: u16) -> __m512 {
        lane!(_mm512_mask_xor_ps(a, which, a, _mm512_set1_ps(-0.0)))
    }
    #[inline(always)]
    fn butterflies(self, a: __m512) -> __m512 {
        // Where v is, u - v is u + (-v), the same bits.
        lane!({
            let v = _mm512_set1_ps(-0.0);
            let a = _mm512_add_ps(
                _mm512_permute_ps::<0b10_11_00_01>(a),
                _mm512_mask_xor_ps(a, 0b1010_1010_1010_1010, a, v),
            );
            let a = _mm512_add_ps(
                _mm512_permute_ps::<0b01_00_11_10>(a),
                _mm512_mask_xor_ps(a, 0b1100_1100_1100_1100, a, v),
            );
            let a = _mm512_add_ps(
                _mm512_shuffle_f32x4::<0b10_11_00_01>(a, a),
                _mm512_mask_xor_ps(a, 0b1111_0000_1111_0000, a, v),
            );
            _mm512_add_ps(
                _mm512_shuffle_f32x4::<0b01_00_11_10>(a, a),
                _mm512_mask_xor_ps(a, 0b1111_1111_0000_0000, a, v),
            )
        })
    }

    #[inline(always)]
    fn sum(self, a: __m512) -> f32 {
        lane!({
            let a = _mm256_add_ps(_mm512_castps512_ps256(a), _mm512_extractf32x8_ps::<1>(a));
            let a = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps::<1>(a));
            let a = _mm_add_ps(a, _mm_movehl_ps(a, a));
            _mm_cvtss_f32(_mm_add_ss(a, _mm_shuffle_ps::<1>(a, a)))
        })
    }
    #[inline(always)]
    fn sum16(self, a: [__m512; 16]) -> __m512 {
        // w[p]: in 128-bit lane l the four partial sums (8+8, then 4+4) of vector 4l + p.
        macro_rules! w {
            ($p:literal) => {
                lane!({
                    let (a, b, c, d) = (a[$p], a[4 + $p], a[8 + $p], a[12 + $p]);
                    let ab =
                        _mm512_add_ps(_mm512_shuffle_f32x4::<0x44>(a, b), _mm512_shuffle_f32x4::<0xee>(a, b));
                    let cd =
                        _mm512_add_ps(_mm512_shuffle_f32x4::<0x44>(c, d), _mm512_shuffle_f32x4::<0xee>(c, d));
                    _mm512_add_ps(_mm512_shuffle_f32x4::<0x88>(ab, cd), _mm512_shuffle_f32x4::<0xdd>(ab, cd))
                })
            };
        }
        let (w0, w1, w2, w3) = (w!(0), w!(1), w!(2), w!(3));
        lane!({
            // 2+2, then 1+1.
            let x = _mm512_add_ps(unpack_low_pairs(w0, w1), unpack_high_pairs(w0, w1));
            let y = _mm512_add_ps(unpack_low_pairs(w2, w3), unpack_high_pairs(w2, w3));
            _mm512_add_ps(_mm512_shuffle_ps::<0x88>(x, y), _mm512_shuffle_ps::<0xdd>(x, y))
        })
    }
    #[inline(always)]
    fn max_lane(self, a: __m512) -> f32 {
        lane!({
            let a = _mm256_max_ps(_mm512_castps512_ps256(a), _mm512_extractf32x8_ps::<1>(a));
            let a = _mm_max_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps::<1>(a));
            let a = _mm_max_ps(a, _mm_movehl_ps(a, a));
            _mm_cvtss_f32(_mm_max_ss(a, _mm_shuffle_ps::<1>(a, a)))
        })
    }
    #[inline(always)]
    fn max_magnitude_lane(self, a: __m512) -> f32 {
        let bits = lane!(_mm512_reduce_max_epi32(_mm512_castps_si512(_mm512_abs_ps(a))));
        f32::from_bits(bits as u32)
    }

    #[inline(always)]
    fn zero_d(self) -> [__m512d; 2] {
        [lane!(_mm512_setzero_pd()); 2]
    }
    #[inline(always)]
    fn add_d(self, d: [__m512d; 2], a: __m512) -> [__m512d; 2] {
        lane!({
            let low = _mm512_cvtps_pd(_mm512_castps512_ps256(a));
            let high = _mm512_cvtps_pd(_mm512_extractf32x8_ps::<1>(a));
            [_mm512_add_pd(d[0], low), _mm512_add_pd(d[1], high)]
        })
    }
    #[inline(always)]
    fn add_square_d(self, d: [__m512d; 2], a: __m512) -> [__m512d; 2] {
        lane!({
            let low = _mm512_cvtps_pd(_mm512_castps512_ps256(a));
            let high = _mm512_cvtps_pd(_mm512_extractf32x8_ps::<1>(a));
            [_mm512_add_pd(d[0], _mm512_mul_pd(low, low)), _mm512_add_pd(d[1], _mm512_mul_pd(high, high))]
        })
    }
    #[inline(always)]
    fn sum_d(self, d: [__m512d; 2]) -> f64 {
        lane!({
            let a = _mm512_add_pd(d[0], d[1]);
            let a = _mm256_add_pd(_mm512_castpd512_pd256(a), _mm512_extractf64x4_pd::<1>(a));
            let a = _mm_add_pd(_mm256_castpd256_pd128(a), _mm256_extractf128_pd::<1>(a));
            _mm_cvtsd_f64(_mm_add_sd(a, _mm_unpackhi_pd(a, a)))
        })
    }

    #[inline(always)]
    unsafe fn load(self, p: *const f32) -> __m512 {
        // SAFETY: the caller's: 16 × f32 at p.
        unsafe { _mm512_loadu_ps(p) }
    }
    #[inline(always)]
    unsafe fn load_f16(self, p: *const u16) -> __m512 {
        // SAFETY: the caller's: 32 bytes at p.
        unsafe { _mm512_cvtph_ps(_mm256_loadu_si256(p.cast())) }
    }
    #[inline(always)]
    unsafe fn load_bf16(self, p: *const u16) -> __m512 {
        // SAFETY: the caller's: 32 bytes at p.
        unsafe {
            let bits = _mm512_cvtepu16_epi32(_mm256_loadu_si256(p.cast()));
            _mm512_castsi512_ps(_mm512_slli_epi32::<16>(bits))
        }
    }
    #[inline(always)]
    unsafe fn store(self, p: *mut f32, a: __m512) {
        // SAFETY: the caller's: 16 × f32 at p.
        unsafe { _mm512_storeu_ps(p, a) }
    }
    #[inline(always)]
    unsafe fn store_i8(self, p: *mut i8, a: __m512) {
        // SAFETY: the caller's: 16 bytes at p.
        unsafe { _mm_storeu_si128(p.cast(), _mm512_cvtepi32_epi8(_mm512_cvtps_epi32(a))) }
    }

    #[inline(always)]
    unsafe fn load_part(self, p: *const f32, n: usize) -> __m512 {
        debug_assert!(n <= LANES);
        // SAFETY: the caller's: n × f32 at p; masked lanes are not read.
        unsafe { _mm512_maskz_loadu_ps(((1u32 << n) - 1) as __mmask16, p) }
    }
    #[inline(always)]
    unsafe fn store_part(self, p: *mut f32, n: usize, a: __m512) {
        debug_assert!(n <= LANES);
        // SAFETY: the caller's: n × f32 at p; masked lanes are not written.
        unsafe { _mm512_mask_storeu_ps(p, ((1u32 << n) - 1) as __mmask16, a) }
    }
}

#[inline]
#[target_feature(enable = "avx512f")]
fn unpack_low_pairs(a: __m512, b: __m512) -> __m512 {
    _mm512_castpd_ps(_mm512_unpacklo_pd(_mm512_castps_pd(a), _mm512_castps_pd(b)))
}

#[inline]
#[target_feature(enable = "avx512f")]
fn unpack_high_pairs(a: __m512, b: __m512) -> __m512 {
    _mm512_castpd_ps(_mm512_unpackhi_pd(_mm512_castps_pd(a), _mm512_castps_pd(b)))
}
