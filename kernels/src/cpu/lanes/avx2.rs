//! The lanes as two AVX registers: lanes 0..8 and 8..16.

use std::arch::x86_64::*;

use super::Simd;

/// AVX2 and F16C: a value exists only where both were detected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::cpu) struct Avx2(());

impl Avx2 {
    /// The proof, where the processor has the features.
    pub(in crate::cpu) fn detect() -> Option<Self> {
        (is_x86_feature_detected!("avx2") && is_x86_feature_detected!("f16c")).then_some(Avx2(()))
    }
}

type F = [__m256; 2];

/// An intrinsic of the features that an [`Avx2`] proves, without access to memory.
macro_rules! lane {
    ($e:expr) => {{
        // SAFETY: `self` proves that the processor has the features; nothing else is asked.
        unsafe { $e }
    }};
}

macro_rules! both {
    ($op:ident, $a:ident, $b:ident) => {
        lane!([$op($a[0], $b[0]), $op($a[1], $b[1])])
    };
}

impl Avx2 {
    /// Lane i: the sum, or largest, of `a[i]`'s 8 lanes, as 4+4, 2+2, 1+1.
    #[inline(always)]
    pub(in crate::cpu) fn sum8(self, a: [__m256; 8]) -> __m256 {
        macro_rules! w {
            ($p:literal) => {
                lane!(_mm256_add_ps(
                    _mm256_permute2f128_ps::<0x20>(a[$p], a[4 + $p]),
                    _mm256_permute2f128_ps::<0x31>(a[$p], a[4 + $p])
                ))
            };
        }
        let (w0, w1, w2, w3) = (w!(0), w!(1), w!(2), w!(3));
        lane!({
            let x = _mm256_add_ps(unpack_low_pairs(w0, w1), unpack_high_pairs(w0, w1));
            let y = _mm256_add_ps(unpack_low_pairs(w2, w3), unpack_high_pairs(w2, w3));
            _mm256_add_ps(_mm256_shuffle_ps::<0x88>(x, y), _mm256_shuffle_ps::<0xdd>(x, y))
        })
    }

    #[inline(always)]
    fn widen(self, a: F) -> [__m256d; 4] {
        lane!([
            _mm256_cvtps_pd(_mm256_castps256_ps128(a[0])),
            _mm256_cvtps_pd(_mm256_extractf128_ps::<1>(a[0])),
            _mm256_cvtps_pd(_mm256_castps256_ps128(a[1])),
            _mm256_cvtps_pd(_mm256_extractf128_ps::<1>(a[1])),
        ])
    }
}

impl Simd for Avx2 {
    type F = F;
    type D = [__m256d; 4];
    const WIDE: bool = false;

    #[inline(always)]
    fn splat(self, x: f32) -> F {
        [lane!(_mm256_set1_ps(x)); 2]
    }
    #[inline(always)]
    fn add(self, a: F, b: F) -> F {
        both!(_mm256_add_ps, a, b)
    }
    #[inline(always)]
    fn sub(self, a: F, b: F) -> F {
        both!(_mm256_sub_ps, a, b)
    }
    #[inline(always)]
    fn mul(self, a: F, b: F) -> F {
        both!(_mm256_mul_ps, a, b)
    }
    #[inline(always)]
    fn div(self, a: F, b: F) -> F {
        both!(_mm256_div_ps, a, b)
    }
    #[inline(always)]
    fn min(self, a: F, b: F) -> F {
        both!(_mm256_min_ps, a, b)
    }
    #[inline(always)]
    fn max(self, a: F, b: F) -> F {
        both!(_mm256_max_ps, a, b)
    }
    #[inline(always)]
    fn shift_left_23(self, a: F) -> F {
        lane!([
            _mm256_castsi256_ps(_mm256_slli_epi32::<23>(_mm256_castps_si256(a[0]))),
            _mm256_castsi256_ps(_mm256_slli_epi32::<23>(_mm256_castps_si256(a[1]))),
        ])
    }
    #[inline(always)]
    fn round_away(self, a: F) -> F {
        // What truncation leaves is exact; a half or more of it moves one further from zero.
        macro_rules! at {
            ($i:literal) => {
                lane!({
                    let whole = _mm256_round_ps::<{ _MM_FROUND_TO_ZERO | _MM_FROUND_NO_EXC }>(a[$i]);
                    let sign = _mm256_and_ps(a[$i], _mm256_set1_ps(-0.0));
                    let rest = _mm256_xor_ps(_mm256_sub_ps(a[$i], whole), sign);
                    let up = _mm256_cmp_ps::<_CMP_GE_OQ>(rest, _mm256_set1_ps(0.5));
                    let one = _mm256_or_ps(_mm256_set1_ps(1.0), sign);
                    _mm256_add_ps(whole, _mm256_and_ps(up, one))
                })
            };
        }
        [at!(0), at!(1)]
    }
    #[inline(always)]
    fn max_magnitude(self, a: F, b: F) -> F {
        both!(larger_magnitude, a, b)
    }

