//! What a rule or an override asks for.

use gantry_formats::block::GgmlType;
use gantry_formats::layout::{Layout, Scales};
use gantry_formats::target::Target;
use std::fmt;
use std::str::FromStr;

/// What becomes of a tensor, and whether the source's bytes are kept beside it: `LAYOUT` or `LAYOUT+source`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Want {
    form: Form,
    pub(crate) with_source: bool,
}

/// The layout that is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Form {
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
        match self.form {
            Form::Keep => Layout::identity(ty),
            Form::Layout(layout) => layout,
            Form::I8(scales) => {
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
        matches!(self.form, Form::Layout(Layout::I8 { .. }))
    }

    /// Whether the tensor shall stay as it is.
    pub(crate) fn keeps(self) -> bool {
        self.form == Form::Keep
    }
}

/// Names for people who do not know what there is.
const EXAMPLES: &str = "keep, q8_0.split, i8.block32, i8.channel, e8, e8:rotated, or in full \
                                   i8.frag.vnni16:block32, e8.block98, raw.TYPE, gguf.TYPE; \
                                   +source after one keeps the source's bytes too";

/// What stands after a layout where the source's bytes are kept too.
const WITH_SOURCE: &str = "+source";

impl FromStr for Want {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (name, with_source) = text.strip_suffix(WITH_SOURCE).map_or((text, false), |name| (name, true));
        let form = match name {
            "keep" => Some(Form::Keep),
            "i8.block32" => Some(Form::I8(Scales::Block32)),
            "i8.channel" => Some(Form::I8(Scales::Channel)),
            "e8" => Some(Form::Layout(Layout::e8_planar(false))),
            "e8:rotated" => Some(Form::Layout(Layout::e8_planar(true))),
            _ => Layout::from_name(name).map(Form::Layout),
        };
        let form = form.ok_or_else(|| format!("unknown layout {name}; known are {EXAMPLES}"))?;
        if with_source && form == Form::Keep {
            return Err(format!("{text}: keep stores the source's bytes already; leave out {WITH_SOURCE}"));
        }
        Ok(Self { form, with_source })
    }
}

impl fmt::Display for Want {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let end = if self.with_source { WITH_SOURCE } else { "" };
        f.pad(&match self.form {
            Form::Keep => "keep".to_string(),
            Form::Layout(layout) => format!("{layout}{end}"),
            Form::I8(scales) => format!("i8.{scales}{end}"),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_want_is_what_it_prints() {
        let names =
            ["keep", "q8_0.split", "q8_0.split+source", "i8.channel+source", "e8.planar:rotated+source"];
        for name in names {
            let want: Want = name.parse().expect("known");
            assert_eq!((want.to_string().as_str(), want.with_source), (name, name.ends_with("+source")));
        }
        assert!("keep+source".parse::<Want>().is_err_and(|e| e.contains("leave out")));
        assert!("q9+source".parse::<Want>().is_err_and(|e| e.contains("unknown layout q9;")));
        assert!("q8_0.split+sources".parse::<Want>().is_err());
    }
}
