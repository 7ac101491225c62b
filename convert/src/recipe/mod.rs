//! Recipes: which kind of tensor gets which layout.
//!
//! A recipe is a TOML file, a list of rules; for each tensor the first that fits decides, and of the layouts that it
//! lists the first that the tensor's shape and type allow. What no rule names stays as it is. What is [`Kind::Exact`],
//! norms, biases, routers and convolutions, keeps its values in every recipe. The built-in recipes are files beside
//! this one.

mod parse;
mod want;

pub(crate) use want::Want;

use crate::glob;
use crate::plan::TensorPlan;
use gantry_formats::block::GgmlType;
use gantry_formats::role::Kind;

/// A recipe.
#[derive(Clone, Debug)]
pub(crate) struct Recipe {
    /// Its name, as the manifest records it.
    pub(crate) name: String,
    rules: Vec<Rule>,
}

/// One rule; an empty list fits everything.
#[derive(Clone, Debug)]
struct Rule {
    kinds: Vec<Kind>,
    roles: Vec<String>,
    types: Vec<GgmlType>,
    /// Only models with experts, or only those without.
    experts: Option<bool>,
    layouts: Vec<Want>,
}

/// The built-in recipes: name and text.
pub(crate) const BUILT_IN: [(&str, &str); 5] = [
    ("balanced", include_str!("balanced.toml")),
    ("compact", include_str!("compact.toml")),
    ("w8a8", include_str!("w8a8.toml")),
    ("q8", include_str!("q8.toml")),
    ("lossless", include_str!("lossless.toml")),
];

/// What a rule looks at.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Subject<'a> {
    /// Name of the tensor.
    pub(crate) name: &'a str,
    pub(crate) role: &'a str,
    pub(crate) kind: Kind,
    pub(crate) ty: GgmlType,
    /// Whether the model has experts.
    pub(crate) experts: bool,
}

impl Recipe {
    /// The built-in recipe called `name`.
    pub(crate) fn built_in(name: &str) -> Option<Self> {
        let (name, text) = BUILT_IN.iter().find(|(n, _)| *n == name)?;
        // A test parses every one.
        parse::recipe(name, text).ok()
    }

    /// Reads a recipe's text.
    ///
    /// # Errors
    /// What is wrong with it, and in which line.
    pub(crate) fn parse(name: &str, text: &str) -> Result<Self, String> {
        parse::recipe(name, text)
    }

    /// Rules of a recipe file that decide about no tensor, in words: a role may be misspelt.
    pub(crate) fn unused(&self, tensors: &[TensorPlan], experts: bool) -> Vec<String> {
        if Self::built_in(&self.name).is_some() {
            return Vec::new();
        }
        let subjects: Vec<Subject<'_>> = tensors.iter().map(|t| t.subject(experts)).collect();
        let rules = self.rules.iter().enumerate();
        let unused = rules.filter(|(_, rule)| !subjects.iter().any(|s| rule.fits(*s)));
        unused.map(|(i, _)| format!("rule {} of {} matches no tensor", i + 1, self.name)).collect()
    }

    /// What a tensor may become, the best first; empty: it stays as it is.
    pub(crate) fn wants(&self, subject: Subject<'_>) -> &[Want] {
        let changeable = subject.kind != Kind::Exact && is_quantizable(subject.ty);
        let rule = self.rules.iter().filter(|_| changeable).find(|r| r.fits(subject));
        rule.map_or(&[], |r| &r.layouts)
    }
}

impl Rule {
    fn fits(&self, s: Subject<'_>) -> bool {
        let role = |pattern: &String| glob::matches(pattern, s.role) || glob::matches(pattern, s.name);
        (self.kinds.is_empty() || self.kinds.contains(&s.kind))
            && (self.roles.is_empty() || self.roles.iter().any(role))
            && (self.types.is_empty() || self.types.contains(&s.ty))
            && self.experts.is_none_or(|e| e == s.experts)
    }
}

/// Whether values of `ty` are weights that can be requantized; integers and doubles are tables.
pub(crate) fn is_quantizable(ty: GgmlType) -> bool {
    ty.is_plain_float() || ty.is_quantized()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wants(recipe: &str, role: &str, kind: Kind, ty: GgmlType) -> String {
        let recipe = Recipe::built_in(recipe).expect("built in");
        let list = recipe.wants(Subject { name: role, role, kind, ty, experts: true });
        list.iter().map(Want::to_string).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn built_in_recipes() {
        use GgmlType::*;
        assert_eq!(wants("lossless", "attn_q", Kind::Matrix, Q8_0), "i8.block32 q8_0.split");
        assert_eq!(wants("lossless", "attn_q", Kind::Matrix, BF16), "");
        assert_eq!(wants("lossless", "hc_attn_up", Kind::HyperConnection, Q8_0), "q8_0.split");
        assert_eq!(wants("lossless", "ffn_up_exps", Kind::Experts, IQ3_XXS), "e8.planar");
        assert_eq!(wants("lossless", "ffn_up_exps", Kind::Experts, IQ4_NL), "i8.block32");
        assert_eq!(wants("lossless", "ffn_up_exps", Kind::Experts, Q4_K), "");
        for ty in [F32, BF16, Q8_0, Q4_K, IQ1_M] {
            assert_eq!(wants("q8", "ffn_up_exps", Kind::Experts, ty), "q8_0.split");
            assert_eq!(wants("q8", "ffn_norm", Kind::Exact, ty), "");
        }
        assert_eq!(wants("q8", "attn_q", Kind::Matrix, I32), "");
        assert_eq!(wants("balanced", "attn_q", Kind::Matrix, Q4_K), "i8.block32");
        assert_eq!(wants("balanced", "ffn_up_exps", Kind::Experts, Q4_K), "keep");
        assert_eq!(wants("balanced", "ffn_up_exps", Kind::Experts, IQ3_XXS), "e8.planar");
        assert_eq!(wants("balanced", "token_embd", Kind::Embedding, BF16), "q8_0.split");
        assert_eq!(wants("compact", "ffn_up_exps", Kind::Experts, BF16), "e8.planar:rotated i8.block32");
        assert_eq!(wants("compact", "ffn_up", Kind::Matrix, BF16), "i8.block32", "the model has experts");
        assert_eq!(wants("compact", "ffn_up_exps", Kind::Experts, IQ3_XXS), "e8.planar");
        assert_eq!(wants("w8a8", "output", Kind::Matrix, BF16), "i8.channel");
        assert!(Recipe::built_in("q9").is_none());
    }

    #[test]
    fn every_built_in_recipe_parses() {
        for (name, text) in BUILT_IN {
            assert_eq!(Recipe::parse(name, text).map(|r| r.name), Ok(name.to_string()));
        }
    }
}
