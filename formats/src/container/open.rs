//! Opens a container: header, sections, every rule checked once. After that, indices and ranges are trusted.

use super::header::CardFileHeader;
use super::*;
use crate::gguf;
use crate::hash::{self, Digest};
use crate::layout::Layout;
use crate::source::{FileSource, ReadAt};
use std::ops::Range;
use std::path::{Path, PathBuf};

/// Largest manifest that is read: 4 MiB and 4 KiB for each blob and source tensor, some eight times what they take.
/// What parses into many times its size, a million empty strings, has no room.
pub(super) fn manifest_limit(blobs: usize, source_tensors: usize) -> u64 {
    (4 << 20) + 4096 * (blobs as u64 + source_tensors as u64)
}
/// Largest metadata section that is read.
pub(super) const METADATA_LIMIT: u64 = 256 << 20;
/// Largest hash table that is read: enough for 32 TiB of weights.
pub(super) const TABLE_LIMIT: u64 = 1 << 30;

/// Largest section that is held in memory before its hash is known to match. A larger one is hashed in pieces
/// first, so that a file of holes that claims a GiB of table costs no memory.
const UNCHECKED: u64 = 32 << 20;

/// An opened and validated container. Blobs are not read yet.
#[derive(Debug)]
pub struct Container {
    path: PathBuf,
    index: FileSource,
    header: Header,
    manifest: Manifest,
    metadata: Metadata,
    headers: Vec<gguf::Header>,
    table: Table,
    layouts: Vec<Layout>,
    card_files: Vec<Option<FileSource>>,
    notes: Vec<String>,
}

/// Where one card's segment is read from.
#[derive(Clone, Copy, Debug)]
pub struct CardSource<'a> {
    /// The file.
    pub file: &'a FileSource,
    /// First byte of the segment in that file.
    pub offset: u64,
    /// Length of the segment.
    pub bytes: u64,
}

/// A stretch of a blob that is verified on its own: the whole blob up to 1 MiB, else one started MiB of it.
#[derive(Clone, Copy, Debug)]
pub struct Stretch {
    /// Index of the blob in the table.
    pub blob: usize,
    /// First byte inside the blob.
    pub offset: u64,
    /// Length in bytes.
    pub bytes: u64,
}

impl Container {
    /// Opens the index file at `path`. Cards' own files are opened too, where they are there.
    ///
    /// # Errors
    /// Where a file cannot be read, is damaged, or breaks a rule.
    pub fn open(path: &Path) -> Result<Self, ContainerError> {
        let (container, mut faults) = Self::open_tolerant(path)?;
        if faults.is_empty() { Ok(container) } else { Err(faults.swap_remove(0).1) }
    }

