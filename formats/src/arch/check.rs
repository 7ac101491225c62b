//! The coverage check: what a source has against what its architecture's table says.

use super::{Architecture, Dim, Hparams, Metadata, Presence, TensorRule};
use std::collections::BTreeMap;
use std::fmt;

/// How serious a finding is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Problem {
    /// A key that the architecture needs is absent.
    MissingKey,
    /// A tensor that the architecture needs is absent.
    MissingTensor,
    /// A tensor that the table does not know.
    UnknownTensor,
    /// A tensor of another shape than the hyperparameters say. Never tolerated.
    Shape,
}

/// One difference between a source and its table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// What kind of difference.
    pub problem: Problem,
    /// The key or tensor.
    pub name: String,
    /// What was found and what was expected.
    pub detail: String,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.name, self.detail)
    }
}

/// Compares keys and tensors (name, dims with `ne0` first) with the table; findings in order of the table, then
/// of the source. Shapes are compared as far as the hyperparameters are known.
pub fn check<'a>(
    arch: &Architecture,
    hparams: &Hparams,
    meta: &dyn Metadata,
    tensors: impl Iterator<Item = (&'a str, &'a [u64])>,
) -> Vec<Finding> {
    let mut findings = Vec::new();
    for key in arch.required_keys {
        let full = format!("{}.{key}", arch.name);
        if meta.f64(&full).is_none() && meta.array_len(&full).is_none() {
            let detail = "required metadata key is missing".into();
            findings.push(Finding { problem: Problem::MissingKey, name: full, detail });
        }
    }
    let mut expected: BTreeMap<String, &TensorRule> = BTreeMap::new();
    for rule in arch.tensors {
        for name in names(rule, hparams.blocks.unwrap_or(0)) {
            expected.insert(name, rule);
        }
    }
    let mut seen = std::collections::BTreeSet::new();
    let mut shapes = Vec::new();
    for (name, dims) in tensors {
        seen.insert(name.to_string());
        let rule = expected.get(name).copied().or_else(|| {
            // Without block_count, a layer's tensor is still known by its name.
            let layered = hparams.blocks.is_none() && name.starts_with("blk.");
            let rest = name.splitn(3, '.').nth(2).filter(|_| layered)?;
            arch.tensors.iter().find(|r| r.per_layer && r.name == rest)
        });
        match rule {
            None => shapes.push(Finding {
                problem: Problem::UnknownTensor,
                name: name.into(),
                detail: format!("the architecture {} has no such tensor", arch.name),
            }),
            Some(rule) => shapes.extend(shape(rule, hparams, name, dims)),
        }
    }
    for (name, rule) in &expected {
        if !seen.contains(name) && is_missing(rule, hparams, name, &seen) {
            let detail = "required tensor is missing".into();
            findings.push(Finding { problem: Problem::MissingTensor, name: name.clone(), detail });
        }
    }
    findings.extend(shapes);
    findings
}

fn names(rule: &TensorRule, blocks: u64) -> Vec<String> {
    if !rule.per_layer {
        return vec![rule.name.to_string()];
    }
    // A block count no file could back with tensors must not cost memory.
    (0..blocks.min(4096)).map(|n| format!("blk.{n}.{}", rule.name)).collect()
}

fn is_missing(
    rule: &TensorRule,
    hparams: &Hparams,
    name: &str,
    seen: &std::collections::BTreeSet<String>,
) -> bool {
    match rule.presence {
        Presence::Required => true,
        Presence::Optional | Presence::TiedTo(_) => false,
        Presence::Dense => hparams.experts == 0,
        Presence::WithExperts => {
            let fused =
                name.replace("ffn_gate_exps", "ffn_gate_up_exps").replace("ffn_up_exps", "ffn_gate_up_exps");
            hparams.experts > 0 && !(fused != name && seen.contains(&fused))
        }
    }
}

fn shape(rule: &TensorRule, hparams: &Hparams, name: &str, dims: &[u64]) -> Option<Finding> {
    let want: Vec<Option<u64>> = rule.shape.iter().map(|&d| value(d, hparams)).collect();
    let fits = |i: usize| match want.get(i) {
        Some(Some(w)) => dims.get(i).copied().unwrap_or(1) == *w,
        Some(None) => true,
        None => dims.get(i).copied().unwrap_or(1) == 1,
    };
    if (0..want.len().max(dims.len())).all(fits) {
        return None;
    }
    let text = |v: &[Option<u64>]| {
        v.iter().map(|d| d.map_or("?".into(), |d| d.to_string())).collect::<Vec<_>>().join(", ")
    };
    let found: Vec<Option<u64>> = dims.iter().copied().map(Some).collect();
    let mut reversed = found.clone();
    reversed.reverse();
    let hint = if reversed == want { " (transposed)" } else { "" };
    let detail = format!("shape is [{}], expected [{}]{hint}", text(&found), text(&want));
    Some(Finding { problem: Problem::Shape, name: name.into(), detail })
}