    #[inline(always)]
    fn negate(self, a: F, which: u16) -> F {
        lane!({
            let bits = _mm256_setr_epi32(1, 2, 4, 8, 16, 32, 64, 128);
            // The bit of a lane to the sign's place: set where it equals the mask, then cut to the sign.
            let sign = |which: u16| {
                let which = _mm256_and_si256(_mm256_set1_epi32(i32::from(which)), bits);
                _mm256_castsi256_ps(_mm256_slli_epi32::<31>(_mm256_cmpeq_epi32(which, bits)))
            };
            [_mm256_xor_ps(a[0], sign(which)), _mm256_xor_ps(a[1], sign(which >> 8))]
        })
    }
    #[inline(always)]
    fn butterflies(self, [a, b]: F) -> F {
        // Where v is, u - v is u + (-v), the same bits.
        lane!({
            let four = |a: __m256| {
                let v = _mm256_setr_ps(0.0, -0.0, 0.0, -0.0, 0.0, -0.0, 0.0, -0.0);
                let a = _mm256_add_ps(_mm256_permute_ps::<0b10_11_00_01>(a), _mm256_xor_ps(a, v));
                let v = _mm256_setr_ps(0.0, 0.0, -0.0, -0.0, 0.0, 0.0, -0.0, -0.0);
                let a = _mm256_add_ps(_mm256_permute_ps::<0b01_00_11_10>(a), _mm256_xor_ps(a, v));
                let v = _mm256_setr_ps(0.0, 0.0, 0.0, 0.0, -0.0, -0.0, -0.0, -0.0);
                _mm256_add_ps(_mm256_permute2f128_ps::<1>(a, a), _mm256_xor_ps(a, v))
            };
            let (a, b) = (four(a), four(b));
            [_mm256_add_ps(a, b), _mm256_sub_ps(a, b)]
        })
    }

