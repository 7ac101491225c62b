//! What a sequence keeps in each block: for estimates before anything is loaded.

use super::{Hparams, Metadata, Resolved, Where, find};

/// What one block keeps of a sequence, in values.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BlockState {
    /// Keys and values of all positions, in the type that a session keeps them in.
    pub cache: u64,
    /// Rows that these are, each of one head, position, and keys or values: int8 has a scale for each.
    pub rows: u64,
    /// Those of them that are entries which stand for several positions: they have no form as int8.
    pub entries: u64,
    /// What is computed with further, always f32: keys of an indexer, states of delta nets, inputs of convolutions.
    pub exact: u64,
}

impl BlockState {
    /// Bytes, with `element` bytes for a value of a key and `row` more for all those of a head at a position.
    pub fn bytes(&self, element: u64, row: u64) -> u64 {
        let cache = self.cache.saturating_mul(element).saturating_add(self.rows.saturating_mul(row));
        cache.saturating_add(self.exact.saturating_mul(4))
    }
}

impl Resolved {
    /// What `block` keeps of a sequence of up to `context` positions; `None` where the hyperparameters do not say. A
    /// sliding window counts with the room of one batch of 128 tokens.
    pub fn state(&self, block: u64, context: u64) -> Option<BlockState> {
        let (h, s) = (&self.hparams, &self.subjects);
        let size = |n: usize| n as u64;
        let product = |values: &[u64]| values.iter().try_fold(1u64, |n, v| n.checked_mul(*v));
        let mut state = BlockState::default();
        if let Some(ssm) = s.ssm.as_ref().filter(|_| self.applies(Where::Linear, block) == Some(true)) {
            let [dim, values, conv] = [ssm.dim, ssm.value_heads, ssm.conv].map(size);
            let channels = product(&[dim, 2 * size(ssm.key_heads) + values])?;
            state.exact = product(&[dim, dim, values])?.checked_add(product(&[conv - 1, channels])?)?;
        } else if let Some(mla) = &s.mla {
            state.cache = product(&[size(mla.kv_rank + mla.rot), context])?;
            state.rows = context;
            let indexer = s.indexer.as_ref().filter(|i| size(i.top_k) < context);
            if let Some(indexer) = indexer.filter(|i| i.full.get(block as usize) == Some(&true)) {
                state.exact = product(&[size(indexer.key_len), context])?;
            }
        } else if let Some(own) = &s.deepseek4 {
            let len = h.key_length?;
            state.rows = (2 * size(own.window) + BATCH).min(context);
            state.cache = product(&[len, state.rows])?;
            let ratio = size(*s.compression.as_ref()?.ratios.get(block as usize)?);
            if let Some(entries) = context.checked_div(ratio) {
                // Room for one, though no block of a shorter sequence is ever complete.
                let entries = entries.max(1);
                let indexed = self.applies(Where::Indexed, block)?;
                let width = if indexed { 2 } else { 1 };
                state.cache = state.cache.checked_add(product(&[len, entries])?)?;
                state.rows = state.rows.checked_add(entries)?;
                state.entries = entries;
                let rows = (2 * width * ratio + BATCH).min(context);
                state.exact = product(&[2, width, len, rows])?;
                let indexer = s.indexer.as_ref().filter(|i| indexed && size(i.top_k) < entries);
                if let Some(indexer) = indexer {
                    let keys = product(&[size(indexer.key_len), entries + 2 * width * rows])?;
                    state.exact = state.exact.checked_add(keys)?;
                }
            }
        } else {
            state.cache = product(&[h.heads_kv?, h.key_length?.checked_add(h.value_length?)?, context])?;
            state.rows = product(&[2, h.heads_kv?, context])?;
            let ratio =
                s.compression.as_ref().and_then(|c| c.ratios.get(block as usize)).copied().unwrap_or(0);
            let beyond =
                |top_k: usize| context.checked_div(size(ratio)).is_some_and(|n| n > size(top_k / ratio));
            if let Some(indexer) = s.indexer.as_ref().filter(|i| beyond(i.top_k)) {
                let rows = (2 * size(ratio) + BATCH).min(context);
                state.exact = product(&[size(indexer.key_len), context / size(ratio) + rows])?;
            }
        }
        if let Some(Some(ple)) = s.ple.as_ref().filter(|_| self.applies(Where::Ple, block) == Some(true)) {
            let wide = product(&[size(s.hyper.as_ref()?.streams), h.embd?])?;
            let rows = product(&[size(ple.conv) - 1, size(ple.ngram)])?;
            state.exact = state.exact.checked_add(product(&[rows, wide])?)?;
        }
        Some(state)
    }
}

impl Resolved {
    /// What each block keeps of a sequence of up to `context` positions.
    pub fn states(&self, context: u64) -> Vec<Option<BlockState>> {
        // No file has a tensor for every layer of a block count beyond this.
        let blocks = self.hparams.blocks.unwrap_or(0).min(65_536);
        (0..blocks).map(|block| self.state(block, context)).collect()
    }
}

/// Why a model whose sequences keep [`BlockState::entries`] is refused keys and values as int8.
pub const NO_INT8_ENTRIES: &str =
    "--kv int8: the model attends to compressed entries, which are kept as f32 or f16 alone; give --kv f16";

/// What each block of a model keeps of a sequence of up to `context` positions: by its architecture's table, else as
/// attention on the keys and values of `head_count_kv` heads, which may be one number or one per layer. `has` says
/// whether the model has a tensor.
pub fn states(
    h: &Hparams,
    meta: &dyn Metadata,
    context: u64,
    has: impl Fn(&str) -> bool,
) -> Vec<Option<BlockState>> {
    if let Some(arch) = find(&h.architecture) {
        return Resolved::read(arch, h, meta, has).states(context);
    }
    let blocks = h.blocks.unwrap_or(0).min(65_536);
    let per_layer = meta.u64_array(&format!("{}.attention.head_count_kv", h.architecture));
    let attention = |layer: u64| {
        let heads = per_layer.as_ref().map_or(h.heads_kv, |list| list.get(layer as usize).copied());
        let length = h.key_length?.checked_add(h.value_length?)?;
        let each = heads?.checked_mul(context)?;
        Some(BlockState {
            cache: each.checked_mul(length)?,
            rows: each.checked_mul(2)?,
            ..BlockState::default()
        })
    };
    (0..blocks).map(attention).collect()
}

/// Tokens that are computed together by default.
pub(super) const BATCH: u64 = 128;
