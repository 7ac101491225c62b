//! A card that was opened, and all calls for it; what they do is in the files beside this one.

use super::Limits;
use super::context::Context;
use super::error::{done, refusal};
use super::event::Event;
use super::graph::Graph;
use super::module::{self, Function, Kernels};
use super::stream::Stream;
use crate::backend::device::driver::calls::{Card, Done, Found, Handle, Launch};
use level_zero_sys::{ze_device_handle_t, ze_result_t};
use std::any::Any;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// A card. Handles of what is made of it are addresses of boxes.
pub(super) struct LevelZeroCard {
    context: Arc<Context>,
    device: Handle,
    limits: Limits,
    /// Bytes of its memory that this program has taken, and those of each allocation.
    taken: Arc<AtomicU64>,
    sizes: Mutex<BTreeMap<u64, u64>>,
    /// Recordings that have begun, by stream.
    begun: Mutex<BTreeMap<Handle, Graph>>,
}

/// Gives a thing away, by its address.
fn give<T>(thing: T) -> Handle {
    Box::into_raw(Box::new(thing)).expose_provenance()
}

/// # Safety
/// Given away by [`give`] as a `T`, and not taken back.
unsafe fn at<'a, T>(handle: Handle) -> &'a T {
    // SAFETY: the caller's promise.
    unsafe { &*std::ptr::with_exposed_provenance::<T>(handle) }
}

/// # Safety
/// As [`at`], and nobody uses it any more.
unsafe fn take<T>(handle: Handle) -> T {
    // SAFETY: the caller's promise.
    *unsafe { Box::from_raw(std::ptr::with_exposed_provenance_mut::<T>(handle)) }
}

impl LevelZeroCard {
    pub(super) fn new(context: Arc<Context>, device: Handle, limits: Limits, taken: Arc<AtomicU64>) -> Self {
        Self { context, device, limits, taken, sizes: Mutex::default(), begun: Mutex::default() }
    }
}

impl Card for LevelZeroCard {
    fn as_any(&self) -> &dyn Any {
        self
    }

    /// The core of Level Zero does not tell what other programs have taken.
    fn memory(&self) -> Done<(u64, u64)> {
        let all = self.limits.memory;
        Ok((all.saturating_sub(self.taken.load(Ordering::Relaxed)), all))
    }

    /// Memory of all cards of a context is reached at the same addresses, where anything leads there.
    fn reach(&self, other: &dyn Card) -> Done<bool> {
        let Some(other) = other.as_any().downcast_ref::<Self>() else { return Ok(false) };
        if !Arc::ptr_eq(&self.context, &other.context) {
            return Ok(false);
        }
        let (device, peer) = (self.device as ze_device_handle_t, other.device as ze_device_handle_t);
        let mut can = 0;
        // SAFETY: both devices are ones that the driver gave, and it writes one byte.
        done(unsafe { self.context.ze.zeDeviceCanAccessPeer(device, peer, &raw mut can) })?;
        Ok(can != 0)
    }

    fn allocate(&self, bytes: u64) -> Done<u64> {
        let address = self.context.allocate(self.device, bytes, self.limits.allocation)?;
        self.taken.fetch_add(bytes, Ordering::Relaxed);
        self.sizes.lock().unwrap_or_else(PoisonError::into_inner).insert(address, bytes);
        Ok(address)
    }

    unsafe fn free(&self, address: u64) {
        // Before it is freed: then the address may be another's.
        let bytes = self.sizes.lock().unwrap_or_else(PoisonError::into_inner).remove(&address);
        // SAFETY: the caller's promise.
        unsafe { self.context.free(address as usize) };
        self.taken.fetch_sub(bytes.unwrap_or(0), Ordering::Relaxed);
    }

    fn pin(&self, bytes: usize) -> Done<usize> {
        self.context.pin(bytes)
    }

    unsafe fn unpin(&self, address: usize) {
        // SAFETY: the caller's promise.
        unsafe { self.context.unpin(address) };
    }

    /// The specification has no way to do so.
    unsafe fn register(&self, _: usize, _: usize) -> Done {
        Err(refusal(ze_result_t::ZE_RESULT_ERROR_UNSUPPORTED_FEATURE))
    }

    unsafe fn unregister(&self, _: usize) {}

    fn stream(&self) -> Done<Handle> {
        Stream::new(&self.context, self.device, self.limits.ordinal).map(give)
    }

    unsafe fn free_stream(&self, stream: Handle) {
        // SAFETY: the caller's promise.
        drop(unsafe { take::<Stream>(stream) });
    }

    unsafe fn synchronize(&self, stream: Handle) -> Done {
        // SAFETY: the caller's promise.
        unsafe { at::<Stream>(stream) }.synchronize()
    }

    unsafe fn is_idle(&self, stream: Handle) -> Done<bool> {
        // SAFETY: the caller's promise.
        unsafe { at::<Stream>(stream) }.is_idle()
    }

