//! The indexer of sparse attention: it chooses what a token attends to.

use super::{Hparams, HparamsError, Keys, Metadata};

/// Its shape.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Indexer {
    /// `attention.indexer.head_count`.
    pub heads: usize,
    /// `attention.indexer.key_length`, at least `n_rot`.
    pub key_len: usize,
    /// `attention.indexer.top_k`: most keys that are chosen.
    pub top_k: usize,
    /// Whether a block chooses itself, one per block; the others take what the last such layer chose. Only in
    /// `glm-dsa` are there others (`attention.indexer.types`).
    pub full: Vec<bool>,
}

/// Context from which on a `glm-dsa` without `attention.indexer.types` is a GLM-5.2, whose layers share.
const SHARING_CONTEXT: u64 = 1 << 20;

impl Indexer {
    /// Reads it.
    ///
    /// # Errors
    /// Where a key is missing, the rotated values do not fit, or the first layer has nothing to share.
    pub fn read(h: &Hparams, meta: &dyn Metadata) -> Result<Self, HparamsError> {
        const KEY: &str = "attention.indexer.key_length";
        let keys = Keys::new(h, meta);
        let heads = keys.size("attention.indexer.head_count")?;
        let key_len = keys.size(KEY)?;
        let top_k = keys.size("attention.indexer.top_k")?;
        let rot = keys.given(h.rot, "rope.dimension_count")?;
        if key_len < rot {
            return Err(keys.wrong(KEY, key_len, format!("at least the {rot} values that are rotated")));
        }
        let full = match h.architecture.as_str() {
            "glm-dsa" => types(h, &keys)?,
            _ => vec![true; keys.blocks()?],
        };
        Ok(Self { heads, key_len, top_k, full })
    }
}

fn types(h: &Hparams, keys: &Keys<'_>) -> Result<Vec<bool>, HparamsError> {
    const TYPES: &str = "attention.indexer.types";
    let (blocks, layers) = (keys.blocks()?, keys.layers()?);
    // Files may leave the types of MTP blocks out; those have an indexer of their own.
    let mut full: Vec<bool> = match (keys.number(TYPES), keys.list(TYPES, layers)) {
        (Some(all), _) => vec![all != 0; layers],
        (None, Err(e)) => return Err(e),
        (None, Ok(Some(list))) => list.iter().take(blocks).map(|&n| n != 0).collect(),
        (None, Ok(None)) => {
            let shares = h.context_length.is_some_and(|n| n >= SHARING_CONTEXT);
            (0..layers).map(|i| !shares || i < 2 || (i - 2) % 4 == 0).collect()
        }
    };
    full.resize(blocks, true);
    match full[0] {
        true => Ok(full),
        false => Err(keys.wrong(TYPES, 0, "1 for the first layer, which has none to share with".into())),
    }
}
