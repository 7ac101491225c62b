//! What a rule or an override asks for.

use gantry_formats::block::GgmlType;
use gantry_formats::layout::{Layout, Scales};
use gantry_formats::target::Target;
use std::fmt;
use std::str::FromStr;

/// What becomes of a tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Want {
    /// As the source has it.
    Keep,
    /// This layout.
    Layout(Layout),
    /// Int8 in the order of the target.
    I8(Scales),
}

impl Want {
    /// The layout that it means for a tensor of type `ty` with this role, on this target.
    pub(crate) fn layout(self, target: &Target, role: &str, ty: GgmlType) -> Layout {
        match self {
            Self::Keep => Layout::identity(ty),
            Self::Layout(layout) => layout,
            Self::I8(scales) => {
                let order = target.order(role, scales);
                // A target's orders take the scales that they are given for; a test holds the table to it.
                Layout::i8(order, scales).unwrap_or(Layout::identity(ty))
            }
        }
    }
}

impl Want {
    /// Whether it names an order of int8 itself, so that it is the same for every target.
    pub(crate) fn names_an_order(self) -> bool {
        matches!(self, Self::Layout(Layout::I8 { .. }))
    }
}

/// Names for people who do not know what there is.
const EXAMPLES: &str = "keep, q8_0.split, i8.block32, i8.channel, e8, e8:rotated, or in full \
                                   i8.frag.vnni16:block32, e8.block98, raw.TYPE, gguf.TYPE";

impl FromStr for Want {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let want = match text {
            "keep" => Some(Self::Keep),
            "i8.block32" => Some(Self::I8(Scales::Block32)),
            "i8.channel" => Some(Self::I8(Scales::Channel)),
            "e8" => Some(Self::Layout(Layout::e8_planar(false))),
            "e8:rotated" => Some(Self::Layout(Layout::e8_planar(true))),
            _ => Layout::from_name(text).map(Self::Layout),
        };
        want.ok_or_else(|| format!("unknown layout {text}; known are {EXAMPLES}"))
    }
}

impl fmt::Display for Want {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Keep => f.pad("keep"),
            Self::Layout(layout) => layout.fmt(f),
            Self::I8(scales) => f.pad(&format!("i8.{scales}")),
        }
    }
}
