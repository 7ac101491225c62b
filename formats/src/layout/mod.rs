//! Layouts: how the bytes of a stored matrix are ordered, and their tags.
//!
//! A tag is a name, a version and its parameters. A reader matches the whole tag or refuses it by name; nothing
//! is guessed from a shape or a byte count.

mod order;
mod tag;

pub use order::{Order, Scales};
pub use tag::{LayoutError, LayoutTag};

use crate::block::GgmlType;
use crate::size;
use std::fmt;

/// How the bytes of one stored matrix are ordered. Shapes are `[rows, cols]`, `cols` being the source's `ne0`;
/// dims above the second count as rows. Where a layout has several planes, each starts at the first multiple of
/// `plane_align`, a power of two, after the one before; bytes between are zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Layout {
    /// `raw.f32`, `raw.bf16`, …: values one after another, row-major, as the GGUF has them.
    Raw(GgmlType),
    /// `gguf.q4_k`, …: GGUF blocks as they are, row-major.
    Block(GgmlType),
    /// `q8_0.split`: all int8 values row-major (`rows · cols` bytes), then all fp16 scales row-major
    /// (`rows · cols/32 · 2` bytes).
    Q8_0Split {
        /// Alignment in bytes of both planes inside the blob.
        plane_align: u32,
    },
    /// `e8.block98`: E8 super-blocks of 256 weights in 98 bytes, row-major ([`crate::block::e8`]).
    E8Block98 {
        /// Whether the rows were rotated before they were encoded ([`crate::rotation`]).
        rotated: bool,
    },
    /// `e8.planar`: the same bytes as three planes: codebook indices (`rows · cols/4` bytes), words with signs and
    /// sub-scales (`rows · cols/32 · 4` bytes), fp16 super-scales (`rows · cols/256 · 2` bytes).
    E8Planar {
        /// Whether the rows were rotated before they were encoded ([`crate::rotation`]).
        rotated: bool,
        /// Alignment in bytes of the planes inside the blob.
        plane_align: u32,
    },
    /// `i8.frag.*`, `i8.nmajor`, `i8.kmajor`: int8 weights in a matrix instruction's order, padded with zeros to
    /// whole tiles, then their scales in natural order: per channel one f32 a row, per 32 one fp16 for each block
    /// of a row, both with the padding.
    I8 {
        /// The order of the weights.
        order: Order,
        /// How they are scaled.
        scales: Scales,
        /// Alignment in bytes of both planes inside the blob.
        plane_align: u32,
    },
}

/// Alignment of planes that `gantry` writes: a cache line pair, and what wide vector loads want.
pub const PLANE_ALIGN: u32 = 256;

/// Most columns of a layout that [takes whole rows](Layout::takes_whole_rows): bounds the memory of whoever packs or
/// unpacks a tile of them, and keeps int32 sums over a row exact (up to 131,071 products of two int8).
pub const MAX_WHOLE_ROW: u64 = 131_071;

/// One contiguous part of a stored matrix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Plane {
    /// What it holds: `values`, `quants`, `indices`, `words`, `scales`.
    pub name: &'static str,
    /// First byte, from the start of the matrix.
    pub offset: u64,
    /// Length in bytes.
    pub bytes: u64,
}

impl Layout {
    /// The identity layout of a source type.
    pub fn identity(ty: GgmlType) -> Self {
        if ty.is_quantized() { Self::Block(ty) } else { Self::Raw(ty) }
    }

    /// `q8_0.split` with the default plane alignment.
    pub fn q8_0_split() -> Self {
        Self::Q8_0Split { plane_align: PLANE_ALIGN }
    }

    /// `e8.planar` with the default plane alignment.
    pub fn e8_planar(rotated: bool) -> Self {
        Self::E8Planar { rotated, plane_align: PLANE_ALIGN }
    }

    /// An int8 layout with the default plane alignment; `None` where the order does not take the scales.
    pub fn i8(order: Order, scales: Scales) -> Option<Self> {
        order.takes(scales).then_some(Self::I8 { order, scales, plane_align: PLANE_ALIGN })
    }

    /// Every layout that `gantry` writes.
    pub fn all() -> impl Iterator<Item = Self> {
        let scales = [Scales::Channel, Scales::Block32];
        let int8 =
            Order::ALL.into_iter().flat_map(move |o| scales.into_iter().filter_map(move |s| Self::i8(o, s)));
        let e8 = [false, true]
            .into_iter()
            .flat_map(|rotated| [Self::E8Block98 { rotated }, Self::e8_planar(rotated)]);
        let identities = GgmlType::ALL.iter().map(|&ty| Self::identity(ty));
        identities.chain([Self::q8_0_split()]).chain(e8).chain(int8)
    }

