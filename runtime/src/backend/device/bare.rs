//! What loading is measured against: bytes of a file to a card, and nothing else.

use super::driver::{Arg, CardError, CardName, Context, DeviceMemory, Event, Module, Pinned, Start, Stream};
use super::lift;
use crate::Result;
use crate::load::Hashed;
use gantry_formats::container::{Container, ContainerError};
use gantry_formats::source::ReadAt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Bytes of a read and a copy.
const STEP: u64 = 16 << 20;

/// Reads a container's first segment with `threads` threads, each into two pinned buffers of its own in turn, and copies
/// from there to `to` in a stream of its own. The time is that of reading and copying, without allocating.
///
/// # Errors
/// What the file and the driver say.
pub fn read_and_copy(container: &Container, to: &DeviceMemory, threads: usize) -> Result<Duration> {
    let source = container.card(0)?;
    let bytes = source.bytes.min(to.bytes());
    let context = to.context();
    let lanes = (0..threads.max(1)).map(|_| Lane::new(context, STEP.min(bytes.max(1)) as usize));
    let mut lanes = lanes.collect::<Result<Vec<_>, CardError>>()?;
    let next = AtomicU64::new(0);
    let start = Instant::now();
    let work = |lane: &mut Lane| -> Result<()> {
        for turn in 0.. {
            let at = next.fetch_add(STEP, Ordering::Relaxed);
            if at >= bytes {
                break;
            }
            let len = STEP.min(bytes - at) as usize;
            let (buffer, copied) = &mut lane.buffers[turn % 2];
            copied.synchronize()?;
            let read = source.file.read_exact_at(source.offset + at, &mut buffer[..len]);
            read.map_err(|source| ContainerError::Io { path: container.path().into(), source })?;
            copy(to, at, &buffer[..len], &lane.stream)?;
            copied.record(&lane.stream)?;
        }
        lane.stream.synchronize()?;
        Ok(())
    };
    std::thread::scope(|scope| {
        let threads: Vec<_> = lanes.iter_mut().map(|lane| scope.spawn(|| work(lane))).collect();
        threads.into_iter().try_for_each(|t| t.join().unwrap_or_else(|p| std::panic::resume_unwind(p)))
    })?;
    Ok(start.elapsed())
}

/// A thread's buffers and stream.
struct Lane {
    // First, for a stream that goes away waits for the copies from the buffers.
    stream: Stream,
    buffers: [(Pinned, Event); 2],
}

impl Lane {
    fn new(context: &Arc<Context>, bytes: usize) -> Result<Self, CardError> {
        let buffer = || Ok((Pinned::new(context, bytes, "measuring")?, Event::new(context, false)?));
        Ok(Self { buffers: [buffer()?, buffer()?], stream: Stream::new(context)? })
    }
}

#[allow(unsafe_code, reason = "an asynchronous copy")]
fn copy(to: &DeviceMemory, at: u64, from: &[u8], stream: &Stream) -> Result<(), CardError> {
    // SAFETY: the caller writes to the buffer again only after an event that it records behind this copy, and frees it
    // only after it waited for the stream.
    unsafe { to.write_async(at, from, stream) }
}

/// Bytes per second that a card hashes: all blobs of a container's first segment, which lies in `arena`, at once; the best
/// of several.
///
/// # Errors
/// What the driver says.
#[allow(unsafe_code, reason = "a launch")]
pub fn hash_rate(container: &Container, arena: &DeviceMemory) -> Result<f64> {
    let context = arena.context();
    let kernel = Module::new(context)?.function("gantry_blake3")?;
    let hashed: Vec<Hashed> = container
        .stretches(0)
        .map(|s| Hashed::of(container, &s, container.table().blobs()[s.blob].offset + s.offset))
        .collect();
    let described = lift::described(&hashed);
    let stream = Stream::new(context)?;
    let table = DeviceMemory::new(context, described.len() as u64, "measuring")?;
    table.write(0, &described, &stream)?;
    let values = DeviceMemory::new(context, 32 * hashed.len() as u64, "measuring")?;
    let args = [arena.address(), table.address(), values.address()].map(Arg::U64);
    let (begin, end) = (Event::new(context, true)?, Event::new(context, true)?);
    let mut best = f32::INFINITY;
    for _ in 0..8 {
        begin.record(&stream)?;
        // SAFETY: each stretch lies in the arena, which has room behind it, and has a description and a value; all of
        // them outlive the stream's work, which is waited for.
        unsafe {
            kernel.launch(&stream, [hashed.len() as u32, 1, 1], (kernel.group(), 0), Start::After, &args)
        }?;
        end.record(&stream)?;
        end.synchronize()?;
        best = best.min(begin.until(&end)?);
    }
    let bytes: u64 = hashed.iter().map(|h| h.bytes).sum();
    Ok(bytes as f64 / f64::from(best) * 1e3)
}

/// Bytes per second of copies of `bytes` from pinned memory of the host to `card`: the best of several. More than 256 MiB
/// are not copied at once.
///
/// # Errors
/// What the driver says.
pub fn pinned_copy(card: CardName, bytes: u64) -> Result<f64> {
    let bytes = bytes.clamp(1, 256 << 20) as usize;
    let context = Context::open(card)?;
    let from = Pinned::new(&context, bytes, "measuring")?;
    let to = DeviceMemory::new(&context, bytes as u64, "measuring")?;
    let (stream, begin, end) =
        (Stream::new(&context)?, Event::new(&context, true)?, Event::new(&context, true)?);
    let mut best = f32::INFINITY;
    for _ in 0..8 {
        begin.record(&stream)?;
        copy(&to, 0, &from, &stream)?;
        end.record(&stream)?;
        end.synchronize()?;
        best = best.min(begin.until(&end)?);
    }
    Ok(bytes as f64 / f64::from(best) * 1e3)
}
