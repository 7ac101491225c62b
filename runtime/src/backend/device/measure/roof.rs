//! The most that can be read.

use super::replay::{self, median_of};
use crate::Result;
use crate::backend::device::driver::{Context, DeviceMemory, Graph, Stream};
use crate::backend::device::kernels::{Args, Group, Kernels};
use std::sync::Arc;

/// Bytes that are read, where the card has room for them.
const BYTES: u64 = 4 << 30;

/// Groups for each multiprocessor that are tried: how many are best differs from card to card.
const GROUPS: [usize; 4] = [2, 4, 8, 32];

/// What a kernel that only reads gets.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Roof {
    /// Bytes per second.
    pub rate: f64,
    /// Bytes that were read each time.
    pub bytes: u64,
}

/// Reads as much memory as there is room for, with 16-byte loads, 8 under way in each thread.
pub(super) fn measure(context: &Arc<Context>) -> Result<Roof> {
    let kernels = Kernels::new(context)?;
    let stream = Stream::new(context)?;
    let bytes = BYTES.min(context.memory()?.0 / 2) / 16 * 16;
    let memory = DeviceMemory::new(context, bytes, "measuring")?;
    let sink = DeviceMemory::new(context, 16, "measuring")?;
    noise((&kernels, &stream), memory.address(), bytes, [1, u32::MAX, 0])?;
    let mut rate: f64 = 0.0;
    for groups in GROUPS {
        let grid = [groups * context.info().processors.max(1) as usize, 1, 1];
        let args = Args::at(&[memory.address(), sink.address()]).long(&[(bytes / 16) as usize]);
        let args = args.int(&grid[..1]);
        let graph = Graph::record(&stream, || read((&kernels, &stream), grid, &args))?;
        let times = replay::run(&stream, &mut [graph], (4, 12))?;
        rate = rate.max(bytes as f64 / median_of(&times) * 1e6);
    }
    Ok(Roof { rate, bytes })
}

#[allow(unsafe_code, reason = "a launch")]
fn read((kernels, stream): (&Kernels, &Stream), grid: [usize; 3], args: &Args) -> Result<()> {
    // SAFETY: as many bytes are the memory's, which lives until the stream was waited for, as does the sink.
    Ok(unsafe { kernels.launch(stream, "gantry_read", grid, Group::default(), args) }?)
}

/// Fills `bytes` bytes at `at` with random bits: `seed`, bits that are kept, bits that are set.
#[allow(unsafe_code, reason = "a launch")]
pub(super) fn noise(
    (kernels, stream): (&Kernels, &Stream),
    at: u64,
    bytes: u64,
    how: [u32; 3],
) -> Result<()> {
    let groups = ((bytes / 4).div_ceil(256) as usize).min(4096);
    let args = Args::at(&[at]).long(&[(bytes / 4) as usize]).int(&how.map(|n| n as usize)).int(&[groups]);
    // SAFETY: every caller gives bytes of an allocation that lives until the stream was waited for.
    Ok(unsafe { kernels.launch(stream, "gantry_noise", [groups, 1, 1], Group::default(), &args) }?)
}
