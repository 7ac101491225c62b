//! Q8_0, the scalar truth: 32 values as one f16 scale `d` and 32 × int8 `q`, value = d·q.
//!
//! Per block: amax = max|x|; d = amax/127 in f32; id = 1/d **from that unrounded d** (0 where d is 0 or 1/d
//! overflows, and then d is 0 as well); q = x·id rounded half away from zero; d stored as the nearest f16, ties
//! to even, subnormals kept. x·(1/d) is not x/d. Bit for bit what ggml's `quantize_row_q8_0_ref` gives wherever
//! that is defined.

use super::finite::NonFinite;
use super::fp16;

/// Values per block.
pub const LEN: usize = 32;

/// Bytes per block: the scale, then the values.
pub const BYTES: usize = 34;

/// One quantized block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Block {
    /// The scale, f16 bits.
    pub d: u16,
    /// The values in units of the scale.
    pub q: [i8; LEN],
}

/// Why a block has no Q8_0 form.
#[derive(Clone, Copy, Debug, PartialEq, thiserror::Error)]
pub enum Q8Error {
    /// A value is NaN or infinite.
    #[error("element {index} {kind}")]
    NonFinite {
        /// Its index in the block.
        index: usize,
        /// Which kind.
        kind: NonFinite,
    },
    /// The scale rounds to an infinite f16: amax is 8 321 040 or more.
    #[error("element {index}: {amax}/127 does not fit fp16")]
    ScaleOverflow {
        /// Index of the first value of the largest magnitude.
        index: usize,
        /// That magnitude.
        amax: f32,
    },
}

/// What the stored scale keeps of the block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ScaleKind {
    /// Every value is zero.
    Zero,
    /// A normal f16.
    Normal,
    /// A subnormal f16: fewer than 11 bits of the scale are left.
    Subnormal,
    /// The scale rounded to 0, so a block that was not zero reads as zero.
    Lost,
}

impl Block {
    /// The 34 bytes of the block in a GGUF.
    pub fn to_bytes(&self) -> [u8; BYTES] {
        let mut out = [0; BYTES];
        out[..2].copy_from_slice(&self.d.to_le_bytes());
        for (o, q) in out[2..].iter_mut().zip(self.q) {
            *o = q as u8;
        }
        out
    }

    /// Reads the 34 bytes of a block.
    pub fn from_bytes(bytes: &[u8; BYTES]) -> Self {
        let [lo, hi, rest @ ..] = *bytes;
        Self { d: u16::from_le_bytes([lo, hi]), q: rest.map(|b| b as i8) }
    }

    /// The values, exact in f32.
    pub fn values(&self) -> [f32; LEN] {
        let d = fp16::f16_to_f32(self.d);
        self.q.map(|q| f32::from(q) * d)
    }

    /// What the scale keeps, given the largest magnitude that the block had.
    pub fn scale_kind(&self, amax: f32) -> ScaleKind {
        match self.d & 0x7fff {
            0 if amax > 0.0 => ScaleKind::Lost,
            0 => ScaleKind::Zero,
            1..0x0400 => ScaleKind::Subnormal,
            _ => ScaleKind::Normal,
        }
    }
}

/// Largest magnitude of a block, or the first value that is not finite.
pub fn amax(x: &[f32; LEN]) -> Result<f32, Q8Error> {
    let mut amax = 0.0_f32;
    for (index, &v) in x.iter().enumerate() {
        if let Some(kind) = NonFinite::of(v) {
            return Err(Q8Error::NonFinite { index, kind });
        }
        amax = amax.max(v.abs());
    }
    Ok(amax)
}

/// Quantizes one block.
pub fn quantize_block(x: &[f32; LEN]) -> Result<Block, Q8Error> {
    let amax = amax(x)?;
    let d = amax / 127.0;
    let id = 1.0 / d;
    if id.is_infinite() {
        return Ok(Block { d: 0, q: [0; LEN] });
    }
    let half = fp16::f32_to_f16(d);
    if !fp16::f16_is_finite(half) {
        let index = x.iter().position(|v| v.abs() == amax).unwrap_or(0);
        return Err(Q8Error::ScaleOverflow { index, amax });
    }
    Ok(Block { d: half, q: x.map(|v| (v * id).round() as i8) })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn block(bf16: &[u16]) -> [f32; LEN] {
        let mut x = [0.0; LEN];
        for (x, &b) in x.iter_mut().zip(bf16) {
            *x = fp16::bf16_to_f32(b);
        }
        x
    }

    #[test]
    fn the_published_bf16_vectors() {
        let q = |b: &[u16]| quantize_block(&block(b)).expect("finite");
        assert_eq!(q(&[0x3f96, 0x3f16]).q[..2], [127, 63]);
        assert_eq!(q(&[0x3f90, 0x3f10]).q[..2], [127, 64]);
        assert_eq!(q(&[0x4afd]).d, 0x7bf8);
        assert_eq!(q(&[0x367f]).d, 0x0001);
        let lost = q(&[0x367e]);
        assert_eq!((lost.d, lost.q[0]), (0, 127));
        assert_eq!(lost.scale_kind(fp16::bf16_to_f32(0x367e)), ScaleKind::Lost);
        assert_eq!(q(&[0x02fe, 0x82fe, 0]), Block { d: 0, q: [0; LEN] });
        assert_eq!(
            q(&[0x42fe, 0x3f00, 0xbf00, 0x3fc0, 0x4020, 0xc020, 0x42fd, 0xc2fd]).q[..8],
            [127, 1, -1, 2, 3, -3, 127, -127]
        );
        assert_eq!(q(&[]), Block { d: 0, q: [0; LEN] });
    }

    #[test]
    fn faults_name_the_element() {
        let message = |b: &[u16]| quantize_block(&block(b)).expect_err("refused").to_string();
        assert_eq!(message(&[0x4afe]), "element 0: 8323072/127 does not fit fp16");
        assert_eq!(message(&[0x4afd, 0xcafe]), "element 1: 8323072/127 does not fit fp16");
        assert_eq!(message(&[0, 0x7f80]), "element 1 inf");
        assert_eq!(message(&[0, 0, 0xff80]), "element 2 -inf");
        assert_eq!(message(&[0x7fc0]), "element 0 nan");
        assert_eq!(message(&[0, 0xff81]), "element 1 nan");
    }

    #[test]
    fn the_first_amax_that_overflows() {
        let at = |amax: f32| quantize_block(&[amax; LEN]);
        assert_eq!(at(8_321_039.5).expect("fits").d, 0x7bff);
        assert!(matches!(at(8_321_040.0), Err(Q8Error::ScaleOverflow { index: 0, .. })));
    }

    #[test]
    fn bytes_are_scale_then_values() {
        let block = quantize_block(&block(&[0x42fe, 0xbf80])).expect("finite");
        let bytes = block.to_bytes();
        assert_eq!(bytes[..4], [0x00, 0x3c, 127, 0xff]);
        assert_eq!(Block::from_bytes(&bytes), block);
    }
}
