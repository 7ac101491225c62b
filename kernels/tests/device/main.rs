//! The device sources, run on an OpenCL device (PoCL on this processor does) and compared with the CPU kernels, which
//! define every result; and compiled as CUDA where there is a compiler.

mod amd;
mod attention;
#[path = "../attention_case/mod.rs"]
mod attention_case;
mod bf16;
mod cuda;
mod elementwise;
mod exact;
mod exchange;
mod experts;
mod fused;
mod gemm;
mod hash;
mod hyper;
mod launch;
mod layer;
mod matrices;
mod mma;
mod nvcc;
#[cfg(feature = "level-zero")]
mod ocloc;
mod opencl;
mod quantize;
#[path = "../random/mod.rs"]
mod random;
mod recurrent;
mod repeated;
mod sample;
mod sparse;
mod vnni;

/// Values of every kind: zeros, ones that over- and underflow an exponential, subnormal, huge, not finite.
fn extremes() -> Vec<f32> {
    let mut values = vec![0.0, -0.0, 1e-42, -1e-42, 1e-30, 88.7, -88.7, 104.5, -104.5, 1.0, -1.0, 17.5];
    values.extend([
        f32::MAX,
        f32::MIN,
        f32::MIN_POSITIVE,
        f32::INFINITY,
        f32::NEG_INFINITY,
        f32::NAN,
        3.4e37,
    ]);
    values
}

/// Random values with each of the extremes somewhere among them.
fn mixed(rng: &mut random::Rng, n: usize, scale: f32) -> Vec<f32> {
    let mut values = rng.units(n, scale);
    for x in extremes() {
        let at = rng.below(n);
        values[at] = x;
    }
    values
}

/// Each value lies within `bound` · `size` of the other's, `size` being its own magnitude or `least`.
#[track_caller]
fn assert_near(y: &[f32], truth: &[f32], bound: f32, least: f32, what: &str) {
    assert_eq!(y.len(), truth.len(), "{what}");
    for (i, (y, truth)) in y.iter().zip(truth).enumerate() {
        let same = y.is_nan() && truth.is_nan() || y == truth;
        let near = (y - truth).abs() <= bound * truth.abs().max(least);
        assert!(same || near, "{what}: [{i}] {y:e} for {truth:e}");
    }
}
