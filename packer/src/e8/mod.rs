//! E8 super-blocks in three planes: 256 values in 98 bytes, all indices, then all words, then all scales.
//!
//! What a block's bytes mean is defined by [`gantry_formats::block::e8`]; the planes hold the same bytes, reordered.
//! Which bytes a block of values gets is defined in three steps, all in the same order of f32 (and for the scale
//! f64) operations on every host:
//!
//! 1. Magnitudes m = |x|, and signs (−0 is positive). Where eight values hold an odd number of negatives, one sign
//!    is flipped.
//! 2. A scale d, from rms = √(mean m²) in f64, narrowed to f32, then to f16.
//! 3. Per 32 values the best of 16 codes, per 4 values the best of 256 entries, exactly: the lowest code and the
//!    lowest index of equals. The rule is in `search.rs`.
//!
//! | | flipped sign | aim of that value | scale |
//! |---|---|---|---|
//! | [`Scheme::Reference`] | first smallest m | m, as if it were not flipped | rms/20 + 10⁻¹² |
//! | [`Scheme::Default`], [`Effort::Default`] | first smallest m (with an importance: w·m²) | −m | rms/66, but max m is in reach |
//! | [`Scheme::Default`], [`Effort::High`] | whichever gives the least error | −m | best of several, then refitted |
//!
//! A block of zeros is 98 zero bytes. A block that is not, but whose scale rounds to 0, is lost: it reads as zeros.

mod codebook;
mod encode;
mod planes;
mod products;
mod search;
mod target;

use crate::PackError;
use crate::q8_0::Stats;
use crate::simd::{self, Level};
pub(crate) use encode::{Plan, encode_blocks};
use gantry_formats::block::e8 as truth;
use gantry_formats::block::finite::NonFinite;
pub use planes::{decode, export_iq3_xxs, import_iq3_xxs, join, split};
use search::Flips;

/// Values per block.
pub const LEN: usize = truth::LEN;

/// Bytes of a block: 64 of indices, 32 of words, 2 of scale.
pub const BYTES: usize = truth::BYTES;

/// Sub-scale codes.
const CODES: usize = 16;

/// The largest value at scale 1: code 15, entry 62.
const REACH: f64 = 15.5 * 0.5 * 62.0 * 0.5;

/// The three planes of whole blocks. Per 256 values: 64 bytes of `indices`, 32 of `words`, 2 of `scales`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Planes<T> {
    /// One byte per 4 values.
    pub indices: T,
    /// A little-endian u32 per 32 values: signs and code.
    pub words: T,
    /// A little-endian f16 per 256 values.
    pub scales: T,
}

impl<T: AsRef<[u8]>> Planes<T> {
    /// Checks the planes' lengths against a number of blocks.
    fn expect(&self, blocks: usize) -> Result<(), PackError> {
        PackError::expect_len("indices", self.indices.as_ref().len(), blocks * truth::INDICES)?;
        PackError::expect_len("words", self.words.as_ref().len(), blocks * truth::WORDS)?;
        PackError::expect_len("scales", self.scales.as_ref().len(), blocks * truth::SCALE)
    }
}

/// How values become blocks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Scheme {
    /// Byte for byte the published codec's.
    Reference,
    /// The same decoder, about 16 % less squared error.
    #[default]
    Default,
}

/// What the default scheme may cost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Effort {
    /// One scale, one choice of signs.
    #[default]
    Default,
    /// Several scales and every choice of signs: about 2 % less squared error for some twenty times the time.
    High,
}

/// How to encode.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Options {
    /// The scheme.
    pub scheme: Scheme,
    /// The effort: of the default scheme only.
    pub effort: Effort,
}

impl Options {
    fn plan(self) -> &'static Plan {
        const REFERENCE: Plan = Plan {
            divisors: &[20.0],
            reaches: &[],
            offset: 1e-12,
            fold: true,
            flips: Flips::Done,
            refits: 0,
        };
        const DEFAULT: Plan = Plan {
            divisors: &[66.0],
            reaches: &[REACH],
            offset: 0.0,
            fold: false,
            flips: Flips::Done,
            refits: 0,
        };
        const HIGH: Plan = Plan {
            divisors: &[66.0, 56.0, 59.0, 62.0, 70.0, 74.0, 78.0, 82.0, 86.0, 90.0, 94.0, 98.0],
            reaches: &[REACH, 150.0, 190.0],
            offset: 0.0,
            fold: false,
            flips: Flips::Any,
            refits: 1,
        };
        match (self.scheme, self.effort) {
            (Scheme::Reference, _) => &REFERENCE,
            (Scheme::Default, Effort::Default) => &DEFAULT,
            (Scheme::Default, Effort::High) => &HIGH,
        }
    }
}

/// Encodes whole blocks of 256 `values` into planes of `values.len()`/4, /8 and /128 bytes.
///
/// `importance`, one finite weight of 0 or more per value and only for the default scheme, makes the search
/// minimize Σ w·(x − x̂)² and the scale follow √(Σ w·m² / Σ w); only weights relative to their block's mean count,
/// and a block whose weights are all zero is encoded without.
///
/// The stats' relative error is, per block, its largest |x − x̂| over its largest |x|. On an error the planes hold
/// rubbish: a value or weight that is not finite, a scale that does not fit f16, and lengths that do not fit are
/// refused.
pub fn encode(
    options: Options,
    values: &[f32],
    importance: Option<&[f32]>,
    planes: Planes<&mut [u8]>,
) -> Result<Stats, PackError> {
    encode_at(simd::level()?, options, values, importance, planes)
}

/// [`encode`] at a given level.
pub fn encode_at(
    level: Level,
    options: Options,
    values: &[f32],
    importance: Option<&[f32]>,
    planes: Planes<&mut [u8]>,
) -> Result<Stats, PackError> {
    PackError::expect_len("values", values.len(), values.len().next_multiple_of(LEN))?;
    Planes { indices: &*planes.indices, words: &*planes.words, scales: &*planes.scales }
        .expect(values.len() / LEN)?;
    if let Some(weights) = importance {
        PackError::expect_len("importance", weights.len(), values.len())?;
        if options.scheme == Scheme::Reference {
            return Err(PackError::ReferenceImportance);
        }
        if let Some(i) = weights.iter().position(|w| !(w.is_finite() && *w >= 0.0)) {
            return Err(PackError::Importance { element: i as u64, value: weights[i] });
        }
    }
    level
        .encode_e8(options.plan(), values, importance, planes)
        .map_err(|block| fault(block, &values[block * LEN..][..LEN]))
}

/// Why a block was refused: its first value that is not finite, or else its scale.
fn fault(block: usize, x: &[f32]) -> PackError {
    let at = |i: usize| (block * LEN + i) as u64;
    for (i, &v) in x.iter().enumerate() {
        if let Some(kind) = NonFinite::of(v) {
            return PackError::NonFinite { element: at(i), kind };
        }
    }
    let amax = x.iter().fold(0.0_f32, |amax, v| amax.max(v.abs()));
    let index = x.iter().position(|v| v.abs() == amax).unwrap_or(0);
    PackError::SuperScaleOverflow { element: at(index), amax }
}
