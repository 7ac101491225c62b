//! Random-access byte sources: the one way this crate reads.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::{FileExt, FileTypeExt};
use std::path::Path;
use std::time::SystemTime;

/// Bytes of a fixed length that can be read at any offset, from any thread.
pub trait ReadAt: Send + Sync {
    /// Length in bytes, as it was when the source was opened.
    fn len(&self) -> u64;

    /// True when there is not one byte.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Fills `buf` with the bytes at `offset`; a source that has fewer bytes is an
    /// [`io::ErrorKind::UnexpectedEof`].
    fn read_exact_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()>;
}

/// Most bytes that [`is_zero`] holds at once.
const PIECE: u64 = 1 << 20;

/// Whether all bytes of a range are zero, read in pieces: a range may be longer than memory.
///
/// # Errors
/// Where the source cannot be read, or ends before the range does.
pub fn is_zero(source: &dyn ReadAt, range: Range<u64>) -> io::Result<bool> {
    let mut buffer = vec![0; range.end.saturating_sub(range.start).min(PIECE) as usize];
    let mut at = range.start;
    while at < range.end {
        let piece = &mut buffer[..(range.end - at).min(PIECE) as usize];
        source.read_exact_at(at, piece)?;
        if piece.iter().any(|byte| *byte != 0) {
            return Ok(false);
        }
        at += piece.len() as u64;
    }
    Ok(true)
}

impl ReadAt for [u8] {
    fn len(&self) -> u64 {
        <[u8]>::len(self) as u64
    }

    fn read_exact_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        let start = usize::try_from(offset).ok();
        let bytes = start
            .and_then(|start| self.get(start..start.checked_add(buf.len())?))
            .ok_or(io::ErrorKind::UnexpectedEof)?;
        buf.copy_from_slice(bytes);
        Ok(())
    }
}

impl ReadAt for Vec<u8> {
    fn len(&self) -> u64 {
        Vec::len(self) as u64
    }

    fn read_exact_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        self.as_slice().read_exact_at(offset, buf)
    }
}

impl<T: ReadAt + ?Sized> ReadAt for &T {
    fn len(&self) -> u64 {
        (**self).len()
    }

    fn read_exact_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        (**self).read_exact_at(offset, buf)
    }
}

impl<T: ReadAt + ?Sized> ReadAt for Box<T> {
    fn len(&self) -> u64 {
        (**self).len()
    }

    fn read_exact_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        (**self).read_exact_at(offset, buf)
    }
}

/// An open file and the length it had when it was opened. Reads go through `pread`, so one descriptor serves
/// all threads, and a file that shrinks meanwhile is an error, never a signal.
#[derive(Debug)]
pub struct FileSource {
    file: File,
    len: u64,
    modified: Option<SystemTime>,
}

impl FileSource {
    /// Takes an open regular file.
    pub fn new(file: File) -> io::Result<Self> {
        let meta = file.metadata()?;
        regular(&meta)?;
        Ok(Self { len: meta.len(), modified: meta.modified().ok(), file })
    }

    /// Opens `path` for reading.
    pub fn open(path: &Path) -> io::Result<Self> {
        // Before opening, since to open a pipe is to wait for whoever writes to it.
        regular(&std::fs::metadata(path)?)?;
        Self::new(File::open(path)?)
    }

    /// Whether length and time of modification are those of when it was opened.
    pub fn is_unchanged(&self) -> io::Result<bool> {
        let meta = self.file.metadata()?;
        Ok(meta.len() == self.len && meta.modified().ok() == self.modified)
    }

    /// The open file.
    pub fn file(&self) -> &File {
        &self.file
    }
}

impl ReadAt for FileSource {
    fn len(&self) -> u64 {
        self.len
    }

    fn read_exact_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        self.file.read_exact_at(buf, offset)
    }
}

fn regular(meta: &std::fs::Metadata) -> io::Result<()> {
    let kind = meta.file_type();
    let what = match kind {
        _ if kind.is_file() => return Ok(()),
        _ if kind.is_dir() => {
            return Err(io::Error::new(io::ErrorKind::IsADirectory, "is a directory, not a file"));
        }
        _ if kind.is_fifo() => "is a pipe",
        _ => "is a device or socket",
    };
    Err(io::Error::new(io::ErrorKind::InvalidInput, format!("{what}, expected a regular file")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn zeros_are_seen_piece_by_piece() {
        let mut bytes = vec![0u8; 2 * PIECE as usize + 3];
        let len = bytes.len() as u64;
        assert!(is_zero(&bytes, 0..len).expect("read"));
        assert!(is_zero(&bytes, 5..5).expect("read"));
        assert!(is_zero(&bytes, 0..len + 1).is_err());
        for at in [0, PIECE - 1, PIECE, len - 1] {
            bytes[at as usize] = 1;
            assert!(!is_zero(&bytes, 0..len).expect("read"), "{at}");
            assert!(is_zero(&bytes, at + 1..len).expect("read"), "{at}");
            bytes[at as usize] = 0;
        }
    }
}
