//! Multi-head latent attention: queries and keys through low-rank projections, one latent per position in the cache.

use super::{Hparams, HparamsError, Keys, Metadata};

/// Its shape. Every head has a key of its own of `key_len` values, the last `rot` of which are rotated and shared by
/// all heads; the cache holds `kv_rank + rot` values of a position.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mla {
    /// `attention.q_lora_rank`.
    pub q_rank: usize,
    /// `attention.kv_lora_rank`: values of a latent.
    pub kv_rank: usize,
    /// `attention.key_length_mla`: values of a head's key.
    pub key_len: usize,
    /// `attention.value_length_mla`: values of a head's value.
    pub value_len: usize,
    /// `rope.dimension_count`.
    pub rot: usize,
}

impl Mla {
    /// Reads it.
    ///
    /// # Errors
    /// Where a key is missing, or `attention.key_length` and `value_length` are not those of the latent.
    pub fn read(h: &Hparams, meta: &dyn Metadata) -> Result<Self, HparamsError> {
        const KEY: &str = "attention.key_length_mla";
        let keys = Keys::new(h, meta);
        let mla = Self {
            q_rank: keys.size("attention.q_lora_rank")?,
            kv_rank: keys.size("attention.kv_lora_rank")?,
            key_len: keys.size(KEY)?,
            value_len: keys.size("attention.value_length_mla")?,
            rot: keys.given(h.rot, "rope.dimension_count")?,
        };
        let (key_length, value_length) = (
            keys.given(h.key_length, "attention.key_length")?,
            keys.given(h.value_length, "attention.value_length")?,
        );
        if mla.rot >= mla.key_len || !mla.rot.is_multiple_of(2) {
            let expected = format!("even, and less than the key length {}", mla.key_len);
            return Err(keys.wrong("rope.dimension_count", mla.rot, expected));
        }
        if key_length != mla.kv_rank + mla.rot {
            let expected = format!("kv_lora_rank and the rotated values, {} + {}", mla.kv_rank, mla.rot);
            return Err(keys.wrong("attention.key_length", key_length, expected));
        }
        if value_length != mla.kv_rank {
            let expected = format!("kv_lora_rank, {}", mla.kv_rank);
            return Err(keys.wrong("attention.value_length", value_length, expected));
        }
        Ok(mla)
    }
}
