//! A card's context, and all calls for it; what they do is in the files beside this one.

use super::refusal;
use crate::backend::cuda::{memory, module, stream};
use crate::backend::device::driver::CardInfo;
use crate::backend::device::driver::calls::{Card, Done, Found, Handle, Launch};
use cudarc::driver::{result, sys};
use std::any::Any;

/// A card that was opened.
pub(super) struct CudaCard {
    device: sys::CUdevice,
    context: sys::CUcontext,
    /// 10 × major + minor.
    pub(super) generation: u32,
    /// Bytes of shared memory that a group may have.
    pub(super) shared: u32,
}

// SAFETY: a context may be current on any number of threads; every call below makes it current first.
unsafe impl Send for CudaCard {}
// SAFETY: as above; the driver's calls are safe to make from several threads.
unsafe impl Sync for CudaCard {}

impl CudaCard {
    pub(super) fn open(info: &CardInfo) -> Done<Self> {
        let device = result::device::get(info.at.card as i32).map_err(refusal)?;
        // SAFETY: the device is one that the driver gave; it is released when this is dropped.
        let context = unsafe { result::primary_ctx::retain(device) }.map_err(refusal)?;
        let opened = Self { device, context, generation: info.generation.sm(), shared: info.shared };
        opened.current()?;
        Ok(opened)
    }

    /// Makes this the context of the calling thread's next calls.
    pub(super) fn current(&self) -> Done {
        // SAFETY: the context is retained as long as `self` is.
        unsafe { result::ctx::set_current(self.context) }.map_err(refusal)
    }
}

impl Drop for CudaCard {
    fn drop(&mut self) {
        // SAFETY: retained in `open`. What the driver says at the end helps nobody.
        let _ = unsafe { result::primary_ctx::release(self.device) };
    }
}

impl Card for CudaCard {
    fn as_any(&self) -> &dyn Any {
        self
    }

    fn memory(&self) -> Done<(u64, u64)> {
        self.current()?;
        let (free, all) = result::mem_get_info().map_err(refusal)?;
        Ok((free as u64, all as u64))
    }

    fn reach(&self, other: &dyn Card) -> Done<bool> {
        let Some(other) = other.as_any().downcast_ref::<Self>() else { return Ok(false) };
        self.current()?;
        let mut can = 0;
        // SAFETY: both devices are ones that the driver gave, and it writes one integer.
        let asked = unsafe { sys::cuDeviceCanAccessPeer(&raw mut can, self.device, other.device) };
        asked.result().map_err(refusal)?;
        if can == 0 {
            return Ok(false);
        }
        // SAFETY: the other context is retained as long as `other` is, and without it this one reaches nothing.
        match unsafe { sys::cuCtxEnablePeerAccess(other.context, 0) } {
            // A context is the process's: it stays enabled for the next model.
            sys::CUresult::CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED => Ok(true),
            code => code.result().map(|()| true).map_err(refusal),
        }
    }

    fn allocate(&self, bytes: u64) -> Done<u64> {
        self.current()?;
        memory::allocate(bytes)
    }

    unsafe fn free(&self, address: u64) {
        // Where the card does not become current, another may be, and the driver knows whose this is.
        let _ = self.current();
        // SAFETY: the caller's promise.
        let _ = unsafe { result::free_sync(address) };
    }

    fn pin(&self, bytes: usize) -> Done<usize> {
        self.current()?;
        memory::pin(bytes)
    }

    unsafe fn unpin(&self, address: usize) {
        let _ = self.current();
        // SAFETY: the caller's promise.
        let _ = unsafe { result::free_host(std::ptr::with_exposed_provenance_mut(address)) };
    }

    unsafe fn register(&self, address: usize, bytes: usize) -> Done {
        self.current()?;
        // SAFETY: the caller's promise.
        unsafe { memory::register(address, bytes) }
    }

    unsafe fn unregister(&self, address: usize) {
        let _ = self.current();
        // SAFETY: the caller's promise.
        let _ = unsafe { sys::cuMemHostUnregister(std::ptr::with_exposed_provenance_mut(address)) };
    }

    fn stream(&self) -> Done<Handle> {
        self.current()?;
        stream::new_stream()
    }

    unsafe fn free_stream(&self, stream: Handle) {
        let _ = self.current();
        // SAFETY: the caller's promise.
        let _ = unsafe { result::stream::destroy(stream as sys::CUstream) };
    }

    unsafe fn synchronize(&self, stream: Handle) -> Done {
        self.current()?;
        // SAFETY: the caller's promise.
        unsafe { result::stream::synchronize(stream as sys::CUstream) }.map_err(refusal)
    }

