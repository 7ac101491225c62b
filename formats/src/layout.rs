//! Layout tags and their geometry.
//!
//! A tag is a name, a version and its parameters. A reader matches the whole tag or refuses it by name; nothing
//! is guessed from a shape or a byte count.

use crate::block::GgmlType;
use crate::exit::{Exit, ExitCode};
use crate::size;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use std::fmt;

/// How the bytes of one stored matrix are ordered. Shapes are `[rows, cols]`, `cols` being the source's `ne0`;
/// dims above the second count as rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Layout {
    /// `raw.f32`, `raw.bf16`, …: values one after another, row-major, as the GGUF has them.
    Raw(GgmlType),
    /// `gguf.q4_k`, …: GGUF blocks as they are, row-major.
    Block(GgmlType),
    /// `q8_0.split`: all int8 values row-major (`rows · cols` bytes), then all fp16 scales row-major
    /// (`rows · cols/32 · 2` bytes). The second plane starts at the first multiple of `plane_align` after the
    /// first; bytes between are zero.
    Q8_0Split {
        /// Alignment in bytes of both planes inside the blob, a power of two.
        plane_align: u32,
    },
}

/// Alignment of planes that `gantry` writes: a cache line pair, and what wide vector loads want.
pub const PLANE_ALIGN: u32 = 256;

/// One contiguous part of a stored matrix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Plane {
    /// What it holds: `values`, `quants`, `scales`.
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

    /// Reads the short form that `--set` takes: a name without version and parameters.
    pub fn from_name(name: &str) -> Option<Self> {
        if name == "q8_0.split" {
            return Some(Self::q8_0_split());
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

    /// Version of the tag that this program writes and reads.
    pub fn version(self) -> u32 {
        1
    }

    /// Values that share a scale and must not be torn apart: `cols` is a multiple of it.
    pub fn block_len(self) -> u64 {
        match self {
            Self::Raw(_) => 1,
            Self::Block(ty) => ty.block_len(),
            Self::Q8_0Split { .. } => 32,
        }
    }

    /// The planes of a `[rows, cols]` matrix, in order; `None` where `cols` does not tile or a size overflows.
    pub fn planes(self, rows: u64, cols: u64) -> Option<Vec<Plane>> {
        if !cols.is_multiple_of(self.block_len()) {
            return None;
        }
        let elements = size::mul(rows, cols)?;
        match self {
            Self::Raw(ty) | Self::Block(ty) => {
                Some(vec![Plane { name: "values", offset: 0, bytes: ty.bytes_for(elements)? }])
            }
            Self::Q8_0Split { plane_align } => {
                let offset = size::align_up(elements, u64::from(plane_align))?;
                let scales = Plane { name: "scales", offset, bytes: size::mul(elements / 32, 2)? };
                Some(vec![Plane { name: "quants", offset: 0, bytes: elements }, scales])
            }
        }
    }

    /// Bytes of a `[rows, cols]` matrix, padding between planes included.
    pub fn bytes(self, rows: u64, cols: u64) -> Option<u64> {
        let planes = self.planes(rows, cols)?;
        let last = planes.last()?;
        last.offset.checked_add(last.bytes)
    }

    /// The full tag.
    pub fn tag(self) -> LayoutTag {
        let mut params = Map::new();
        if let Self::Q8_0Split { plane_align } = self {
            params.insert("plane_align".into(), plane_align.into());
        }
        LayoutTag { name: self.to_string(), version: self.version(), params }
    }
}

impl fmt::Display for Layout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = match self {
            Self::Raw(ty) => format!("raw.{}", ty.name().to_ascii_lowercase()),
            Self::Block(ty) => format!("gguf.{}", ty.name().to_ascii_lowercase()),
            Self::Q8_0Split { .. } => "q8_0.split".to_string(),
        };
        f.pad(&name)
    }
}

/// A layout tag as the manifest writes it, not yet understood.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LayoutTag {
    /// The layout's name.
    pub name: String,
    /// Version of this layout, apart from the container's.
    pub version: u32,
    /// Everything else the layout needs to be read.
    #[serde(flatten)]
    pub params: Map<String, Value>,
}

