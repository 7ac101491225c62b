//! Random data, and what the tests of several kernels share.
#![allow(dead_code)] // Each test binary uses its part.

use gantry_kernels::cpu::Isa;

/// A small generator (splitmix64), so that every failure repeats.
pub(crate) struct Rng(pub(crate) u64);

impl Rng {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Uniform in 0..n.
    pub(crate) fn below(&mut self, n: usize) -> usize {
        (self.next() % n as u64) as usize
    }

    /// Uniform in -1..1.
    pub(crate) fn unit(&mut self) -> f32 {
        (self.next() >> 40) as f32 / (1u64 << 23) as f32 - 1.0
    }

    pub(crate) fn units(&mut self, n: usize, scale: f32) -> Vec<f32> {
        (0..n).map(|_| self.unit() * scale).collect()
    }
}

/// The bits, every NaN the same.
pub(crate) fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|v| if v.is_nan() { f32::NAN.to_bits() } else { v.to_bits() }).collect()
}

/// Equal bits, or the first place where they differ.
#[track_caller]
pub(crate) fn assert_same(a: &[f32], b: &[f32], what: &str) {
    assert_eq!(a.len(), b.len(), "{what}");
    if let Some(i) = bits(a).iter().zip(bits(b)).position(|(a, b)| *a != b) {
        panic!("{what}: [{i}] {:e} ({:#x}) is not {:e} ({:#x})", a[i], a[i].to_bits(), b[i], b[i].to_bits());
    }
}

/// A buffer that shows what was not written.
pub(crate) fn poison(n: usize) -> Vec<f32> {
    vec![f32::from_bits(0x7fc0_dead); n]
}

#[track_caller]
pub(crate) fn assert_written(values: &[f32]) {
    assert!(values.iter().all(|v| v.to_bits() != 0x7fc0_dead), "an output was left as it was");
}

/// Every implementation but the portable one: none on a processor without AVX2, where a comparison over them
/// compares nothing. `GANTRY_REQUIRE_SIMD=avx2` (or `avx512`) makes the absence of that one a failure.
#[track_caller]
pub(crate) fn others() -> Vec<Isa> {
    if let Some(name) = std::env::var_os("GANTRY_REQUIRE_SIMD") {
        let required = Isa::from_name(&name.to_string_lossy());
        assert!(required.is_ok(), "GANTRY_REQUIRE_SIMD: {}", required.unwrap_err());
    }
    Isa::available().into_iter().filter(|isa| *isa != Isa::PORTABLE).collect()
}
