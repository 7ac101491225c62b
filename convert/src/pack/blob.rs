//! One blob or source tensor while its pieces come in.

use gantry_formats::hash::{self, CHUNK, Digest, Piece, SUBTREE, TreeHash};
use gantry_packer::q8_0::Stats;
use std::io;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

/// A hash that grows out of order, and what comes with it.
#[derive(Debug)]
pub(super) struct Growing {
    len: u64,
    /// Chunks that are still to come.
    left: AtomicU64,
    inner: Mutex<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    tree: Option<TreeHash>,
    source: [u64; 4],
    stats: Vec<(u32, Stats)>,
}

impl Growing {
    pub(super) fn new(len: u64, chunks: u64) -> Self {
        Self { len, left: AtomicU64::new(chunks), inner: Mutex::default() }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    /// Length in bytes.
    pub(super) fn len(&self) -> u64 {
        self.len
    }

    /// Takes pieces that [`hash::pieces`] made with this length.
    pub(super) fn insert(&self, pieces: &[Piece]) {
        if self.len > CHUNK {
            self.lock().tree.get_or_insert_with(|| TreeHash::new(self.len)).insert(pieces);
        }
    }

    /// Adds a source chunk's fingerprint, in any order, and what packing did to source tensor `tensor`.
    pub(super) fn note(&self, fingerprint: &Digest, tensor: u32, stats: Option<&Stats>) {
        let mut inner = self.lock();
        for (sum, word) in inner.source.iter_mut().zip(fingerprint.as_chunks::<8>().0) {
            *sum = sum.wrapping_add(u64::from_le_bytes(*word));
        }
        if let Some(stats) = stats {
            match inner.stats.iter_mut().find(|(t, _)| *t == tensor) {
                Some((_, sum)) => sum.merge(stats),
                None => inner.stats.push((tensor, *stats)),
            }
        }
    }

    /// One chunk less to come; whether it was the last.
    pub(super) fn chunk_done(&self) -> bool {
        self.left.fetch_sub(1, Ordering::AcqRel) == 1
    }

    /// True where no chunk is to come at all.
    pub(super) fn is_complete(&self) -> bool {
        self.left.load(Ordering::Acquire) == 0
    }

    /// Sum of the source fingerprints, and stats by source tensor in order.
    pub(super) fn take_notes(&self) -> ([u64; 4], Vec<(u32, Stats)>) {
        let mut inner = self.lock();
        let mut stats = std::mem::take(&mut inner.stats);
        stats.sort_unstable_by_key(|(tensor, _)| *tensor);
        (inner.source, stats)
    }

    /// The hash and the stored chaining values. What no piece has covered is read with `read(offset, buffer)`.
    pub(super) fn finish(
        &self,
        buffer: &mut Vec<u8>,
        read: impl Fn(u64, &mut [u8]) -> io::Result<()>,
    ) -> io::Result<(Digest, Vec<Digest>)> {
        let tree = self.lock().tree.take();
        finish_tree(self.len, tree, buffer, read)
    }
}

/// See [`Growing::finish`].
pub(crate) fn finish_tree(
    len: u64,
    tree: Option<TreeHash>,
    buffer: &mut Vec<u8>,
    read: impl Fn(u64, &mut [u8]) -> io::Result<()>,
) -> io::Result<(Digest, Vec<Digest>)> {
    buffer.resize(buffer.len().max(SUBTREE as usize), 0);
    if len <= CHUNK {
        let bytes = &mut buffer[..len as usize];
        read(0, bytes)?;
        return Ok((hash::hash(bytes), Vec::new()));
    }
    let mut tree = tree.unwrap_or_else(|| TreeHash::new(len));
    for gap in tree.missing() {
        let mut at = gap.start;
        while at < gap.end {
            // Up to the next MiB, so that pieces stay whole.
            let end = gap.end.min((at / SUBTREE + 1) * SUBTREE);
            let bytes = &mut buffer[..(end - at) as usize];
            read(at, bytes)?;
            tree.insert(&hash::pieces(len, at, bytes));
            at = end;
        }
    }
    tree.finish().ok_or_else(|| io::Error::other("a hash is incomplete after all its bytes were read"))
}
