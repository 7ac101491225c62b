//! The keys and values that attention remembers.

use half::f16;

/// How a cache stores its elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KvType {
    /// As computed.
    F32,
    /// Rounded to nearest even, half the memory.
    F16,
}

/// One layer's keys and values, each `[n_kv_heads][capacity][head_dim]`: a head's keys follow one another, so
/// that attention reads them as one stream.
#[derive(Clone, Debug)]
pub struct KvCache {
    pub(super) n_kv_heads: usize,
    pub(super) capacity: usize,
    pub(super) head_dim: usize,
    pub(super) keys: KvPlane,
    pub(super) values: KvPlane,
}

#[derive(Clone, Debug)]
pub(super) enum KvPlane {
    F32(Vec<f32>),
    F16(Vec<f16>),
}

impl KvCache {
    /// A zeroed cache for `capacity` positions.
    ///
    /// # Panics
    /// Where a dimension is 0 or memory does not suffice.
    pub fn new(kind: KvType, n_kv_heads: usize, capacity: usize, head_dim: usize) -> Self {
        assert!(n_kv_heads > 0 && capacity > 0 && head_dim > 0, "a cache without elements");
        let n = n_kv_heads.checked_mul(capacity).and_then(|n| n.checked_mul(head_dim));
        let n = n.expect("the cache fits the address space");
        let plane = || match kind {
            KvType::F32 => KvPlane::F32(vec![0.0; n]),
            KvType::F16 => KvPlane::F16(vec![f16::ZERO; n]),
        };
        KvCache { n_kv_heads, capacity, head_dim, keys: plane(), values: plane() }
    }

    /// Positions that it can hold.
    pub fn capacity(&self) -> usize {
        self.capacity
    }

    /// Bytes of both planes.
    pub fn bytes(&self) -> usize {
        let element = match self.keys {
            KvPlane::F32(_) => 4,
            KvPlane::F16(_) => 2,
        };
        2 * self.n_kv_heads * self.capacity * self.head_dim * element
    }

    /// Store the keys and values of positions `first..first + tokens`. Token t's stand at
    /// `keys[t·stride..][..n_kv_heads·head_dim]` and likewise in `values` (so that both may be parts of a
    /// fused product).
    ///
    /// # Panics
    /// Where a position exceeds the capacity or a slice ends early.
    pub fn write(&mut self, first: usize, tokens: usize, keys: &[f32], values: &[f32], stride: usize) {
        assert!(first + tokens <= self.capacity, "positions {first}+{tokens} of {}", self.capacity);
        let (heads, capacity, dim) = (self.n_kv_heads, self.capacity, self.head_dim);
        for (plane, from) in [(&mut self.keys, keys), (&mut self.values, values)] {
            for token in 0..tokens {
                let heads = from[token * stride..][..heads * dim].chunks_exact(dim);
                for (head, from) in heads.enumerate() {
                    let at = (head * capacity + first + token) * dim;
                    match plane {
                        KvPlane::F32(to) => to[at..][..dim].copy_from_slice(from),
                        KvPlane::F16(to) => to[at..][..dim]
                            .iter_mut()
                            .zip(from)
                            .for_each(|(to, from)| *to = f16::from_f32(*from)),
                    }
                }
            }
        }
    }
}
