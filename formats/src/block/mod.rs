//! Block types: the tensor types a GGUF can hold, their sizes, and one scalar truth for each codec.

mod dequantize;
pub mod e8;
pub mod finite;
pub mod fp16;
pub mod fp4;
mod grids;
mod iq1;
mod iq2;
mod iq3;
pub mod iq4;
mod k;
mod legacy;
mod plain;
pub mod q8_0;
mod ternary;

pub use dequantize::{BlockError, dequantize};
pub use grids::iq3xxs_grid;

use serde::{Deserialize, Serialize};

macro_rules! ggml_types {
    ($($(#[$doc:meta])* $variant:ident = $id:literal, $name:literal, $block:literal, $bytes:literal;)*) => {
        /// A ggml tensor type, by its id in a GGUF. `block_len` values share `block_bytes` bytes.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[allow(non_camel_case_types)]
        pub enum GgmlType { $($(#[$doc])* $variant,)* }

        impl GgmlType {
            /// Every type, in order of id.
            pub const ALL: &'static [GgmlType] = &[$(GgmlType::$variant,)*];

            /// The type with this id, if there is one in use.
            pub fn from_id(id: u32) -> Option<Self> {
                match id { $($id => Some(Self::$variant),)* _ => None }
            }

            /// The id in a GGUF.
            pub fn id(self) -> u32 {
                match self { $(Self::$variant => $id,)* }
            }

            /// ggml's name, upper case, e.g. `Q8_0`.
            pub fn name(self) -> &'static str {
                match self { $(Self::$variant => $name,)* }
            }

            /// The type of this name, upper or lower case.
            pub fn from_name(name: &str) -> Option<Self> {
                $(if name.eq_ignore_ascii_case($name) { return Some(Self::$variant); })*
                None
            }

            /// Values per block.
            pub fn block_len(self) -> u64 {
                match self { $(Self::$variant => $block,)* }
            }

            /// Bytes per block.
            pub fn block_bytes(self) -> u64 {
                match self { $(Self::$variant => $bytes,)* }
            }
        }
    };
}

ggml_types! {
    /// IEEE single.
    F32 = 0, "F32", 1, 4;
    /// IEEE half.
    F16 = 1, "F16", 1, 2;
    /// 4-bit, scale.
    Q4_0 = 2, "Q4_0", 32, 18;
    /// 4-bit, scale and minimum.
    Q4_1 = 3, "Q4_1", 32, 20;
    /// 5-bit, scale.
    Q5_0 = 6, "Q5_0", 32, 22;
    /// 5-bit, scale and minimum.
    Q5_1 = 7, "Q5_1", 32, 24;
    /// 8-bit, scale.
    Q8_0 = 8, "Q8_0", 32, 34;
    /// 8-bit, scale and sum.
    Q8_1 = 9, "Q8_1", 32, 36;
    /// 2-bit k-quant.
    Q2_K = 10, "Q2_K", 256, 84;
    /// 3-bit k-quant.
    Q3_K = 11, "Q3_K", 256, 110;
    /// 4-bit k-quant.
    Q4_K = 12, "Q4_K", 256, 144;
    /// 5-bit k-quant.
    Q5_K = 13, "Q5_K", 256, 176;
    /// 6-bit k-quant.
    Q6_K = 14, "Q6_K", 256, 210;
    /// 8-bit k-quant.
    Q8_K = 15, "Q8_K", 256, 292;
    /// 2.06-bit codebook.
    IQ2_XXS = 16, "IQ2_XXS", 256, 66;
    /// 2.31-bit codebook.
    IQ2_XS = 17, "IQ2_XS", 256, 74;
    /// 3.06-bit codebook (E8 lattice halves).
    IQ3_XXS = 18, "IQ3_XXS", 256, 98;
    /// 1.56-bit codebook.
    IQ1_S = 19, "IQ1_S", 256, 50;
    /// 4-bit, non-linear levels.
    IQ4_NL = 20, "IQ4_NL", 32, 18;
    /// 3.44-bit codebook.
    IQ3_S = 21, "IQ3_S", 256, 110;
    /// 2.5-bit codebook.
    IQ2_S = 22, "IQ2_S", 256, 82;
    /// 4.25-bit, non-linear levels.
    IQ4_XS = 23, "IQ4_XS", 256, 136;
    /// 8-bit integer.
    I8 = 24, "I8", 1, 1;
    /// 16-bit integer.
    I16 = 25, "I16", 1, 2;
    /// 32-bit integer.
    I32 = 26, "I32", 1, 4;
    /// 64-bit integer.
    I64 = 27, "I64", 1, 8;
    /// IEEE double.
    F64 = 28, "F64", 1, 8;
    /// 1.75-bit codebook.
    IQ1_M = 29, "IQ1_M", 256, 56;
    /// bfloat16.
    BF16 = 30, "BF16", 1, 2;
    /// Ternary, packed by base 3.
    TQ1_0 = 34, "TQ1_0", 256, 54;
    /// Ternary, 2 bits each.
    TQ2_0 = 35, "TQ2_0", 256, 66;
    /// Microscaling FP4, one E8M0 scale per 32.
    MXFP4 = 39, "MXFP4", 32, 17;
    /// NVIDIA FP4, UE4M3 scales per 16 of 64.
    NVFP4 = 40, "NVFP4", 64, 36;
    /// 1-bit signs with a scale per 128.
    Q1_0 = 41, "Q1_0", 128, 18;
    /// 2-bit with a scale per 64.
    Q2_0 = 42, "Q2_0", 64, 18;
}

impl GgmlType {
    /// Old name of an id that a GGUF could once hold and no longer can.
    pub fn removed_name(id: u32) -> Option<&'static str> {
        Some(match id {
            4 => "Q4_2",
            5 => "Q4_3",
            31 => "Q4_0_4_4",
            32 => "Q4_0_4_8",
            33 => "Q4_0_8_8",
            36 => "IQ4_NL_4_4",
            37 => "IQ4_NL_4_8",
            38 => "IQ4_NL_8_8",
            _ => return None,
        })
    }

    /// Bytes of `elements` values, or `None` where they are no whole number of blocks or the count overflows.
    pub fn bytes_for(self, elements: u64) -> Option<u64> {
        if !elements.is_multiple_of(self.block_len()) {
            return None;
        }
        (elements / self.block_len()).checked_mul(self.block_bytes())
    }

    /// F32, F16 or BF16.
    pub fn is_plain_float(self) -> bool {
        matches!(self, Self::F32 | Self::F16 | Self::BF16)
    }

    /// Whether values are stored in quantized blocks.
    pub fn is_quantized(self) -> bool {
        self.block_len() > 1
    }
}

impl std::fmt::Display for GgmlType {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(self.name())
    }
}

impl Serialize for GgmlType {
    fn serialize<S: serde::Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        s.serialize_str(self.name())
    }
}

impl<'de> Deserialize<'de> for GgmlType {
    fn deserialize<D: serde::Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        let name = <std::borrow::Cow<'de, str>>::deserialize(d)?;
        Self::from_name(&name).ok_or_else(|| serde::de::Error::custom(format!("unknown tensor type {name}")))
    }
}
