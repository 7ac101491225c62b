//! Rotary embedding against ggml's formulas.

mod random;

use gantry_kernels::cpu::{RopeAngles, RopeHeads, RopeScaling, RopeStyle, RopeTable, rope};
use random::Rng;

/// cos and sin of one pair as ggml's `rope_yarn` computes them, in f64.
#[derive(Clone, Copy)]
struct Ggml {
    n_rot: usize,
    base: f64,
    freq_scale: f64,
    ext_factor: f64,
    attn_factor: f64,
    context: f64,
    beta_fast: f64,
    beta_slow: f64,
}

impl Ggml {
    fn angle(self, position: u32, pair: usize, factor: f64) -> (f64, f64) {
        let n = self.n_rot as f64;
        let extrapolated = f64::from(position) * self.base.powf(-2.0 * pair as f64 / n) / factor;
        let interpolated = self.freq_scale * extrapolated;
        let (mut theta, mut magnitude) = (interpolated, self.attn_factor);
        if self.ext_factor != 0.0 {
            let dim = |beta: f64| {
                n * (self.context / (beta * 2.0 * std::f64::consts::PI)).ln() / (2.0 * self.base.ln())
            };
            let low = dim(self.beta_fast).floor().max(0.0);
            let high = dim(self.beta_slow).ceil().min(n - 1.0);
            let y = (pair as f64 - low) / (high - low).max(0.001);
            let mix = (1.0 - y.clamp(0.0, 1.0)) * self.ext_factor;
            theta = interpolated * (1.0 - mix) + extrapolated * mix;
            magnitude *= 1.0 + 0.1 * (1.0 / self.freq_scale).ln();
        }
        (theta.cos() * magnitude, theta.sin() * magnitude)
    }
}

const PLAIN: Ggml = Ggml {
    n_rot: 64,
    base: 10_000.0,
    freq_scale: 1.0,
    ext_factor: 0.0,
    attn_factor: 1.0,
    context: 4096.0,
    beta_fast: 32.0,
    beta_slow: 1.0,
};

fn cases() -> Vec<(Ggml, RopeScaling)> {
    let linear = Ggml { freq_scale: 0.25, ..PLAIN };
    let yarn = Ggml { freq_scale: 0.125, ext_factor: 1.0, attn_factor: 1.2, base: 1e6, ..PLAIN };
    let half = Ggml { ext_factor: 0.5, n_rot: 20, ..yarn };
    let scaling = |g: Ggml| RopeScaling::Yarn {
        freq_scale: g.freq_scale as f32,
        original_context: g.context as u32,
        ext_factor: g.ext_factor as f32,
        attn_factor: g.attn_factor as f32,
        beta_fast: g.beta_fast as f32,
        beta_slow: g.beta_slow as f32,
    };
    vec![
        (PLAIN, RopeScaling::None),
        (linear, RopeScaling::Linear { freq_scale: 0.25 }),
        (yarn, scaling(yarn)),
        (half, scaling(half)),
    ]
}

