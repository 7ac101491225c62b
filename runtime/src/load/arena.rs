//! A card's arena: the bytes of its segment in one piece, where kernels read them.

use gantry_formats::container::{CardSource, ContainerError};
use memmap2::{Advice, Mmap, MmapMut, MmapOptions};
use std::io;
use std::ops::Range;
use std::path::Path;

/// One card's segment in memory, page-aligned. Read-only from the moment that it is handed out.
#[derive(Debug)]
pub struct Arena {
    memory: Mmap,
    window: Range<usize>,
}

impl Arena {
    /// The segment's bytes.
    pub fn bytes(&self) -> &[u8] {
        &self.memory[self.window.clone()]
    }

    /// An owned arena of `bytes` zeroed bytes that can still be written.
    pub(super) fn writable(bytes: usize) -> io::Result<MmapMut> {
        // An empty mapping is an error of the system; one byte costs the same page.
        let memory = MmapOptions::new().len(bytes.max(1)).map_anon()?;
        // 2 MiB pages: 512 times fewer faults while loading, fewer TLB misses while computing. Only advice.
        let _ = memory.advise(Advice::HugePage);
        Ok(memory)
    }

    /// An arena of these bytes.
    #[cfg(test)]
    pub(crate) fn of(bytes: &[u8]) -> io::Result<Self> {
        let mut memory = Self::writable(bytes.len())?;
        memory[..bytes.len()].copy_from_slice(bytes);
        Self::sealed(memory, bytes.len())
    }

    /// Closes a filled arena of `bytes` bytes for writing.
    pub(super) fn sealed(memory: MmapMut, bytes: usize) -> io::Result<Self> {
        Ok(Self { memory: memory.make_read_only()?, window: 0..bytes })
    }

    /// A card's segment as its file has it, without a copy.
    ///
    /// The caveat of every mapping: another process that truncates the file makes the next access a SIGBUS, and
    /// one that writes to it changes bytes after they were verified. `--load read` has neither weakness.
    #[allow(unsafe_code, reason = "the one mapping of a file; everything else here is safe")]
    pub(super) fn mapped(source: &CardSource<'_>, path: &Path) -> Result<Self, ContainerError> {
        let io = |source| ContainerError::Io { path: path.into(), source };
        let too_large = || io(io::ErrorKind::OutOfMemory.into());
        let start = usize::try_from(source.offset).map_err(|_| too_large())?;
        let len = usize::try_from(source.bytes).map_err(|_| too_large())?;
        let end = start.checked_add(len).ok_or_else(too_large)?;
        // SAFETY: the mapping is read-only and private to this process, and the file's length was checked
        // against `end` when the container was opened. What stays open is that another process changes the
        // file meanwhile; that risk is the documented price of `--load map`, which the user chooses, and the
        // length is checked again before and after the bytes are verified.
        let memory = unsafe { MmapOptions::new().len(end.max(1)).map(source.file.file()) }.map_err(io)?;
        Ok(Self { memory, window: start..end })
    }

    /// Tells the system that the whole segment is wanted soon.
    pub(super) fn will_need(&self) {
        let _ = self.memory.advise_range(Advice::WillNeed, self.window.start, self.window.len());
    }
}
