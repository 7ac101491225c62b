//! A bit of the arena that changes after it was copied and before it is hashed.

use crate::driver::lock;
use crate::launch::Launch;
use crate::settings::settings;

/// Bytes of a description: `Stretch` of `kernels/device/blake3.c`: start, counter, length, whether it is the whole.
const DESCRIBED: usize = 24;

/// Changes it where the launch, of the kernel that hashes, covers it.
pub(crate) fn flip(launch: &Launch) {
    let Some(at) = settings().flip else { return };
    let [memory, stretches] = [0, 1].map(|i| launch.number(i) as usize);
    for i in 0..launch.grid[0] as usize {
        let described = std::ptr::with_exposed_provenance::<[u8; DESCRIBED]>(stretches + i * DESCRIBED);
        // SAFETY: the table has as many as there are groups.
        let described = unsafe { described.read_unaligned() };
        let (longs, ints) = described.split_at(16);
        let start = u64::from_ne_bytes(longs.as_chunks().0[0]);
        let bytes = u32::from_ne_bytes(ints.as_chunks().0[0]);
        let mut driver = lock();
        if !driver.flipped && at.checked_sub(start).is_some_and(|at| at < bytes.into()) {
            let byte = std::ptr::with_exposed_provenance_mut::<u8>(memory + at as usize);
            // SAFETY: it lies in the stretch, which lies in the arena.
            unsafe { *byte ^= 1 };
            driver.flipped = true;
        }
    }
}
