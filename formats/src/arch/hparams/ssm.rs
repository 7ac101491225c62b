//! The gated delta net of a linear-attention layer.

use super::{Hparams, HparamsError, Keys, Metadata};

/// Its shape: `key_heads` heads of queries and keys and `value_heads` of values, each of `dim` values.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ssm {
    /// `ssm.conv_kernel`: taps of the causal convolution.
    pub conv: usize,
    /// `ssm.state_size`: values of a head, of keys as of values.
    pub dim: usize,
    /// `ssm.group_count`: heads of queries and of keys.
    pub key_heads: usize,
    /// `ssm.time_step_rank`: heads of values.
    pub value_heads: usize,
    /// Whether a block is a linear-attention layer, one per block: `attention.recurrent_layers`, else all layers but
    /// every `full_attention_interval`-th (default 4). MTP blocks never are.
    pub recurrent: Vec<bool>,
}

impl Ssm {
    /// Reads it.
    ///
    /// # Errors
    /// Where a key is missing, the heads do not divide, or the sizes contradict `ssm.inner_size`.
    pub fn read(h: &Hparams, meta: &dyn Metadata) -> Result<Self, HparamsError> {
        let keys = Keys::new(h, meta);
        let dim = keys.size("ssm.state_size")?;
        let key_heads = keys.size("ssm.group_count")?;
        let value_heads = keys.size("ssm.time_step_rank")?;
        let inner = keys.size("ssm.inner_size")?;
        if value_heads % key_heads != 0 {
            let expected = format!("a divisor of the {value_heads} value heads");
            return Err(keys.wrong("ssm.group_count", key_heads, expected));
        }
        if inner as u64 != dim as u64 * value_heads as u64 {
            let expected = format!("state_size · time_step_rank, {dim} · {value_heads}");
            return Err(keys.wrong("ssm.inner_size", inner, expected));
        }
        let conv = keys.size("ssm.conv_kernel")?;
        Ok(Self { conv, dim, key_heads, value_heads, recurrent: recurrent(&keys)? })
    }
}

fn recurrent(keys: &Keys<'_>) -> Result<Vec<bool>, HparamsError> {
    let (blocks, layers) = (keys.blocks()?, keys.layers()?);
    if let Some(list) = keys.per_block("attention.recurrent_layers")? {
        return Ok(list.iter().enumerate().map(|(i, &n)| i < layers && n != 0).collect());
    }
    const INTERVAL: &str = "full_attention_interval";
    let interval = keys.given(keys.number(INTERVAL).or(Some(4)), INTERVAL)?;
    Ok((0..blocks).map(|i| i < layers && (i + 1) % interval != 0).collect())
}
