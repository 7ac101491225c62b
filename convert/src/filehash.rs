//! BLAKE3 of whole files, by several threads.

use crate::buffer::Buffer;
use crate::parallel;
use crate::progress::Progress;
use crate::unpack::changed;
use gantry_formats::hash::{self, Digest, TreeHash};
use gantry_formats::source::ReadAt;
use std::sync::Mutex;

/// Bytes read and hashed at a time.
const STEP: u64 = 1 << 20;

/// The plain BLAKE3 of all bytes of `source`.
///
/// # Errors
/// Where it cannot be read, or became shorter.
pub(crate) fn hash_file(source: &dyn ReadAt, threads: usize, progress: &Progress) -> anyhow::Result<Digest> {
    let len = source.len();
    if len <= STEP {
        let mut bytes = vec![0; len as usize];
        source.read_exact_at(0, &mut bytes).map_err(changed)?;
        progress.add(len);
        return Ok(hash::hash(&bytes));
    }
    let tree = Mutex::new(TreeHash::new(len));
    let work = |buffer: &mut Buffer, start: u64| {
        let size = STEP.min(len - start) as usize;
        let bytes = buffer.take(size);
        source.read_exact_at(start, bytes).map_err(changed)?;
        let pieces = hash::pieces(len, start, bytes);
        tree.lock().unwrap_or_else(|e| e.into_inner()).insert(&pieces);
        progress.add(size as u64);
        Ok(())
    };
    parallel::for_each(threads, (0..len).step_by(STEP as usize), Buffer::default, work)?;
    let tree = tree.into_inner().unwrap_or_else(|e| e.into_inner());
    let (digest, _) = tree.finish().ok_or_else(|| anyhow::anyhow!("a part of the file was not hashed"))?;
    Ok(digest)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equals_the_plain_hash() {
        for len in [0usize, 1, 1 << 20, (1 << 20) + 1, (3 << 20) + 777] {
            let bytes: Vec<u8> = (0..len).map(|i| ((i * 7) >> 3) as u8).collect();
            let progress = Progress::new("hash", len as u64);
            assert_eq!(hash_file(&bytes, 3, &progress).unwrap(), hash::hash(&bytes), "{len}");
        }
    }
}
