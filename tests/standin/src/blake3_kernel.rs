//! What `gantry_blake3` of `kernels/device/blake3.c` computes.

use crate::code::{Code, ILLEGAL_ADDRESS};
use crate::driver::Driver;
use blake3::Hasher;
use blake3::hazmat::HasherExt;

/// Threads of a group.
pub(crate) const GROUP: u32 = 256;

/// Bytes of a description: `Stretch` of `blake3.c`.
const DESCRIBED: usize = 24;

/// Bytes of a chunk, and of a block, which the kernel always reads as a whole.
const CHUNK: u64 = 1024;
const BLOCK: usize = 64;

/// A stretch is at most so long.
const MOST: usize = 1 << 20;

/// Hashes `count` stretches of `memory`: their descriptions and their values are `tables`.
pub(crate) fn run(
    driver: &mut Driver,
    card: usize,
    count: usize,
    memory: usize,
    (stretches, values): (usize, usize),
) -> Result<(), Code> {
    if !driver.holds(card, stretches, count * DESCRIBED) || !driver.holds(card, values, count * 32) {
        return Err(ILLEGAL_ADDRESS);
    }
    for i in 0..count {
        let described = std::ptr::with_exposed_provenance::<[u8; DESCRIBED]>(stretches + i * DESCRIBED);
        // SAFETY: the table has as many, as was just seen.
        let described = unsafe { described.read_unaligned() };
        let hash = Stretch::of(&described).hash(driver, card, memory)?;
        let value = std::ptr::with_exposed_provenance_mut::<[u8; 32]>(values + i * 32);
        // SAFETY: as above.
        unsafe { value.write_unaligned(hash) };
    }
    Ok(())
}

struct Stretch {
    start: u64,
    counter: u64,
    bytes: usize,
    root: bool,
}

impl Stretch {
    fn of(described: &[u8; DESCRIBED]) -> Self {
        let (longs, ints) = described.split_at(16);
        let (longs, ints) = (longs.as_chunks().0, ints.as_chunks().0);
        Self {
            start: u64::from_le_bytes(longs[0]),
            counter: u64::from_le_bytes(longs[1]),
            bytes: u32::from_le_bytes(ints[0]) as usize,
            root: u32::from_le_bytes(ints[1]) != 0,
        }
    }

    fn hash(&self, driver: &mut Driver, card: usize, memory: usize) -> Result<[u8; 32], Code> {
        let start = memory + self.start as usize;
        // The last block is read to its end, whatever of it belongs to the stretch.
        let reads = self.bytes.max(1).next_multiple_of(BLOCK);
        if !driver.holds(card, start, reads) || !start.is_multiple_of(16) || self.bytes > MOST {
            return Err(ILLEGAL_ADDRESS);
        }
        let flip = driver.settings.flip.and_then(|at| at.checked_sub(self.start));
        if let Some(at) = flip.filter(|at| *at < self.bytes as u64 && !driver.flipped) {
            let byte = std::ptr::with_exposed_provenance_mut::<u8>(start + at as usize);
            // SAFETY: it lies in the stretch, which lies in an allocation.
            unsafe { *byte ^= 1 };
            driver.flipped = true;
        }
        let bytes = std::ptr::with_exposed_provenance::<u8>(start);
        // SAFETY: it lies in an allocation, as was seen, that nobody writes while the driver is locked.
        let bytes = unsafe { std::slice::from_raw_parts(bytes, self.bytes) };
        let mut hasher = Hasher::new();
        if self.root {
            return Ok(hasher.update(bytes).finalize().into());
        }
        if bytes.is_empty() {
            return Err(ILLEGAL_ADDRESS);
        }
        Ok(hasher.set_input_offset(self.counter * CHUNK).update(bytes).finalize_non_root())
    }
}
