//! Per-layer embeddings: a table of n-grams, hashed, that one layer adds to its residual.

use super::{Hparams, HparamsError, Keys, Metadata, Ssm};

/// Longest n-gram and most heads that llama.cpp knows.
const MAX_NGRAM: usize = 8;
const MAX_HEADS: usize = 64;

/// Their shape and the constants of the hash.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ple {
    /// `ple.layers`: the one block that has them, counted from 0; a linear-attention layer.
    pub layer: usize,
    /// `ple.ngram_size`: longest n-gram, 2 to 8.
    pub ngram: usize,
    /// All heads: `(ngram − 1) · ple.heads_per_ngram`. Head `(n − 2) · heads_per_ngram + g` hashes n-grams of `n`.
    pub heads: usize,
    /// `ple.conv_kernel`: taps of the convolution, `ngram` positions apart.
    pub conv: usize,
    /// `ple.eos_token_id`: tokens before one of these are not seen.
    pub eos: u32,
    /// `embedding_length_per_layer_input`: values of a row; `heads · dim` is the embedding length.
    pub dim: usize,
    /// `ple.layer_multipliers`, one per token of an n-gram.
    pub multipliers: Vec<u64>,
    /// `ple.head_offsets`: first row of each head.
    pub offsets: Vec<u64>,
    /// `ple.head_vocab_sizes`: rows of each head.
    pub vocabs: Vec<u64>,
}

impl Ple {
    /// Reads them; `None` where the model has none (no `ple.layers`).
    ///
    /// # Errors
    /// Where a key is missing, or the numbers contradict each other.
    pub fn read(h: &Hparams, meta: &dyn Metadata) -> Result<Option<Self>, HparamsError> {
        let keys = Keys::new(h, meta);
        let Some(layers) = keys.list("ple.layers", 0)?.filter(|list| !list.is_empty()) else {
            return Ok(None);
        };
        let wrong = |name, found: String, expected| Err(keys.wrong(name, found, expected));
        let recurrent = Ssm::read(h, meta)?.recurrent;
        let linear = |layer: &usize| recurrent.get(*layer).copied().unwrap_or(false);
        let layer = usize::try_from(layers[0]).ok().filter(|l| linear(l) && layers.len() == 1);
        let Some(layer) = layer else {
            return wrong(
                "ple.layers",
                format!("{layers:?}"),
                "one linear-attention layer, counted from 0".into(),
            );
        };
        let ngram = keys.size("ple.ngram_size")?;
        if !(2..=MAX_NGRAM).contains(&ngram) {
            return wrong("ple.ngram_size", ngram.to_string(), format!("between 2 and {MAX_NGRAM}"));
        }
        const PER: &str = "ple.heads_per_ngram";
        let per_ngram = keys.size(PER)?;
        let heads = (ngram - 1) * per_ngram;
        if heads > MAX_HEADS {
            return wrong(PER, per_ngram.to_string(), format!("at most {}", MAX_HEADS / (ngram - 1)));
        }
        const ROW: &str = "embedding_length_per_layer_input";
        let (dim, embd) = (keys.size(ROW)?, keys.given(h.embd, "embedding_length")?);
        if heads as u64 * dim as u64 != embd as u64 {
            let expected = format!("the embedding length {embd} over the {heads} heads");
            return wrong(ROW, dim.to_string(), expected);
        }
        let eos = keys.number("ple.eos_token_id").ok_or_else(|| keys.missing("ple.eos_token_id"))?;
        let Ok(eos) = u32::try_from(eos) else {
            return wrong("ple.eos_token_id", eos.to_string(), "a token id".into());
        };
        let list = |name, len| -> Result<Vec<u64>, HparamsError> {
            let mut list = keys.list(name, len)?.ok_or_else(|| keys.missing(name))?;
            list.truncate(len);
            Ok(list)
        };
        let ple = Self {
            layer,
            ngram,
            heads,
            conv: keys.size("ple.conv_kernel")?,
            eos,
            dim,
            multipliers: list("ple.layer_multipliers", ngram)?,
            offsets: list("ple.head_offsets", heads)?,
            vocabs: list("ple.head_vocab_sizes", heads)?,
        };
        let rows = |(offset, vocab): (&u64, &u64)| offset.checked_add(*vocab).filter(|_| *vocab > 0);
        let ends = ple.offsets.iter().zip(&ple.vocabs).map(rows);
        let odd = |end: Option<u64>| end.is_none_or(|end| end > i32::MAX as u64);
        match ends.enumerate().find(|(_, end)| odd(*end)) {
            Some((head, _)) => {
                let found = format!("{} from {} on in head {head}", ple.vocabs[head], ple.offsets[head]);
                wrong("ple.head_vocab_sizes", found, format!("at least 1 row, and all below {}", i32::MAX))
            }
            None => Ok(Some(ple)),
        }
    }

    /// Rows that the table must have.
    pub fn rows(&self) -> u64 {
        self.offsets.iter().zip(&self.vocabs).map(|(o, v)| o.saturating_add(*v)).max().unwrap_or(0)
    }
}