    unsafe fn wait(&self, stream: Handle, event: Handle) -> Done {
        // SAFETY: the caller's promise.
        unsafe { at::<Stream>(stream).wait(at::<Event>(event)) }
    }

    fn event(&self, timed: bool) -> Done<Handle> {
        Event::new(&self.context, timed).map(give)
    }

    unsafe fn free_event(&self, event: Handle) {
        // SAFETY: the caller's promise.
        drop(unsafe { take::<Event>(event) });
    }

    unsafe fn record(&self, event: Handle, stream: Handle) -> Done {
        // SAFETY: the caller's promise.
        unsafe { at::<Stream>(stream).record(at::<Event>(event)) }
    }

    unsafe fn wait_for(&self, event: Handle) -> Done {
        // SAFETY: the caller's promise.
        unsafe { at::<Event>(event) }.last().map_or(Ok(()), |moment| moment.wait())
    }

    /// The clock has fewer bits than its number, and begins again at 0.
    unsafe fn between(&self, first: Handle, second: Handle) -> Done<f32> {
        // SAFETY: the caller's promise.
        let times = unsafe { (at::<Event>(first).time(), at::<Event>(second).time()) };
        let (Some(first), Some(second)) = times else {
            return Err(refusal(ze_result_t::ZE_RESULT_ERROR_INVALID_SYNCHRONIZATION_OBJECT));
        };
        let bits = self.limits.bits.clamp(1, 64);
        let ticks = second.wrapping_sub(first) & (u64::MAX >> (64 - bits));
        Ok((ticks as f64 * self.limits.tick / 1e6) as f32)
    }

    unsafe fn fill(&self, stream: Handle, address: u64, value: u8, bytes: usize) -> Done {
        // SAFETY: the caller's promise.
        unsafe { at::<Stream>(stream).fill(address, value, bytes) }
    }

    unsafe fn copy_to(&self, stream: Handle, to: u64, from: *const u8, bytes: usize) -> Done {
        // SAFETY: the caller's promise.
        unsafe { at::<Stream>(stream).copy_to(to, from, bytes) }
    }

    unsafe fn copy_from(&self, stream: Handle, to: *mut u8, from: u64, bytes: usize) -> Done {
        // SAFETY: the caller's promise.
        unsafe { at::<Stream>(stream).copy_from(to, from, bytes) }
    }

    fn kernels(&self) -> Done<Option<Handle>> {
        Ok(Kernels::new(&self.context, self.device, self.limits).map(give))
    }

    unsafe fn free_kernels(&self, kernels: Handle) {
        // SAFETY: the caller's promise.
        drop(unsafe { take::<Kernels>(kernels) });
    }

    unsafe fn function(&self, kernels: Handle, name: &str) -> Done<Option<Found>> {
        // SAFETY: the caller's promise.
        unsafe { at::<Kernels>(kernels) }.function(name)
    }

    /// Local memory is what a kernel declares.
    unsafe fn allow_shared(&self, _: Handle) -> Done<u32> {
        Ok(0)
    }

    unsafe fn launch(&self, stream: Handle, launch: &Launch<'_>) -> Done {
        // SAFETY: the caller's promise.
        unsafe { module::launch(at::<Stream>(stream), at::<Function>(launch.function), launch) }
    }

    unsafe fn begin_recording(&self, stream: Handle) -> Done {
        // SAFETY: the caller's promise.
        let graph = Graph::begin(unsafe { at::<Stream>(stream) })?;
        self.begun.lock().unwrap_or_else(PoisonError::into_inner).insert(stream, graph);
        Ok(())
    }

    unsafe fn end_recording(&self, stream: Handle) -> Done<Handle> {
        let begun = self.begun.lock().unwrap_or_else(PoisonError::into_inner).remove(&stream);
        let graph = begun.ok_or_else(|| refusal(ze_result_t::ZE_RESULT_ERROR_INVALID_ARGUMENT))?;
        // SAFETY: the caller's promise.
        graph.end(unsafe { at::<Stream>(stream) })?;
        Ok(give(graph))
    }

    unsafe fn launch_graph(&self, stream: Handle, graph: Handle) -> Done {
        // SAFETY: the caller's promise.
        unsafe { at::<Graph>(graph).launch(at::<Stream>(stream)) }
    }

    unsafe fn free_graph(&self, graph: Handle) {
        // SAFETY: the caller's promise.
        drop(unsafe { take::<Graph>(graph) });
    }

    /// No kernel of this family takes one.
    fn tensor_map(&self, _: u64, _: [usize; 2], _: [u32; 2], _: bool) -> Done<[u64; 16]> {
        Err(refusal(ze_result_t::ZE_RESULT_ERROR_UNSUPPORTED_FEATURE))
    }
}
