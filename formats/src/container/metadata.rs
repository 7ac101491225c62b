//! The metadata section: the GGUF headers of every source shard, byte for byte.
//!
//! JSON holds neither strings that are not UTF-8 nor NaN nor large integers, so keys, values and tensor tables
//! travel as they were. Bytes between tensors that are not zero (odd writers leave them) travel too, so that the
//! source file can be written back exactly.
//!
//! ```text
//! 0  u64 shard count, then per shard:
//!    u64 file bytes, u64 header bytes, u64 data offset, u64 residue count,
//!    residue count × (u64 file offset, u64 bytes), the header, the residues' bytes
//! ```

use super::ContainerError;

/// One shard's header.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShardHeader {
    /// Length of the source file.
    pub file_bytes: u64,
    /// From byte 0 to the end of the tensor table.
    pub header: Vec<u8>,
    /// Where tensor data starts in the file.
    pub data_offset: u64,
    /// Stretches outside header and tensors that are not all zero: file offset and bytes.
    pub residues: Vec<(u64, Vec<u8>)>,
}

/// The section.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Metadata {
    /// Headers in shard order.
    pub shards: Vec<ShardHeader>,
}

impl Metadata {
    /// The section's bytes.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut out = (self.shards.len() as u64).to_le_bytes().to_vec();
        for s in &self.shards {
            for n in [s.file_bytes, s.header.len() as u64, s.data_offset, s.residues.len() as u64] {
                out.extend(n.to_le_bytes());
            }
            for (offset, bytes) in &s.residues {
                out.extend(offset.to_le_bytes());
                out.extend((bytes.len() as u64).to_le_bytes());
            }
            out.extend(&s.header);
            s.residues.iter().for_each(|(_, bytes)| out.extend(bytes));
        }
        out
    }

    /// Reads the section; every length is compared with the bytes left before it is used.
    pub fn parse(bytes: &[u8]) -> Result<Self, ContainerError> {
        let mut cursor = Cursor { left: bytes };
        let count = cursor.word()?;
        let mut shards = Vec::new();
        for _ in 0..count {
            let (file_bytes, header_bytes) = (cursor.word()?, cursor.word()?);
            let (data_offset, residue_count) = (cursor.word()?, cursor.word()?);
            let mut places = Vec::new();
            for _ in 0..residue_count {
                places.push((cursor.word()?, cursor.word()?));
            }
            let header = cursor.take(header_bytes)?.to_vec();
            let mut residues = Vec::new();
            for (offset, len) in places {
                let bytes = cursor.take(len)?.to_vec();
                if offset.checked_add(len).is_none_or(|end| end > file_bytes) {
                    return Err(cursor.bad(&format!("residue of {len} bytes at {offset} of {file_bytes}")));
                }
                residues.push((offset, bytes));
            }
            shards.push(ShardHeader { file_bytes, header, data_offset, residues });
        }
        if !cursor.left.is_empty() || shards.is_empty() {
            return Err(cursor.bad(&format!(
                "{} shards with {} bytes over",
                shards.len(),
                cursor.left.len()
            )));
        }
        Ok(Self { shards })
    }
}

struct Cursor<'a> {
    left: &'a [u8],
}

impl<'a> Cursor<'a> {
    fn bad(&self, what: &str) -> ContainerError {
        ContainerError::malformed("metadata section", what)
    }

    fn take(&mut self, len: u64) -> Result<&'a [u8], ContainerError> {
        let split = usize::try_from(len).ok().and_then(|n| self.left.split_at_checked(n));
        let (head, tail) =
            split.ok_or_else(|| self.bad(&format!("{len} bytes wanted, {} left", self.left.len())))?;
        self.left = tail;
        Ok(head)
    }

    fn word(&mut self) -> Result<u64, ContainerError> {
        Ok(u64::from_le_bytes(self.take(8)?.try_into().unwrap_or_default()))
    }
}
