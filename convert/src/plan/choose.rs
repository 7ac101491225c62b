//! Layouts: what the recipe wants, what overrides say, and what shapes allow.

use super::{Options, TensorPlan};
use crate::failure::Refusal;
use crate::glob;
use crate::recipe::{Want, is_quantizable};
use anyhow::Result;
use gantry_formats::block::GgmlType;
use gantry_formats::exit::Exit;
use gantry_formats::layout::Layout;
use gantry_formats::role::Kind;

/// `--set PATTERN=LAYOUT`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Override {
    /// Matches a tensor's whole name or its role.
    pattern: String,
    want: Want,
}

impl std::str::FromStr for Override {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (pattern, layout) = text.split_once('=').ok_or("expected PATTERN=LAYOUT")?;
        if pattern.is_empty() {
            return Err("the pattern is empty".into());
        }
        let known = || {
            let example =
                "q8_0.split, keep, or the source's own as raw.TYPE or gguf.TYPE (raw.bf16, gguf.q4_k)";
            format!("unknown layout {layout}; known are {example}")
        };
        let want = match layout {
            "keep" => Want::Keep,
            _ => Want::Layout(Layout::from_name(layout).ok_or_else(known)?),
        };
        Ok(Self { pattern: pattern.into(), want })
    }
}

/// Gives every tensor its layout.
///
/// # Errors
/// An override that matches nothing, or that its tensor cannot have.
pub(super) fn choose(tensors: &mut [TensorPlan], options: &Options) -> Result<()> {
    for set in &options.overrides {
        if !tensors.iter().any(|t| set.matches(t)) {
            let text = format!(
                "--set {}: no tensor and no role is called that; `gantry plan` lists the roles",
                set.pattern
            );
            return Err(Refusal::new(Exit::Usage, text));
        }
    }
    for t in tensors {
        let (by_recipe, fallback) = match options.recipe.want(t.kind, t.ty) {
            Want::Keep => (Layout::identity(t.ty), None),
            Want::Layout(layout) => match possible(t, layout) {
                Ok(()) => (layout, None),
                Err(reason) => (Layout::identity(t.ty), Some(format!("kept {}: {reason}", t.ty))),
            },
        };
        (t.layout, t.fallback) = (by_recipe, fallback);
        // The last one that matches decides, as on other command lines.
        if let Some(set) = options.overrides.iter().rev().find(|s| s.matches(t)) {
            let layout = match set.want {
                Want::Keep => Layout::identity(t.ty),
                Want::Layout(layout) => layout,
            };
            possible(t, layout).map_err(|reason| {
                Refusal::new(Exit::Usage, format!("--set {}={layout}: {}: {reason}", set.pattern, t.name))
            })?;
            t.overridden = layout != by_recipe;
            (t.layout, t.fallback) = (layout, None);
        }
        t.exact = t.layout == Layout::identity(t.ty) || t.ty == GgmlType::Q8_0;
    }
    Ok(())
}

impl Override {
    fn matches(&self, t: &TensorPlan) -> bool {
        glob::matches(&self.pattern, &t.name) || glob::matches(&self.pattern, &t.role)
    }
}

/// Whether `t` can be stored in `layout`, or why not.
fn possible(t: &TensorPlan, layout: Layout) -> Result<(), String> {
    let own = Layout::identity(t.ty);
    if layout == own {
        return Ok(());
    }
    let Layout::Q8_0Split { .. } = layout else {
        return Err(format!("the source is {}, which this program stores as {own} or q8_0.split", t.ty));
    };
    if t.kind == Kind::Exact {
        return Err(format!("{} is a role that stays exact ({own})", t.role));
    }
    if !is_quantizable(t.ty) {
        return Err(format!("{} is not requantized", t.ty));
    }
    let row = t.dims.first().copied().unwrap_or(1);
    match row.is_multiple_of(layout.block_len()) {
        true => Ok(()),
        false => Err(format!("row of {row}, {row} % {} != 0", layout.block_len())),
    }
}
