//! The header of one file: fixed part, key/value pairs and tensor table, byte for byte.

use super::cursor::Cursor;
use super::error::{GgufError, GgufFault};
use super::limits::Budget;
use super::parse;
use super::tensor::TensorInfo;
use super::value::{Value, ValueType};
use crate::source::ReadAt;
use std::ops::Range;

/// One file's header: its bytes as they were, and where in them everything is.
///
/// What a `Header` promises, whatever the bytes were: keys and tensor names are unique; every value can be
/// decoded; tensors lie one after the other, each at the padded end of the one before, all inside the file.
#[derive(Clone)]
pub struct Header {
    pub(super) raw: Vec<u8>,
    pub(super) version: u32,
    pub(super) alignment: u32,
    pub(super) keys: Vec<KeyRow>,
    pub(super) by_key: Vec<u32>,
    pub(super) tensors: Vec<TensorInfo>,
    pub(super) by_name: Vec<u32>,
    pub(super) data_offset: u64,
    pub(super) file_len: u64,
}

/// Where a piece of the raw header lies. The header's limit keeps it within 32 bits.
#[derive(Clone, Copy, Debug)]
pub(super) struct Place {
    start: u32,
    end: u32,
}

impl Place {
    pub(super) fn new(start: u64, end: u64) -> Self {
        let narrow = |n: u64| u32::try_from(n).unwrap_or(u32::MAX);
        Self { start: narrow(start), end: narrow(end) }
    }

    pub(super) fn of(self, raw: &[u8]) -> &[u8] {
        raw.get(self.start as usize..self.end as usize).unwrap_or(&[])
    }
}

/// Where a key and its value lie.
#[derive(Clone, Copy, Debug)]
pub(super) struct KeyRow {
    pub(super) key: Place,
    pub(super) ty: ValueType,
    pub(super) value: Place,
}

/// A key/value pair as it is in the file.
#[derive(Clone, Copy, Debug)]
pub struct Entry<'a> {
    /// The key's bytes, usually UTF-8.
    pub key: &'a [u8],
    /// Type of the value.
    pub ty: ValueType,
    /// The value's bytes after its type id.
    pub raw: &'a [u8],
}

impl<'a> Entry<'a> {
    /// The value.
    pub fn value(&self) -> Option<Value<'a>> {
        Value::decode(self.ty, &mut { self.raw })
    }
}

impl Header {
    /// Reads the header off the front of `source`, in steps, and checks everything. `file` is the name that
    /// errors use.
    ///
    /// # Errors
    /// Where a rule is broken or the file cannot be read.
    pub fn read(source: &dyn ReadAt, file: &str) -> Result<Self, GgufError> {
        Self::read_within(source, Budget::FULL).map_err(|fault| GgufError::new(file, fault))
    }

    /// Takes the bytes that [`raw`](Self::raw) gave, of a file that was `file_len` bytes long. `file` is the name
    /// that errors use.
    ///
    /// # Errors
    /// Where a rule is broken, or `raw` does not end with the tensor table.
    pub fn parse(raw: Vec<u8>, file_len: u64, file: &str) -> Result<Self, GgufError> {
        let len = raw.len() as u64;
        let header = parse::header(Cursor::within(raw), file_len, Budget::FULL);
        header
            .and_then(|header| match len.checked_sub(header.raw.len() as u64) {
                None | Some(0) => Ok(header),
                Some(extra) => Err(GgufFault::TrailingHeader { at: header.raw.len() as u64, extra }),
            })
            .map_err(|fault| GgufError::new(file, fault))
    }

    pub(super) fn read_within(source: &dyn ReadAt, budget: Budget) -> Result<Self, GgufFault> {
        parse::header(Cursor::over(source, budget.header_bytes), source.len(), budget)
    }

    pub(super) fn empty(file_len: u64) -> Self {
        Self {
            raw: Vec::new(),
            version: 0,
            alignment: 1,
            keys: Vec::new(),
            by_key: Vec::new(),
            tensors: Vec::new(),
            by_name: Vec::new(),
            data_offset: 0,
            file_len,
        }
    }

    /// The file's bytes from its start to the end of the tensor table.
    pub fn raw(&self) -> &[u8] {
        &self.raw
    }

