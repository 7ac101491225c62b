//! The codebook in the orders that the search wants, known to the compiler so that searching it needs no lookups.
//!
//! The search works with half the codebook's values, 2..31, so that value = step·h. An entry's product with a group
//! is the sum of two pairs' products, and there are only 64 different pairs. For one step the entries of equal norm
//! differ by their product alone: of each of the 64 norms only the largest product matters, for all 16 steps.

/// The codebook, an octal digit per value: its number in [`LEVELS`]. A test holds it against the format's.
#[rustfmt::skip]
const DIGITS: [u16; 256] = [
    0o0000, 0o2000, 0o4000, 0o1100, 0o3100, 0o7100, 0o0200, 0o2200, 0o1300, 0o2400, 0o3700, 0o5700, 0o1010, 0o3010,
    0o0110, 0o2110, 0o1210, 0o5210, 0o0310, 0o2310, 0o1410, 0o4510, 0o0710, 0o0020, 0o2020, 0o4020, 0o1120, 0o0220,
    0o2220, 0o1320, 0o3320, 0o7320, 0o1520, 0o7520, 0o5720, 0o1030, 0o7030, 0o0130, 0o2130, 0o5230, 0o0730, 0o3140,
    0o7340, 0o4440, 0o7540, 0o3740, 0o5740, 0o1050, 0o7050, 0o2350, 0o2550, 0o5360, 0o4660, 0o0170, 0o4170, 0o6170,
    0o3470, 0o1670, 0o1001, 0o3001, 0o0101, 0o2101, 0o1201, 0o3201, 0o0301, 0o2301, 0o4301, 0o7401, 0o0501, 0o0011,
    0o2011, 0o1111, 0o0211, 0o2211, 0o1021, 0o3021, 0o0121, 0o2121, 0o1221, 0o0321, 0o2721, 0o0031, 0o2031, 0o0231,
    0o1331, 0o6431, 0o6631, 0o1041, 0o5041, 0o0541, 0o0251, 0o4251, 0o6451, 0o1751, 0o5061, 0o2271, 0o0471, 0o0002,
    0o2002, 0o1102, 0o3102, 0o0202, 0o2202, 0o6202, 0o1302, 0o2402, 0o1012, 0o3012, 0o5012, 0o0112, 0o2112, 0o1212,
    0o0312, 0o3612, 0o7612, 0o0712, 0o0022, 0o2022, 0o1122, 0o7122, 0o0222, 0o2222, 0o7322, 0o0422, 0o5522, 0o1032,
    0o0132, 0o4132, 0o0732, 0o4732, 0o5342, 0o3542, 0o3052, 0o7252, 0o1452, 0o4752, 0o1072, 0o3072, 0o6172, 0o5472,
    0o1003, 0o0103, 0o2103, 0o1203, 0o3203, 0o0503, 0o5603, 0o2703, 0o0013, 0o2013, 0o0213, 0o1313, 0o4413, 0o6413,
    0o1023, 0o3023, 0o0123, 0o5223, 0o2523, 0o2723, 0o1133, 0o3333, 0o0343, 0o7443, 0o2743, 0o0053, 0o6053, 0o2253,
    0o5553, 0o4163, 0o6363, 0o3663, 0o3373, 0o0673, 0o4004, 0o7104, 0o5304, 0o7304, 0o3504, 0o7504, 0o4714, 0o0224,
    0o7324, 0o0424, 0o0624, 0o6624, 0o7034, 0o5434, 0o4044, 0o1544, 0o4644, 0o5254, 0o3454, 0o0754, 0o5074, 0o0174,
    0o2174, 0o0374, 0o2105, 0o1405, 0o0705, 0o0015, 0o6015, 0o6215, 0o5515, 0o4125, 0o2325, 0o2725, 0o2035, 0o3535,
    0o0145, 0o3245, 0o7245, 0o2745, 0o2055, 0o1355, 0o0565, 0o4275, 0o2475, 0o4206, 0o4406, 0o6406, 0o4606, 0o1216,
    0o1616, 0o7126, 0o4626, 0o0336, 0o6336, 0o4446, 0o5056, 0o2556, 0o3366, 0o3076, 0o1276, 0o3007, 0o5007, 0o7007,
    0o0107, 0o2307, 0o2507, 0o6217, 0o0417, 0o2127, 0o5427, 0o2527, 0o0037, 0o5137, 0o3337, 0o0637, 0o1247, 0o1447,
    0o0057, 0o2057, 0o4257, 0o0367,
];

