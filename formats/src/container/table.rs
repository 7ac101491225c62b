//! The hash table section: one entry per blob, ordered by card and offset, then the chaining values.
//!
//! ```text
//! 0   u64 blob count n        8   u64 chaining value count m
//! 16  n × 64 bytes: u64 card, u64 offset, u64 bytes, u64 first chaining value, [u8; 32] BLAKE3
//! ..  m × 32 bytes: chaining values of 1 MiB stretches, counters from 0 inside each blob
//! ```

use super::ContainerError;
use crate::hash::{self, Digest};
use crate::size;

/// One blob: a tensor, or one expert.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Blob {
    /// Card.
    pub card: u64,
    /// First byte inside the card's segment.
    pub offset: u64,
    /// Length in bytes.
    pub bytes: u64,
    /// Index of its first chaining value.
    pub first_value: u64,
    /// Plain BLAKE3 of its bytes.
    pub hash: Digest,
}

/// All blobs and chaining values.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Table {
    blobs: Vec<Blob>,
    values: Vec<Digest>,
}

const HEAD: usize = 16;
const ENTRY: usize = 64;

impl Table {
    /// Appends a blob with the chaining values of its 1 MiB stretches (none up to 1 MiB).
    pub fn push(&mut self, card: u64, offset: u64, bytes: u64, hash: Digest, values: &[Digest]) {
        debug_assert_eq!(values.len() as u64, hash::subtree_count(bytes));
        let first_value = self.values.len() as u64;
        self.blobs.push(Blob { card, offset, bytes, first_value, hash });
        self.values.extend_from_slice(values);
    }

    /// Blobs in order of card and offset.
    pub fn blobs(&self) -> &[Blob] {
        &self.blobs
    }

    /// The chaining values of a blob's 1 MiB stretches; empty up to 1 MiB.
    pub fn values(&self, blob: &Blob) -> &[Digest] {
        let first = blob.first_value as usize;
        &self.values[first..first + hash::subtree_count(blob.bytes) as usize]
    }

    /// The section's bytes.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(HEAD + self.blobs.len() * ENTRY + self.values.len() * 32);
        out.extend((self.blobs.len() as u64).to_le_bytes());
        out.extend((self.values.len() as u64).to_le_bytes());
        for b in &self.blobs {
            for n in [b.card, b.offset, b.bytes, b.first_value] {
                out.extend(n.to_le_bytes());
            }
            out.extend(b.hash);
        }
        self.values.iter().for_each(|v| out.extend(v));
        out
    }

    /// Length of the section for blobs of these sizes.
    pub fn bytes_for(blobs: impl Iterator<Item = u64>) -> u64 {
        blobs.fold(HEAD as u64, |n, bytes| n + ENTRY as u64 + 32 * hash::subtree_count(bytes))
    }

    /// Reads the section; every blob's chaining values lie in the section, follow those of the blob before, and
    /// fold to its hash.
    pub fn parse(bytes: &[u8]) -> Result<Self, ContainerError> {
        let bad = |what: String| ContainerError::malformed("hash table", what);
        let word =
            |at: usize| bytes.get(at..at + 8).map(|b| u64::from_le_bytes(b.try_into().unwrap_or_default()));
        let (Some(blobs), Some(values)) = (word(0), word(8)) else {
            return Err(bad(format!("{} bytes are too few", bytes.len())));
        };
        let want = size::mul(blobs, ENTRY as u64)
            .zip(size::mul(values, 32))
            .and_then(|(a, b)| a.checked_add(b)?.checked_add(HEAD as u64));
        if want != Some(bytes.len() as u64) {
            return Err(bad(format!(
                "{blobs} blobs and {values} chaining values do not make {} bytes",
                bytes.len()
            )));
        }
        let (entries, tail) = bytes[HEAD..].split_at(blobs as usize * ENTRY);
        let mut table =
            Self { blobs: Vec::with_capacity(blobs as usize), values: tail.as_chunks::<32>().0.to_vec() };
        let mut next_value = 0u64;
        for (i, entry) in entries.as_chunks::<ENTRY>().0.iter().enumerate() {
            let word = |n: usize| u64::from_le_bytes(entry[8 * n..8 * n + 8].try_into().unwrap_or_default());
            let mut blob =
                Blob { card: word(0), offset: word(1), bytes: word(2), first_value: word(3), hash: [0; 32] };
            blob.hash.copy_from_slice(&entry[32..]);
            let count = hash::subtree_count(blob.bytes);
            if blob.first_value != next_value || next_value.checked_add(count).is_none_or(|end| end > values)
            {
                return Err(bad(format!(
                    "blob {i}: chaining values {} + {count} of {values}",
                    blob.first_value
                )));
            }
            next_value += count;
            if count > 0 && hash::root_of_subtrees(table.values(&blob)) != blob.hash {
                return Err(bad(format!("blob {i}: chaining values do not fold to its hash")));
            }
            table.blobs.push(blob);
        }
        if next_value != values {
            return Err(bad(format!("{} chaining values belong to no blob", values - next_value)));
        }
        Ok(table)
    }
}
