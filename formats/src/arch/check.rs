//! The coverage check: what a source has against what its architecture's table says.

use super::{Architecture, Dim, Expected, Hparams, HparamsError, Metadata, Resolved, TensorRule};
use std::collections::HashMap;
use std::fmt;

/// How serious a finding is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Problem {
    /// A key that the architecture needs is absent.
    MissingKey,
    /// A key whose value no model can have, or that contradicts another.
    Value,
    /// A tensor that the architecture needs is absent.
    MissingTensor,
    /// A tensor that the table does not know, or not in this block.
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

impl From<&HparamsError> for Finding {
    fn from(error: &HparamsError) -> Self {
        let (problem, detail) = match error {
            HparamsError::Missing { .. } => {
                (Problem::MissingKey, "required metadata key is missing, or no number".into())
            }
            HparamsError::Value { found, expected, .. } => {
                (Problem::Value, format!("metadata key is {found}, expected {expected}"))
            }
        };
        Self { problem, name: error.key().into(), detail }
    }
}

/// Compares keys and tensors (name, dims with `ne0` first) with the table; findings in order of the table, then
/// of the source. Shapes are compared as far as the hyperparameters are known.
pub fn check<'a>(
    arch: &'static Architecture,
    hparams: &Hparams,
    meta: &dyn Metadata,
    tensors: impl Iterator<Item = (&'a str, &'a [u64])>,
) -> Vec<Finding> {
    let tensors: Vec<(&str, &[u64])> = tensors.collect();
    let seen: HashMap<&str, &[u64]> = tensors.iter().copied().collect();
    let has = |name: &str| seen.contains_key(name);
    let model = Resolved::read(arch, hparams, meta, has);
    let mut findings: Vec<Finding> = model.errors.iter().map(Finding::from).collect();
    let mut expected: HashMap<String, Expected> = HashMap::new();
    for tensor in model.expected() {
        if !has(&tensor.name) && model.is_required(&tensor, has) {
            findings.push(Finding {
                problem: Problem::MissingTensor,
                name: tensor.name.clone(),
                detail: "required tensor is missing".into(),
            });
        }
        expected.insert(tensor.name.clone(), tensor);
    }
    for (name, dims) in tensors {
        match sizes(&model, &expected, name) {
            Ok(want) => findings.extend(shape(&want, name, dims)),
            Err(detail) => {
                findings.push(Finding { problem: Problem::UnknownTensor, name: name.into(), detail });
            }
        }
    }
    findings
}

/// What a dimension must be.
#[derive(Clone, Copy, PartialEq)]
enum Size {
    Unknown,
    Is(u64),
    AtLeast(u64),
}

impl Size {
    fn fits(self, found: u64) -> bool {
        match self {
            Self::Unknown => true,
            Self::Is(size) => found == size,
            Self::AtLeast(size) => found >= size,
        }
    }
}

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unknown => f.write_str("?"),
            Self::Is(size) => write!(f, "{size}"),
            Self::AtLeast(size) => write!(f, "≥ {size}"),
        }
    }
}

/// The shape that the tensor called `name` must have, or why it has no place in the model.
fn sizes(model: &Resolved, expected: &HashMap<String, Expected>, name: &str) -> Result<Vec<Size>, String> {
    let of_rule = |rule: &TensorRule, block: u64| {
        let sizes = rule.shape.iter().map(|&dim| match (dim, model.value(dim, block)) {
            (_, None) => Size::Unknown,
            (Dim::PleRows, Some(least)) => Size::AtLeast(least),
            (_, Some(size)) => Size::Is(size),
        });
        sizes.collect()
    };
    if let Some(tensor) = expected.get(name) {
        return Ok(of_rule(tensor.rule, tensor.block.unwrap_or(0)));
    }
    // Block formats with a scale per tensor keep it, and that of the input, beside the weight.
    let scaled = name.strip_suffix(".scale").or_else(|| name.strip_suffix(".input_scale"));
    if let Some(tensor) = scaled.and_then(|base| expected.get(&format!("{base}.weight"))) {
        let each = tensor.rule.shape.contains(&Dim::Experts) && tensor.rule.shape.len() == 3;
        let dim = if each { Dim::Experts } else { Dim::One };
        return Ok(vec![model.value(dim, 0).map_or(Size::Unknown, Size::Is)]);
    }
    let arch = model.arch;
    let (number, rest) = name.strip_prefix("blk.").and_then(|n| n.split_once('.')).unwrap_or(("", ""));
    let rule = arch.rules().find(|rule| rule.in_blocks() && rule.name == rest);
    match (rule, model.hparams.blocks) {
        (None, _) => Err(format!("the architecture {} has no such tensor", arch.name)),
        // Without block_count, a block's tensor is still known by its name.
        (Some(rule), None) => Ok(of_rule(rule, number.parse().unwrap_or(0))),
        (Some(_), Some(blocks)) if number.parse::<u64>().is_ok_and(|n| n < blocks) => {
            Err(format!("a model of architecture {} with these keys has it in other blocks only", arch.name))
        }
        (Some(_), Some(blocks)) => Err(format!("the model has {blocks} blocks, counted from 0")),
    }
}

fn shape(want: &[Size], name: &str, dims: &[u64]) -> Option<Finding> {
    let size = |i: usize| dims.get(i).copied().unwrap_or(1);
    let fits = |want: &[Size]| {
        (0..want.len().max(dims.len())).all(|i| want.get(i).copied().unwrap_or(Size::Is(1)).fits(size(i)))
    };
    if fits(want) {
        return None;
    }
    let list = |all: &[String]| all.join(", ");
    let found: Vec<String> = dims.iter().map(u64::to_string).collect();
    let expected: Vec<String> = want.iter().map(Size::to_string).collect();
    let reversed: Vec<Size> = want.iter().rev().copied().collect();
    let hint = if want.len() > 1 && fits(&reversed) { " (transposed)" } else { "" };
    let detail = format!("shape is [{}], expected [{}]{hint}", list(&found), list(&expected));
    Some(Finding { problem: Problem::Shape, name: name.into(), detail })
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
        fn bool(&self, _: &str) -> Option<bool> {
            None
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
        fn f64_array(&self, _: &str) -> Option<Vec<f64>> {
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
