//! Memory: a card's, and the host's that cards copy from.
#![allow(unsafe_code, reason = "calls of the driver, each with its reason")]

use super::{Context, CudaError, Stream};
use cudarc::driver::{result, sys};
use std::ops::{Deref, DerefMut, Range};
use std::sync::Arc;

/// An allocation on a card.
#[derive(Debug)]
pub struct DeviceMemory {
    context: Arc<Context>,
    address: sys::CUdeviceptr,
    bytes: u64,
}

impl DeviceMemory {
    /// `bytes` bytes, of whatever value, for `what`.
    ///
    /// # Errors
    /// [`CudaError::OutOfMemory`] with what is free.
    pub(crate) fn new(context: &Arc<Context>, bytes: u64, what: &'static str) -> Result<Self, CudaError> {
        context.current()?;
        let size = usize::try_from(bytes.max(1)).unwrap_or(usize::MAX);
        // SAFETY: an address that nothing else has; it is freed when this is dropped.
        let address = unsafe { result::malloc_sync(size) };
        let address = address.map_err(|e| match e.0 {
            sys::CUresult::CUDA_ERROR_OUT_OF_MEMORY => match context.memory() {
                Ok((free, _)) => CudaError::OutOfMemory { card: context.info().card, what, bytes, free },
                Err(_) => context.failed("allocating", e),
            },
            _ => context.failed("allocating", e),
        })?;
        context.ledger.take(address, what, bytes);
        Ok(Self { context: Arc::clone(context), address, bytes })
    }

    /// Where it begins on the card.
    pub(crate) fn address(&self) -> u64 {
        self.address
    }

    /// Its length.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Whose memory it is.
    pub(crate) fn context(&self) -> &Arc<Context> {
        &self.context
    }

    /// Where `range` begins.
    ///
    /// # Panics
    /// Where it is not within this memory.
    fn within(&self, range: Range<u64>) -> sys::CUdeviceptr {
        assert!(range.start <= range.end && range.end <= self.bytes, "{range:?} of {} bytes", self.bytes);
        self.address + range.start
    }

    /// Sets bytes to `value`, in the order of `stream`.
    ///
    /// # Errors
    /// What the driver says.
    ///
    /// # Panics
    /// Where `range` is not within this memory.
    pub(crate) fn fill(&self, range: Range<u64>, value: u8, stream: &Stream) -> Result<(), CudaError> {
        let (at, len) = (self.within(range.clone()), (range.end - range.start) as usize);
        self.context.current()?;
        // SAFETY: `len` bytes at `at` are this memory's.
        unsafe { result::memset_d8_async(at, value, len, stream.raw()) }
            .map_err(|e| self.context.failed("filling memory", e))
    }

    /// Copies `from` to `at`, and waits for it.
    ///
    /// # Errors
    /// What the driver says.
    ///
    /// # Panics
    /// Where it does not fit.
    pub(crate) fn write(&self, at: u64, from: &[u8], stream: &Stream) -> Result<(), CudaError> {
        // SAFETY: `from` lives until the stream was waited for.
        unsafe { self.write_async(at, from, stream) }?;
        stream.synchronize()
    }

    /// Starts to copy `from` to `at`.
    ///
    /// # Safety
    /// `from` stays where and as it is until the stream is past this copy.
    ///
    /// # Errors
    /// What the driver says.
    ///
    /// # Panics
    /// Where it does not fit.
    pub(crate) unsafe fn write_async(&self, at: u64, from: &[u8], stream: &Stream) -> Result<(), CudaError> {
        let to = self.within(at..at + from.len() as u64);
        self.context.current()?;
        // SAFETY: as many bytes at `to` are this memory's; the caller keeps `from`.
        unsafe { result::memcpy_htod_async(to, from, stream.raw()) }
            .map_err(|e| self.context.failed("copying to it", e))
    }

    /// Copies what begins at `at` to `into`, after all that the stream was given before, and waits for it.
    ///
    /// # Errors
    /// What the driver says.
    ///
    /// # Panics
    /// Where it is not within this memory.
    pub(crate) fn read(&self, at: u64, into: &mut [u8], stream: &Stream) -> Result<(), CudaError> {
        let from = self.within(at..at + into.len() as u64);
        self.context.current()?;
        // SAFETY: as many bytes at `from` are this memory's, and `into` lives until the stream was waited for.
        unsafe { result::memcpy_dtoh_async(into, from, stream.raw()) }
            .map_err(|e| self.context.failed("copying from it", e))?;
        stream.synchronize()
    }
}