    /// The same, for a reader that reports all damage: a card's own file that is not what the index says counts
    /// as missing in the container, and why is given beside it, by card.
    ///
    /// # Errors
    /// Where the index file cannot be read, is damaged, or breaks a rule.
    pub fn open_tolerant(path: &Path) -> Result<(Self, Vec<(usize, ContainerError)>), ContainerError> {
        let io = |path: &Path, source| ContainerError::Io { path: path.into(), source };
        let index = FileSource::open(path).map_err(|e| io(path, e))?;
        let mut page = vec![0; index.len().min(HEADER_BYTES) as usize];
        index.read_exact_at(0, &mut page).map_err(|e| io(path, e))?;
        let header = Header::parse(&page, path)?;
        if index.len() != header.file_bytes {
            let what = format!("{} bytes long, the header says {}", index.len(), header.file_bytes);
            return Err(ContainerError::integrity("file length", what));
        }
        let read = |name: &str, section: Section, want: &Digest, limit: u64| {
            let end = section.offset.checked_add(section.bytes);
            if end.is_none_or(|end| end > header.file_bytes) || section.offset < HEADER_BYTES {
                return Err(ContainerError::malformed(name, format!("{section:?} lies outside the file")));
            }
            if section.bytes > limit {
                return Err(ContainerError::malformed(
                    name,
                    format!("{} bytes, at most {limit}", section.bytes),
                ));
            }
            let damaged = || ContainerError::integrity(name, "BLAKE3 does not match the header");
            if section.bytes > UNCHECKED && hash_section(&index, section).map_err(|e| io(path, e))? != *want {
                return Err(damaged());
            }
            let mut bytes = vec![0; section.bytes as usize];
            index.read_exact_at(section.offset, &mut bytes).map_err(|e| io(path, e))?;
            if hash::hash(&bytes) == *want { Ok(bytes) } else { Err(damaged()) }
        };
        let metadata = read("metadata section", header.metadata, &header.metadata_hash, METADATA_LIMIT)?;
        let table = read("hash table", header.table, &header.table_hash, TABLE_LIMIT)?;
        let metadata = Metadata::parse(&metadata)?;
        let table = Table::parse(&table)?;
        let headers = parse_headers(&metadata)?;
        let limit = manifest_limit(table.blobs().len(), headers.iter().map(|h| h.tensors().len()).sum());
        let json = read("manifest", header.manifest, &header.manifest_hash, limit)?;
        let manifest = parse_manifest(&json)?;
        let layouts = validate::validate(&header, &manifest, &headers, &table)?;
        let mut notes = Vec::new();
        let unknown = header.optional & !OPTIONAL_KNOWN;
        if unknown != 0 {
            notes.push(format!(
                "optional features (bits {unknown:#x}) are unknown to this program and not used"
            ));
        }
        let mut card_files = Vec::new();
        let mut faults = Vec::new();
        for card in 0..header.cards.len() {
            card_files.push(open_card_file(&header, path, card).unwrap_or_else(|fault| {
                faults.push((card, fault));
                None
            }));
        }
        let path = path.into();
        let container =
            Self { path, index, header, manifest, metadata, headers, table, layouts, card_files, notes };
        Ok((container, faults))
    }

