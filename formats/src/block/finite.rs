//! Numbers that are none: NaN and infinities in plain floats and in the scales of block types.

use super::{GgmlType, fp16};

/// A number that is no number to compute with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum NonFinite {
    /// Any NaN, quiet or signalling.
    Nan,
    /// Positive infinity.
    Inf,
    /// Negative infinity.
    NegInf,
}

impl NonFinite {
    /// What `x` is, or `None` where it is finite.
    pub fn of(x: f32) -> Option<Self> {
        if x.is_nan() {
            Some(Self::Nan)
        } else if x == f32::INFINITY {
            Some(Self::Inf)
        } else if x == f32::NEG_INFINITY {
            Some(Self::NegInf)
        } else {
            None
        }
    }

    /// The same for a double, whose range is wider than an f32's.
    pub fn of_f64(x: f64) -> Option<Self> {
        if x.is_finite() { None } else { Self::of(x as f32) }
    }
}

impl std::fmt::Display for NonFinite {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(match self {
            Self::Nan => "nan",
            Self::Inf => "inf",
            Self::NegInf => "-inf",
        })
    }
}

/// Where a tensor's bytes hold something that is no number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// In a plain float.
    Element {
        /// Index of the value.
        index: u64,
        /// What it is.
        kind: NonFinite,
    },
    /// In a scale or minimum of a block.
    Scale {
        /// Index of the block.
        block: u64,
        /// `scale` or `minimum`.
        field: &'static str,
        /// What it is.
        kind: NonFinite,
    },
}

/// How a block stores a scale.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ScaleFormat {
    /// f16, two bytes.
    F16,
    /// f32, four bytes.
    F32,
    /// A power of two, one byte; 0xff is NaN.
    E8M0,
    /// An f16 in the top four bits of four 16-bit words, lowest part first.
    Nibbles,
}

/// One scale or minimum that covers a whole block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ScaleField {
    /// `scale` or `minimum`.
    pub name: &'static str,
    /// Byte offset in the block.
    pub offset: usize,
    /// How it is stored.
    pub format: ScaleFormat,
}

impl ScaleField {
    const fn f16(name: &'static str, offset: usize) -> Self {
        Self { name, offset, format: ScaleFormat::F16 }
    }

    /// The field's value in `block`; NaN where the block is too short to hold it.
    pub fn read(&self, block: &[u8]) -> f32 {
        let bytes = block.get(self.offset..).unwrap_or_default();
        match (self.format, bytes) {
            (ScaleFormat::F16, &[a, b, ..]) => fp16::f16_to_f32(u16::from_le_bytes([a, b])),
            (ScaleFormat::F32, &[a, b, c, d, ..]) => f32::from_le_bytes([a, b, c, d]),
            (ScaleFormat::E8M0, &[e, ..]) => super::fp4::e8m0_to_f32(e),
            (ScaleFormat::Nibbles, &[_, a, _, b, _, c, _, d, ..]) => {
                fp16::f16_to_f32(super::iq1::packed_scale([a, b, c, d]))
            }
            _ => f32::NAN,
        }
    }
}

/// The scales and minima of a block type that could hold something that is no number. Integer sub-scales cannot,
/// nor can NVFP4's bytes (ggml reads 0x7f as 0), nor does Q8_1's sum enter its values; plain types have none.
pub fn scale_fields(ty: GgmlType) -> &'static [ScaleField] {
    const FIRST: &[ScaleField] = &[ScaleField::f16("scale", 0)];
    const FIRST_TWO: &[ScaleField] = &[ScaleField::f16("scale", 0), ScaleField::f16("minimum", 2)];
    match ty {
        GgmlType::Q4_0 | GgmlType::Q5_0 | GgmlType::Q8_0 | GgmlType::Q8_1 | GgmlType::IQ4_NL => FIRST,
        GgmlType::Q1_0 | GgmlType::Q2_0 | GgmlType::IQ4_XS => FIRST,
        GgmlType::IQ2_XXS | GgmlType::IQ2_XS | GgmlType::IQ2_S => FIRST,
        GgmlType::IQ3_XXS | GgmlType::IQ3_S | GgmlType::IQ1_S => FIRST,
        GgmlType::Q4_1 | GgmlType::Q5_1 | GgmlType::Q4_K | GgmlType::Q5_K => FIRST_TWO,
        GgmlType::Q2_K => const { &[ScaleField::f16("scale", 80), ScaleField::f16("minimum", 82)] },
        GgmlType::Q3_K => const { &[ScaleField::f16("scale", 108)] },
        GgmlType::Q6_K => const { &[ScaleField::f16("scale", 208)] },
        GgmlType::TQ1_0 => const { &[ScaleField::f16("scale", 52)] },
        GgmlType::TQ2_0 => const { &[ScaleField::f16("scale", 64)] },
        GgmlType::Q8_K => &[ScaleField { name: "scale", offset: 0, format: ScaleFormat::F32 }],
        GgmlType::MXFP4 => &[ScaleField { name: "scale", offset: 0, format: ScaleFormat::E8M0 }],
        GgmlType::IQ1_M => &[ScaleField { name: "scale", offset: 48, format: ScaleFormat::Nibbles }],
        GgmlType::NVFP4 | GgmlType::F32 | GgmlType::F16 | GgmlType::BF16 | GgmlType::F64 => &[],
        GgmlType::I8 | GgmlType::I16 | GgmlType::I32 | GgmlType::I64 => &[],
    }
}