    /// Reads the short form that `--set` takes and [`fmt::Display`] gives: the tag's name, then for E8
    /// `:rotated` where it is, and for int8 `:channel` or `:block32`.
    pub fn from_name(name: &str) -> Option<Self> {
        let (tag, form) = name.split_once(':').map_or((name, None), |(tag, form)| (tag, Some(form)));
        match (Self::from_tag_name(tag)?, form) {
            (Self::I8 { order, .. }, Some(form)) => Self::i8(order, Scales::from_name(form)?),
            (Self::I8 { .. }, None) => None,
            (Self::E8Block98 { .. }, Some("rotated")) => Some(Self::E8Block98 { rotated: true }),
            (Self::E8Planar { .. }, Some("rotated")) => Some(Self::e8_planar(true)),
            (layout, None) => Some(layout),
            (_, Some(_)) => None,
        }
    }

    /// A layout with the tag called `name`; its parameters are arbitrary.
    fn from_tag_name(name: &str) -> Option<Self> {
        if let Some(order) = Order::from_name(name) {
            return Self::i8(order, Scales::Channel);
        }
        match name {
            "q8_0.split" => return Some(Self::q8_0_split()),
            "e8.block98" => return Some(Self::E8Block98 { rotated: false }),
            "e8.planar" => return Some(Self::e8_planar(false)),
            _ => {}
        }
        let (family, ty) = name.split_once('.')?;
        let ty = GgmlType::from_name(ty)
            .filter(|ty| ty.name().to_ascii_lowercase() == name[family.len() + 1..])?;
        match family {
            "raw" if !ty.is_quantized() => Some(Self::Raw(ty)),
            "gguf" if ty.is_quantized() => Some(Self::Block(ty)),
            _ => None,
        }
    }

    /// Name of the tag.
    fn tag_name(self) -> String {
        match self {
            Self::Raw(ty) => format!("raw.{}", ty.name().to_ascii_lowercase()),
            Self::Block(ty) => format!("gguf.{}", ty.name().to_ascii_lowercase()),
            Self::Q8_0Split { .. } => "q8_0.split".into(),
            Self::E8Block98 { .. } => "e8.block98".into(),
            Self::E8Planar { .. } => "e8.planar".into(),
            Self::I8 { order, .. } => order.name().into(),
        }
    }

    /// Version of the tag that this program writes and reads.
    pub fn version(self) -> u32 {
        1
    }

    /// Values that share a scale and must not be torn apart: `cols` is a multiple of it.
    pub fn block_len(self) -> u64 {
        match self {
            Self::Raw(_) | Self::I8 { scales: Scales::Channel, .. } => 1,
            Self::Block(ty) => ty.block_len(),
            Self::Q8_0Split { .. } | Self::I8 { scales: Scales::Block32, .. } => 32,
            Self::E8Block98 { .. } | Self::E8Planar { .. } => 256,
        }
    }

    /// Whether a tensor of type `ty` keeps every value in this layout: its own type, Q8_0 as quants and scales apart,
    /// other int8 times fp16 per 32 as int8, IQ3_XXS as E8.
    pub fn keeps(self, ty: GgmlType) -> bool {
        match self {
            Self::Raw(own) | Self::Block(own) => own == ty,
            Self::Q8_0Split { .. } => ty == GgmlType::Q8_0,
            Self::E8Block98 { rotated } | Self::E8Planar { rotated, .. } => {
                !rotated && ty == GgmlType::IQ3_XXS
            }
            Self::I8 { scales, .. } => {
                let int8 = [GgmlType::Q8_0, GgmlType::Q4_0, GgmlType::Q5_0, GgmlType::IQ4_NL];
                scales == Scales::Block32 && int8.contains(&ty)
            }
        }
    }

    /// The type whose bytes a tensor of type `ty` comes back as: the source's own where this layout
    /// [keeps](Self::keeps) it, the blocks that hold the stored values, or f32.
    pub fn unpacked_type(self, ty: GgmlType) -> GgmlType {
        match self {
            _ if self.keeps(ty) => ty,
            Self::Raw(own) | Self::Block(own) => own,
            Self::Q8_0Split { .. } | Self::I8 { scales: Scales::Block32, .. } => GgmlType::Q8_0,
            // Not every E8 block has an IQ3_XXS form: half of a small scale may be inexact.
            Self::E8Block98 { .. } | Self::E8Planar { .. } | Self::I8 { .. } => GgmlType::F32,
        }
    }

    /// Whether it is made of E8 super-blocks.
    pub fn is_e8(self) -> bool {
        matches!(self, Self::E8Block98 { .. } | Self::E8Planar { .. })
    }

    /// Whether it stores rotated rows, which want activations rotated likewise ([`crate::rotation`]).
    pub fn is_rotated(self) -> bool {
        matches!(self, Self::E8Block98 { rotated: true } | Self::E8Planar { rotated: true, .. })
    }

    /// Whether rows are packed whole: because their bytes are interleaved, or each has something in common.
    pub fn takes_whole_rows(self) -> bool {
        matches!(self, Self::I8 { .. } | Self::E8Block98 { .. } | Self::E8Planar { .. })
    }