impl Drop for DeviceMemory {
    fn drop(&mut self) {
        // Where the card does not become current, another may be, and the driver knows whose this is.
        let _ = self.context.current();
        // The ledger first: once it is freed, the address may be another's.
        self.context.ledger.free(self.address);
        // SAFETY: allocated in `new`, freed once. The driver waits for what still uses it.
        let _ = unsafe { result::free_sync(self.address) };
    }
}

/// Memory of the host that stays where it is, so that a card copies from it at full speed.
#[derive(Debug)]
pub(crate) struct Pinned {
    context: Arc<Context>,
    bytes: std::ptr::NonNull<u8>,
    len: usize,
}

// SAFETY: it owns its bytes, as a `Box<[u8]>` does.
unsafe impl Send for Pinned {}
// SAFETY: as above.
unsafe impl Sync for Pinned {}

impl Pinned {
    /// `len` zeroed bytes for `what`.
    ///
    /// # Errors
    /// [`CudaError::NoPinned`] with what the host has free.
    pub(crate) fn new(context: &Arc<Context>, len: usize, what: &'static str) -> Result<Self, CudaError> {
        context.current()?;
        let card = context.info().card;
        let short = || {
            let free = crate::memory::free(None).bytes;
            CudaError::NoPinned { card, what, bytes: len as u64, free }
        };
        // SAFETY: the driver gives `len` bytes, freed when this is dropped.
        let bytes = unsafe { result::malloc_host(len.max(1), sys::CU_MEMHOSTALLOC_PORTABLE) };
        let bytes = bytes.map_err(|e| match e.0 {
            sys::CUresult::CUDA_ERROR_OUT_OF_MEMORY => short(),
            _ => context.failed("pinning memory of the host", e),
        })?;
        let bytes = std::ptr::NonNull::new(bytes.cast::<u8>()).ok_or_else(short)?;
        // SAFETY: `len` bytes from there on are ours alone.
        unsafe { bytes.write_bytes(0, len) };
        Ok(Self { context: Arc::clone(context), bytes, len })
    }
}

impl Pinned {
    /// Where it is, for who sees it as something else than bytes.
    pub(super) fn expose(&self) -> usize {
        self.bytes.as_ptr().expose_provenance()
    }

    /// Where it is, for kernels too: a card writes to it across the bus.
    pub(crate) fn address(&self) -> u64 {
        self.bytes.as_ptr().addr() as u64
    }
}

impl Deref for Pinned {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: `len` initialised bytes that live as long as `self`.
        unsafe { std::slice::from_raw_parts(self.bytes.as_ptr(), self.len) }
    }
}

impl DerefMut for Pinned {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above, and `self` is borrowed alone.
        unsafe { std::slice::from_raw_parts_mut(self.bytes.as_ptr(), self.len) }
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        let _ = self.context.current();
        // SAFETY: allocated in `new`, freed once.
        let _ = unsafe { result::free_host(self.bytes.as_ptr().cast()) };
    }
}

/// Bytes of the host that a card may copy from where they lie, for as long as this lives.
#[derive(Debug)]
pub(crate) struct Registered<'a> {
    context: Arc<Context>,
    bytes: &'a [u8],
}

impl<'a> Registered<'a> {
    /// Pins `bytes`, which begin and end on pages, read-only.
    ///
    /// # Errors
    /// What the driver says: not every kind of mapping can be pinned.
    pub(crate) fn new(context: &Arc<Context>, bytes: &'a [u8]) -> Result<Self, CudaError> {
        context.current()?;
        let flags = sys::CU_MEMHOSTREGISTER_PORTABLE | sys::CU_MEMHOSTREGISTER_READ_ONLY;
        // SAFETY: the bytes stay mapped for 'a, and the card only reads them.
        let done = unsafe { sys::cuMemHostRegister_v2(bytes.as_ptr() as *mut _, bytes.len(), flags) };
        done.result().map_err(|e| context.failed("pinning a mapping", e))?;
        Ok(Self { context: Arc::clone(context), bytes })
    }
}

impl Deref for Registered<'_> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.bytes
    }
}

impl Drop for Registered<'_> {
    fn drop(&mut self) {
        let _ = self.context.current();
        // SAFETY: registered in `new`, once.
        let _ = unsafe { sys::cuMemHostUnregister(self.bytes.as_ptr() as *mut _) };
    }
}
