//! What the driver of a family of cards does for the types beside this file, which own what they stand for.
//!
//! A family implements [`Driver`] and [`Card`] (`backend/cuda`, `backend/hip`, `backend/level_zero`); nothing else knows which
//! it is. Handles are the family's own numbers: addresses of its objects, as a rule.

use super::CardInfo;
use std::any::Any;
use std::borrow::Cow;
use std::sync::Arc;

/// A family's own name of one of its objects, never 0.
pub(crate) type Handle = usize;

/// What came of a call.
pub(crate) type Done<T = ()> = Result<T, Refusal>;

/// What a driver said when it refused a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Refusal {
    /// Its name of the error: `CUDA_ERROR_OUT_OF_MEMORY`.
    pub(crate) name: Cow<'static, str>,
    /// Its number.
    pub(crate) code: u32,
    /// Whether memory was short.
    pub(crate) is_short: bool,
}

/// Why there is no driver that would do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum NoDriver {
    /// None of its libraries was found.
    Absent,
    /// The library lacks a function.
    Symbol(&'static str),
    /// Its version and the oldest that would do, in words.
    Old { found: String, needs: String },
    /// It did not start.
    Start(Refusal),
}

/// A driver that was found.
pub(crate) trait Driver: Send + Sync {
    /// Its cards, in the order of their numbers; none where it has none.
    fn cards(&self) -> Done<Vec<CardInfo>>;

    /// Opens a card of those.
    fn open(&self, card: &CardInfo) -> Done<Arc<dyn Card>>;
}

/// A kernel of loaded ones.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Found {
    pub(crate) function: Handle,
    /// Members of a group that it was compiled for.
    pub(crate) group: u32,
}

/// An argument of a kernel.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Arg {
    /// An address on the card (0: null), or a number of 64 bits.
    U64(u64),
    /// A number of 32 bits.
    U32(u32),
    /// A float.
    F32(f32),
    /// A matrix that is copied by tiles, as [`Card::tensor_map`] wrote it.
    Map([u64; 16]),
}

/// A launch of a kernel.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Launch<'a> {
    pub(crate) function: Handle,
    /// Groups; none of the numbers is 0.
    pub(crate) grid: [u32; 3],
    /// Members of a group.
    pub(crate) group: u32,
    /// Bytes of shared memory beside what the kernel declares.
    pub(crate) shared: u32,
    /// Whether it may start as soon as the kernel before it lets it, where the family can do that.
    pub(crate) early: bool,
    pub(crate) args: &'a [Arg],
}

/// A card that was opened; it is closed when this is dropped, after all that was made of it. Any thread may call, several at
/// once; one stream, event or graph is used by one thread at a time.
///
/// # Safety
/// Of all unsafe functions: handles and addresses are ones that this card gave and that were not given back; a kernel's arguments
/// are those that it declares, and stay within allocations that live until the stream is past it; what is copied lives that
/// long too.
#[allow(unsafe_code, reason = "what the calls need is said above")]
#[allow(clippy::missing_safety_doc, reason = "one contract for all, above")]
pub(crate) trait Card: Send + Sync {
    /// For a family that looks at another of its own cards.
    fn as_any(&self) -> &dyn Any;

    /// Bytes that are free now, and all.
    fn memory(&self) -> Done<(u64, u64)>;
    /// Lets kernels of this card read and write the memory of `other`, of the same family, where something leads there.
    fn reach(&self, other: &dyn Card) -> Done<bool>;

    /// Memory of the card, of whatever value; at least one byte, aligned to 256.
    fn allocate(&self, bytes: u64) -> Done<u64>;
    /// The same, for what kernels of other cards write while kernels of this one read it.
    fn allocate_exchanged(&self, bytes: u64) -> Done<u64> {
        self.allocate(bytes)
    }
    /// Frees it, after all that uses it.
    unsafe fn free(&self, address: u64);
    /// Memory of the host, of whatever value, aligned to a page, which kernels of all cards of the family reach at the same address.
    fn pin(&self, bytes: usize) -> Done<usize>;
    unsafe fn unpin(&self, address: usize);
    /// Pins memory of the host that is there already, which the card only reads; where the family can do so.
    unsafe fn register(&self, address: usize, bytes: usize) -> Done;
    unsafe fn unregister(&self, address: usize);

    /// A queue of work, which does one thing after another.
    fn stream(&self) -> Done<Handle>;
    /// Gives it back when it is idle.
    unsafe fn free_stream(&self, stream: Handle);
    /// Waits until all that it was given is done.
    unsafe fn synchronize(&self, stream: Handle) -> Done;
    /// Whether all that it was given is done.
    unsafe fn is_idle(&self, stream: Handle) -> Done<bool>;
    /// What the stream is given from now on begins after the event, as it was recorded last; at once where it never was. Of any
    /// card of the family.
    unsafe fn wait(&self, stream: Handle, event: Handle) -> Done;

    /// A moment in a stream; one that measures time where `timed`.
    fn event(&self, timed: bool) -> Done<Handle>;
    unsafe fn free_event(&self, event: Handle);
    /// Comes when the stream has done what it was given so far.
    unsafe fn record(&self, event: Handle, stream: Handle) -> Done;
    /// Waits for an event; returns at once where it was never recorded.
    unsafe fn wait_for(&self, event: Handle) -> Done;
    /// Milliseconds between two timed events that were waited for.
    unsafe fn between(&self, first: Handle, second: Handle) -> Done<f32>;

    /// Sets bytes, in the order of the stream.
    unsafe fn fill(&self, stream: Handle, address: u64, value: u8, bytes: usize) -> Done;
    /// Copies from the host's memory; from what is not pinned, the call may wait.
    unsafe fn copy_to(&self, stream: Handle, to: u64, from: *const u8, bytes: usize) -> Done;
    /// Copies to the host's memory.
    unsafe fn copy_from(&self, stream: Handle, to: *mut u8, from: u64, bytes: usize) -> Done;

    /// Loads this program's kernels; `None` where it was built without any for this card.
    fn kernels(&self) -> Done<Option<Handle>>;
    unsafe fn free_kernels(&self, kernels: Handle);
    /// The kernel called `name`, or `None` where there is none.
    unsafe fn function(&self, kernels: Handle, name: &str) -> Done<Option<Found>>;
    /// Lets launches ask for as much shared memory as a group may have; gives how much that is beside what the kernel declares.
    unsafe fn allow_shared(&self, function: Handle) -> Done<u32>;
    unsafe fn launch(&self, stream: Handle, launch: &Launch<'_>) -> Done;

    /// What the stream is given from now on is recorded, not done.
    unsafe fn begin_recording(&self, stream: Handle) -> Done;
    /// Ends it, whatever came of it in between; gives what can be launched.
    unsafe fn end_recording(&self, stream: Handle) -> Done<Handle>;
    unsafe fn launch_graph(&self, stream: Handle, graph: Handle) -> Done;
    unsafe fn free_graph(&self, graph: Handle);

    /// How a card is told of a matrix of `rows` × `width` bytes at `address` of which it copies tiles (rows, bytes), with pieces of
    /// 16 bytes swapped over 128 where `swapped`; only where kernels take such.
    fn tensor_map(&self, address: u64, shape: [usize; 2], tile: [u32; 2], swapped: bool) -> Done<[u64; 16]>;
}
