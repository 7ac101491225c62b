//! Look-ups for one architecture, with its errors.

use super::{Hparams, HparamsError, Metadata};

/// Largest size of anything: such numbers can be multiplied by each other in 64 bits.
const SIZES: u64 = (1 << 31) - 1;

/// More blocks than any model has: a hostile count must not cost memory before its tensors are found to be absent.
pub(in crate::arch) const MAX_BLOCKS: usize = 4096;

/// The keys of one model's architecture.
pub(in crate::arch) struct Keys<'a> {
    h: &'a Hparams,
    meta: &'a dyn Metadata,
}

impl<'a> Keys<'a> {
    pub(in crate::arch) fn new(h: &'a Hparams, meta: &'a dyn Metadata) -> Self {
        Self { h, meta }
    }

    /// The full name of a key.
    pub(super) fn full(&self, name: &str) -> String {
        format!("{}.{name}", self.h.architecture)
    }

    pub(super) fn missing(&self, name: &str) -> HparamsError {
        HparamsError::Missing { key: self.full(name) }
    }

    pub(in crate::arch) fn wrong(&self, name: &str, found: impl ToString, expected: String) -> HparamsError {
        HparamsError::Value { key: self.full(name), found: found.to_string(), expected }
    }

    /// The number at `name`, where there is one.
    pub(super) fn number(&self, name: &str) -> Option<u64> {
        self.meta.u64(&self.full(name))
    }

    /// The truth value at `name`, where there is one; older files write numbers.
    pub(super) fn flag(&self, name: &str) -> Option<bool> {
        self.meta.bool(&self.full(name)).or_else(|| self.number(name).map(|n| n != 0))
    }

    /// The float at `name`, where there is one; it must be finite.
    pub(super) fn float(&self, name: &str) -> Result<Option<f64>, HparamsError> {
        match self.meta.f64(&self.full(name)) {
            Some(value) if !value.is_finite() => Err(self.wrong(name, value, "a finite number".into())),
            other => Ok(other),
        }
    }

    /// `value` as a size, which must be there and between 1 and 2^31 − 1.
    pub(in crate::arch) fn given(&self, value: Option<u64>, name: &str) -> Result<usize, HparamsError> {
        self.within(self.h.need(value, name)?, name, 1)
    }

    /// The size at `name`, which must be there and between 1 and 2^31 − 1.
    pub(super) fn size(&self, name: &str) -> Result<usize, HparamsError> {
        self.given(self.number(name), name)
    }

    /// The count at `name`, at most 2^31 − 1; 0 where it is absent.
    pub(super) fn count(&self, name: &str) -> Result<usize, HparamsError> {
        self.within(self.number(name).unwrap_or(0), name, 0)
    }

    fn within(&self, value: u64, name: &str, least: u64) -> Result<usize, HparamsError> {
        let fits = usize::try_from(value).ok().filter(|_| (least..=SIZES).contains(&value));
        fits.ok_or_else(|| self.wrong(name, value, format!("between {least} and {SIZES}")))
    }

    /// Blocks of the model, those of MTP included.
    pub(super) fn blocks(&self) -> Result<usize, HparamsError> {
        let blocks = self.given(self.h.blocks, "block_count")?;
        match blocks <= MAX_BLOCKS {
            true => Ok(blocks),
            false => Err(self.wrong("block_count", blocks, format!("at most {MAX_BLOCKS}"))),
        }
    }

    /// Layers of the trunk.
    pub(super) fn layers(&self) -> Result<usize, HparamsError> {
        let (blocks, nextn) = (self.blocks()?, self.h.nextn);
        let layers = usize::try_from(nextn).ok().and_then(|n| blocks.checked_sub(n)).filter(|&n| n > 0);
        let expected = || format!("less than the {blocks} blocks");
        layers.ok_or_else(|| self.wrong("nextn_predict_layers", nextn, expected()))
    }

    /// The integers at `name`, where there is such an array: it must have at least `least`.
    pub(super) fn list(&self, name: &str, least: usize) -> Result<Option<Vec<u64>>, HparamsError> {
        let key = self.full(name);
        let Some(len) = self.meta.array_len(&key) else {
            return match self.number(name) {
                Some(n) => Err(self.wrong(name, n, "an array".into())),
                None => Ok(None),
            };
        };
        self.long_enough(name, len, least)?;
        let list = self.meta.u64_array(&key);
        let text = || self.wrong(name, "no array of whole numbers", "an array of them".into());
        list.map(Some).ok_or_else(text)
    }

    /// The number of every block at `name`: an array, or one number for all.
    pub(super) fn per_block(&self, name: &str) -> Result<Option<Vec<u64>>, HparamsError> {
        let blocks = self.blocks()?;
        match self.number(name) {
            Some(n) => Ok(Some(vec![n; blocks])),
            None => Ok(self.list(name, blocks)?.map(|mut list| {
                list.truncate(blocks);
                list
            })),
        }
    }

    /// The float of every block at `name`: an array, or one for all. Finite and not negative.
    pub(super) fn floats(&self, name: &str) -> Result<Option<Vec<f32>>, HparamsError> {
        let (blocks, key) = (self.blocks()?, self.full(name));
        let list = match (self.meta.f64(&key), self.meta.array_len(&key)) {
            (Some(one), _) => vec![one; blocks],
            (None, None) => return Ok(None),
            (None, Some(len)) => {
                self.long_enough(name, len, blocks)?;
                let text = || self.wrong(name, "no array of numbers", "an array of them".into());
                self.meta.f64_array(&key).ok_or_else(text)?
            }
        };
        let list: Vec<f32> = list.into_iter().take(blocks).map(|v| v as f32).collect();
        match list.iter().find(|v| !v.is_finite() || **v < 0.0) {
            Some(odd) => Err(self.wrong(name, odd, "finite numbers of at least 0".into())),
            None => Ok(Some(list)),
        }
    }

    fn long_enough(&self, name: &str, len: u64, least: usize) -> Result<(), HparamsError> {
        match len >= least as u64 {
            true => Ok(()),
            false => Err(self.wrong(name, format!("an array of {len}"), format!("at least {least} values"))),
        }
    }
}
