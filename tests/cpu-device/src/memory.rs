//! Memory that the host and kernels share.

use crate::Error;
use crate::device::Shared;
use opencl3::memory::{CL_MEM_READ_WRITE, CL_MEM_SVM_FINE_GRAIN_BUFFER, svm_alloc, svm_free};
use opencl3::types::cl_svm_mem_flags;
use std::ffi::c_void;
use std::sync::Arc;

/// Shared virtual memory, fine-grained: host and kernels see what each other writes, at the same addresses.
#[derive(Debug)]
pub struct Memory {
    shared: Arc<Shared>,
    whole: *mut c_void,
    start: usize,
    bytes: usize,
}

// SAFETY: it is memory of the process; who reads and writes it is for whoever has its address.
unsafe impl Send for Memory {}
// SAFETY: as above.
unsafe impl Sync for Memory {}

impl Memory {
    pub(crate) fn new(shared: &Arc<Shared>, bytes: usize, align: usize) -> Result<Self, Error> {
        let refused = || Error::refused(format!("{bytes} bytes of memory, aligned to {align}"));
        // OpenCL aligns to no more than its largest type.
        let whole = bytes.max(1).checked_add(align).filter(|_| align.is_power_of_two());
        let whole = whole.ok_or(-61).map_err(refused())?;
        let flags: cl_svm_mem_flags = CL_MEM_READ_WRITE | CL_MEM_SVM_FINE_GRAIN_BUFFER;
        // SAFETY: the flags are ones that there are, and 0 is the default alignment.
        let whole = unsafe { svm_alloc(shared.context, flags, whole, 0) }.map_err(refused())?;
        let start = whole.expose_provenance().next_multiple_of(align);
        Ok(Self { shared: Arc::clone(shared), whole, start, bytes })
    }

    /// Its first byte, whose provenance is exposed.
    pub fn address(&self) -> usize {
        self.start
    }

    /// How many there are.
    pub fn bytes(&self) -> usize {
        self.bytes
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: allocated in `new`, freed once.
        let _ = unsafe { svm_free(self.shared.context, self.whole) };
    }
}