/// Half the codebook's values, ascending.
pub(super) const LEVELS: [f32; 8] = [2.0, 6.0, 10.0, 14.0, 18.0, 22.0, 26.0, 31.0];

/// Different norms.
pub(super) const NORMS: usize = 64;

/// An entry as two pairs of level numbers, 8·first + second.
pub(super) type Pairs = [u8; 2];

pub(super) struct Codebook {
    /// By index.
    pub(super) pairs: [Pairs; 256],
    /// Half the codebook's values, by index.
    pub(super) halves: [[f32; 4]; 256],
    /// The different sums of squares of `halves`.
    pub(super) norms: [f32; NORMS],
    /// Where the entries of each norm begin in `order`; then 256.
    pub(super) starts: [usize; NORMS + 1],
    /// The indices by norm, ascending within one.
    pub(super) order: [u8; 256],
    /// The same as numbers, with their pairs.
    pub(super) ordered: [(f32, Pairs); 256],
}

/// The codebook as a constant, to take parts of in constants.
pub(super) const BOOK: Codebook = book();

/// The same at an address.
pub(super) static CODEBOOK: Codebook = BOOK;

const fn book() -> Codebook {
    let mut book = Codebook {
        pairs: [[0; 2]; 256],
        halves: [[0.0; 4]; 256],
        norms: [0.0; NORMS],
        starts: [256; NORMS + 1],
        order: [0; 256],
        ordered: [(0.0, [0; 2]); 256],
    };
    let mut squares = [0; 256];
    let mut i = 0;
    while i < 256 {
        book.pairs[i] = [(DIGITS[i] >> 6) as u8, (DIGITS[i] & 63) as u8];
        let mut j = 0;
        while j < 4 {
            let half = LEVELS[(DIGITS[i] >> (9 - 3 * j) & 7) as usize];
            book.halves[i][j] = half;
            squares[i] += (half * half) as u32;
            j += 1;
        }
        i += 1;
    }
    // Norms in ascending order, each with its entries.
    let (mut norm, mut number, mut at) = (0, 0, 0);
    while at < 256 {
        let (mut next, mut i) = (u32::MAX, 0);
        while i < 256 {
            if squares[i] > norm && squares[i] < next {
                next = squares[i];
            }
            i += 1;
        }
        norm = next;
        book.norms[number] = norm as f32;
        book.starts[number] = at;
        i = 0;
        while i < 256 {
            if squares[i] == norm {
                book.order[at] = i as u8;
                book.ordered[at] = (i as f32, book.pairs[i]);
                at += 1;
            }
            i += 1;
        }
        number += 1;
    }
    assert!(number == NORMS);
    book
}

#[cfg(test)]
mod tests {
    use super::*;
    use gantry_formats::block::iq3xxs_grid;

    #[test]
    fn the_codebook_is_the_format_s() {
        for (row, halves) in iq3xxs_grid().iter().zip(&CODEBOOK.halves) {
            assert_eq!(row.map(|g| f32::from(g) * 0.5), *halves);
        }
    }

    #[test]
    fn every_entry_is_in_one_norm() {
        let mut seen = [false; 256];
        for number in 0..NORMS {
            let entries = &CODEBOOK.order[CODEBOOK.starts[number]..CODEBOOK.starts[number + 1]];
            assert!(!entries.is_empty() && entries.is_sorted());
            for &i in entries {
                assert!(!std::mem::replace(&mut seen[usize::from(i)], true));
                let halves = CODEBOOK.halves[usize::from(i)];
                assert_eq!(halves.map(|h| h * h).iter().sum::<f32>(), CODEBOOK.norms[number]);
                let levels = CODEBOOK.pairs[usize::from(i)].map(|p| [p >> 3, p & 7].map(usize::from));
                assert_eq!(levels.as_flattened().iter().map(|&l| LEVELS[l]).collect::<Vec<_>>(), halves);
            }
        }
        assert!(seen.into_iter().all(|seen| seen));
    }
}
