//! A card, and all calls for it; what they do is in the files beside this one.

use super::refusal;
use crate::backend::device::driver::CardInfo;
use crate::backend::device::driver::calls::{Card, Done, Found, Handle, Launch, Refusal};
use crate::backend::hip::{memory, module, stream};
use hip_sys::{Code, Hip, capture};
use std::any::Any;
use std::ffi::c_int;
use std::sync::{Arc, Mutex};

/// A card that was opened. HIP keeps its cards open as long as the process lasts.
pub(super) struct HipCard {
    pub(super) hip: Arc<Hip>,
    number: c_int,
    /// `gfx942`
    pub(super) generation: String,
    /// Bytes of shared memory that a group may have.
    pub(super) shared: u32,
    /// What was loaded, which HIP may go on reading.
    pub(super) images: Mutex<Vec<(Handle, Vec<u64>)>>,
}

impl HipCard {
    pub(super) fn open(hip: &Arc<Hip>, info: &CardInfo) -> Done<Self> {
        let opened = Self {
            hip: Arc::clone(hip),
            number: info.at.card as c_int,
            generation: info.generation.to_string(),
            shared: info.shared,
            images: Mutex::default(),
        };
        opened.current()?;
        Ok(opened)
    }

    /// Makes this the card of the calling thread's next calls.
    pub(super) fn current(&self) -> Done {
        // SAFETY: it takes any number.
        self.done(unsafe { self.hip.set_device(self.number) })
    }

    /// What a call says, in this program's words.
    pub(super) fn done<T>(&self, result: Result<T, Code>) -> Done<T> {
        result.map_err(|code| refusal(&self.hip, code))
    }

    /// What this family does not do.
    fn unsupported() -> Refusal {
        let code = Code::NOT_SUPPORTED;
        Refusal { name: code.name().unwrap_or_default().into(), code: code.0, is_short: false }
    }
}

impl Card for HipCard {
    fn as_any(&self) -> &dyn Any {
        self
    }

    fn memory(&self) -> Done<(u64, u64)> {
        self.current()?;
        let (mut free, mut all) = (0, 0);
        // SAFETY: it writes two numbers.
        self.done(unsafe { self.hip.memory_info(&raw mut free, &raw mut all) })?;
        Ok((free as u64, all as u64))
    }

    fn reach(&self, other: &dyn Card) -> Done<bool> {
        let Some(other) = other.as_any().downcast_ref::<Self>() else { return Ok(false) };
        self.current()?;
        let mut can = 0;
        // SAFETY: it writes one integer.
        self.done(unsafe { self.hip.can_access_peer(&raw mut can, self.number, other.number) })?;
        if can == 0 {
            return Ok(false);
        }
        // SAFETY: it takes a number and no flags.
        match unsafe { self.hip.enable_peer_access(other.number, 0) } {
            // It is the process's: it stays enabled for the next model.
            Err(Code::PEER_ENABLED) => Ok(true),
            done => self.done(done.map(|()| true)),
        }
    }

    fn allocate(&self, bytes: u64) -> Done<u64> {
        self.current()?;
        self.done(memory::allocate(&self.hip, bytes))
    }

    fn allocate_exchanged(&self, bytes: u64) -> Done<u64> {
        self.current()?;
        self.done(memory::allocate_fine_grained(&self.hip, bytes))
    }

    unsafe fn free(&self, address: u64) {
        // Where the card does not become current, another may be, and HIP knows whose this is.
        let _ = self.current();
        // SAFETY: the caller's promise.
        let _ = unsafe { self.hip.free(memory::at(address)) };
    }

    fn pin(&self, bytes: usize) -> Done<usize> {
        self.current()?;
        self.done(memory::pin(&self.hip, bytes))
    }

    unsafe fn unpin(&self, address: usize) {
        let _ = self.current();
        // SAFETY: the caller's promise.
        let _ = unsafe { self.hip.host_free(std::ptr::with_exposed_provenance_mut(address)) };
    }

    unsafe fn register(&self, address: usize, bytes: usize) -> Done {
        self.current()?;
        // SAFETY: the caller's promise.
        self.done(unsafe { memory::register(&self.hip, address, bytes) })
    }

    unsafe fn unregister(&self, address: usize) {
        let _ = self.current();
        // SAFETY: the caller's promise.
        let _ = unsafe { self.hip.host_unregister(std::ptr::with_exposed_provenance_mut(address)) };
    }

    fn stream(&self) -> Done<Handle> {
        self.current()?;
        self.done(stream::new_stream(&self.hip))
    }

    unsafe fn free_stream(&self, stream: Handle) {
        let _ = self.current();
        // SAFETY: the caller's promise.
        let _ = unsafe { self.hip.stream_destroy(stream as hip_sys::Stream) };
    }

    unsafe fn synchronize(&self, stream: Handle) -> Done {
        self.current()?;
        // SAFETY: the caller's promise.
        self.done(unsafe { self.hip.stream_synchronize(stream as hip_sys::Stream) })
    }