fn value(dim: Dim, h: &Hparams) -> Option<u64> {
    let times = |a: Option<u64>, b: Option<u64>| a?.checked_mul(b?);
    match dim {
        Dim::Embd => h.embd,
        Dim::Vocab => h.vocab,
        Dim::HeadsQ => times(h.heads, h.key_length),
        Dim::HeadsK => times(h.heads_kv, h.key_length),
        Dim::HeadsV => times(h.heads_kv, h.value_length),
        Dim::HeadsOut => times(h.heads, h.value_length),
        Dim::Ff => h.ff,
        Dim::ExpertFf => h.expert_ff,
        Dim::TwoExpertFf => times(h.expert_ff, Some(2)),
        Dim::Experts => Some(h.experts).filter(|&n| n > 0),
        Dim::HalfRot => h.rot.map(|n| n / 2),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arch::find;
    use std::collections::HashMap;

    struct Keys(HashMap<String, u64>);
    impl Metadata for Keys {
        fn u64(&self, key: &str) -> Option<u64> {
            self.0.get(key).copied()
        }
        fn f64(&self, key: &str) -> Option<f64> {
            self.u64(key).map(|v| v as f64)
        }
        fn text(&self, key: &str) -> Option<String> {
            (key == "general.architecture").then(|| "llama".into())
        }
        fn array_len(&self, _: &str) -> Option<u64> {
            None
        }
        fn u64_array(&self, _: &str) -> Option<Vec<u64>> {
            None
        }
    }

    fn keys() -> Keys {
        let pairs = [
            ("context_length", 64),
            ("embedding_length", 8),
            ("block_count", 1),
            ("feed_forward_length", 16),
            ("attention.head_count", 2),
            ("attention.head_count_kv", 1),
            ("attention.layer_norm_rms_epsilon", 1),
            ("vocab_size", 10),
        ];
        Keys(pairs.iter().map(|(k, v)| (format!("llama.{k}"), *v)).collect())
    }

    fn tensors() -> Vec<(&'static str, Vec<u64>)> {
        vec![
            ("token_embd.weight", vec![8, 10]),
            ("output_norm.weight", vec![8]),
            ("blk.0.attn_norm.weight", vec![8]),
            ("blk.0.attn_q.weight", vec![8, 8]),
            ("blk.0.attn_k.weight", vec![8, 4]),
            ("blk.0.attn_v.weight", vec![8, 4]),
            ("blk.0.attn_output.weight", vec![8, 8]),
            ("blk.0.ffn_norm.weight", vec![8]),
            ("blk.0.ffn_gate.weight", vec![8, 16]),
            ("blk.0.ffn_up.weight", vec![8, 16]),
            ("blk.0.ffn_down.weight", vec![16, 8]),
        ]
    }

    fn run(keys: &Keys, tensors: &[(&'static str, Vec<u64>)]) -> Vec<(Problem, String)> {
        let hparams = Hparams::read(keys);
        let list = tensors.iter().map(|(n, d)| (*n, d.as_slice()));
        check(find("llama").unwrap(), &hparams, keys, list).into_iter().map(|f| (f.problem, f.name)).collect()
    }

    #[test]
    fn a_complete_model_has_no_findings() {
        assert_eq!(run(&keys(), &tensors()), vec![]);
    }

    #[test]
    fn missing_extra_and_transposed_are_named() {
        let mut list = tensors();
        list.remove(4);
        list.push(("blk.0.extra.weight", vec![1]));
        list.last_mut().unwrap().1 = vec![3];
        list[9].1 = vec![8, 16];
        let got = run(&keys(), &list);
        assert!(got.contains(&(Problem::MissingTensor, "blk.0.attn_k.weight".into())));
        assert!(got.contains(&(Problem::UnknownTensor, "blk.0.extra.weight".into())));
        assert!(got.contains(&(Problem::Shape, "blk.0.ffn_down.weight".into())));
        assert_eq!(got.len(), 3);
    }

    #[test]
    fn experts_are_counted_even_where_the_rest_is_unknown() {
        let keys = Keys([("llama.expert_count".to_string(), 4)].into());
        let got = run(&keys, &[("blk.0.ffn_gate_exps.weight", vec![32, 2, 3])]);
        assert!(got.contains(&(Problem::Shape, "blk.0.ffn_gate_exps.weight".into())));
    }
}
