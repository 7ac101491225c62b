//! BLAKE3, plain and by subtrees.
//!
//! The unit is the blob: its plain BLAKE3 is what `b3sum` prints for its bytes. BLAKE3 is a binary tree over
//! 1 KiB chunks, so the value of any aligned power-of-two stretch can be computed alone, on any thread and in
//! any order, and merged later; [`TreeHash`] does that. Blobs over [`SUBTREE`] bytes store the chaining values
//! of their 1 MiB stretches, which verify in parallel and tell where damage lies.

use blake3::hazmat::{self, ChainingValue, HasherExt, Mode};
use std::collections::BTreeMap;
use std::ops::Range;

/// Bytes under one stored chaining value: 1 MiB.
pub const SUBTREE: u64 = 1 << 20;

/// Bytes of one BLAKE3 chunk, the smallest stretch with a chaining value of its own.
pub const CHUNK: u64 = 1024;

/// A 32-byte BLAKE3 value: a hash or a chaining value.
pub type Digest = [u8; 32];

/// Plain BLAKE3 of `bytes`.
pub fn hash(bytes: &[u8]) -> Digest {
    *blake3::hash(bytes).as_bytes()
}

/// Lower-case hex of a digest.
pub fn hex(digest: &Digest) -> String {
    blake3::Hash::from_bytes(*digest).to_hex().to_string()
}

/// Reads 64 hex digits.
pub fn from_hex(text: &str) -> Option<Digest> {
    blake3::Hash::from_hex(text).ok().map(|h| *h.as_bytes())
}

/// Number of stored chaining values of a blob of `len` bytes: none up to 1 MiB, else one per started MiB.
pub fn subtree_count(len: u64) -> u64 {
    if len <= SUBTREE { 0 } else { len.div_ceil(SUBTREE) }
}

/// Chaining value of the stretch `bytes` that starts at `offset` inside its blob. `offset` is a multiple of
/// the stretch's power-of-two size and the stretch is not the whole blob.
pub fn chaining_value(offset: u64, bytes: &[u8]) -> ChainingValue {
    let mut hasher = blake3::Hasher::new();
    hasher.set_input_offset(offset);
    hasher.update(bytes);
    hasher.finalize_non_root()
}

/// The plain BLAKE3 of a blob from the chaining values of its 1 MiB stretches (two or more).
pub fn root_of_subtrees(values: &[ChainingValue]) -> Digest {
    assert!(values.len() > 1, "a blob of one stretch has no inner node");
    let (left, right) = values.split_at(values.len().next_power_of_two() / 2);
    *hazmat::merge_subtrees_root(&fold(left), &fold(right), Mode::Hash).as_bytes()
}

fn fold(values: &[ChainingValue]) -> ChainingValue {
    match values {
        [one] => *one,
        more => {
            let (left, right) = more.split_at(more.len().next_power_of_two() / 2);
            hazmat::merge_subtrees_non_root(&fold(left), &fold(right), Mode::Hash)
        }
    }
}

/// One hashed stretch of a blob: `[start, min(start + size, len))` with `size` a power of two.
#[derive(Clone, Copy, Debug)]
pub struct Piece {
    start: u64,
    size: u64,
    value: ChainingValue,
}

impl Piece {
    /// The stretch that the value covers, in a blob of `len` bytes.
    pub fn range(&self, len: u64) -> Range<u64> {
        self.start..(self.start + self.size).min(len)
    }

    /// Its chaining value.
    pub fn value(&self) -> &ChainingValue {
        &self.value
    }
}

/// Hashes the part of `bytes` (at `offset` in a blob of `len` bytes) that is whole aligned stretches, without
/// touching shared state, so that threads only meet to hand in the results. Bytes before the first and after
/// the last chunk boundary are left out; [`TreeHash::missing`] names them.
pub fn pieces(len: u64, offset: u64, bytes: &[u8]) -> Vec<Piece> {
    let end = offset + bytes.len() as u64;
    debug_assert!(end <= len);
    let max = max_stretch(len);
    let mut out = Vec::new();
    let mut start = offset.next_multiple_of(CHUNK);
    while start < end {
        let mut size = if start == 0 { max } else { max.min(1 << start.trailing_zeros()) };
        while size >= CHUNK && (start + size).min(len) > end {
            size /= 2;
        }
        if size < CHUNK {
            break;
        }
        let stop = (start + size).min(len);
        let part = &bytes[(start - offset) as usize..(stop - offset) as usize];
        out.push(Piece { start, size, value: chaining_value(start, part) });
        start = stop;
    }
    out
}

/// The largest stretch that is kept whole: 1 MiB, but always less than the blob, whose root is not a
/// chaining value.
fn max_stretch(len: u64) -> u64 {
    SUBTREE.min(len.next_power_of_two() / 2).max(CHUNK)
}