    /// Rows whose bytes are interleaved: a stored matrix can be cut, and stacked from parts, at multiples of it.
    pub fn row_tile(self) -> u64 {
        match self {
            Self::I8 { .. } => Order::ROW_TILE,
            _ => 1,
        }
    }

    /// Rows and columns with padding; `None` where that overflows.
    pub fn padded(self, rows: u64, cols: u64) -> Option<(u64, u64)> {
        match self {
            Self::I8 { order, .. } => {
                let rows = rows.checked_next_multiple_of(Order::ROW_TILE)?;
                Some((rows, cols.checked_next_multiple_of(order.col_tile())?))
            }
            _ => Some((rows, cols)),
        }
    }

    /// The planes of a `[rows, cols]` matrix, in order; `None` where `cols` does not tile, is too many, or a size
    /// overflows.
    pub fn planes(self, rows: u64, cols: u64) -> Option<Vec<Plane>> {
        if !cols.is_multiple_of(self.block_len()) || self.takes_whole_rows() && cols > MAX_WHOLE_ROW {
            return None;
        }
        let (rows, cols) = self.padded(rows, cols)?;
        let elements = size::mul(rows, cols)?;
        let per = |len: u64, bytes: u64| size::mul(elements / len, bytes);
        let (align, planes) = match self {
            Self::Raw(ty) | Self::Block(ty) => (1, vec![("values", ty.bytes_for(elements)?)]),
            Self::E8Block98 { .. } => (1, vec![("values", per(256, 98)?)]),
            Self::Q8_0Split { plane_align } => {
                (plane_align, vec![("quants", elements), ("scales", per(32, 2)?)])
            }
            Self::E8Planar { plane_align, .. } => (
                plane_align,
                vec![("indices", elements / 4), ("words", per(32, 4)?), ("scales", per(256, 2)?)],
            ),
            Self::I8 { scales, plane_align, .. } => {
                let scales = match scales {
                    Scales::Channel => size::mul(rows, 4)?,
                    Scales::Block32 => per(32, 2)?,
                };
                (plane_align, vec![("quants", elements), ("scales", scales)])
            }
        };
        let mut end = 0;
        let mut out = Vec::with_capacity(planes.len());
        for (name, bytes) in planes {
            let offset = size::align_up(end, u64::from(align))?;
            end = size::add(offset, bytes)?;
            out.push(Plane { name, offset, bytes });
        }
        Some(out)
    }

    /// Bytes of a `[rows, cols]` matrix, padding between planes included.
    pub fn bytes(self, rows: u64, cols: u64) -> Option<u64> {
        let planes = self.planes(rows, cols)?;
        let last = planes.last()?;
        last.offset.checked_add(last.bytes)
    }
}

impl fmt::Display for Layout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let form = match self {
            Self::E8Block98 { rotated: true } | Self::E8Planar { rotated: true, .. } => ":rotated",
            Self::I8 { scales: Scales::Channel, .. } => ":channel",
            Self::I8 { scales: Scales::Block32, .. } => ":block32",
            _ => "",
        };
        f.pad(&(self.tag_name() + form))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn offsets(layout: Layout, rows: u64, cols: u64) -> Vec<(u64, u64)> {
        layout.planes(rows, cols).unwrap().iter().map(|p| (p.offset, p.bytes)).collect()
    }

    #[test]
    fn split_planes_of_the_hyper_connection_shapes() {
        let split = Layout::q8_0_split();
        assert_eq!(offsets(split, 320, 10_240), [(0, 3_276_800), (3_276_800, 204_800)]);
        assert_eq!(offsets(split, 3, 32), [(0, 96), (256, 6)]);
        assert_eq!(split.planes(3, 48), None);
        assert_eq!(split.planes(1 << 40, 1 << 40), None);
    }

    #[test]
    fn e8_planes_hold_the_bytes_of_the_blocks() {
        assert_eq!(offsets(Layout::E8Block98 { rotated: true }, 3, 512), [(0, 6 * 98)]);
        assert_eq!(offsets(Layout::e8_planar(false), 3, 512), [(0, 384), (512, 192), (768, 12)]);
        assert_eq!(Layout::e8_planar(false).planes(3, 640), None);
    }

    #[test]
    fn int8_planes_are_padded_to_tiles() {
        let layout = |order, scales| Layout::i8(order, scales).unwrap();
        let vnni = layout(Order::Vnni16, Scales::Block32);
        assert_eq!(offsets(vnni, 17, 96), [(0, 32 * 96), (3072, 32 * 3 * 2)]);
        assert_eq!(offsets(layout(Order::Slot16, Scales::Channel), 1, 33), [(0, 16 * 64), (1024, 64)]);
        assert_eq!(vnni.planes(16, 48), None);
        assert_eq!(vnni.planes(u64::MAX, 32), None);
        assert_eq!(Layout::i8(Order::Ck16, Scales::Block32), None);
    }
}
