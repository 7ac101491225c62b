//! What the tensors of a random model hold, by what they are for.

use super::random;
use gantry_formats::block::{GgmlType, fp16, q8_0};

/// Types of matrices.
pub(super) const TYPES: [GgmlType; 4] = [GgmlType::F32, GgmlType::F16, GgmlType::BF16, GgmlType::Q8_0];

/// How a tensor's values are made.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Values {
    /// Normal.
    Normal { mean: f32, std: f32 },
    /// −exp(u), u uniform in [0, 1]: the decay of a state space.
    Decay,
    /// Rows of different numbers below `of`: experts of a token.
    Chosen { of: u64 },
}

/// The values of the tensor called `base` (without its block) and shaped `dims`, in a model of `experts` whose
/// embeddings also make its logits where they are `tied`.
pub(super) fn values(base: &str, dims: &[u64], experts: u64, tied: bool) -> Values {
    let normal = |mean: f32, std: f32| Values::Normal { mean, std };
    let fan_in = dims.first().copied().unwrap_or(1).max(1) as f32;
    let scaled = |gain: f32| normal(0.0, gain / fan_in.sqrt());
    let (name, weight) = base.strip_suffix(".weight").map_or((base, false), |name| (name, true));
    match name {
        "ssm_a" => Values::Decay,
        "ffn_gate_tid2eid" => Values::Chosen { of: experts },
        // Steps of about softplus(−2), so that states last for some tokens.
        "ssm_dt.bias" => normal(-2.0, 0.5),
        "attn_sinks" => normal(0.0, 0.5),
        "exp_probs_b.bias" | "exp_probs_b_vl.bias" => normal(0.0, 0.2),
        // Rotations divide by them.
        "rope_freqs" => normal(1.5, 0.1),
        // Logits far enough apart that rounding does not change the best token.
        "token_embd" if tied => scaled(3.0),
        "output" | "nextn.shared_head_head" => scaled(3.0),
        "token_embd" | "per_layer_token_embd" | "nextn.embed_tokens" => normal(0.0, 1.0),
        "ffn_gate_inp" => scaled(2.0),
        _ if name.ends_with("_ape") || name.starts_with("hc_") && name.ends_with("_base") => normal(0.0, 0.5),
        "output_hc_base" => normal(0.0, 0.5),
        _ if weight && (name.ends_with("norm") || name.contains("_norm_") || name.ends_with("_scale")) => {
            normal(1.0, 0.1)
        }
        _ if !weight => normal(0.0, 0.1),
        _ => scaled(1.0),
    }
}

/// The type of a tensor where matrices are of `ty`, as converters choose it: what is small or chooses stays F32, and
/// rows that are no whole number of blocks are F16.
pub(super) fn kind(base: &str, dims: &[u64], ty: GgmlType) -> GgmlType {
    let Some(name) = base.strip_suffix(".weight") else { return GgmlType::F32 };
    if name == "ffn_gate_tid2eid" {
        return GgmlType::I32;
    }
    let exact = ["ffn_gate_inp", "indexer.proj"].contains(&name)
        || ["_norm", "_ape", "conv1d"].iter().any(|end| name.ends_with(end))
        || name.contains("hc_") && name.ends_with("_fn");
    match ty {
        _ if exact || dims.len() < 2 => GgmlType::F32,
        GgmlType::Q8_0 if !dims[0].is_multiple_of(q8_0::LEN as u64) => GgmlType::F16,
        ty => ty,
    }
}

/// A tensor to be made.
#[derive(Clone, Debug)]
pub(super) struct Fill {
    pub(super) key: u64,
    pub(super) values: Values,
    pub(super) ty: GgmlType,
    /// Length of a row.
    pub(super) row: u64,
}

impl Fill {
    /// The bytes of `elements`, which start and end with whole blocks and rows of [`Values::Chosen`].
    ///
    /// # Errors
    /// Where a value does not fit the type.
    pub(super) fn bytes(
        &self,
        elements: std::ops::Range<u64>,
        scratch: &mut Vec<f32>,
        out: &mut Vec<u8>,
    ) -> Result<(), q8_0::Q8Error> {
        out.clear();
        scratch.clear();
        let key = self.key;
        match self.values {
            Values::Normal { mean, std } => {
                scratch.extend(elements.map(|i| mean + std * random::normal(key, i) as f32));
            }
            Values::Decay => {
                scratch.extend(elements.map(|i| -random::exp(random::uniform(key, i)) as f32));
            }
            Values::Chosen { of } => {
                for row in elements.start / self.row..elements.end / self.row {
                    choose(key, row, self.row, of, out);
                }
                return Ok(());
            }
        }
        match self.ty {
            GgmlType::Q8_0 => {
                let (blocks, _) = scratch.as_chunks::<{ q8_0::LEN }>();
                for block in blocks {
                    out.extend(q8_0::quantize_block(block)?.to_bytes());
                }
            }
            GgmlType::BF16 => out.extend(scratch.iter().flat_map(|&x| fp16::f32_to_bf16(x).to_le_bytes())),
            GgmlType::F16 => out.extend(scratch.iter().flat_map(|&x| fp16::f32_to_f16(x).to_le_bytes())),
            _ => out.extend(scratch.iter().flat_map(|x| x.to_le_bytes())),
        }
        Ok(())
    }
}

/// Appends `count` different numbers below `of`, in random order: the first places of a shuffle.
fn choose(key: u64, row: u64, count: u64, of: u64, out: &mut Vec<u8>) {
    let mut all: Vec<u32> = (0..of as u32).collect();
    for i in 0..count {
        let other = i + random::at(key, row * count + i) % (of - i);
        all.swap(i as usize, other as usize);
        out.extend(all[i as usize].to_le_bytes());
    }
}