/// Gathers [`Piece`]s of one blob, in any order, into its hash and its 1 MiB chaining values.
#[derive(Debug)]
pub struct TreeHash {
    len: u64,
    whole: Vec<Option<ChainingValue>>,
    parts: BTreeMap<u64, (u64, ChainingValue)>,
}

impl TreeHash {
    /// For a blob of `len` bytes. Blobs of one chunk or less have no tree: hash them with [`hash`].
    pub fn new(len: u64) -> Self {
        let count = len.div_ceil(max_stretch(len)) as usize;
        Self { len, whole: vec![None; count], parts: BTreeMap::new() }
    }

    /// Takes pieces made by [`pieces`] with the same blob length.
    pub fn insert(&mut self, pieces: &[Piece]) {
        let max = max_stretch(self.len);
        for piece in pieces {
            let Piece { mut start, mut size, mut value } = *piece;
            while size < max {
                let buddy = start ^ size;
                if buddy >= self.len {
                    size *= 2;
                    continue;
                }
                if self.parts.get(&buddy).is_none_or(|(s, _)| *s != size) {
                    break;
                }
                let Some((_, other)) = self.parts.remove(&buddy) else { break };
                let (left, right) = if buddy < start { (other, value) } else { (value, other) };
                value = hazmat::merge_subtrees_non_root(&left, &right, Mode::Hash);
                start = start.min(buddy);
                size *= 2;
            }
            if size >= max {
                self.whole[(start / max) as usize] = Some(value);
            } else {
                self.parts.insert(start, (size, value));
            }
        }
    }

    /// The byte ranges that no piece has covered yet, chunk-aligned, in order.
    pub fn missing(&self) -> Vec<Range<u64>> {
        let max = max_stretch(self.len);
        let mut out: Vec<Range<u64>> = Vec::new();
        let mut push = |from: u64, to: u64| {
            if from < to {
                match out.last_mut() {
                    Some(last) if last.end == from => last.end = to,
                    _ => out.push(from..to),
                }
            }
        };
        for (i, value) in self.whole.iter().enumerate() {
            if value.is_some() {
                continue;
            }
            let begin = i as u64 * max;
            let end = (begin + max).min(self.len);
            let mut at = begin;
            for (&start, &(size, _)) in self.parts.range(begin..end) {
                push(at, start);
                at = (start + size).min(self.len);
            }
            push(at, end);
        }
        out
    }

    /// The blob's plain BLAKE3 and the chaining values to store; `None` while bytes are missing.
    pub fn finish(&self) -> Option<(Digest, Vec<Digest>)> {
        let values = self.whole.iter().copied().collect::<Option<Vec<_>>>()?;
        if values.len() < 2 {
            return None;
        }
        let stored = if subtree_count(self.len) == 0 { Vec::new() } else { values.clone() };
        Some((root_of_subtrees(&values), stored))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(len: usize) -> Vec<u8> {
        (0..len).map(|i| (i.wrapping_mul(2654435761) >> 13) as u8).collect()
    }

    #[test]
    fn equals_plain_blake3_at_every_boundary_and_any_cut() {
        let mib = SUBTREE as usize;
        for len in [
            1025,
            2047,
            2048,
            2049,
            3072,
            4096,
            5000,
            65_537,
            mib - 1,
            mib,
            mib + 1,
            2 * mib,
            3 * mib + 1023,
            5 * mib + 1025,
        ] {
            let bytes = sample(len);
            for cut in [1024, 1536, 4096, 10_240, 1_114_112] {
                let mut tree = TreeHash::new(len as u64);
                let mut starts: Vec<usize> = (0..len).step_by(cut).collect();
                starts.reverse();
                for s in starts {
                    let e = (s + cut).min(len);
                    tree.insert(&pieces(len as u64, s as u64, &bytes[s..e]));
                }
                for gap in tree.missing() {
                    let part = &bytes[gap.start as usize..gap.end as usize];
                    tree.insert(&pieces(len as u64, gap.start, part));
                }
                let (got, values) = tree.finish().expect("complete");
                assert_eq!(hex(&got), hex(&hash(&bytes)), "len {len} cut {cut}");
                assert_eq!(values.len() as u64, subtree_count(len as u64));
            }
        }
    }

    #[test]
    fn missing_names_what_was_not_given() {
        let len = 3 * SUBTREE + 5000;
        let bytes = sample(len as usize);
        let mut tree = TreeHash::new(len);
        tree.insert(&pieces(len, 0, &bytes[..SUBTREE as usize]));
        tree.insert(&pieces(len, SUBTREE + 4096, &bytes[SUBTREE as usize + 4096..2 * SUBTREE as usize]));
        assert_eq!(tree.missing(), vec![SUBTREE..SUBTREE + 4096, 2 * SUBTREE..len]);
        assert!(tree.finish().is_none());
    }
}
