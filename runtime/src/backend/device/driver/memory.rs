//! Memory: a card's, and the host's that cards copy from.
#![allow(unsafe_code, reason = "calls of the driver, each with its reason")]

use super::calls::Done;
use super::{CardError, Context, Stream};
use std::ops::{Deref, DerefMut, Range};
use std::sync::Arc;

/// An allocation on a card.
#[derive(Debug)]
pub struct DeviceMemory {
    context: Arc<Context>,
    address: u64,
    bytes: u64,
}

impl DeviceMemory {
    /// `bytes` bytes, of whatever value, for `what`.
    ///
    /// # Errors
    /// [`CardError::OutOfMemory`] with what is free.
    pub(crate) fn new(context: &Arc<Context>, bytes: u64, what: &'static str) -> Result<Self, CardError> {
        let address = context.card().allocate(bytes.max(1));
        Self::of(context, address, bytes, what)
    }

    /// The same, for what kernels of other cards write while kernels of this one read it.
    ///
    /// # Errors
    /// As [`new`](Self::new).
    pub(crate) fn exchanged(
        context: &Arc<Context>,
        bytes: u64,
        what: &'static str,
    ) -> Result<Self, CardError> {
        let address = context.card().allocate_exchanged(bytes.max(1));
        Self::of(context, address, bytes, what)
    }

    fn of(
        context: &Arc<Context>,
        address: Done<u64>,
        bytes: u64,
        what: &'static str,
    ) -> Result<Self, CardError> {
        let address = address.map_err(|e| match context.memory() {
            Ok((free, _)) if e.is_short => {
                CardError::OutOfMemory { at: context.info().at, what, bytes, free }
            }
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
    fn within(&self, range: Range<u64>) -> u64 {
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
    pub(crate) fn fill(&self, range: Range<u64>, value: u8, stream: &Stream) -> Result<(), CardError> {
        let (at, len) = (self.within(range.clone()), (range.end - range.start) as usize);
        // SAFETY: `len` bytes at `at` are this memory's.
        unsafe { self.context.card().fill(stream.raw(), at, value, len) }
            .map_err(|e| self.context.failed("filling memory", e))
    }

    /// Copies `from` to `at`, and waits for it.
    ///
    /// # Errors
    /// What the driver says.
    ///
    /// # Panics
    /// Where it does not fit.
    pub(crate) fn write(&self, at: u64, from: &[u8], stream: &Stream) -> Result<(), CardError> {
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
    pub(crate) unsafe fn write_async(&self, at: u64, from: &[u8], stream: &Stream) -> Result<(), CardError> {
        let to = self.within(at..at + from.len() as u64);
        // SAFETY: as many bytes at `to` are this memory's; the caller keeps `from`.
        unsafe { self.context.card().copy_to(stream.raw(), to, from.as_ptr(), from.len()) }
            .map_err(|e| self.context.failed("copying to it", e))
    }

    /// Copies what begins at `at` to `into`, after all that the stream was given before, and waits for it.
    ///
    /// # Errors
    /// What the driver says.
    ///
    /// # Panics
    /// Where it is not within this memory.
    pub(crate) fn read(&self, at: u64, into: &mut [u8], stream: &Stream) -> Result<(), CardError> {
        let from = self.within(at..at + into.len() as u64);
        // SAFETY: as many bytes at `from` are this memory's, and `into` lives until the stream was waited for.
        unsafe { self.context.card().copy_from(stream.raw(), into.as_mut_ptr(), from, into.len()) }
            .map_err(|e| self.context.failed("copying from it", e))?;
        stream.synchronize()
    }
}

impl Drop for DeviceMemory {
    fn drop(&mut self) {
        // The ledger first: once it is freed, the address may be another's.
        self.context.ledger.free(self.address);
        // SAFETY: allocated in `new`, freed once. The driver waits for what still uses it.
        unsafe { self.context.card().free(self.address) };
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
    /// [`CardError::NoPinned`] with what the host has free.
    pub(crate) fn new(context: &Arc<Context>, len: usize, what: &'static str) -> Result<Self, CardError> {
        let short = || {
            let free = crate::memory::free(None).bytes;
            CardError::NoPinned { at: context.info().at, what, bytes: len as u64, free }
        };
        let address = context.card().pin(len.max(1)).map_err(|e| match e.is_short {
            true => short(),
            false => context.failed("pinning memory of the host", e),
        })?;
        let bytes = std::ptr::with_exposed_provenance_mut::<u8>(address);
        let bytes = std::ptr::NonNull::new(bytes).ok_or_else(short)?;
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
        // SAFETY: allocated in `new`, freed once.
        unsafe { self.context.card().unpin(self.bytes.as_ptr().addr()) };
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
    pub(crate) fn new(context: &Arc<Context>, bytes: &'a [u8]) -> Result<Self, CardError> {
        // SAFETY: the bytes stay mapped for 'a, and the card only reads them.
        unsafe { context.card().register(bytes.as_ptr().expose_provenance(), bytes.len()) }
            .map_err(|e| context.failed("pinning a mapping", e))?;
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
        // SAFETY: registered in `new`, once.
        unsafe { self.context.card().unregister(self.bytes.as_ptr().addr()) };
    }
}