    /// The path it was opened at.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The files that it is made of, there or not: the index, then one for each card where it is split.
    pub fn files(&self) -> impl Iterator<Item = PathBuf> + '_ {
        let cards = if self.split_cards() { self.header.cards.len() } else { 0 };
        std::iter::once(self.path.clone()).chain((0..cards).map(|card| card_path(&self.path, card)))
    }

    /// The header.
    pub fn header(&self) -> &Header {
        &self.header
    }

    /// The manifest.
    pub fn manifest(&self) -> &Manifest {
        &self.manifest
    }

    /// The source's GGUF headers as bytes.
    pub fn metadata(&self) -> &Metadata {
        &self.metadata
    }

    /// The source's GGUF headers, parsed: keys and values are in the first.
    pub fn gguf_headers(&self) -> &[gguf::Header] {
        &self.headers
    }

    /// The hash table.
    pub fn table(&self) -> &Table {
        &self.table
    }

    /// Layouts by the index that tensors carry.
    pub fn layouts(&self) -> &[Layout] {
        &self.layouts
    }

    /// Things worth telling: optional features that are not known here.
    pub fn notes(&self) -> &[String] {
        &self.notes
    }

    /// The index file.
    pub fn index_file(&self) -> &FileSource {
        &self.index
    }

    /// Whether each card has a file of its own.
    pub fn split_cards(&self) -> bool {
        self.header.required & REQUIRED_SPLIT_CARDS != 0
    }

    /// Where card `card`'s segment is read from, or the error that its file is missing.
    pub fn card(&self, card: usize) -> Result<CardSource<'_>, ContainerError> {
        let entry = &self.header.cards[card];
        let file = if self.split_cards() { self.card_files[card].as_ref() } else { Some(&self.index) };
        match file {
            Some(file) => Ok(CardSource { file, offset: entry.offset, bytes: entry.bytes }),
            None => Err(ContainerError::MissingCard { card, path: card_path(&self.path, card) }),
        }
    }

    /// All stretches of card `card`, in order of offset.
    pub fn stretches(&self, card: usize) -> impl Iterator<Item = Stretch> + '_ {
        let entry = &self.header.cards[card];
        let first = entry.first_blob as usize;
        (first..first + entry.blobs as usize).flat_map(|blob| self.stretches_of(blob))
    }

    /// The stretches of a blob, in order.
    pub fn stretches_of(&self, blob: usize) -> impl Iterator<Item = Stretch> + use<> {
        let len = self.table.blobs()[blob].bytes;
        let count = hash::subtree_count(len);
        (0..count.max(1)).map(move |i| {
            let offset = i * hash::SUBTREE;
            let bytes = if count == 0 { len } else { hash::SUBTREE.min(len - offset) };
            Stretch { blob, offset, bytes }
        })
    }

    /// Whether `bytes` are what was written at `stretch`.
    pub fn stretch_is_intact(&self, stretch: &Stretch, bytes: &[u8]) -> bool {
        let whole = hash::subtree_count(self.table.blobs()[stretch.blob].bytes) == 0;
        let found = if whole { hash::hash(bytes) } else { hash::chaining_value(stretch.offset, bytes) };
        self.stretch_hashes_to(stretch, &found)
    }

    /// Whether `found` is what the table says of `stretch`: the hash of a blob that is one stretch, the chaining value of
    /// one among several.
    pub fn stretch_hashes_to(&self, stretch: &Stretch, found: &[u8; 32]) -> bool {
        let blob = &self.table.blobs()[stretch.blob];
        let value = self.table.values(blob).get((stretch.offset / hash::SUBTREE) as usize);
        found == value.unwrap_or(&blob.hash)
    }

    /// The ranges of card `card`'s segment that no blob covers: zero padding.
    pub fn segment_padding(&self, card: usize) -> Vec<Range<u64>> {
        let entry = &self.header.cards[card];
        let first = entry.first_blob as usize;
        let mut at = 0;
        let mut out = Vec::new();
        for blob in &self.table.blobs()[first..first + entry.blobs as usize] {
            if blob.offset > at {
                out.push(at..blob.offset);
            }
            at = blob.offset + blob.bytes;
        }
        if at < entry.bytes {
            out.push(at..entry.bytes);
        }
        out
    }

    /// The ranges of the index file between header, segments and sections: zero padding.
    pub fn index_padding(&self) -> Vec<Range<u64>> {
        let h = &self.header;
        let mut used = vec![(0, HEADER_BYTES)];
        if !self.split_cards() {
            used.extend(h.cards.iter().map(|c| (c.offset, c.offset + c.bytes)));
        }
        used.extend([h.metadata, h.table, h.manifest].map(|s| (s.offset, s.offset + s.bytes)));
        used.sort_unstable();
        used.windows(2).filter(|w| w[0].1 < w[1].0).map(|w| w[0].1..w[1].0).collect()
    }

    /// The zero padding of card `card`'s own file between its header and its segment.
    pub fn card_file_padding(&self, card: usize) -> Option<Range<u64>> {
        let offset = self.header.cards[card].offset;
        (self.split_cards() && offset > CARD_HEADER_BYTES).then_some(CARD_HEADER_BYTES..offset)
    }

    /// What lies in blob `blob`, for messages: the tensor's name, or layer and expert.
    pub fn blob_name(&self, blob: usize) -> String {
        let blob = blob as u64;
        if let Some(t) = self.manifest.tensors.iter().find(|t| t.blob == blob) {
            return t.name.clone();
        }
        let bank = self
            .manifest
            .banks
            .iter()
            .find(|b| (b.first_blob..b.first_blob + b.experts.len() as u64).contains(&blob));
        match bank {
            Some(b) => format!("layer {} expert {}", b.layer, b.experts[(blob - b.first_blob) as usize]),
            None => format!("blob {blob}"),
        }
    }

    /// Fails where a file's length or time of modification is no longer what it was when the container was opened.
    pub fn check_unchanged(&self) -> Result<(), ContainerError> {
        for file in std::iter::once(&self.index).chain(self.card_files.iter().flatten()) {
            if !file.is_unchanged().unwrap_or(false) {
                let what = "its length or time of modification differs from when it was opened".to_string();
                return Err(ContainerError::Integrity { region: "file changed while reading".into(), what });
            }
        }
        Ok(())
    }
}

