//! Products of groups with codebook entries, a vector of groups at a time.

use super::codebook::{BOOK, CODEBOOK, Pairs};
use crate::simd::lanes::Lanes;

/// The products of both pairs with every pair of levels.
#[inline(always)]
pub(super) fn fill<V: Lanes>(pairs: &mut [[V; 64]; 2], by: [V; 4], levels: [f32; 8]) {
    for (p, pairs) in pairs.iter_mut().enumerate() {
        let first: [V; 8] = std::array::from_fn(|i| by[2 * p].mul(V::splat(levels[i])));
        let second: [V; 8] = std::array::from_fn(|i| by[2 * p + 1].mul(V::splat(levels[i])));
        for (row, first) in pairs.as_chunks_mut::<8>().0.iter_mut().zip(first) {
            for (pair, second) in row.iter_mut().zip(second) {
                *pair = first.add(second);
            }
        }
    }
}

/// What an entry's two pairs add up to.
#[inline(always)]
pub(super) fn sum<V: Lanes>(pairs: &[[V; 64]; 2], [a, b]: Pairs) -> V {
    pairs[0][usize::from(a & 63)].add(pairs[1][usize::from(b & 63)])
}

/// −x.
#[inline(always)]
pub(super) fn negated<V: Lanes>(x: V) -> V {
    x.mul(V::splat(-1.0))
}

/// The largest product of each norm, or every product.
#[inline(always)]
pub(super) fn collect<V: Lanes, const WEIGHTED: bool>(pairs: &[[V; 64]; 2], out: &mut [V; 256]) {
    if WEIGHTED {
        for (out, &entry) in out.iter_mut().zip(&CODEBOOK.pairs) {
            *out = sum(pairs, entry);
        }
    } else {
        macro_rules! norms {
            ($($number:literal)*) => {$( out[$number] = largest::<V, $number>(pairs); )*};
        }
        norms!(
            0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25 26 27 28 29 30 31
            32 33 34 35 36 37 38 39 40 41 42 43 44 45 46 47 48 49 50 51 52 53 54 55 56 57 58 59 60 61 62 63
        );
    }
}

/// The largest product of the entries of one norm, without a loop: all that it reads has a known address.
#[inline(always)]
fn largest<V: Lanes, const NUMBER: usize>(pairs: &[[V; 64]; 2]) -> V {
    macro_rules! entries {
        ($($i:literal)*) => {{
            let mut largest = sum(pairs, const { entry(NUMBER, 0) });
            $( if const { $i < BOOK.starts[NUMBER + 1] - BOOK.starts[NUMBER] } {
                largest = sum(pairs, const { entry(NUMBER, $i) }).max(largest);
            } )*
            largest
        }};
    }
    const { assert!(BOOK.starts[NUMBER + 1] - BOOK.starts[NUMBER] <= 22) }
    entries!(1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21)
}

/// Entry `i` of a norm, or its first where it has no more.
const fn entry(norm: usize, i: usize) -> Pairs {
    let at = BOOK.starts[norm] + i;
    BOOK.pairs[BOOK.order[if at < BOOK.starts[norm + 1] { at } else { BOOK.starts[norm] }] as usize]
}
