//! Rotary position embedding.

use std::f64::consts::PI;

/// Which elements of a head make a pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RopeStyle {
    /// (2j, 2j+1).
    Norm,
    /// (j, j + n_rot/2).
    Neox,
}

/// How positions beyond the trained context are mapped.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum RopeScaling {
    /// Not at all.
    None,
    /// Every angle times `freq_scale` = 1/factor.
    Linear {
        /// 1 / `rope.scaling.factor`.
        freq_scale: f32,
    },
    /// YaRN, with ggml's parameters: fast pairs as trained, slow ones scaled, a ramp between.
    Yarn {
        /// 1 / `rope.scaling.factor`.
        freq_scale: f32,
        /// `rope.scaling.original_context_length`.
        original_context: u32,
        /// Weight of the ramp, 1 unless the model says otherwise; 0 is [`RopeScaling::Linear`].
        ext_factor: f32,
        /// Factor on cos and sin besides YaRN's own (which is 1 + 0.1·ln(1/freq_scale)).
        attn_factor: f32,
        /// Rotations above which a pair is fast: 32 unless the model says otherwise.
        beta_fast: f32,
        /// Rotations below which a pair is slow: 1 unless the model says otherwise.
        beta_slow: f32,
    },
}

/// The angles of a model: one angular step per pair, and a factor on cos and sin.
#[derive(Clone, Debug, PartialEq)]
pub struct RopeTable {
    /// Per pair the angle of position 1.
    steps: Vec<f64>,
    magnitude: f64,
}

/// cos and sin of some positions, `[positions][n_rot/2]` each.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RopeAngles {
    pairs: usize,
    cos: Vec<f32>,
    sin: Vec<f32>,
}

impl RopeTable {
    /// θ_j(pos) = pos · freq_base^(−2j/n_rot) / factors\[j\], scaled, in f64 throughout (ggml multiplies step
    /// by step in f32, so its angles differ in their last bits). `factors` is `rope_freqs.weight`.
    ///
    /// # Panics
    /// Where `n_rot` is 0 or odd, or `factors` does not hold n_rot/2 values.
    pub fn new(n_rot: usize, freq_base: f32, factors: Option<&[f32]>, scaling: RopeScaling) -> Self {
        assert!(n_rot > 0 && n_rot.is_multiple_of(2), "pairs of {n_rot} elements");
        let pairs = n_rot / 2;
        assert!(factors.is_none_or(|f| f.len() == pairs), "a factor per pair of {n_rot} elements");
        let base = f64::from(freq_base);
        let mut magnitude = 1.0;
        let steps = (0..pairs).map(|j| {
            let trained = base.powf(-2.0 * j as f64 / n_rot as f64);
            trained / factors.map_or(1.0, |f| f64::from(f[j]))
        });
        let steps = match scaling {
            RopeScaling::None => steps.collect(),
            RopeScaling::Linear { freq_scale } => steps.map(|step| step * f64::from(freq_scale)).collect(),
            RopeScaling::Yarn {
                freq_scale,
                original_context,
                ext_factor,
                attn_factor,
                beta_fast,
                beta_slow,
            } => {
                let (scale, weight) = (f64::from(freq_scale), f64::from(ext_factor));
                magnitude = f64::from(attn_factor);
                if ext_factor != 0.0 {
                    magnitude *= 1.0 + 0.1 * (1.0 / scale).ln();
                }
                let pair_of = |rotations: f32| {
                    let turns = f64::from(original_context) / (f64::from(rotations) * 2.0 * PI);
                    n_rot as f64 * turns.ln() / (2.0 * base.ln())
                };
                let low = pair_of(beta_fast).floor().max(0.0);
                let high = pair_of(beta_slow).ceil().min(n_rot as f64 - 1.0);
                let steps = steps.enumerate().map(|(j, step)| {
                    let ramp = 1.0 - ((j as f64 - low) / (high - low).max(0.001)).clamp(0.0, 1.0);
                    let ramp = ramp * weight;
                    step * scale * (1.0 - ramp) + step * ramp
                });
                steps.collect()
            }
        };
        RopeTable { steps, magnitude }
    }