    unsafe fn is_idle(&self, stream: Handle) -> Done<bool> {
        self.current()?;
        // SAFETY: the caller's promise.
        self.done(unsafe { stream::is_idle(&self.hip, stream) })
    }

    unsafe fn wait(&self, stream: Handle, event: Handle) -> Done {
        self.current()?;
        // SAFETY: the caller's promise.
        self.done(unsafe { self.hip.stream_wait(stream as hip_sys::Stream, event as hip_sys::Event, 0) })
    }

    fn event(&self, timed: bool) -> Done<Handle> {
        self.current()?;
        self.done(stream::new_event(&self.hip, timed))
    }

    unsafe fn free_event(&self, event: Handle) {
        let _ = self.current();
        // SAFETY: the caller's promise.
        let _ = unsafe { self.hip.event_destroy(event as hip_sys::Event) };
    }

    unsafe fn record(&self, event: Handle, stream: Handle) -> Done {
        self.current()?;
        // SAFETY: the caller's promise.
        self.done(unsafe { self.hip.event_record(event as hip_sys::Event, stream as hip_sys::Stream) })
    }

    unsafe fn wait_for(&self, event: Handle) -> Done {
        self.current()?;
        // SAFETY: the caller's promise.
        self.done(unsafe { self.hip.event_synchronize(event as hip_sys::Event) })
    }

    unsafe fn between(&self, first: Handle, second: Handle) -> Done<f32> {
        self.current()?;
        let mut milliseconds = 0.0;
        let (first, second) = (first as hip_sys::Event, second as hip_sys::Event);
        // SAFETY: the caller's promise; it writes one number.
        self.done(unsafe { self.hip.event_elapsed(&raw mut milliseconds, first, second) })?;
        Ok(milliseconds)
    }

    unsafe fn fill(&self, stream: Handle, address: u64, value: u8, bytes: usize) -> Done {
        self.current()?;
        // SAFETY: the caller's promise.
        self.done(unsafe { self.hip.fill(memory::at(address), value, bytes, stream as hip_sys::Stream) })
    }

    unsafe fn copy_to(&self, stream: Handle, to: u64, from: *const u8, bytes: usize) -> Done {
        self.current()?;
        // SAFETY: the caller's promise.
        self.done(unsafe { self.hip.copy_to(memory::at(to), from.cast(), bytes, stream as hip_sys::Stream) })
    }

    unsafe fn copy_from(&self, stream: Handle, to: *mut u8, from: u64, bytes: usize) -> Done {
        self.current()?;
        // SAFETY: the caller's promise.
        self.done(unsafe {
            self.hip.copy_from(to.cast(), memory::at(from), bytes, stream as hip_sys::Stream)
        })
    }

    fn kernels(&self) -> Done<Option<Handle>> {
        self.current()?;
        self.done(module::load(self))
    }

    unsafe fn free_kernels(&self, kernels: Handle) {
        let _ = self.current();
        // SAFETY: the caller's promise.
        unsafe { module::unload(self, kernels) };
    }

    unsafe fn function(&self, kernels: Handle, name: &str) -> Done<Option<Found>> {
        self.current()?;
        // SAFETY: the caller's promise.
        self.done(unsafe { module::function(&self.hip, kernels, name) })
    }

    unsafe fn allow_shared(&self, function: Handle) -> Done<u32> {
        self.current()?;
        // SAFETY: the caller's promise.
        self.done(unsafe { module::room(&self.hip, function, self.shared) })
    }

    unsafe fn launch(&self, stream: Handle, launch: &Launch<'_>) -> Done {
        self.current()?;
        // SAFETY: the caller's promise.
        self.done(unsafe { module::launch(&self.hip, stream, launch) })
    }

    unsafe fn begin_recording(&self, stream: Handle) -> Done {
        self.current()?;
        // SAFETY: the caller's promise.
        self.done(unsafe { self.hip.capture_begin(stream as hip_sys::Stream, capture::THREAD_LOCAL) })
    }

    unsafe fn end_recording(&self, stream: Handle) -> Done<Handle> {
        self.current()?;
        // SAFETY: the caller's promise.
        self.done(unsafe { stream::end_recording(&self.hip, stream) })
    }

    unsafe fn launch_graph(&self, stream: Handle, graph: Handle) -> Done {
        self.current()?;
        // SAFETY: the caller's promise.
        self.done(unsafe { self.hip.graph_launch(graph as hip_sys::GraphExec, stream as hip_sys::Stream) })
    }

    unsafe fn free_graph(&self, graph: Handle) {
        let _ = self.current();
        // SAFETY: the caller's promise.
        let _ = unsafe { self.hip.executable_destroy(graph as hip_sys::GraphExec) };
    }

    fn tensor_map(&self, _: u64, _: [usize; 2], _: [u32; 2], _: bool) -> Done<[u64; 16]> {
        Err(Self::unsupported())
    }
}