/// A tag that this program does not take.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LayoutError {
    /// No such name.
    #[error("layout {0} is unknown to this program; a newer gantry may read it")]
    UnknownName(String),
    /// Known name, other version.
    #[error(
        "layout {name} has version {found}, this program reads version {expected}; use a matching gantry"
    )]
    Version {
        /// The layout's name.
        name: String,
        /// What the tag says.
        found: u32,
        /// What this program reads.
        expected: u32,
    },
    /// A parameter that is unknown, missing or out of range.
    #[error("layout {name}: parameter {param}: {what}")]
    Param {
        /// The layout's name.
        name: String,
        /// The parameter.
        param: String,
        /// What is wrong with it.
        what: String,
    },
}

impl ExitCode for LayoutError {
    fn exit(&self) -> Exit {
        Exit::Incompatible
    }
}

impl TryFrom<&LayoutTag> for Layout {
    type Error = LayoutError;

    fn try_from(tag: &LayoutTag) -> Result<Self, LayoutError> {
        let layout = Self::from_name(&tag.name).ok_or_else(|| LayoutError::UnknownName(tag.name.clone()))?;
        if tag.version != layout.version() {
            return Err(LayoutError::Version {
                name: tag.name.clone(),
                found: tag.version,
                expected: layout.version(),
            });
        }
        let bad = |param: &str, what: String| LayoutError::Param {
            name: tag.name.clone(),
            param: param.into(),
            what,
        };
        let known: &[&str] = match layout {
            Self::Q8_0Split { .. } => &["plane_align"],
            Self::Raw(_) | Self::Block(_) => &[],
        };
        if let Some(param) = tag.params.keys().find(|k| !known.contains(&k.as_str())) {
            return Err(bad(param, "is unknown to this program".into()));
        }
        match layout {
            Self::Q8_0Split { .. } => {
                let value =
                    tag.params.get("plane_align").ok_or_else(|| bad("plane_align", "is missing".into()))?;
                let plane_align = value
                    .as_u64()
                    .and_then(|v| u32::try_from(v).ok())
                    .filter(|v| v.is_power_of_two())
                    .ok_or_else(|| bad("plane_align", format!("{value} is not a power of two")))?;
                Ok(Self::Q8_0Split { plane_align })
            }
            other => Ok(other),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_tag_round_trips() {
        let all = GgmlType::ALL.iter().map(|&ty| Layout::identity(ty)).chain([Layout::q8_0_split()]);
        for layout in all {
            let json = serde_json::to_string(&layout.tag()).unwrap();
            let tag: LayoutTag = serde_json::from_str(&json).unwrap();
            assert_eq!(Layout::try_from(&tag), Ok(layout), "{json}");
            assert_eq!(Layout::from_name(&layout.to_string()), Some(layout));
        }
    }

    #[test]
    fn unknown_name_version_and_parameter_are_refused_by_name() {
        let parse =
            |json: &str| Layout::try_from(&serde_json::from_str::<LayoutTag>(json).unwrap()).unwrap_err();
        assert!(parse(r#"{"name":"q9.split","version":1}"#).to_string().contains("q9.split"));
        assert!(parse(r#"{"name":"gguf.f32","version":1}"#).to_string().contains("gguf.f32"));
        assert!(parse(r#"{"name":"raw.F32","version":1}"#).to_string().contains("raw.F32"));
        assert!(parse(r#"{"name":"raw.f32","version":2}"#).to_string().contains("version 2"));
        assert!(parse(r#"{"name":"raw.f32","version":1,"order":3}"#).to_string().contains("order"));
        assert!(parse(r#"{"name":"q8_0.split","version":1}"#).to_string().contains("plane_align"));
        assert!(parse(r#"{"name":"q8_0.split","version":1,"plane_align":48}"#).to_string().contains("48"));
    }

    #[test]
    fn split_planes_of_the_hyper_connection_shapes() {
        let planes = Layout::q8_0_split().planes(320, 10_240).unwrap();
        assert_eq!((planes[0].bytes, planes[1].offset, planes[1].bytes), (3_276_800, 3_276_800, 204_800));
        let odd = Layout::q8_0_split().planes(3, 32).unwrap();
        assert_eq!((odd[1].offset, odd[1].bytes), (256, 6));
        assert_eq!(Layout::q8_0_split().planes(3, 48), None);
        assert_eq!(Layout::q8_0_split().planes(1 << 40, 1 << 40), None);
    }
}