    /// Elements of a head that are rotated.
    pub fn n_rot(&self) -> usize {
        self.steps.len() * 2
    }

    /// cos and sin at each of `positions`, once for every layer; `angles` keeps its memory.
    pub fn angles(&self, positions: &[u32], angles: &mut RopeAngles) {
        angles.pairs = self.steps.len();
        angles.cos.clear();
        angles.sin.clear();
        for &position in positions {
            for step in &self.steps {
                let (sin, cos) = (f64::from(position) * step).sin_cos();
                angles.cos.push((cos * self.magnitude) as f32);
                angles.sin.push((sin * self.magnitude) as f32);
            }
        }
    }
}

impl RopeAngles {
    /// Positions that it holds.
    pub fn len(&self) -> usize {
        self.cos.len() / self.pairs.max(1)
    }

    /// cos and sin of each pair, position after position.
    pub fn turns(&self) -> impl Iterator<Item = (f32, f32)> + '_ {
        self.cos.iter().copied().zip(self.sin.iter().copied())
    }

    /// Whether it holds none.
    pub fn is_empty(&self) -> bool {
        self.cos.is_empty()
    }
}

/// Where the rotated values stand: those of head h of token t are the n_rot at
/// `x[t·stride + h·head_stride + start..]` (so that q and k may be rotated inside a fused product, and the last values
/// of a head as well as the first).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RopeHeads {
    /// From token to token.
    pub stride: usize,
    /// Heads of a token.
    pub heads: usize,
    /// From head to head.
    pub head_stride: usize,
    /// Values of a head before the rotated ones.
    pub start: usize,
}

/// Rotate n_rot values of every head, in place: (a, b) becomes (a·cos − b·sin, a·sin + b·cos), each operation rounded;
/// `inverse` turns the other way, with −sin for sin (and gives x back, but for rounding and the square of the angles'
/// magnitude). For as many tokens as `angles` holds positions.
///
/// # Panics
/// Where a head has fewer than start + n_rot values, or a token's heads exceed `stride` or the end of `x`.
pub fn rope(style: RopeStyle, angles: &RopeAngles, inverse: bool, x: &mut [f32], at: RopeHeads) {
    let RopeHeads { stride, heads, head_stride, start } = at;
    let (pairs, n_rot) = (angles.pairs, 2 * angles.pairs);
    assert!(start + n_rot <= head_stride, "{n_rot} values from {start} of a head of {head_stride}");
    if heads == 0 {
        return;
    }
    let reach = (heads - 1) * head_stride + start + n_rot;
    assert!(reach <= stride, "{heads} heads of {head_stride} in {stride}");
    for token in 0..angles.len() {
        let cos = &angles.cos[token * pairs..][..pairs];
        let sin = &angles.sin[token * pairs..][..pairs];
        for head in x[token * stride..][..reach].chunks_mut(head_stride) {
            let head = &mut head[start..][..n_rot];
            match inverse {
                false => rotate_head(style, head, cos, sin, |sin| sin),
                true => rotate_head(style, head, cos, sin, |sin| -sin),
            }
        }
    }
}

#[inline(always)]
fn rotate_head(style: RopeStyle, head: &mut [f32], cos: &[f32], sin: &[f32], turn: impl Fn(f32) -> f32) {
    match style {
        RopeStyle::Norm => {
            for ((pair, cos), sin) in head.as_chunks_mut::<2>().0.iter_mut().zip(cos).zip(sin) {
                let ([a, b], sin) = (*pair, turn(*sin));
                *pair = [a * cos - b * sin, a * sin + b * cos];
            }
        }
        RopeStyle::Neox => {
            let (low, high) = head.split_at_mut(cos.len());
            for (((a, b), cos), sin) in low.iter_mut().zip(high).zip(cos).zip(sin) {
                let sin = turn(*sin);
                (*a, *b) = (*a * cos - *b * sin, *a * sin + *b * cos);
            }
        }
    }
}