fn parse_headers(metadata: &Metadata) -> Result<Vec<gguf::Header>, ContainerError> {
    let parse = |(i, shard): (usize, &ShardHeader)| {
        let header = gguf::Header::parse(shard.header.clone(), shard.file_bytes, &format!("shard {i}"));
        let header = header.map_err(|e| ContainerError::malformed("metadata section", e.to_string()))?;
        match header.data_offset() == shard.data_offset {
            true => Ok(header),
            false => {
                let what = format!(
                    "data offset {}, its GGUF header says {}",
                    shard.data_offset,
                    header.data_offset()
                );
                Err(ContainerError::malformed("metadata section", what))
            }
        }
    };
    metadata.shards.iter().enumerate().map(parse).collect()
}

fn hash_section(file: &FileSource, section: Section) -> std::io::Result<Digest> {
    let mut hasher = blake3::Hasher::new();
    let mut buffer = vec![0; 1 << 20];
    let end = section.offset + section.bytes;
    let mut at = section.offset;
    while at < end {
        let len = (end - at).min(buffer.len() as u64) as usize;
        file.read_exact_at(at, &mut buffer[..len])?;
        hasher.update(&buffer[..len]);
        at += len as u64;
    }
    Ok(*hasher.finalize().as_bytes())
}

fn card_path(index: &Path, card: usize) -> PathBuf {
    let name = index.file_name().unwrap_or_default().to_string_lossy();
    index.with_file_name(card_file_name(&name, card))
}

fn open_card_file(header: &Header, index: &Path, card: usize) -> Result<Option<FileSource>, ContainerError> {
    if header.required & REQUIRED_SPLIT_CARDS == 0 {
        return Ok(None);
    }
    let path = card_path(index, card);
    let file = match FileSource::open(&path) {
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        other => other.map_err(|source| ContainerError::Io { path: path.clone(), source })?,
    };
    let mut page = vec![0; file.len().min(CARD_HEADER_BYTES) as usize];
    file.read_exact_at(0, &mut page).map_err(|source| ContainerError::Io { path: path.clone(), source })?;
    let found = CardFileHeader::parse(&page, &path)?;
    let entry = &header.cards[card];
    let want = CardFileHeader {
        card: card as u32,
        card_count: header.cards.len() as u32,
        segment: Section { offset: entry.offset, bytes: entry.bytes },
        container_id: header.container_id,
        digest: entry.digest,
    };
    let region = format!("card file {}", path.display());
    if found.card != want.card {
        return Err(ContainerError::integrity(
            region,
            format!("it is card {}, expected card {card}", found.card),
        ));
    }
    // The id covers the sections; what else a card's file says must agree too.
    if found != want {
        return Err(ContainerError::OtherContainer { card, path, index: index.into() });
    }
    if file.len() != entry.offset + entry.bytes {
        let what = format!("{} bytes long, the header says {}", file.len(), entry.offset + entry.bytes);
        return Err(ContainerError::integrity(region, what));
    }
    Ok(Some(file))
}

fn parse_manifest(json: &[u8]) -> Result<Manifest, ContainerError> {
    #[derive(serde::Deserialize)]
    struct Version {
        schema: u32,
    }
    let bad = |e: serde_json::Error| ContainerError::malformed("manifest", e.to_string());
    match serde_json::from_slice::<Manifest>(json) {
        Ok(manifest) if manifest.schema == SCHEMA => Ok(manifest),
        // Only where the whole does not fit is it worth a second look, whose answer is the better message.
        other => match serde_json::from_slice::<Version>(json).map_err(bad)? {
            Version { schema } if schema != SCHEMA => Err(ContainerError::Incompatible(format!(
                "manifest schema {schema}, this program reads schema {SCHEMA}; use a matching gantry"
            ))),
            _ => other.map_err(bad),
        },
    }
}
