//! Writing the tensors' bytes behind a header.

use super::header::Header;
use super::name::display_name;
use std::io::{self, Write};

/// Writes a GGUF front to back: the header at once, then the tensors' bytes as they come, padded as the tensor
/// table says (the last one too, as the standard tools do).
#[derive(Debug)]
pub struct DataWriter<'h, W> {
    out: W,
    header: &'h Header,
    next: usize,
    written: u64,
}

impl<'h, W: Write> DataWriter<'h, W> {
    /// Writes the header and the padding behind it.
    ///
    /// # Errors
    /// Where `out` fails.
    pub fn new(mut out: W, header: &'h Header) -> io::Result<Self> {
        out.write_all(header.raw())?;
        pad(&mut out, header.raw().len() as u64, header.alignment())?;
        let mut writer = Self { out, header, next: 0, written: 0 };
        writer.advance()?;
        Ok(writer)
    }

    /// Writes the next bytes of the current tensor; the tensor after it is current once they are complete.
    ///
    /// # Errors
    /// [`io::ErrorKind::InvalidInput`] where the tensor does not have so many left; or where `out` fails.
    pub fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        if bytes.is_empty() {
            return Ok(());
        }
        let left = self.header.tensors().get(self.next).map_or(0, |t| t.bytes.saturating_sub(self.written));
        if bytes.len() as u64 > left {
            let name =
                self.header.tensors().get(self.next).map_or_else(String::new, |t| display_name(t.name()));
            let text = format!("{} bytes for tensor `{name}`, which takes {left} more", bytes.len());
            return Err(io::Error::new(io::ErrorKind::InvalidInput, text));
        }
        self.out.write_all(bytes)?;
        self.written = self.written.saturating_add(bytes.len() as u64);
        self.advance()
    }

    /// Index of the tensor whose bytes come next; the number of tensors when all are written.
    pub fn current(&self) -> usize {
        self.next
    }

    /// Gives `out` back.
    ///
    /// # Errors
    /// [`io::ErrorKind::InvalidInput`] where a tensor is not complete; or where `out` fails.
    pub fn finish(mut self) -> io::Result<W> {
        if let Some(t) = self.header.tensors().get(self.next) {
            let text = format!("tensor `{}` has {} of {} bytes", t.display_name(), self.written, t.bytes);
            return Err(io::Error::new(io::ErrorKind::InvalidInput, text));
        }
        self.out.flush()?;
        Ok(self.out)
    }

    /// Moves past every tensor that is complete.
    fn advance(&mut self) -> io::Result<()> {
        while let Some(t) = self.header.tensors().get(self.next) {
            if self.written < t.bytes {
                break;
            }
            pad(&mut self.out, t.bytes, self.header.alignment())?;
            self.next = self.next.saturating_add(1);
            self.written = 0;
        }
        Ok(())
    }
}

/// Zeros from `len` up to a multiple of `alignment`.
fn pad(out: &mut impl Write, len: u64, alignment: u32) -> io::Result<()> {
    const ZEROS: [u8; 4096] = [0; 4096];
    let over = len.checked_rem(alignment.into()).unwrap_or(0);
    let mut left = if over == 0 { 0 } else { u64::from(alignment).saturating_sub(over) };
    while left > 0 {
        let step = left.min(ZEROS.len() as u64);
        out.write_all(ZEROS.get(..step as usize).unwrap_or(&ZEROS))?;
        left = left.saturating_sub(step);
    }
    Ok(())
}
