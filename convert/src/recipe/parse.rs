//! Recipes as TOML.

use super::{Recipe, Rule, Want};
use gantry_formats::block::GgmlType;
use gantry_formats::role::Kind;
use serde::Deserialize;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    #[serde(default)]
    rule: Vec<RawRule>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawRule {
    #[serde(default)]
    kind: Words,
    #[serde(default)]
    role: Words,
    #[serde(default)]
    source: Words,
    model: Option<String>,
    layout: Words,
}

/// One word or several.
#[derive(Deserialize, Default)]
#[serde(untagged)]
enum Words {
    #[default]
    None,
    One(String),
    Many(Vec<String>),
}

impl Words {
    fn list(self) -> Vec<String> {
        match self {
            Self::None => Vec::new(),
            Self::One(word) => vec![word],
            Self::Many(words) => words,
        }
    }

    /// Each word understood, or what is wrong with the first that is not.
    fn each<T>(self, read: impl Fn(&str) -> Result<T, String>) -> Result<Vec<T>, String> {
        self.list().iter().map(|word| read(word)).collect()
    }
}

const KINDS: [(&str, Kind); 4] = [
    ("matrix", Kind::Matrix),
    ("experts", Kind::Experts),
    ("embedding", Kind::Embedding),
    ("hyper-connection", Kind::HyperConnection),
];

pub(super) fn recipe(name: &str, text: &str) -> Result<Recipe, String> {
    let file: File = toml::from_str(text).map_err(|e| e.to_string().trim_end().to_string())?;
    let rules = file.rule.into_iter().enumerate();
    let rules = rules.map(|(i, raw)| rule(raw).map_err(|e| format!("rule {}: {e}", i + 1)));
    Ok(Recipe { name: name.into(), rules: rules.collect::<Result<_, _>>()? })
}

/// Most layouts of a rule: each is a fallback of the one before.
const MAX_LAYOUTS: usize = 16;

fn rule(raw: RawRule) -> Result<Rule, String> {
    let experts = match raw.model.as_deref() {
        None => None,
        Some("dense") => Some(false),
        Some("experts") => Some(true),
        Some(other) => return Err(format!("model = \"{other}\": expected dense or experts")),
    };
    let layouts = raw.layout.each(str::parse::<Want>)?;
    if layouts.len() > MAX_LAYOUTS {
        return Err(format!("it names {} layouts, at most {MAX_LAYOUTS} make sense", layouts.len()));
    }
    if layouts.is_empty() {
        return Err("it names no layout".into());
    }
    Ok(Rule {
        kinds: raw.kind.each(kind)?,
        roles: raw.role.list(),
        types: raw.source.each(ty)?,
        experts,
        layouts,
    })
}

fn kind(word: &str) -> Result<Kind, String> {
    let known = KINDS.iter().find(|(name, _)| *name == word);
    known.map(|(_, kind)| *kind).ok_or_else(|| {
        let names: Vec<&str> = KINDS.iter().map(|(name, _)| *name).collect();
        format!("kind = \"{word}\": expected one of {}", names.join(", "))
    })
}

fn ty(word: &str) -> Result<GgmlType, String> {
    let known = GgmlType::ALL.iter().find(|ty| ty.name().eq_ignore_ascii_case(word));
    known.copied().ok_or_else(|| format!("source = \"{word}\": there is no such type"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fault(text: &str) -> String {
        recipe("r", text).expect_err("a fault")
    }

    #[test]
    fn what_is_wrong_is_named() {
        assert!(fault("[[rule]]\nlayout = 'q9'").contains("rule 1: unknown layout q9"));
        assert!(fault("[[rule]]\nlayout = []").contains("no layout"));
        assert!(fault("[[rule]]\nkind = 'norm'\nlayout = 'e8'").contains("hyper-connection"));
        assert!(fault("[[rule]]\nsource = 'q9_0'\nlayout = 'e8'").contains("q9_0"));
        assert!(fault("[[rule]]\nmodel = 'moe'\nlayout = 'e8'").contains("dense or experts"));
        assert!(fault("[[rule]]\nrow = 1\nlayout = 'e8'").contains("row"));
        assert!(fault("[[rule]]\nkind = 'matrix'").contains("layout"));
        assert!(fault("[[rules]]").contains("rules"));
        assert!(fault("x = [").contains('1'));
    }

    #[test]
    fn words_may_be_one_or_several() {
        let one = recipe("r", "[[rule]]\nkind = 'matrix'\nsource = ['bf16', 'F32']\nlayout = 'i8.channel'");
        let one = one.expect("sound");
        assert_eq!(one.rules[0].kinds, [Kind::Matrix]);
        assert_eq!(one.rules[0].types, [GgmlType::BF16, GgmlType::F32]);
        assert!(recipe("r", "").expect("sound").rules.is_empty());
    }
}
