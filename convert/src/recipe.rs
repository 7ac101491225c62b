//! Recipes: which kind of tensor gets which layout.
//!
//! A recipe is a list of rules, the first that fits decides. What no rule names stays as it is, and so does what
//! is [`Kind::Exact`]: norms, biases, routers and convolutions keep their values in every recipe.

use gantry_formats::block::GgmlType;
use gantry_formats::layout::Layout;
use gantry_formats::role::Kind;

/// A recipe.
#[derive(Clone, Debug)]
pub(crate) struct Recipe {
    /// Its name, as the manifest records it.
    pub(crate) name: String,
    rules: Vec<Rule>,
}

/// One line of a recipe.
#[derive(Clone, Debug)]
struct Rule {
    types: Types,
    want: Want,
}

/// Which source types a rule is for.
#[derive(Clone, Copy, Debug)]
enum Types {
    Is(GgmlType),
    /// F32, F16, BF16 and every block type.
    Quantizable,
}

/// What becomes of a tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Want {
    /// As the source has it.
    Keep,
    /// This layout.
    Layout(Layout),
}

/// Names of the built-in recipes.
pub(crate) const BUILT_IN: [&str; 2] = ["q8", "lossless"];

impl Recipe {
    /// The built-in recipe called `name`.
    pub(crate) fn built_in(name: &str) -> Option<Self> {
        let split = Want::Layout(Layout::q8_0_split());
        let rules = match name {
            "lossless" => vec![Rule { types: Types::Is(GgmlType::Q8_0), want: split }],
            "q8" => vec![Rule { types: Types::Quantizable, want: split }],
            _ => return None,
        };
        Some(Self { name: name.into(), rules })
    }

    /// What a tensor of this kind and type becomes, where its shape allows.
    pub(crate) fn want(&self, kind: Kind, ty: GgmlType) -> Want {
        let rule = self.rules.iter().find(|r| r.types.contains(ty)).filter(|_| kind != Kind::Exact);
        rule.map_or(Want::Keep, |r| r.want)
    }
}

impl Types {
    fn contains(self, ty: GgmlType) -> bool {
        match self {
            Self::Is(one) => ty == one,
            Self::Quantizable => is_quantizable(ty),
        }
    }
}

/// Whether values of `ty` are weights that can be requantized; integers and doubles are tables.
pub(crate) fn is_quantizable(ty: GgmlType) -> bool {
    ty.is_plain_float() || ty.is_quantized()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn built_in_recipes() {
        let want = |recipe, kind, ty| Recipe::built_in(recipe).expect("built in").want(kind, ty);
        let split = Want::Layout(Layout::q8_0_split());
        assert_eq!(want("lossless", Kind::Matrix, GgmlType::Q8_0), split);
        assert_eq!(want("lossless", Kind::Matrix, GgmlType::BF16), Want::Keep);
        assert_eq!(want("lossless", Kind::Matrix, GgmlType::Q4_K), Want::Keep);
        for ty in [GgmlType::F32, GgmlType::BF16, GgmlType::Q8_0, GgmlType::Q4_K, GgmlType::IQ1_M] {
            assert_eq!(want("q8", Kind::Experts, ty), split);
            assert_eq!(want("q8", Kind::Exact, ty), Want::Keep);
        }
        assert_eq!(want("q8", Kind::Matrix, GgmlType::I32), Want::Keep);
        assert!(Recipe::built_in("q9").is_none());
    }
}
