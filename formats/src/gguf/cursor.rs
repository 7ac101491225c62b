//! Reading a header front to back, in bounded steps, keeping every byte.

use super::error::GgufFault;
use super::limits::MAX_HEADER_BYTES;
use crate::size;
use crate::source::ReadAt;

/// Bytes of the first read; each further read takes as much as there is already, up to [`MAX_READ`].
const FIRST_READ: usize = 64 << 10;

/// Bytes of one read at most, where a single value does not need more.
const MAX_READ: usize = 1 << 20;

/// A position in a growing copy of the file's first bytes. Every length is compared with the bytes left in the
/// file, then with the header limit, before anything is allocated for it.
pub(super) struct Cursor<'s> {
    raw: Vec<u8>,
    at: usize,
    len: u64,
    limit: u64,
    source: Option<&'s dyn ReadAt>,
}

impl<'s> Cursor<'s> {
    /// Over a file, of which at most `limit` bytes are kept.
    pub(super) fn over(source: &'s dyn ReadAt, limit: u64) -> Self {
        Self { raw: Vec::new(), at: 0, len: source.len(), limit, source: Some(source) }
    }

    /// Over a header that is in memory.
    pub(super) fn within(raw: Vec<u8>) -> Cursor<'static> {
        let len = raw.len() as u64;
        Cursor { raw, at: 0, len, limit: MAX_HEADER_BYTES, source: None }
    }

    /// The next byte's offset.
    pub(super) fn at(&self) -> u64 {
        self.at as u64
    }

    /// Bytes that follow in the file.
    pub(super) fn left(&self) -> u64 {
        self.len.saturating_sub(self.at())
    }

    /// What was kept, from the start of the file to here.
    pub(super) fn seen(&self) -> &[u8] {
        self.raw.get(..self.at).unwrap_or(&[])
    }

    /// Up to `most` of the following bytes, without moving on.
    pub(super) fn peek(&mut self, most: usize) -> Result<&[u8], GgufFault> {
        let want = self.left().min(most as u64);
        let end = self.need(want, "start")?;
        Ok(self.raw.get(self.at..end).unwrap_or(&[]))
    }

    /// Moves past `n` bytes and gives them.
    pub(super) fn bytes(&mut self, n: u64, what: &'static str) -> Result<&[u8], GgufFault> {
        let end = self.need(n, what)?;
        let start = std::mem::replace(&mut self.at, end);
        Ok(self.raw.get(start..end).unwrap_or(&[]))
    }

    /// A little-endian u32.
    pub(super) fn u32(&mut self, what: &'static str) -> Result<u32, GgufFault> {
        Ok(u32::from_le_bytes(self.array(what)?))
    }

    /// A little-endian u64.
    pub(super) fn u64(&mut self, what: &'static str) -> Result<u64, GgufFault> {
        Ok(u64::from_le_bytes(self.array(what)?))
    }

    /// Makes room for `n` more bytes (no more than the file or the limit has), so that the copy does not have to
    /// move later, when the tables are in memory too.
    pub(super) fn reserve(&mut self, n: u64) {
        let end = self.at().saturating_add(n).min(self.len).min(self.limit);
        if self.source.is_some()
            && let Some(end) = size::to_usize(end)
        {
            self.raw.reserve_exact(end.saturating_sub(self.raw.len()));
        }
    }

    /// What was kept, cut here.
    pub(super) fn finish(mut self) -> Vec<u8> {
        self.raw.truncate(self.at);
        self.raw.shrink_to_fit();
        self.raw
    }

    fn array<const N: usize>(&mut self, what: &'static str) -> Result<[u8; N], GgufFault> {
        let (at, left) = (self.at(), self.left());
        let bytes = self.bytes(N as u64, what)?;
        bytes.try_into().map_err(|_| GgufFault::Truncated { what, at, need: N as u64, left })
    }

    /// Has the next `n` bytes in memory and gives the position after them.
    fn need(&mut self, n: u64, what: &'static str) -> Result<usize, GgufFault> {
        let at = self.at();
        if n > self.left() {
            return Err(GgufFault::Truncated { what, at, need: n, left: self.left() });
        }
        let end = at.checked_add(n).filter(|end| *end <= self.limit).and_then(size::to_usize);
        let Some(end) = end else { return Err(GgufFault::HeaderTooLarge { at, limit: self.limit }) };
        if end > self.raw.len() {
            self.read_to(end)?;
        }
        Ok(end)
    }

    /// Reads on, at least to `end`, which is within the file and the limit.
    fn read_to(&mut self, end: usize) -> Result<(), GgufFault> {
        let start = self.raw.len();
        let most = size::to_usize(self.len.min(self.limit)).unwrap_or(usize::MAX);
        let step = start.clamp(FIRST_READ, MAX_READ);
        let end = start.saturating_add(step).max(end).min(most);
        if self.raw.capacity() < end {
            let capacity = self.raw.capacity().saturating_mul(2).max(end).min(most);
            self.raw.reserve_exact(capacity.saturating_sub(start));
        }
        self.raw.resize(end, 0);
        let (Some(source), Some(buffer)) = (self.source, self.raw.get_mut(start..)) else { return Ok(()) };
        source
            .read_exact_at(start as u64, buffer)
            .map_err(|source| GgufFault::Io { doing: format!("read at byte {start}"), source })
    }
}
