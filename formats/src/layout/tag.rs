//! Layout tags: how the manifest names a layout, and what is refused.

use super::{Layout, Order, Scales};
use crate::exit::{Exit, ExitCode};
use crate::rotation;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

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

impl Layout {
    /// The full tag.
    pub fn tag(self) -> LayoutTag {
        let mut params = Map::new();
        let mut put = |key: &str, value: Value| params.insert(key.into(), value);
        match self {
            Self::Raw(_) | Self::Block(_) => {}
            Self::Q8_0Split { plane_align } => {
                put("plane_align", plane_align.into());
            }
            Self::E8Block98 { rotated } | Self::E8Planar { rotated, .. } => {
                put("rotation", if rotated { rotation::ID } else { "none" }.into());
                if rotated {
                    // Written out, because an engine with another cap decodes such a matrix wrong.
                    put("seed", rotation::SEED_RULE.into());
                    put("cap", rotation::CAP.into());
                }
                if let Self::E8Planar { plane_align, .. } = self {
                    put("plane_align", plane_align.into());
                }
            }
            Self::I8 { order, scales, plane_align } => {
                put("scales", scales.name().into());
                put("tile", vec![Order::ROW_TILE, order.col_tile()].into());
                put("plane_align", plane_align.into());
            }
        }
        LayoutTag { name: self.tag_name(), version: self.version(), params }
    }
}

impl TryFrom<&LayoutTag> for Layout {
    type Error = LayoutError;

    fn try_from(tag: &LayoutTag) -> Result<Self, LayoutError> {
        let mut params = Params { name: &tag.name, left: tag.params.clone() };
        let known = Self::from_tag_name(&tag.name);
        let layout = known.ok_or_else(|| LayoutError::UnknownName(tag.name.clone()))?;
        if tag.version != layout.version() {
            return Err(LayoutError::Version {
                name: tag.name.clone(),
                found: tag.version,
                expected: layout.version(),
            });
        }
        let layout = match layout {
            Self::Raw(_) | Self::Block(_) => layout,
            Self::Q8_0Split { .. } => Self::Q8_0Split { plane_align: params.plane_align()? },
            Self::E8Block98 { .. } => Self::E8Block98 { rotated: params.rotated()? },
            Self::E8Planar { .. } => {
                Self::E8Planar { rotated: params.rotated()?, plane_align: params.plane_align()? }
            }
            Self::I8 { order, .. } => {
                let text = params.take("scales")?;
                let scales = text.as_str().and_then(Scales::from_name);
                let scales = scales.ok_or_else(|| params.bad("scales", format!("{text} is unknown")))?;
                if !order.takes(scales) {
                    return Err(params.bad("scales", format!("this order does not take {scales}")));
                }
                params.expect("tile", vec![Order::ROW_TILE, order.col_tile()].into())?;
                Self::I8 { order, scales, plane_align: params.plane_align()? }
            }
        };
        match params.left.keys().next() {
            Some(param) => Err(params.bad(param, "is unknown to this program")),
            None => Ok(layout),
        }
    }
}

/// Parameters of a tag, taken one by one.
struct Params<'a> {
    name: &'a str,
    left: Map<String, Value>,
}

impl Params<'_> {
    fn bad(&self, param: &str, what: impl Into<String>) -> LayoutError {
        LayoutError::Param { name: self.name.into(), param: param.into(), what: what.into() }
    }

    fn take(&mut self, param: &str) -> Result<Value, LayoutError> {
        self.left.remove(param).ok_or_else(|| self.bad(param, "is missing"))
    }

    fn expect(&mut self, param: &str, expected: Value) -> Result<(), LayoutError> {
        let found = self.take(param)?;
        if found == expected {
            return Ok(());
        }
        Err(self.bad(param, format!("{found}, this program reads {expected}")))
    }

    fn plane_align(&mut self) -> Result<u32, LayoutError> {
        let value = self.take("plane_align")?;
        let number = value.as_u64().and_then(|v| u32::try_from(v).ok()).filter(|v| v.is_power_of_two());
        number.ok_or_else(|| self.bad("plane_align", format!("{value} is not a power of two")))
    }

    fn rotated(&mut self) -> Result<bool, LayoutError> {
        let value = self.take("rotation")?;
        match value.as_str() {
            Some("none") => Ok(false),
            Some(rotation::ID) => {
                self.expect("seed", rotation::SEED_RULE.into())?;
                self.expect("cap", rotation::CAP.into())?;
                Ok(true)
            }
            _ => Err(self.bad("rotation", format!("{value} is unknown to this program"))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_tag_round_trips() {
        for layout in Layout::all() {
            let json = serde_json::to_string(&layout.tag()).unwrap();
            let tag: LayoutTag = serde_json::from_str(&json).unwrap();
            assert_eq!(Layout::try_from(&tag), Ok(layout), "{json}");
            assert_eq!(Layout::from_name(&layout.to_string()), Some(layout));
        }
    }

    #[test]
    fn what_is_unknown_is_refused_by_name() {
        let fault = |json: &str| {
            let tag = serde_json::from_str::<LayoutTag>(json).unwrap();
            Layout::try_from(&tag).unwrap_err().to_string()
        };
        assert!(fault(r#"{"name":"q9.split","version":1}"#).contains("q9.split"));
        assert!(fault(r#"{"name":"gguf.f32","version":1}"#).contains("gguf.f32"));
        assert!(fault(r#"{"name":"raw.F32","version":1}"#).contains("raw.F32"));
        assert!(fault(r#"{"name":"raw.f32","version":2}"#).contains("version 2"));
        assert!(fault(r#"{"name":"raw.f32","version":1,"order":3}"#).contains("order"));
        assert!(fault(r#"{"name":"q8_0.split","version":1}"#).contains("plane_align"));
        assert!(fault(r#"{"name":"q8_0.split","version":1,"plane_align":48}"#).contains("48"));
        assert!(fault(r#"{"name":"e8.planar:rotated","version":1}"#).contains("e8.planar:rotated"));
        assert!(fault(r#"{"name":"i8.frag.nv_b32","version":1}"#).contains("nv_b32"));
        assert!(fault(r#"{"name":"i8.block32","version":1}"#).contains("i8.block32"));
        let rotated = |seed: &str, cap| {
            fault(&format!(
                r#"{{"name":"e8.block98","version":1,"rotation":"hadamard","seed":"{seed}","cap":{cap}}}"#
            ))
        };
        assert!(rotated("417", 4096).contains("seed"));
        assert!(rotated("417+n", 32768).contains("32768, this program reads 4096"));
        assert!(fault(r#"{"name":"e8.block98","version":1,"rotation":"givens"}"#).contains("givens"));
        assert!(fault(r#"{"name":"e8.block98","version":1}"#).contains("rotation: is missing"));
        let i8 = |name: &str, scales: &str, tile: &str| {
            fault(&format!(
                r#"{{"name":"{name}","version":1,"scales":"{scales}","tile":{tile},"plane_align":256}}"#
            ))
        };
        assert!(i8("i8.frag.ck16", "block32", "[16,64]").contains("does not take block32"));
        assert!(i8("i8.nmajor", "row", "[16,32]").contains("\"row\" is unknown"));
        assert!(i8("i8.frag.slot16", "channel", "[16,32]").contains("tile: [16,32]"));
    }
}
