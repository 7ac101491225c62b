//! The working memory of a session.

use crate::exchange::{Full, Reader, Short, Writer};
use crate::model::program::{Buffer, BufferId, Format};
use crate::{Result, RuntimeError};
use gantry_kernels::cpu::{Activations, I8Rows, Isa, Pool, Q8Rows};
use std::mem;

/// The content of a buffer; grows to the largest batch that came.
enum Rows {
    F32(Vec<f32>),
    Q8(Q8Rows),
    I8(I8Rows),
    Ids(Vec<u32>),
}

/// The buffers of a program.
pub(super) struct Buffers(Vec<Rows>);

impl Buffers {
    pub(super) fn new(buffers: &[Buffer]) -> Self {
        let rows = |b: &Buffer| match b.format {
            Format::F32 => Rows::F32(Vec::new()),
            Format::Q8 => Rows::Q8(Q8Rows::new()),
            Format::I8 => Rows::I8(I8Rows::new()),
            Format::Ids => Rows::Ids(Vec::new()),
        };
        Self(buffers.iter().map(rows).collect())
    }

    /// Bytes of a row of `buffer`.
    pub(super) fn row_bytes(buffer: &Buffer) -> usize {
        let n = buffer.width;
        match buffer.format {
            Format::F32 | Format::Ids => 4 * n,
            // A byte each; per 32 a scale and a correction of 4 bytes.
            Format::Q8 => n + n / 4,
            // The same per row, the bytes up to a multiple of 32.
            Format::I8 => n.next_multiple_of(32) + 8,
        }
    }

    /// Words of 32 bits that a row of `buffer` takes on its way to another card.
    pub(super) fn row_words(buffer: &Buffer) -> usize {
        let n = buffer.width;
        match buffer.format {
            Format::F32 | Format::Ids => n,
            Format::Q8 => n / 4 + n / 32,
            Format::I8 => n.next_multiple_of(32) / 4 + 1,
        }
    }

    /// Writes the first `rows` rows of `width` values of a buffer for another card.
    pub(super) fn send(
        &self,
        id: BufferId,
        rows: usize,
        width: usize,
        out: &mut Writer<'_>,
    ) -> Result<(), Full> {
        match &self.0[id.0] {
            Rows::F32(values) => out.f32s(&values[..rows * width]),
            Rows::Ids(ids) => out.u32s(&ids[..rows * width]),
            Rows::Q8(x) => put(out, x.quants(), x.scales()),
            Rows::I8(x) => put(out, x.padded_quants(), x.scales()),
        }
    }

    /// Reads what [`send`](Self::send) wrote.
    pub(super) fn receive(
        &mut self,
        id: BufferId,
        rows: usize,
        width: usize,
        words: &mut Reader<'_>,
    ) -> Result<(), Short> {
        match &mut self.0[id.0] {
            Rows::F32(values) => {
                values.resize(values.len().max(rows * width), 0.0);
                words.f32s(&mut values[..rows * width])
            }
            Rows::Ids(ids) => {
                ids.resize(ids.len().max(rows * width), 0);
                words.u32s(&mut ids[..rows * width])
            }
            Rows::Q8(x) => x.fill(rows, width, |quants, scales| take(words, quants, scales)),
            Rows::I8(x) => x.fill(rows, width, |quants, scales| take(words, quants, scales)),
        }
    }

    /// Takes rows as other devices hold them, values or quants and scales, each from a word on: quants of rows side by side.
    ///
    /// # Errors
    /// Where these are fewer.
    #[cfg(feature = "cards")]
    pub(super) fn take_words(
        &mut self,
        id: BufferId,
        rows: usize,
        width: usize,
        [values, scales]: [&[u32]; 2],
    ) -> Result<()> {
        let all = rows * width;
        let quantized = match &self.0[id.0] {
            Rows::F32(_) | Rows::Ids(_) => None,
            Rows::Q8(_) => Some(all / 32),
            Rows::I8(_) => Some(rows),
        };
        let needed = quantized.map_or([all, 0], |scales| [all.div_ceil(4), scales]);
        if values.len() < needed[0] || scales.len() < needed[1] {
            return Err(wrong_format());
        }
        let mut quants = values.iter().flat_map(|word| word.to_le_bytes()).map(u8::cast_signed);
        let mut put = |padded: &mut [i8], own: &mut [f32]| {
            let pitch = padded.len() / rows.max(1);
            for row in padded.chunks_exact_mut(pitch.max(1)) {
                row[width..].fill(0);
                row[..width].iter_mut().zip(&mut quants).for_each(|(to, from)| *to = from);
            }
            own.iter_mut().zip(scales).for_each(|(to, from)| *to = f32::from_bits(*from));
            Ok(())
        };
        match &mut self.0[id.0] {
            Rows::F32(own) => {
                own.resize(own.len().max(all), 0.0);
                own.iter_mut().zip(&values[..all]).for_each(|(to, from)| *to = f32::from_bits(*from));
                Ok(())
            }
            Rows::Ids(own) => {
                own.resize(own.len().max(all), 0);
                own[..all].copy_from_slice(&values[..all]);
                Ok(())
            }
            Rows::Q8(own) => own.fill(rows, width, put),
            Rows::I8(own) => own.fill(rows, width, &mut put),
        }
    }