#[test]
fn both_styles_rotate_the_right_pairs_by_ggmls_angles() {
    let mut rng = Rng(21);
    for (ggml, scaling) in cases() {
        let factors: Vec<f32> = (0..ggml.n_rot / 2).map(|j| 1.0 + j as f32 * 0.125).collect();
        for factors in [None, Some(&factors[..])] {
            let table = RopeTable::new(ggml.n_rot, ggml.base as f32, factors, scaling);
            assert_eq!(table.n_rot(), ggml.n_rot);
            let positions = [0, 1, 7, 4095, 131_071];
            let mut angles = RopeAngles::default();
            table.angles(&positions, &mut angles);
            assert_eq!(angles.len(), positions.len());
            let (heads, dim) = (3, 80);
            let stride = heads * dim + 5;
            for style in [RopeStyle::Norm, RopeStyle::Neox] {
                let x = rng.units(positions.len() * stride, 1.0);
                let mut y = x.clone();
                rope(style, &angles, false, &mut y, RopeHeads { stride, heads, head_stride: dim, start: 0 });
                let mut expected: Vec<f64> = x.iter().map(|&x| f64::from(x)).collect();
                for (t, &position) in positions.iter().enumerate() {
                    for head in 0..heads {
                        for j in 0..ggml.n_rot / 2 {
                            let factor = factors.map_or(1.0, |f| f64::from(f[j]));
                            let (cos, sin) = ggml.angle(position, j, factor);
                            let start = t * stride + head * dim;
                            let (a, b) = match style {
                                RopeStyle::Norm => (start + 2 * j, start + 2 * j + 1),
                                RopeStyle::Neox => (start + j, start + j + ggml.n_rot / 2),
                            };
                            let (xa, xb) = (f64::from(x[a]), f64::from(x[b]));
                            (expected[a], expected[b]) = (xa * cos - xb * sin, xa * sin + xb * cos);
                        }
                    }
                }
                for (i, (&y, e)) in y.iter().zip(expected).enumerate() {
                    // freq_base and the factors are f32 in the file; the table widens them exactly.
                    assert!((f64::from(y) - e).abs() <= 5e-7, "{style:?} {scaling:?} [{i}]: {y} for {e}");
                }
            }
        }
    }
}

#[test]
fn position_zero_of_an_unscaled_table_changes_nothing() {
    let table = RopeTable::new(8, 1e4, None, RopeScaling::None);
    let mut angles = RopeAngles::default();
    assert!(angles.is_empty());
    table.angles(&[0], &mut angles);
    let mut x: Vec<f32> = (0..16).map(|i| i as f32).collect();
    rope(
        RopeStyle::Neox,
        &angles,
        false,
        &mut x,
        RopeHeads { stride: 16, heads: 2, head_stride: 8, start: 0 },
    );
    assert!(x.iter().enumerate().all(|(i, &x)| x == i as f32));
}

/// n_rot values from `start` of each head turn as a head of n_rot alone does; nothing else changes; `inverse` turns
/// them back.
#[test]
fn the_last_values_of_a_head_turn_there_and_back() {
    let mut rng = Rng(22);
    let (n_rot, heads, tokens) = (12, 3, 5);
    let table = RopeTable::new(n_rot, 1e4, None, RopeScaling::None);
    let mut angles = RopeAngles::default();
    table.angles(&[0, 1, 17, 900, 70_000], &mut angles);
    for style in [RopeStyle::Norm, RopeStyle::Neox] {
        for (head_stride, start) in [(12, 0), (20, 8), (20, 3), (31, 19)] {
            // The last head ends with its rotated values: what follows them is not its own.
            let stride = (heads - 1) * head_stride + start + n_rot;
            let x = rng.units(tokens * stride, 1.0);
            let at = |t: usize, h: usize| t * stride + h * head_stride + start;
            let mut y = x.clone();
            let heads_at = RopeHeads { stride, heads, head_stride, start };
            rope(style, &angles, false, &mut y, heads_at);
            let mut expected = x.clone();
            for t in 0..tokens {
                for h in 0..heads {
                    // Alone: all tokens of this head, those but t unused.
                    let mut alone = vec![0f32; tokens * n_rot];
                    alone[t * n_rot..][..n_rot].copy_from_slice(&x[at(t, h)..][..n_rot]);
                    let only = RopeHeads { stride: n_rot, heads: 1, head_stride: n_rot, start: 0 };
                    rope(style, &angles, false, &mut alone, only);
                    expected[at(t, h)..][..n_rot].copy_from_slice(&alone[t * n_rot..][..n_rot]);
                }
            }
            assert_eq!(y, expected, "{style:?} {head_stride} {start}");
            assert_ne!(y, x);
            rope(style, &angles, true, &mut y, heads_at);
            for (i, (y, x)) in y.iter().zip(&x).enumerate() {
                assert!((y - x).abs() <= 4e-7, "{style:?} [{i}]: {y} for {x}");
            }
        }
    }
}
