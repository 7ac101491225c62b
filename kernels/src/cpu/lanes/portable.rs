//! The lanes in plain Rust: what the other implementations must equal.

use half::f16;

use super::{LANES, Simd};

/// Plain Rust; every processor has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::cpu) struct Portable;

type F = [f32; LANES];
type D = [f64; LANES];

#[inline(always)]
fn map2(a: F, b: F, f: impl Fn(f32, f32) -> f32) -> F {
    std::array::from_fn(|i| f(a[i], b[i]))
}

#[inline(always)]
fn tree<T: Copy>(mut a: [T; LANES], f: impl Fn(T, T) -> T) -> T {
    let mut half = LANES / 2;
    while half > 0 {
        for i in 0..half {
            a[i] = f(a[i], a[i + half]);
        }
        half /= 2;
    }
    a[0]
}

#[inline(always)]
fn magnitude(x: f32) -> u32 {
    x.to_bits() & 0x7fff_ffff
}

#[inline(always)]
fn larger_magnitude(a: f32, b: f32) -> f32 {
    f32::from_bits(magnitude(a).max(magnitude(b)))
}

impl Simd for Portable {
    type F = F;
    type D = D;
    const WIDE: bool = false;

    #[inline(always)]
    fn splat(self, x: f32) -> F {
        [x; LANES]
    }
    #[inline(always)]
    fn add(self, a: F, b: F) -> F {
        map2(a, b, |a, b| a + b)
    }
    #[inline(always)]
    fn sub(self, a: F, b: F) -> F {
        map2(a, b, |a, b| a - b)
    }
    #[inline(always)]
    fn mul(self, a: F, b: F) -> F {
        map2(a, b, |a, b| a * b)
    }
    #[inline(always)]
    fn div(self, a: F, b: F) -> F {
        map2(a, b, |a, b| a / b)
    }
    #[inline(always)]
    fn min(self, a: F, b: F) -> F {
        map2(a, b, |a, b| if a < b { a } else { b })
    }
    #[inline(always)]
    fn max(self, a: F, b: F) -> F {
        map2(a, b, |a, b| if a > b { a } else { b })
    }
    #[inline(always)]
    fn shift_left_23(self, a: F) -> F {
        a.map(|a| f32::from_bits(a.to_bits() << 23))
    }
    #[inline(always)]
    fn round_away(self, a: F) -> F {
        a.map(f32::round)
    }
    #[inline(always)]
    fn max_magnitude(self, a: F, b: F) -> F {
        map2(a, b, larger_magnitude)
    }

    #[inline(always)]
    fn negate(self, a: F, which: u16) -> F {
        std::array::from_fn(|i| f32::from_bits(a[i].to_bits() ^ u32::from(which >> i & 1) << 31))
    }
    #[inline(always)]
    fn butterflies(self, mut a: F) -> F {
        for len in [1, 2, 4, 8] {
            for i in (0..LANES).filter(|i| i & len == 0) {
                (a[i], a[i + len]) = (a[i] + a[i + len], a[i] - a[i + len]);
            }
        }
        a
    }

    #[inline(always)]
    fn sum(self, a: F) -> f32 {
        tree(a, |a, b| a + b)
    }
    #[inline(always)]
    fn sum16(self, a: [F; 16]) -> F {
        a.map(|a| self.sum(a))
    }
    #[inline(always)]
    fn max_lane(self, a: F) -> f32 {
        tree(a, |a, b| if a > b { a } else { b })
    }
    #[inline(always)]
    fn max_magnitude_lane(self, a: F) -> f32 {
        tree(a, larger_magnitude)
    }

    #[inline(always)]
    fn zero_d(self) -> D {
        [0.0; LANES]
    }
    #[inline(always)]
    fn add_d(self, d: D, a: F) -> D {
        std::array::from_fn(|i| d[i] + f64::from(a[i]))
    }
    #[inline(always)]
    fn add_square_d(self, d: D, a: F) -> D {
        std::array::from_fn(|i| d[i] + f64::from(a[i]) * f64::from(a[i]))
    }
    #[inline(always)]
    fn sum_d(self, d: D) -> f64 {
        tree(d, |a, b| a + b)
    }

    #[inline(always)]
    unsafe fn load(self, p: *const f32) -> F {
        // SAFETY: the caller's: 16 × f32 at p, any alignment.
        unsafe { p.cast::<F>().read_unaligned() }
    }
    #[inline(always)]
    unsafe fn load_f16(self, p: *const u16) -> F {
        // SAFETY: the caller's: 16 × u16 at p, any alignment.
        let bits = unsafe { p.cast::<[u16; LANES]>().read_unaligned() };
        bits.map(|bits| f16::from_bits(bits).to_f32())
    }
    #[inline(always)]
    unsafe fn load_bf16(self, p: *const u16) -> F {
        // SAFETY: the caller's: 16 × u16 at p, any alignment.
        let bits = unsafe { p.cast::<[u16; LANES]>().read_unaligned() };
        bits.map(|bits| f32::from_bits(u32::from(bits) << 16))
    }
    #[inline(always)]
    unsafe fn store(self, p: *mut f32, a: F) {
        // SAFETY: the caller's: 16 × f32 at p, any alignment.
        unsafe { p.cast::<F>().write_unaligned(a) }
    }
    #[inline(always)]
    unsafe fn store_i8(self, p: *mut i8, a: F) {
        // SAFETY: the caller's: 16 × i8 at p.
        unsafe { p.cast::<[i8; LANES]>().write(a.map(|a| a.round_ties_even() as i8)) }
    }
}