    /// The values of an f32 buffer; none of another.
    pub(super) fn f32(&self, id: BufferId) -> &[f32] {
        match &self.0[id.0] {
            Rows::F32(values) => values,
            _ => &[],
        }
    }

    pub(super) fn f32_mut(&mut self, id: BufferId) -> &mut [f32] {
        match &mut self.0[id.0] {
            Rows::F32(values) => values,
            _ => &mut [],
        }
    }

    /// Takes an f32 buffer out, at least `len` long, to be written while others are read.
    pub(super) fn take(&mut self, id: BufferId, len: usize) -> Vec<f32> {
        let mut values = match &mut self.0[id.0] {
            Rows::F32(values) => mem::take(values),
            _ => Vec::new(),
        };
        if values.len() < len {
            values.resize(len, 0.0);
        }
        values
    }

    /// Puts back what [`take`](Self::take) took.
    pub(super) fn give(&mut self, id: BufferId, values: Vec<f32>) {
        self.0[id.0] = Rows::F32(values);
    }

    /// Ids, as [`take`](Self::take) takes values.
    pub(super) fn take_ids(&mut self, id: BufferId, len: usize) -> Vec<u32> {
        let mut ids = match &mut self.0[id.0] {
            Rows::Ids(ids) => mem::take(ids),
            _ => Vec::new(),
        };
        if ids.len() < len {
            ids.resize(len, 0);
        }
        ids
    }

    /// Puts back what [`take_ids`](Self::take_ids) took.
    pub(super) fn give_ids(&mut self, id: BufferId, ids: Vec<u32>) {
        self.0[id.0] = Rows::Ids(ids);
    }

    /// The ids of a buffer of them; none of another.
    pub(super) fn ids(&self, id: BufferId) -> &[u32] {
        match &self.0[id.0] {
            Rows::Ids(ids) => ids,
            _ => &[],
        }
    }

    /// Quantizes the first `len` values of `x`, rows of `cols`, into `y`.
    pub(super) fn quantize(
        &mut self,
        isa: Isa,
        pool: &Pool,
        x: BufferId,
        (len, cols): (usize, usize),
        y: BufferId,
    ) -> Result<()> {
        let mut out = mem::replace(&mut self.0[y.0], Rows::F32(Vec::new()));
        let x = &self.f32(x)[..len];
        match &mut out {
            Rows::Q8(out) => out.quantize(isa, pool, x, cols),
            Rows::I8(out) => out.quantize(isa, pool, x, cols),
            _ => return Err(wrong_format()),
        }
        self.0[y.0] = out;
        Ok(())
    }

    /// A buffer as a product reads it: of an f32 buffer the first `len` values.
    pub(super) fn activations(&self, id: BufferId, len: usize) -> Result<Activations<'_>> {
        match &self.0[id.0] {
            Rows::F32(x) => Ok(Activations::F32(&x[..len])),
            Rows::Q8(x) => Ok(Activations::Q8(x)),
            Rows::I8(x) => Ok(Activations::I8(x)),
            Rows::Ids(_) => Err(wrong_format()),
        }
    }
}

/// Quantized rows on their way to another card.
fn put(out: &mut Writer<'_>, quants: &[i8], scales: &[f32]) -> Result<(), Full> {
    out.i8s(quants)?;
    out.f32s(scales)
}

/// What [`put`] wrote.
fn take(words: &mut Reader<'_>, quants: &mut [i8], scales: &mut [f32]) -> Result<(), Short> {
    words.i8s(quants)?;
    words.f32s(scales)
}

pub(super) fn wrong_format() -> RuntimeError {
    RuntimeError::Tensor { tensor: "program".into(), what: "a step reads a buffer of another format".into() }
}
