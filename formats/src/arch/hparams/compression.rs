//! Compressed attention: blocks of positions that one key stands for.

use super::{Hparams, HparamsError, Keys, Metadata, Ssm};

/// Its shape.
#[derive(Clone, Debug, PartialEq)]
pub struct Compression {
    /// `attention.compress_ratios`: positions of a block, one per block of the model; 0: its attention is not
    /// compressed. Of `deepseek4` 0, 4 or 128; of `qwen4exp` one ratio for all full-attention layers that have one, 0
    /// where the key is absent, in linear layers and in MTP blocks.
    pub ratios: Vec<usize>,
    /// `attention.compress_rope_freq_base` of `deepseek4`; elsewhere the model's own base.
    pub freq_base: f64,
}

const RATIOS: &str = "attention.compress_ratios";

impl Compression {
    /// Reads it.
    ///
    /// # Errors
    /// Where a key is missing or a ratio cannot be.
    pub fn read(h: &Hparams, meta: &dyn Metadata) -> Result<Self, HparamsError> {
        let keys = Keys::new(h, meta);
        match h.architecture.as_str() {
            "deepseek4" => deepseek4(h, &keys),
            _ => Ok(Self { ratios: qwen4exp(h, meta, &keys)?, freq_base: h.freq_base }),
        }
    }
}

fn deepseek4(h: &Hparams, keys: &Keys<'_>) -> Result<Compression, HparamsError> {
    const BASE: &str = "attention.compress_rope_freq_base";
    let list = keys.list(RATIOS, keys.blocks()?)?.ok_or_else(|| keys.missing(RATIOS))?;
    let ratios = list.into_iter().take(keys.blocks()?).map(|n| match n {
        0 | 4 | 128 => Ok(n as usize),
        other => Err(keys.wrong(RATIOS, other, "0, 4 or 128".into())),
    });
    let base = keys.float(BASE)?.ok_or_else(|| keys.missing(BASE))?;
    let freq_base = h.at_least(base, f64::from(f32::MIN_POSITIVE), BASE)?;
    Ok(Compression { ratios: ratios.collect::<Result<_, _>>()?, freq_base })
}

fn qwen4exp(h: &Hparams, meta: &dyn Metadata, keys: &Keys<'_>) -> Result<Vec<usize>, HparamsError> {
    const TOP_K: &str = "attention.indexer.top_k";
    let (blocks, layers) = (keys.blocks()?, keys.layers()?);
    let Some(list) = keys.per_block(RATIOS)? else { return Ok(vec![0; blocks]) };
    let recurrent = Ssm::read(h, meta)?.recurrent;
    let ratio = list.iter().copied().find(|&n| n != 0).unwrap_or(0);
    if let Some(other) = list.iter().find(|&&n| n != 0 && n != ratio) {
        return Err(keys.wrong(RATIOS, format!("{ratio} and {other}"), "one ratio besides 0".into()));
    }
    let ratio = keys.given(Some(ratio.max(1)), RATIOS)?;
    let top_k = keys.size(TOP_K)?;
    if list.iter().any(|&n| n != 0) && (ratio == 1 || top_k % ratio != 0) {
        let expected = format!("at least 2, and a divisor of {TOP_K}, {top_k}");
        return Err(keys.wrong(RATIOS, ratio, expected));
    }
    let of = |i: usize| if i < layers && !recurrent[i] && list[i] != 0 { ratio } else { 0 };
    Ok((0..blocks).map(of).collect())
}
