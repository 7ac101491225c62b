//! BLAKE3 of stretches, beside the `blake3` crate: bytes of every length around the borders of words, blocks, chunks and
//! levels of the tree, as whole blobs and as parts of longer ones. All exact.

use blake3::hazmat::HasherExt;

use crate::launch::{launch, read, write};
use crate::random::Rng;

/// Bytes of a stretch at most.
const MOST: usize = 1 << 20;

/// A stretch that lies at `start`: part of a blob, in which it begins at `offset`, or all of one.
struct Stretch {
    start: usize,
    bytes: usize,
    offset: u64,
    whole: bool,
}

impl Stretch {
    fn expected(&self, memory: &[u8]) -> [u8; 32] {
        let bytes = &memory[self.start..self.start + self.bytes];
        if self.whole {
            return *blake3::hash(bytes).as_bytes();
        }
        let mut hasher = blake3::Hasher::new();
        hasher.set_input_offset(self.offset).update(bytes);
        hasher.finalize_non_root()
    }

    /// As the kernel takes it.
    fn described(&self) -> [u8; 24] {
        let mut described = [0; 24];
        described[..8].copy_from_slice(&(self.start as u64).to_le_bytes());
        described[8..16].copy_from_slice(&(self.offset / 1024).to_le_bytes());
        described[16..20].copy_from_slice(&(self.bytes as u32).to_le_bytes());
        described[20..].copy_from_slice(&u32::from(self.whole).to_le_bytes());
        described
    }
}

/// Runs the kernel over stretches, each of which must get its hash.
#[track_caller]
fn check(memory: &[u8], stretches: &[Stretch]) {
    let described: Vec<u8> = stretches.iter().flat_map(Stretch::described).collect();
    let mut values = vec![0xa5u8; 32 * stretches.len()];
    let mut args = [read(memory), read(&described), write(&mut values)];
    if !launch("gantry_blake3", [stretches.len(), 1, 1], &mut args) {
        return;
    }
    for (s, value) in stretches.iter().zip(values.as_chunks::<32>().0) {
        let what = format!("{} bytes at {}, {} of a blob, whole: {}", s.bytes, s.start, s.offset, s.whole);
        assert_eq!(*value, s.expected(memory), "{what}");
    }
}

/// Random bytes with the 63 that may be read behind the last stretch.
fn memory(bytes: usize) -> Vec<u8> {
    let mut rng = Rng(bytes as u64 + 1);
    let words = (0..(bytes + 63).div_ceil(8)).flat_map(|_| rng.next().to_le_bytes());
    words.collect()
}

#[test]
fn hashes_of_every_border_are_those_of_the_crate() {
    let mut lengths = vec![0, 1, 2, 3, 4, 5, 15, 16, 17, 60, 61, 62, 63, 64, 65, 66, 67, 127, 128, 129];
    lengths.extend([959, 960, 961, 1008, 1020, 1021, 1022, 1023, 1024, 1025, 1026, 1087, 1088, 1089]);
    for chunks in [2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 33, 63, 64, 65, 100, 127, 129, 255, 256, 257, 300] {
        lengths.extend([chunks * 1024 - 1, chunks * 1024, chunks * 1024 + 1]);
    }
    let memory = memory(2 << 20);
    let mut stretches = Vec::new();
    for (i, &bytes) in lengths.iter().enumerate() {
        // Anywhere that is a multiple of 16.
        let start = 16 * (i * 131 % 4000);
        stretches.push(Stretch { start, bytes, offset: 0, whole: true });
        // The end of a longer blob, whose chunks are numbered past 32 bits in some.
        let offset = if i % 2 == 0 { MOST as u64 } else { (MOST as u64) << 23 };
        if bytes > 0 {
            stretches.push(Stretch { start, bytes, offset, whole: false });
        }
    }
    check(&memory, &stretches);
}

#[test]
fn hashes_of_long_stretches_are_those_of_the_crate() {
    let memory = memory(2 * MOST);
    let mut stretches = Vec::new();
    for bytes in [511 * 1024 + 77, 512 * 1024, 512 * 1024 + 1, 1000 * 1024 + 64, MOST - 1024, MOST - 1, MOST]
    {
        stretches.push(Stretch { start: MOST - bytes / 64 * 16, bytes, offset: 0, whole: true });
        stretches.push(Stretch { start: 4096, bytes, offset: 3 * MOST as u64, whole: false });
    }
    // The first part of a longer blob: its value is that of a subtree, not a hash.
    stretches.push(Stretch { start: 0, bytes: MOST, offset: 0, whole: false });
    check(&memory, &stretches);
}