/// The first number in `bytes` that is none: an element of a plain float type, a scale or minimum of a block
/// type. Bytes after the last whole block are not looked at.
pub fn first_fault(ty: GgmlType, bytes: &[u8]) -> Option<Fault> {
    let element = |index: usize, kind| Fault::Element { index: index as u64, kind };
    match ty {
        GgmlType::F32 => find(bytes, |b| NonFinite::of(f32::from_le_bytes(*b))).map(|(i, k)| element(i, k)),
        GgmlType::F64 => {
            find(bytes, |b| NonFinite::of_f64(f64::from_le_bytes(*b))).map(|(i, k)| element(i, k))
        }
        GgmlType::F16 => find(bytes, |b| NonFinite::of(fp16::f16_to_f32(u16::from_le_bytes(*b))))
            .map(|(i, k)| element(i, k)),
        GgmlType::BF16 => find(bytes, |b| NonFinite::of(fp16::bf16_to_f32(u16::from_le_bytes(*b))))
            .map(|(i, k)| element(i, k)),
        _ => {
            let fields = scale_fields(ty);
            if fields.is_empty() {
                return None;
            }
            bytes.chunks_exact(ty.block_bytes() as usize).enumerate().find_map(|(i, block)| {
                fields.iter().find_map(|field| {
                    let kind = NonFinite::of(field.read(block))?;
                    Some(Fault::Scale { block: i as u64, field: field.name, kind })
                })
            })
        }
    }
}

fn find<const N: usize>(
    bytes: &[u8],
    kind: impl Fn(&[u8; N]) -> Option<NonFinite>,
) -> Option<(usize, NonFinite)> {
    bytes.as_chunks::<N>().0.iter().enumerate().find_map(|(i, b)| kind(b).map(|k| (i, k)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_the_first_element() {
        let bytes: Vec<u8> =
            [1.0_f32, -2.0, f32::NEG_INFINITY, f32::NAN].iter().flat_map(|x| x.to_le_bytes()).collect();
        assert_eq!(
            first_fault(GgmlType::F32, &bytes),
            Some(Fault::Element { index: 2, kind: NonFinite::NegInf })
        );
        let bytes: Vec<u8> = [1e300, f64::NAN].iter().flat_map(|x: &f64| x.to_le_bytes()).collect();
        assert_eq!(
            first_fault(GgmlType::F64, &bytes),
            Some(Fault::Element { index: 1, kind: NonFinite::Nan })
        );
        assert_eq!(first_fault(GgmlType::I32, &[0xff; 16]), None);
    }

    #[test]
    fn every_field_lies_in_its_block_and_is_seen() {
        for &ty in GgmlType::ALL {
            let size = ty.block_bytes() as usize;
            for field in scale_fields(ty) {
                let mut bytes = vec![0; 3 * size];
                assert_eq!(first_fault(ty, &bytes), None, "{ty}");
                let at = 2 * size + field.offset;
                let poison: &[u8] = match field.format {
                    ScaleFormat::F16 => &[0x00, 0xfc],
                    ScaleFormat::F32 => &[0, 0, 0x80, 0xff],
                    ScaleFormat::E8M0 => &[0xff],
                    ScaleFormat::Nibbles => &[0, 0, 0, 0, 0, 0xc0, 0, 0xf0],
                };
                bytes[at..at + poison.len()].copy_from_slice(poison);
                let kind = if field.format == ScaleFormat::E8M0 { NonFinite::Nan } else { NonFinite::NegInf };
                assert_eq!(
                    first_fault(ty, &bytes),
                    Some(Fault::Scale { block: 2, field: field.name, kind }),
                    "{ty}"
                );
            }
        }
    }
}
