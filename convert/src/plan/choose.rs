//! Layouts: what the recipe wants, what overrides say, and what shapes allow.

use super::{Options, TensorPlan};
use crate::failure::Refusal;
use crate::glob;
use crate::recipe::{Subject, Want, is_quantizable};
use anyhow::Result;
use gantry_formats::block::GgmlType;
use gantry_formats::exit::Exit;
use gantry_formats::layout::{Layout, MAX_WHOLE_ROW};
use gantry_formats::message::did_you_mean;
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
        Ok(Self { pattern: pattern.into(), want: layout.parse()? })
    }
}

/// Gives every tensor its layout.
///
/// # Errors
/// An override that matches nothing, or that its tensor cannot have.
pub(super) fn choose(tensors: &mut [TensorPlan], options: &Options, experts: bool) -> Result<()> {
    for set in &options.overrides {
        if !tensors.iter().any(|t| set.matches(t) && !set.passes_over(t)) {
            let text = format!(
                "--set {}: no tensor and no role is called that; `gantry plan` lists the roles{}",
                set.pattern,
                did_you_mean(&set.pattern, tensors.iter().flat_map(|t| [t.name.as_str(), t.role.as_str()]))
            );
            return Err(Refusal::new(Exit::Usage, text));
        }
    }
    for t in tensors.iter_mut() {
        let Wanted { layout: by_recipe, fallback, want } = wanted(t, options, experts);
        (t.layout, t.fallback) = (by_recipe, fallback);
        t.with_source = want.is_some_and(|w| w.with_source);
        t.chosen = want.filter(|w| w.names_an_order() || w.with_source);
        // The last one that matches decides, as on other command lines.
        if let Some(set) = options.overrides.iter().rev().find(|s| s.matches(t) && !s.passes_over(t)) {
            let layout = set.want.layout(options.target, &t.role, t.ty);
            possible(t, layout).map_err(|reason| {
                Refusal::new(Exit::Usage, format!("--set {}={}: {}: {reason}", set.pattern, set.want, t.name))
            })?;
            if layout != by_recipe || set.want.names_an_order() || set.want.with_source != t.with_source {
                t.chosen = Some(set.want);
            }
            (t.layout, t.fallback, t.with_source) = (layout, None, set.want.with_source);
        }
        t.exact = t.layout.keeps(t.ty);
        // What is stored as it is needs no copy.
        t.with_source &= t.layout != Layout::identity(t.ty);
    }
    Ok(())
}

/// What the recipe gives a tensor.
struct Wanted {
    layout: Layout,
    /// Why it is not what the recipe wants first.
    fallback: Option<String>,
    want: Option<Want>,
}

/// The first of the recipe's wishes that is possible.
fn wanted(t: &TensorPlan, options: &Options, experts: bool) -> Wanted {
    let mut reason = None;
    for want in options.recipe.wants(t.subject(experts)) {
        let layout = want.layout(options.target, &t.role, t.ty);
        match possible(t, layout) {
            Ok(()) => {
                let fallback = reason.map(|why| format!("{want} instead of {why}"));
                return Wanted { layout, fallback, want: Some(*want) };
            }
            Err(why) => {
                let why = format!("{want}: {why}");
                reason = Some(reason.map_or(why.clone(), |before| format!("{before}; {why}")));
            }
        }
    }
    let own = match (t.kind, t.ty) {
        // Exact either way; split, its quants are aligned.
        (Kind::Exact, GgmlType::Q8_0) => Layout::q8_0_split(),
        _ => Layout::identity(t.ty),
    };
    let fallback = reason.map(|why| format!("kept {} instead of {why}", t.ty));
    Wanted { layout: own, fallback, want: None }
}

impl TensorPlan {
    /// What a recipe looks at.
    pub(crate) fn subject(&self, experts: bool) -> Subject<'_> {
        Subject { name: &self.name, role: &self.role, kind: self.kind, ty: self.ty, experts }
    }
}

impl Override {
    /// A pattern with wild characters does not mean the norms and routers between what it does mean.
    fn passes_over(&self, t: &TensorPlan) -> bool {
        t.kind == Kind::Exact && self.pattern.contains(['*', '?']) && !self.want.keeps()
    }

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
    if let Layout::Raw(_) | Layout::Block(_) = layout {
        return Err(format!("the source is {}, which as it is would be {own}", t.ty));
    }
    if t.kind == Kind::Exact && !layout.keeps(t.ty) {
        return Err(format!("{} is a role that stays exact ({own})", t.role));
    }
    if !is_quantizable(t.ty) {
        return Err(format!("{} is not requantized", t.ty));
    }
    let row = t.dims.first().copied().unwrap_or(1);
    if !row.is_multiple_of(layout.block_len()) {
        return Err(format!("row of {row}, {row} % {} != 0", layout.block_len()));
    }
    if t.dims.len() < 2 && layout.takes_whole_rows() {
        return Err("it is a vector".into());
    }
    if layout.takes_whole_rows() && row > MAX_WHOLE_ROW {
        return Err(format!("row of {row}, of more than {MAX_WHOLE_ROW}"));
    }
    if layout.is_rotated() && t.kind == Kind::Embedding {
        return Err("its rows are read one by one and would come out rotated".into());
    }
    Ok(())
}
