//! Making headers: new ones, or from an old one with some keys and types changed.

use super::cursor::Cursor;
use super::error::{GgufError, GgufFault};
use super::header::Header;
use super::limits::{Budget, DEFAULT_ALIGNMENT};
use super::magic::MAGIC;
use super::name::shown;
use super::parse;
use super::tensor::TensorInfo;
use super::value::{Value, ValueType, encode_str};
use crate::block::GgmlType;
use crate::size;
use std::collections::HashMap;

/// What errors call a header that has no file yet.
const NEW: &str = "new GGUF header";

/// Gathers key/value pairs and tensors, and makes a [`Header`] of them. A header that goes through
/// [`from_header`](Self::from_header) and [`finish`](Self::finish) without a change has the same bytes.
#[derive(Clone, Debug)]
pub struct GgufWriter {
    version: u32,
    entries: Vec<(Vec<u8>, Encoded)>,
    by_key: HashMap<Vec<u8>, usize>,
    tensors: Vec<TensorInfo>,
}

/// A value's type and its bytes after the type id.
#[derive(Clone, Debug)]
struct Encoded {
    ty: ValueType,
    bytes: Vec<u8>,
}

impl GgufWriter {
    /// Nothing yet, of GGUF version 2 or 3.
    pub fn new(version: u32) -> Self {
        Self { version, entries: Vec::new(), by_key: HashMap::new(), tensors: Vec::new() }
    }

    /// All that `header` has, the values byte for byte.
    pub fn from_header(header: &Header) -> Self {
        let mut writer = Self::new(header.version());
        for entry in header.entries() {
            writer.put(entry.key, Encoded { ty: entry.ty, bytes: entry.raw.to_vec() });
        }
        writer.tensors = header.tensors().to_vec();
        writer
    }

    /// Sets a key: in its place where it is there already, else after the others.
    pub fn set(&mut self, key: impl AsRef<[u8]>, value: Value<'_>) -> &mut Self {
        let mut bytes = Vec::new();
        value.encode(&mut bytes);
        self.put(key.as_ref(), Encoded { ty: value.ty(), bytes });
        self
    }

    /// Takes a key out; whether it was there.
    pub fn remove(&mut self, key: impl AsRef<[u8]>) -> bool {
        let Some(place) = self.by_key.remove(key.as_ref()) else { return false };
        self.entries.remove(place);
        for other in self.by_key.values_mut().filter(|other| **other > place) {
            *other = other.saturating_sub(1);
        }
        true
    }

    /// Adds a tensor after the others.
    ///
    /// # Errors
    /// As [`TensorInfo::new`].
    pub fn tensor(
        &mut self,
        name: impl AsRef<[u8]>,
        dims: &[u64],
        ty: GgmlType,
    ) -> Result<&mut Self, GgufError> {
        let info = TensorInfo::new(name.as_ref(), dims, ty).map_err(|fault| GgufError::new(NEW, fault))?;
        self.tensors.push(info);
        Ok(self)
    }

    /// Gives the tensor of this index another type.
    ///
    /// # Errors
    /// Where there is no such tensor, or its rows are no whole number of the type's blocks.
    pub fn set_type(&mut self, index: usize, ty: GgmlType) -> Result<&mut Self, GgufError> {
        let Some(place) = self.tensors.get_mut(index) else {
            let what = format!("there is no tensor {index}");
            return Err(GgufError::new(NEW, GgufFault::Absent { what }));
        };
        *place =
            TensorInfo::new(place.name(), place.dims(), ty).map_err(|fault| GgufError::new(NEW, fault))?;
        Ok(self)
    }

    /// The header: offsets computed, and checked as any header that is read. Its
    /// [`file_len`](Header::file_len) is that of the padded file.
    ///
    /// # Errors
    /// Where the header would break a rule: a duplicate tensor, an empty key, a bad alignment or version.
    pub fn finish(&self) -> Result<Header, GgufError> {
        let fail = |fault| GgufError::new(NEW, fault);
        let alignment = self.alignment().unwrap_or(DEFAULT_ALIGNMENT).max(1).into();
        let mut raw = MAGIC.to_vec();
        raw.extend(self.version.to_le_bytes());
        raw.extend((self.tensors.len() as u64).to_le_bytes());
        raw.extend((self.entries.len() as u64).to_le_bytes());
        for (key, value) in &self.entries {
            encode_str(key, &mut raw);
            raw.extend(value.ty.id().to_le_bytes());
            raw.extend_from_slice(&value.bytes);
        }
        let mut offset = 0u64;
        for t in &self.tensors {
            encode_str(t.name(), &mut raw);
            raw.extend((t.dims().len() as u32).to_le_bytes());
            for dim in t.dims() {
                raw.extend(dim.to_le_bytes());
            }
            raw.extend(t.ty.id().to_le_bytes());
            raw.extend(offset.to_le_bytes());
            offset =
                offset.checked_add(t.bytes).and_then(|n| size::align_up(n, alignment)).ok_or_else(|| {
                    fail(GgufFault::Overflow { name: shown(t.name()), ty: t.ty, dims: t.dims().to_vec() })
                })?;
        }
        let start = size::align_up(raw.len() as u64, alignment);
        let file_len = start.and_then(|n| n.checked_add(offset)).unwrap_or(u64::MAX);
        parse::header(Cursor::within(raw), file_len, Budget::FULL).map_err(fail)
    }

    fn put(&mut self, key: &[u8], value: Encoded) {
        if let Some((_, old)) = self.by_key.get(key).and_then(|place| self.entries.get_mut(*place)) {
            *old = value;
            return;
        }
        self.by_key.insert(key.to_vec(), self.entries.len());
        self.entries.push((key.to_vec(), value));
    }

    fn alignment(&self) -> Option<u32> {
        let (_, value) = self.entries.get(*self.by_key.get(&b"general.alignment"[..])?)?;
        match Value::decode(value.ty, &mut value.bytes.as_slice())? {
            Value::U32(alignment) => Some(alignment),
            _ => None,
        }
    }
}
