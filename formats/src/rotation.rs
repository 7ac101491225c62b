//! The rotation Q that a matrix may be stored under (W·Q) and that its activations then need (Qᵀx), the scalar truth.
//!
//! Q is block diagonal: a row is cut into [`blocks`], each a power of two n, and per block Q = D·H/√n. That is, for
//! a row: signs flip where [`signs`] says, then the fast Walsh–Hadamard transform in natural order (for len = 1, 2,
//! 4, … n/2 every pair (u, v) at distance len becomes (u + v, u − v)), then every element is multiplied by
//! [`factor`], the f32 nearest to 1/√n. Each operation is rounded to f32. Weight rows and activations take the
//! same [`rotate`], since x → xQ and x → Qᵀx are one map: W·x = (WQ)(Qᵀx).

/// The name of this rotation in a layout's tag.
pub const ID: &str = "hadamard";

/// The name of the rule that gives the signs: xorshift64* from state 417 + n.
pub const SEED_RULE: &str = "417+n";

/// What a block's size is added to for the state of its signs.
pub const SEED: u64 = 417;

/// The largest block.
pub const CAP: usize = 4096;

/// The width of a row is a multiple of this: the smallest block.
pub const MULTIPLE: usize = 256;

/// A width that is not cut into rotation blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a row of {0} values is not rotated: a multiple of {MULTIPLE} is needed")]
pub struct WidthError(pub usize);

/// The block sizes of a row of `cols` values, from offset 0: each the lowest set bit of what remains, at most
/// [`CAP`]. 6144 gives 2048, 4096.
pub fn blocks(cols: usize) -> Result<impl Iterator<Item = usize>, WidthError> {
    if !cols.is_multiple_of(MULTIPLE) {
        return Err(WidthError(cols));
    }
    let mut rest = cols;
    Ok(std::iter::from_fn(move || {
        let n = (rest & rest.wrapping_neg()).min(CAP);
        rest -= n;
        (n > 0).then_some(n)
    }))
}

/// The signs of a block of `n` values, 8 per byte, `n`/8 bytes: value e is negated where bit `e & 7` of byte
/// `e >> 3` is set.
pub fn signs(n: usize) -> impl Iterator<Item = u8> {
    let mut state = SEED + n as u64;
    (0..n / 8).map(move |_| {
        state ^= state >> 12;
        state ^= state << 25;
        state ^= state >> 27;
        (state.wrapping_mul(2_685_821_657_736_338_717) >> 56) as u8
    })
}

/// The f32 nearest to 1/√n.
pub fn factor(n: usize) -> f32 {
    (1.0 / (n as f64).sqrt()) as f32
}

/// Rotates a row in place: x → Qᵀx.
pub fn rotate(row: &mut [f32]) -> Result<(), WidthError> {
    each(row, |block| {
        flip(block);
        transform(block);
    })
}

/// Takes a row back: x → Qx. The inverse of [`rotate`] up to rounding: transform and factor first, then signs.
pub fn unrotate(row: &mut [f32]) -> Result<(), WidthError> {
    each(row, |block| {
        transform(block);
        flip(block);
    })
}

fn each(row: &mut [f32], mut one: impl FnMut(&mut [f32])) -> Result<(), WidthError> {
    let mut rest = row;
    for n in blocks(rest.len())? {
        let (block, after) = rest.split_at_mut(n);
        one(block);
        rest = after;
    }
    Ok(())
}

fn flip(block: &mut [f32]) {
    let signs = signs(block.len());
    for (eight, byte) in block.as_chunks_mut::<8>().0.iter_mut().zip(signs) {
        for (j, x) in eight.iter_mut().enumerate() {
            *x = if byte >> j & 1 == 1 { -*x } else { *x };
        }
    }
}

fn transform(block: &mut [f32]) {
    let mut len = 1;
    while len < block.len() {
        for pair in block.chunks_exact_mut(2 * len) {
            let (low, high) = pair.split_at_mut(len);
            for (u, v) in low.iter_mut().zip(high) {
                (*u, *v) = (*u + *v, *u - *v);
            }
        }
        len *= 2;
    }
    let factor = factor(block.len());
    block.iter_mut().for_each(|x| *x *= factor);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_lowest_bits_under_the_cap() {
        let of = |cols| blocks(cols).expect("whole").collect::<Vec<_>>();
        assert_eq!(of(6144), [2048, 4096]);
        assert_eq!(of(1536), [512, 1024]);
        assert_eq!(of(7168), [1024, 2048, 4096]);
        assert_eq!(of(2560), [512, 2048]);
        assert_eq!(of(8192), [4096, 4096]);
        assert_eq!(of(256), [256]);
        assert_eq!(of(16_384 + 256), [256, 4096, 4096, 4096, 4096]);
        assert!(of(0).is_empty());
        assert_eq!(blocks(640).err(), Some(WidthError(640)));
        assert_eq!(
            rotate(&mut [0.0; 640]).expect_err("ragged").to_string(),
            "a row of 640 values is not rotated: a multiple of 256 is needed"
        );
    }

    #[test]
    fn the_published_signs() {
        let first = |n| signs(n).take(16).map(|b| format!("{b:02x}")).collect::<String>();
        assert_eq!(first(256), "de658f1678eea03bac6680a50aa4e98a");
        assert_eq!(first(512), "153331ea11c078fc73a46f18b13e1b40");
        assert_eq!(first(2048), "a038f927cb70352efe9c9ba960ee41a3");
        assert_eq!(first(4096), "0b178fd2ccf13027488815dd92fd66c7");
        assert_eq!(signs(4096).count(), 512);
    }

    #[test]
    fn one_hot_rows_give_signed_columns_of_the_matrix() {
        // Element e of a block of n goes to ±1/√n times (−1)^popcount(e & k) at every k of the block, nowhere else.
        for (cols, offset, n, e) in [(256, 0, 256, 3), (1536, 512, 1024, 700), (1536, 0, 512, 511)] {
            let mut row = vec![0.0; cols];
            row[offset + e] = 1.0;
            rotate(&mut row).expect("whole");
            let negative = signs(n).nth(e / 8).expect("in the block") >> (e % 8) & 1 == 1;
            for (k, x) in row.into_iter().enumerate() {
                let inside = (offset..offset + n).contains(&k);
                let odd = (k.wrapping_sub(offset) & e).count_ones() % 2 == 1;
                let want = if inside { factor(n) } else { 0.0 };
                assert_eq!(x, if inside && odd != negative { -want } else { want }, "{k}");
            }
        }
    }
}
