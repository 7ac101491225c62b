//! The codebooks of the IQ types, one byte per entry: format data, extracted from PyPI's `gguf` by
//! `formats/tests/fixtures/make_grids.py` into `grids.bin`.
//!
//! | offset | bytes | table |
//! |---|---|---|
//! | 0 | 2 048 | `iq2xxs`: 256 × 8, values 8, 25, 43 |
//! | 2 048 | 4 096 | `iq2xs`: 512 × 8, the same values |
//! | 6 144 | 8 192 | `iq2s`: 1 024 × 8, the same values |
//! | 14 336 | 1 024 | `iq3xxs`: 256 × 4, values 4, 12, 20, 28, 36, 44, 52, 62 |
//! | 15 360 | 2 048 | `iq3s`: 512 × 4, odd values 1..15 |
//! | 17 408 | 16 384 | `iq1s`: 2 048 × 8, int8 −1, 0, 1 |

static BYTES: &[u8; 33_792] = include_bytes!("grids.bin");

/// Row `index` of the table of `ROWS` rows at `AT`. `ROWS` is a power of two and the index is taken modulo it:
/// callers give an index of exactly that many bits.
#[inline(always)]
fn row<const AT: usize, const ROWS: usize, const LEN: usize>(index: usize) -> &'static [u8; LEN] {
    const { assert!(ROWS.is_power_of_two() && AT + ROWS * LEN <= BYTES.len()) };
    debug_assert!(index < ROWS);
    super::dequantize::part(BYTES, AT + LEN * (index & (ROWS - 1)))
}

pub(super) fn iq2xxs(index: usize) -> &'static [u8; 8] {
    row::<0, 256, 8>(index)
}

pub(super) fn iq2xs(index: usize) -> &'static [u8; 8] {
    row::<2048, 512, 8>(index)
}

pub(super) fn iq2s(index: usize) -> &'static [u8; 8] {
    row::<6144, 1024, 8>(index)
}

pub(super) fn iq3xxs(index: usize) -> &'static [u8; 4] {
    row::<14_336, 256, 4>(index)
}

pub(super) fn iq3s(index: usize) -> &'static [u8; 4] {
    row::<15_360, 512, 4>(index)
}

pub(super) fn iq1s(index: usize) -> &'static [u8; 8] {
    row::<17_408, 2048, 8>(index)
}

/// The IQ3_XXS codebook, 256 entries of 4: also the codebook of E8.
pub fn iq3xxs_grid() -> &'static [[u8; 4]; 256] {
    let (rows, _) = BYTES[14_336..15_360].as_chunks::<4>();
    rows.try_into().unwrap_or(&[[0; 4]; 256])
}

/// Eight sign bits from the seven stored ones: the eighth makes the number of set bits even.
#[inline(always)]
pub(super) fn even_signs(seven: u32) -> u8 {
    let seven = seven as u8 & 0x7f;
    seven | (seven.count_ones() as u8 & 1) << 7
}

/// `x`, negated where bit `j` of `signs` is set.
#[inline(always)]
pub(super) fn signed(x: f32, signs: u8, j: usize) -> f32 {
    if signs >> j & 1 == 1 { -x } else { x }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_hold_only_their_values() {
        let all =
            |range: std::ops::Range<usize>, values: &[u8]| BYTES[range].iter().all(|b| values.contains(b));
        assert!(all(0..14_336, &[8, 25, 43]));
        assert!(all(14_336..15_360, &[4, 12, 20, 28, 36, 44, 52, 62]));
        assert!(all(15_360..17_408, &[1, 3, 5, 7, 9, 11, 13, 15]));
        assert!(all(17_408..33_792, &[0, 1, 255]));
        assert_eq!(iq3xxs_grid()[255], *iq3xxs(255));
    }

    #[test]
    fn signs_have_even_parity() {
        for seven in 0..128 {
            let signs = even_signs(seven);
            assert_eq!(u32::from(signs) & 0x7f, seven);
            assert_eq!(signs.count_ones() % 2, 0);
        }
    }
}