    #[inline(always)]
    fn sum(self, a: F) -> f32 {
        lane!({
            let a = _mm256_add_ps(a[0], a[1]);
            let a = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps::<1>(a));
            let a = _mm_add_ps(a, _mm_movehl_ps(a, a));
            _mm_cvtss_f32(_mm_add_ss(a, _mm_shuffle_ps::<1>(a, a)))
        })
    }
    #[inline(always)]
    fn sum16(self, a: [F; 16]) -> F {
        macro_rules! half {
            ($($i:literal)*) => { self.sum8([$(lane!(_mm256_add_ps(a[$i][0], a[$i][1]))),*]) };
        }
        [half!(0 1 2 3 4 5 6 7), half!(8 9 10 11 12 13 14 15)]
    }
    #[inline(always)]
    fn max_lane(self, a: F) -> f32 {
        lane!({
            let a = _mm256_max_ps(a[0], a[1]);
            let a = _mm_max_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps::<1>(a));
            let a = _mm_max_ps(a, _mm_movehl_ps(a, a));
            _mm_cvtss_f32(_mm_max_ss(a, _mm_shuffle_ps::<1>(a, a)))
        })
    }
    #[inline(always)]
    fn max_magnitude_lane(self, a: F) -> f32 {
        let bits = lane!({
            let a = _mm256_castps_si256(larger_magnitude(a[0], a[1]));
            let a = _mm_max_epi32(_mm256_castsi256_si128(a), _mm256_extracti128_si256::<1>(a));
            let a = _mm_max_epi32(a, _mm_shuffle_epi32::<0b1110>(a));
            _mm_cvtsi128_si32(_mm_max_epi32(a, _mm_shuffle_epi32::<1>(a)))
        });
        f32::from_bits(bits as u32)
    }

    #[inline(always)]
    fn zero_d(self) -> [__m256d; 4] {
        [lane!(_mm256_setzero_pd()); 4]
    }
    #[inline(always)]
    fn add_d(self, d: [__m256d; 4], a: F) -> [__m256d; 4] {
        let a = self.widen(a);
        macro_rules! at {
            ($i:literal) => {
                lane!(_mm256_add_pd(d[$i], a[$i]))
            };
        }
        [at!(0), at!(1), at!(2), at!(3)]
    }
    #[inline(always)]
    fn add_square_d(self, d: [__m256d; 4], a: F) -> [__m256d; 4] {
        let a = self.widen(a);
        macro_rules! at {
            ($i:literal) => {
                lane!(_mm256_add_pd(d[$i], _mm256_mul_pd(a[$i], a[$i])))
            };
        }
        [at!(0), at!(1), at!(2), at!(3)]
    }
    #[inline(always)]
    fn sum_d(self, d: [__m256d; 4]) -> f64 {
        lane!({
            let a = _mm256_add_pd(_mm256_add_pd(d[0], d[2]), _mm256_add_pd(d[1], d[3]));
            let a = _mm_add_pd(_mm256_castpd256_pd128(a), _mm256_extractf128_pd::<1>(a));
            _mm_cvtsd_f64(_mm_add_sd(a, _mm_unpackhi_pd(a, a)))
        })
    }

    #[inline(always)]
    unsafe fn load(self, p: *const f32) -> F {
        // SAFETY: the caller's: 16 × f32 at p.
        unsafe { [_mm256_loadu_ps(p), _mm256_loadu_ps(p.add(8))] }
    }
    #[inline(always)]
    unsafe fn load_f16(self, p: *const u16) -> F {
        // SAFETY: the caller's: 32 bytes at p.
        unsafe {
            [_mm256_cvtph_ps(_mm_loadu_si128(p.cast())), _mm256_cvtph_ps(_mm_loadu_si128(p.add(8).cast()))]
        }
    }
    #[inline(always)]
    unsafe fn load_bf16(self, p: *const u16) -> F {
        // SAFETY: the caller's: 32 bytes at p.
        unsafe {
            let low = _mm256_cvtepu16_epi32(_mm_loadu_si128(p.cast()));
            let high = _mm256_cvtepu16_epi32(_mm_loadu_si128(p.add(8).cast()));
            [
                _mm256_castsi256_ps(_mm256_slli_epi32::<16>(low)),
                _mm256_castsi256_ps(_mm256_slli_epi32::<16>(high)),
            ]
        }
    }
    #[inline(always)]
    unsafe fn store(self, p: *mut f32, a: F) {
        // SAFETY: the caller's: 16 × f32 at p.
        unsafe {
            _mm256_storeu_ps(p, a[0]);
            _mm256_storeu_ps(p.add(8), a[1]);
        }
    }
    #[inline(always)]
    unsafe fn store_i8(self, p: *mut i8, a: F) {
        // SAFETY: the caller's: 16 bytes at p. The values fit i8, so neither pack saturates.
        unsafe {
            let words = _mm256_packs_epi32(_mm256_cvtps_epi32(a[0]), _mm256_cvtps_epi32(a[1]));
            // packs works per 128 bits: [lo0 hi0 lo1 hi1] -> [lo0 lo1 hi0 hi1].
            let words = _mm256_permute4x64_epi64::<0b11_01_10_00>(words);
            let bytes = _mm_packs_epi16(_mm256_castsi256_si128(words), _mm256_extracti128_si256::<1>(words));
            _mm_storeu_si128(p.cast(), bytes);
        }
    }
}

#[inline]
#[target_feature(enable = "avx2")]
fn larger_magnitude(a: __m256, b: __m256) -> __m256 {
    let mask = _mm256_set1_epi32(0x7fff_ffff);
    let a = _mm256_and_si256(_mm256_castps_si256(a), mask);
    let b = _mm256_and_si256(_mm256_castps_si256(b), mask);
    _mm256_castsi256_ps(_mm256_max_epi32(a, b))
}

#[inline]
#[target_feature(enable = "avx2")]
fn unpack_low_pairs(a: __m256, b: __m256) -> __m256 {
    _mm256_castpd_ps(_mm256_unpacklo_pd(_mm256_castps_pd(a), _mm256_castps_pd(b)))
}

#[inline]
#[target_feature(enable = "avx2")]
fn unpack_high_pairs(a: __m256, b: __m256) -> __m256 {
    _mm256_castpd_ps(_mm256_unpackhi_pd(_mm256_castps_pd(a), _mm256_castps_pd(b)))
}
