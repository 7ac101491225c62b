//! What only `deepseek4` has.

use super::{Hparams, HparamsError, Keys, Metadata};

/// Its ranks, window and limits.
#[derive(Clone, Debug, PartialEq)]
pub struct Deepseek4 {
    /// `attention.q_lora_rank`.
    pub q_rank: usize,
    /// `attention.sliding_window`: positions that are seen uncompressed, the token's own among them.
    pub window: usize,
    /// `attention.output_group_count`: groups of heads with a projection each.
    pub out_groups: usize,
    /// `attention.output_lora_rank`: values that a group is projected to.
    pub out_rank: usize,
    /// `hash_layer_count`: first layers whose experts are chosen by a table from the token.
    pub hash_layers: usize,
    /// `swiglu_clamp_exp`: limit of the experts' gates and ups, one per block; up to 1e-6 means none.
    pub clamp: Vec<f32>,
    /// `swiglu_clamp_shexp`: likewise of the shared expert; default `clamp`.
    pub clamp_shared: Vec<f32>,
}

impl Deepseek4 {
    /// Reads it.
    ///
    /// # Errors
    /// Where a key is missing, the heads do not divide into the groups, or keys and values are not one head.
    pub fn read(h: &Hparams, meta: &dyn Metadata) -> Result<Self, HparamsError> {
        const GROUPS: &str = "attention.output_group_count";
        const CLAMP: &str = "swiglu_clamp_exp";
        let keys = Keys::new(h, meta);
        let out_groups = keys.size(GROUPS)?;
        let heads = keys.given(h.heads, "attention.head_count")?;
        if heads % out_groups != 0 {
            return Err(keys.wrong(GROUPS, out_groups, format!("a divisor of the {heads} heads")));
        }
        let heads_kv = keys.given(h.heads_kv, "attention.head_count_kv")?;
        if heads_kv != 1 {
            return Err(keys.wrong("attention.head_count_kv", heads_kv, "1: keys are values".into()));
        }
        let clamp = keys.floats(CLAMP)?.ok_or_else(|| keys.missing(CLAMP))?;
        Ok(Self {
            q_rank: keys.size("attention.q_lora_rank")?,
            window: keys.size("attention.sliding_window")?,
            out_groups,
            out_rank: keys.size("attention.output_lora_rank")?,
            hash_layers: keys.count("hash_layer_count")?,
            clamp_shared: keys.floats("swiglu_clamp_shexp")?.unwrap_or_else(|| clamp.clone()),
            clamp,
        })
    }
}