    /// The GGUF version: 2 or 3.
    pub fn version(&self) -> u32 {
        self.version
    }

    /// What tensors are aligned to: `general.alignment`, or 32.
    pub fn alignment(&self) -> u32 {
        self.alignment
    }

    /// Where the data section starts: the end of [`raw`](Self::raw), aligned.
    pub fn data_offset(&self) -> u64 {
        self.data_offset
    }

    /// Length of the whole file.
    pub fn file_len(&self) -> u64 {
        self.file_len
    }

    /// Number of key/value pairs.
    pub fn key_count(&self) -> usize {
        self.keys.len()
    }

    /// The keys, in the order of the file.
    pub fn keys(&self) -> impl ExactSizeIterator<Item = &[u8]> {
        self.keys.iter().map(|row| row.key.of(&self.raw))
    }

    /// The key/value pairs, in the order of the file.
    pub fn entries(&self) -> impl ExactSizeIterator<Item = Entry<'_>> {
        self.keys.iter().map(|row| Entry {
            key: row.key.of(&self.raw),
            ty: row.ty,
            raw: row.value.of(&self.raw),
        })
    }

    /// The value of `key`, a `&str` or `&[u8]`.
    pub fn get(&self, key: impl AsRef<[u8]>) -> Option<Value<'_>> {
        self.lookup(&self.raw, key.as_ref())
    }

    pub(super) fn lookup<'a>(&self, raw: &'a [u8], key: &[u8]) -> Option<Value<'a>> {
        let row = |i: &u32| self.keys.get(*i as usize);
        let found = self.by_key.binary_search_by(|i| row(i).map(|r| r.key.of(raw)).cmp(&Some(key))).ok()?;
        let row = row(self.by_key.get(found)?)?;
        Value::decode(row.ty, &mut row.value.of(raw))
    }

    /// `general.architecture`, where it is a string.
    pub fn architecture(&self) -> Option<&[u8]> {
        self.get("general.architecture")?.as_bytes()
    }

    /// The value of the architecture's own `key`: `arch_key("embedding_length")` looks for
    /// `llama.embedding_length` in a llama.
    pub fn arch_key(&self, key: &str) -> Option<Value<'_>> {
        let mut full = self.architecture()?.to_vec();
        full.push(b'.');
        full.extend_from_slice(key.as_bytes());
        self.get(full)
    }

    /// The tensor table, in the order of the file.
    pub fn tensors(&self) -> &[TensorInfo] {
        &self.tensors
    }

    /// The tensor of this name, and its index.
    pub fn find(&self, name: impl AsRef<[u8]>) -> Option<(usize, &TensorInfo)> {
        let tensor = |i: &u32| self.tensors.get(*i as usize);
        let name = Some(name.as_ref());
        let found = self.by_name.binary_search_by(|i| tensor(i).map(TensorInfo::name).cmp(&name)).ok()?;
        let index = self.by_name.get(found)?;
        Some((*index as usize, tensor(index)?))
    }

    /// Where a tensor of this header lies in the file.
    pub fn range_of(&self, tensor: &TensorInfo) -> Range<u64> {
        let start = self.data_offset.saturating_add(tensor.offset);
        start..start.saturating_add(tensor.bytes)
    }

    /// What is neither header nor tensor data: padding before, between and after tensors, and whatever follows the
    /// last one. Together with [`raw`](Self::raw) and the tensors these cover the file. Usually zeros, but nobody
    /// checks.
    pub fn gaps(&self) -> Vec<Range<u64>> {
        let mut gaps = Vec::new();
        let mut at = self.raw.len() as u64;
        let ends = std::iter::once(self.file_len..self.file_len);
        for range in self.tensors.iter().map(|t| self.range_of(t)).chain(ends) {
            if at < range.start {
                gaps.push(at..range.start);
            }
            at = at.max(range.end);
        }
        gaps
    }
}

impl std::fmt::Debug for Header {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Header")
            .field("version", &self.version)
            .field("keys", &self.keys.len())
            .field("tensors", &self.tensors.len())
            .field("raw", &self.raw.len())
            .field("file_len", &self.file_len)
            .finish_non_exhaustive()
    }
}
