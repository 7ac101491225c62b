//! Memory that files are read into.

/// A page: `pread` copies to an address that is a multiple of it at 1.6 times the speed that it has elsewhere, and a
/// large `Vec` starts 16 bytes behind one.
const PAGE: usize = 4096;

/// A buffer that grows as needed and is used again and again: one per thread.
#[derive(Debug, Default)]
pub(crate) struct Buffer {
    bytes: Vec<u8>,
}

impl Buffer {
    /// `len` bytes from a page on; what they hold is left from before.
    pub(crate) fn take(&mut self, len: usize) -> &mut [u8] {
        if self.bytes.len() < len + PAGE {
            self.bytes.resize(len + PAGE, 0);
        }
        let start = self.bytes.as_ptr().align_offset(PAGE).min(PAGE);
        &mut self.bytes[start..start + len]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn starts_on_a_page() {
        let mut buffer = Buffer::default();
        for len in [0, 1, 5000, 1 << 20, 3] {
            let bytes = buffer.take(len);
            assert_eq!(bytes.len(), len);
            assert_eq!(bytes.as_ptr().align_offset(PAGE), 0);
        }
    }
}
