//! The rotation of activations for matrices stored as W·Q: [`gantry_formats::rotation`], in vectors.

use std::sync::OnceLock;

use gantry_formats::rotation;

use super::isa::{Isa, Kernel};
use super::lanes::{LANES, Simd};
use super::math::FORK;
use super::pool::Pool;

/// Rotates each row of `x` (`[tokens][cols]`) in place: x → Qᵀx, bit for bit as
/// [`gantry_formats::rotation::rotate`] does it. Per power-of-two block n of a row: signs flip, then for len = 1,
/// 2, 4, … n/2 every pair (u, v) at distance len becomes (u + v, u − v), then every value is multiplied by the f32
/// nearest to 1/√n; each operation is rounded to f32.
///
/// One call serves every rotated matrix that takes these activations.
///
/// # Panics
/// Where `cols` is 0 or no multiple of 256, or does not divide the length of `x`.
pub fn rotate(isa: Isa, pool: &Pool, x: &mut [f32], cols: usize) {
    let whole = cols > 0 && cols.is_multiple_of(rotation::MULTIPLE);
    assert!(whole, "{cols} columns are not blocks of {}", rotation::MULTIPLE);
    pool.for_rows(x, cols, FORK.div_ceil(cols), |_, row| isa.run(Row(row)));
}

/// Sizes of blocks: 256, 512, … 4096.
const SIZES: usize = (rotation::CAP / rotation::MULTIPLE).ilog2() as usize + 1;

/// The signs of a block of `n` values, 16 to a word: made once, not per call.
fn signs(n: usize) -> &'static [u16] {
    static SIGNS: [OnceLock<Box<[u16]>>; SIZES] = [const { OnceLock::new() }; SIZES];
    SIGNS[(n / rotation::MULTIPLE).ilog2() as usize].get_or_init(|| {
        let bytes: Vec<u8> = rotation::signs(n).collect();
        bytes.as_chunks::<2>().0.iter().map(|two| u16::from_le_bytes(*two)).collect()
    })
}

struct Row<'a>(&'a mut [f32]);

impl Kernel for Row<'_> {
    type Out = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let mut rest = self.0;
        for n in rotation::blocks(rest.len()).expect("a width that rotate has checked") {
            let (block, after) = rest.split_at_mut(n);
            rotate_block(s, block);
            rest = after;
        }
    }
}

/// Several stages per pass over the block, as registers allow: 8 vectors take three, 4 take two. (16 are slower.)
#[inline(always)]
fn rotate_block<S: Simd>(s: S, block: &mut [f32]) {
    let n = block.len();
    let signs = signs(n);
    let factor = rotation::factor(n);
    let most = if S::WIDE { 8 } else { 4 };
    let mut len = LANES;
    while len < n {
        let vectors = most.min(n / len);
        // 1.0 changes nothing.
        let factor = if len * vectors == n { factor } else { 1.0 };
        let signs = (len == LANES).then_some(signs);
        match vectors {
            8 => stages::<8, S>(s, block, len, signs, factor),
            4 => stages::<4, S>(s, block, len, signs, factor),
            _ => stages::<2, S>(s, block, len, signs, factor),
        }
        len *= vectors;
    }
}

/// The stages len, 2·len, … of R vectors at distance `len`, log₂ R of them, then the factor. Where signs are given,
/// which is where len = 16, they and the stages inside a vector come first.
#[inline(always)]
fn stages<const R: usize, S: Simd>(s: S, block: &mut [f32], len: usize, signs: Option<&[u16]>, factor: f32) {
    let factor = s.splat(factor);
    for (g, group) in block.chunks_exact_mut(len * R).enumerate() {
        for at in (0..len).step_by(LANES) {
            let mut v = [factor; R];
            for (i, v) in v.iter_mut().enumerate() {
                // SAFETY: at + 16 <= len, so 16 values from i·len + at lie in the group of len·R.
                *v = unsafe { s.load(group.as_ptr().add(i * len + at)) };
                if let Some(signs) = signs {
                    *v = s.butterflies(s.negate(*v, signs[g * R + i]));
                }
            }
            let mut half = 1;
            while half < R {
                for i in 0..R {
                    if i & half == 0 {
                        let (a, b) = (v[i], v[i + half]);
                        (v[i], v[i + half]) = (s.add(a, b), s.sub(a, b));
                    }
                }
                half *= 2;
            }
            for (i, v) in v.into_iter().enumerate() {
                // SAFETY: as for the load.
                unsafe { s.store(group.as_mut_ptr().add(i * len + at), s.mul(v, factor)) };
            }
        }
    }
}