    unsafe fn is_idle(&self, stream: Handle) -> Done<bool> {
        self.current()?;
        // SAFETY: the caller's promise.
        unsafe { stream::is_idle(stream) }
    }

    unsafe fn wait(&self, stream: Handle, event: Handle) -> Done {
        self.current()?;
        // SAFETY: the caller's promise.
        unsafe { stream::wait(stream, event) }
    }

    fn event(&self, timed: bool) -> Done<Handle> {
        self.current()?;
        stream::new_event(timed)
    }

    unsafe fn free_event(&self, event: Handle) {
        let _ = self.current();
        // SAFETY: the caller's promise.
        let _ = unsafe { result::event::destroy(event as sys::CUevent) };
    }

    unsafe fn record(&self, event: Handle, stream: Handle) -> Done {
        self.current()?;
        // SAFETY: the caller's promise.
        unsafe { result::event::record(event as sys::CUevent, stream as sys::CUstream) }.map_err(refusal)
    }

    unsafe fn wait_for(&self, event: Handle) -> Done {
        self.current()?;
        // SAFETY: the caller's promise.
        unsafe { result::event::synchronize(event as sys::CUevent) }.map_err(refusal)
    }

    unsafe fn between(&self, first: Handle, second: Handle) -> Done<f32> {
        self.current()?;
        // SAFETY: the caller's promise.
        unsafe { result::event::elapsed(first as sys::CUevent, second as sys::CUevent) }.map_err(refusal)
    }

    unsafe fn fill(&self, stream: Handle, address: u64, value: u8, bytes: usize) -> Done {
        self.current()?;
        // SAFETY: the caller's promise.
        unsafe { result::memset_d8_async(address, value, bytes, stream as sys::CUstream) }.map_err(refusal)
    }

    unsafe fn copy_to(&self, stream: Handle, to: u64, from: *const u8, bytes: usize) -> Done {
        self.current()?;
        // SAFETY: the caller's promise.
        let done = unsafe { sys::cuMemcpyHtoDAsync_v2(to, from.cast(), bytes, stream as sys::CUstream) };
        done.result().map_err(refusal)
    }

    unsafe fn copy_from(&self, stream: Handle, to: *mut u8, from: u64, bytes: usize) -> Done {
        self.current()?;
        // SAFETY: the caller's promise.
        let done = unsafe { sys::cuMemcpyDtoHAsync_v2(to.cast(), from, bytes, stream as sys::CUstream) };
        done.result().map_err(refusal)
    }

    fn kernels(&self) -> Done<Option<Handle>> {
        self.current()?;
        module::load()
    }

    unsafe fn free_kernels(&self, kernels: Handle) {
        let _ = self.current();
        // SAFETY: the caller's promise.
        let _ = unsafe { result::module::unload(kernels as sys::CUmodule) };
    }

    unsafe fn function(&self, kernels: Handle, name: &str) -> Done<Option<Found>> {
        self.current()?;
        // SAFETY: the caller's promise.
        unsafe { module::function(kernels, name) }
    }

    unsafe fn allow_shared(&self, function: Handle) -> Done<u32> {
        self.current()?;
        // SAFETY: the caller's promise.
        unsafe { module::allow_shared(function, self.shared) }
    }

    unsafe fn launch(&self, stream: Handle, launch: &Launch<'_>) -> Done {
        self.current()?;
        // SAFETY: the caller's promise.
        unsafe { module::launch(stream, launch, self.generation) }
    }

    unsafe fn begin_recording(&self, stream: Handle) -> Done {
        self.current()?;
        let mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
        // SAFETY: the caller's promise.
        unsafe { result::stream::begin_capture(stream as sys::CUstream, mode) }.map_err(refusal)
    }

    unsafe fn end_recording(&self, stream: Handle) -> Done<Handle> {
        self.current()?;
        // SAFETY: the caller's promise.
        unsafe { stream::end_recording(stream) }
    }

    unsafe fn launch_graph(&self, stream: Handle, graph: Handle) -> Done {
        self.current()?;
        // SAFETY: the caller's promise.
        unsafe { result::graph::launch(graph as sys::CUgraphExec, stream as sys::CUstream) }.map_err(refusal)
    }

    unsafe fn free_graph(&self, graph: Handle) {
        let _ = self.current();
        // SAFETY: the caller's promise.
        let _ = unsafe { result::graph::exec_destroy(graph as sys::CUgraphExec) };
    }

    fn tensor_map(&self, address: u64, shape: [usize; 2], tile: [u32; 2], swapped: bool) -> Done<[u64; 16]> {
        self.current()?;
        module::tensor_map(address, shape, tile, swapped)
    }
}
