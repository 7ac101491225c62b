//! Causal convolution of each channel over time.

use super::disjoint::Disjoint;
use super::isa::{Isa, Kernel};
use super::lanes::{LANES, Simd};
use super::math::silu;
use super::pool::Pool;

/// Channels that one thread takes at a time: 1 KiB of a row.
const BLOCK: usize = 256;

/// A convolution over time, each channel by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConvShape {
    /// Channels.
    pub channels: usize,
    /// Weights of a channel.
    pub taps: usize,
    /// Tokens from one tap to the next.
    pub dilation: usize,
}

impl ConvShape {
    /// Rows of earlier tokens that a token meets: (taps − 1) · dilation.
    ///
    /// # Panics
    /// Where there is no tap, or the number exceeds a `usize`.
    pub fn history(&self) -> usize {
        let before = self.taps.checked_sub(1).expect("a convolution has a tap");
        before.checked_mul(self.dilation).expect("a history fits memory")
    }
}

/// y\[t\]\[c\] = Σ_i weight\[i\]\[c\] · x\[t − (taps − 1 − i)·dilation\]\[c\], through silu if `silu`.
///
/// `weight` is `[taps][channels]`, its last row for the token itself; token t's values stand at
/// `x[t·stride..][..channels]`; `y` is `[tokens][channels]`. `history` is `[history()][channels]`, the rows
/// before the first token, oldest first (zeros before the start of a text), and afterwards those before the
/// next one.
///
/// Order: w₀·x₀, then + w₁·x₁, …, each operation rounded; silu(x) = x / (1 + e^-x).
///
/// # Panics
/// Where the lengths do not agree or a dimension is 0.
#[allow(clippy::too_many_arguments)] // Each is a part of the formula.
pub fn causal_conv(
    isa: Isa,
    pool: &Pool,
    shape: ConvShape,
    weight: &[f32],
    tokens: usize,
    x: &[f32],
    stride: usize,
    history: &mut [f32],
    silu: bool,
    y: &mut [f32],
) {
    let ConvShape { channels, taps, dilation } = shape;
    assert!(channels > 0 && taps > 0 && dilation > 0 && channels <= stride, "{shape:?} in rows of {stride}");
    let before = shape.history();
    let holds = |values: usize, rows: usize| rows.checked_mul(channels) == Some(values);
    assert!(holds(weight.len(), taps), "{} weights for {shape:?}", weight.len());
    assert!(holds(history.len(), before), "a history of {} for {shape:?}", history.len());
    assert!(holds(y.len(), tokens), "{} outputs of {tokens} × {channels}", y.len());
    let needed = tokens.checked_sub(1).map_or(Some(0), |t| t.checked_mul(stride)?.checked_add(channels));
    assert!(needed.is_some_and(|n| n <= x.len()), "{} inputs, {tokens} tokens {stride} apart", x.len());
    if tokens == 0 {
        return;
    }
    let (history, y) = (Disjoint::new(history), Disjoint::new(y));
    // A fork costs as much as some 4096 outputs.
    let chunk = 4096 / (BLOCK * tokens);
    pool.for_chunks(channels.div_ceil(BLOCK), chunk, |range| {
        for block in range {
            let first = block * BLOCK;
            let channels = first..channels.min(first + BLOCK);
            isa.run(Block { shape, weight, tokens, x, stride, history, silu, y, channels: channels.clone() });
            for row in 0..before {
                // SAFETY: these channels of the history, which only this item touches; its slices do not
                // overlap, since row < row + tokens.
                unsafe {
                    let to = history.slice(row * shape.channels + first, channels.len());
                    match (row + tokens).checked_sub(before) {
                        None => to.copy_from_slice(
                            history.slice((row + tokens) * shape.channels + first, channels.len()),
                        ),
                        Some(token) => to.copy_from_slice(&x[token * stride + first..][..channels.len()]),
                    }
                }
            }
        }
    });
}

/// Some channels of all tokens; the lengths are those that [`causal_conv`] has checked.
struct Block<'a> {
    shape: ConvShape,
    weight: &'a [f32],
    tokens: usize,
    x: &'a [f32],
    stride: usize,
    history: Disjoint<'a, f32>,
    silu: bool,
    y: Disjoint<'a, f32>,
    channels: std::ops::Range<usize>,
}

impl Kernel for Block<'_> {
    type Out = ();
    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        for token in 0..self.tokens {
            let mut channel = self.channels.start;
            while channel + 4 * LANES <= self.channels.end {
                self.outputs::<4, S>(s, token, channel, LANES);
                channel += 4 * LANES;
            }
            while channel < self.channels.end {
                let n = LANES.min(self.channels.end - channel);
                self.outputs::<1, S>(s, token, channel, n);
                channel += n;
            }
        }
    }
}

impl Block<'_> {
    /// `n` <= 16 channels in each of N vectors; n is 16 if N > 1.
    #[inline(always)]
    fn outputs<const N: usize, S: Simd>(&self, s: S, token: usize, channel: usize, n: usize) {
        let ConvShape { channels, taps, dilation } = self.shape;
        let before = (taps - 1) * dilation;
        // SAFETY: N·16 channels (n if N is 1) from `channel` are inside every row, and every row is inside its
        // buffer: `causal_conv` has checked that. Nobody else touches these channels of history and y.
        unsafe {
            let load = |p: *const f32, j: usize| {
                if N > 1 { s.load(p.add(j * LANES)) } else { s.load_part(p, n) }
            };
            let mut sums = [s.splat(0.0); N];
            for tap in 0..taps {
                let x: *const f32 = match (token + tap * dilation).checked_sub(before) {
                    Some(token) => self.x.as_ptr().add(token * self.stride + channel),
                    None => self.history.at((token + tap * dilation) * channels + channel),
                };
                let w = self.weight.as_ptr().add(tap * channels + channel);
                for (j, sum) in sums.iter_mut().enumerate() {
                    let product = s.mul(load(w, j), load(x, j));
                    *sum = if tap == 0 { product } else { s.add(*sum, product) };
                }
            }
            let y = self.y.at(token * channels + channel);
            for (j, sum) in sums.into_iter().enumerate() {
                let value = if self.silu { silu(s, sum) } else { sum };
                if N > 1 {
                    s.store(y.add(j * LANES), value);
                } else {
                    s.store_part(y, n, value);
                }
            }
        }
    }
}
