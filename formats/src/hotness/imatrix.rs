//! Counts in an importance matrix, as `llama-imatrix` writes them: `blk.N.ffn_*_exps.weight.counts`, F32, one for each
//! expert. Matrices outside the experts have one count, of all tokens that passed.

use super::{Hotness, HotnessFault, LayerCounts, MAX_EXPERTS, MAX_LAYERS};
use crate::block::GgmlType;
use crate::gguf::{Gguf, Tensor};
use crate::role::Role;
use crate::source::ReadAt;
use std::collections::BTreeMap;

/// Largest count that is taken: f32 holds every whole number up to here, and stops counting beyond.
const EXACT: f32 = 16_777_216.0;

/// What the file says, and what is odd about it.
pub(super) fn parse<S: ReadAt>(gguf: &Gguf<S>) -> Result<(Hotness, Vec<String>), HotnessFault> {
    if !gguf.is_imatrix() {
        let found = "a GGUF that is no importance matrix (general.type is not imatrix)".into();
        return Err(HotnessFault::Format { found });
    }
    let mut notes = Vec::new();
    let mut layers: BTreeMap<u32, (String, Vec<u64>)> = BTreeMap::new();
    let mut passed = 0;
    let mut full = None;
    let mut tensors: Vec<Tensor<'_>> = gguf.tensors().collect();
    tensors.sort_unstable_by(|a, b| a.name().cmp(b.name()));
    for tensor in &tensors {
        let name = tensor.display_name();
        let Some(matrix) = name.strip_suffix(".counts") else { continue };
        let counts = read(gguf, tensor, &name)?;
        if counts.iter().any(|n| *n as f32 >= EXACT) {
            full.get_or_insert_with(|| matrix.to_string());
        }
        let role = Role::of(matrix, 3);
        let Some(layer) = role.layer.filter(|_| role.base.ends_with("_exps")) else {
            passed = counts.iter().copied().fold(passed, u64::max);
            continue;
        };
        if layer >= MAX_LAYERS {
            let what = format!("{name}: layer {layer}, expected at most {}", MAX_LAYERS - 1);
            return Err(HotnessFault::Malformed { what });
        }
        match layers.get(&layer) {
            None => drop(layers.insert(layer, (matrix.into(), counts))),
            Some((other, before)) if before.len() != counts.len() => {
                let (n, m) = (counts.len(), before.len());
                let what = format!("{matrix} has {n} counts, {other} has {m}");
                return Err(HotnessFault::Malformed { what });
            }
            Some((other, before)) => {
                if let Some(e) = before.iter().zip(&counts).position(|(a, b)| a != b) {
                    let (a, b) = (before[e], counts[e]);
                    notes.push(format!(
                        "{matrix} and {other} disagree, first in expert {e}: {b} and {a} tokens; {other} is used"
                    ));
                }
            }
        }
    }
    if let Some(matrix) = full {
        notes.push(format!("{matrix}: counts of 16,777,216 and more are not exact in this file"));
    }
    let Some((_, (_, first))) = layers.first_key_value() else {
        let what = "an importance matrix without counts of experts (ffn_*_exps): of a dense model, or written by \
                    another program";
        return Err(HotnessFault::Malformed { what: what.into() });
    };
    let experts = first.len();
    if let Some((_, (matrix, odd))) = layers.iter().find(|(_, (_, counts))| counts.len() != experts) {
        let what = format!("{matrix} has {} experts, the first layer has {experts}", odd.len());
        return Err(HotnessFault::Malformed { what });
    }
    let counts: Vec<LayerCounts> =
        layers.into_iter().map(|(layer, (_, counts))| LayerCounts { layer, counts }).collect();
    let hotness = Hotness {
        fingerprint: None,
        layers: counts.last().map_or(0, |l| l.layer + 1),
        experts: experts as u32,
        tokens: passed,
        counts,
    };
    hotness.check()?;
    Ok((hotness, notes))
}

fn read<S: ReadAt>(gguf: &Gguf<S>, tensor: &Tensor<'_>, name: &str) -> Result<Vec<u64>, HotnessFault> {
    let bad = |what: String| Err(HotnessFault::Malformed { what: format!("{name}: {what}") });
    if tensor.ty != GgmlType::F32 || tensor.elements > u64::from(MAX_EXPERTS) || tensor.elements == 0 {
        return bad(format!(
            "{} of {} values, expected F32 of 1 to {MAX_EXPERTS}",
            tensor.ty, tensor.elements
        ));
    }
    let mut bytes = vec![0; tensor.bytes as usize];
    gguf.read_tensor(tensor, 0, &mut bytes).map_err(|e| HotnessFault::Gguf(e.into()))?;
    let values = bytes.as_chunks::<4>().0.iter().map(|b| f32::from_le_bytes(*b));
    let mut out = Vec::with_capacity(values.len());
    for (expert, value) in values.enumerate() {
        // 2^64 itself is the first that does not fit; NaN fails every comparison.
        if !(value >= 0.0 && value < u64::MAX as f32 && value.fract() == 0.0) {
            return bad(format!("count {expert} is {value}, expected a whole number below 2^64"));
        }
        out.push(value as u64);
    }
    Ok(out)
}
