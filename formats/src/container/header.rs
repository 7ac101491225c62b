//! The header page: the first 4096 bytes of a container, and the first of each card's file.

use super::ContainerError;
use crate::hash::{self, Digest};
use std::path::Path;
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout, Unaligned};

/// First bytes of a container. The high bit shows a 7-bit transfer, the line ends a text-mode one, and 0x1A
/// stops a listing on old terminals.
pub const MAGIC: [u8; 8] = *b"\x89GTR\r\n\x1a\n";
/// First bytes of a card's own file in a split container.
pub(super) const CARD_MAGIC: [u8; 8] = *b"\x89GTC\r\n\x1a\n";
/// Length of the header page.
pub const HEADER_BYTES: u64 = 4096;
/// Length of the header of a card's own file.
pub const CARD_HEADER_BYTES: u64 = 4096;
/// Most cards that the card table holds.
pub const MAX_CARDS: usize = (HEADER_BYTES as usize - FIXED) / 64;
/// Structure version that this program writes; a reader refuses another major and takes any minor.
pub(super) const VERSION: (u16, u16) = (1, 0);

/// Required feature: segments lie in one file per card beside this one.
pub const REQUIRED_SPLIT_CARDS: u64 = 1;
/// Required features that this program knows.
pub const REQUIRED_KNOWN: u64 = REQUIRED_SPLIT_CARDS;
/// Optional features that this program knows.
pub const OPTIONAL_KNOWN: u64 = 0;

const FIXED: usize = 320;

/// A section's place in the file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Section {
    /// First byte.
    pub offset: u64,
    /// Length in bytes.
    pub bytes: u64,
}

/// Alignments, each a power of two, in bytes. Tests use small ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Alignment {
    /// Segments start and end on this.
    pub segment: u32,
    /// Expert blobs start on this.
    pub blob: u32,
    /// Every tensor starts on this.
    pub tensor: u32,
}

impl Default for Alignment {
    /// 2 MiB, the granule of device allocations; 4 KiB, a page and a direct-I/O block; 256 B.
    fn default() -> Self {
        Self { segment: 2 << 20, blob: 4096, tensor: 256 }
    }
}

impl Alignment {
    /// Powers of two, tensor ≤ blob ≤ segment, tensor at least 16.
    pub fn is_valid(self) -> bool {
        let powers = [self.segment, self.blob, self.tensor].iter().all(|a| a.is_power_of_two());
        powers && self.tensor >= 16 && self.tensor <= self.blob && self.blob <= self.segment
    }
}

/// One card's line in the header.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CardEntry {
    /// First byte of the segment, in the container or in the card's own file.
    pub offset: u64,
    /// Length of the segment.
    pub bytes: u64,
    /// Index of its first blob in the hash table.
    pub first_blob: u64,
    /// Number of its blobs.
    pub blobs: u64,
    /// Derived BLAKE3 over container id, card and blob hashes.
    pub digest: Digest,
}

/// The header, understood.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Header {
    /// Structure version, major and minor.
    pub version: (u16, u16),
    /// Required feature bits.
    pub required: u64,
    /// Optional feature bits.
    pub optional: u64,
    /// Exact length of this file.
    pub file_bytes: u64,
    /// Alignments.
    pub alignment: Alignment,
    /// The GGUF headers of the source.
    pub metadata: Section,
    /// The hash table.
    pub table: Section,
    /// The manifest.
    pub manifest: Section,
    /// Plain BLAKE3 of the metadata section.
    pub metadata_hash: Digest,
    /// Plain BLAKE3 of the hash table section.
    pub table_hash: Digest,
    /// Plain BLAKE3 of the manifest section.
    pub manifest_hash: Digest,
    /// Names this content: derived from the three section hashes.
    pub container_id: Digest,
    /// Covers everything.
    pub root: Digest,
    /// One line per card.
    pub cards: Vec<CardEntry>,
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned, Clone)]
#[repr(C)]
struct OnDiskHeader {
    magic: [u8; 8],
    major: U16,
    minor: U16,
    header_bytes: U32,
    required: U64,
    optional: U64,
    file_bytes: U64,
    segment_align: U32,
    blob_align: U32,
    tensor_align: U32,
    card_count: U32,
    sections: [[U64; 2]; 3],
    metadata_hash: Digest,
    table_hash: Digest,
    manifest_hash: Digest,
    container_id: Digest,
    root: Digest,
    reserved: [u8; 56],
    cards: [OnDiskCard; MAX_CARDS],
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned, Clone, Copy)]
#[repr(C)]
struct OnDiskCard {
    offset: U64,
    bytes: U64,
    first_blob: U64,
    blobs: U64,
    digest: Digest,
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned, Clone)]
#[repr(C)]
struct OnDiskCardFile {
    magic: [u8; 8],
    major: U16,
    minor: U16,
    header_bytes: U32,
    card: U32,
    card_count: U32,
    segment_offset: U64,
    segment_bytes: U64,
    container_id: Digest,
    digest: Digest,
    own_hash: Digest,
    reserved: [u8; 3960],
}

const _: () = assert!(size_of::<OnDiskHeader>() == HEADER_BYTES as usize);
const _: () = assert!(size_of::<OnDiskCardFile>() == CARD_HEADER_BYTES as usize);

impl OnDiskCardFile {
    /// Plain BLAKE3 of the page with its own field zeroed.
    fn raw_hash(&self) -> Digest {
        hash::hash(Self { own_hash: [0; 32], ..self.clone() }.as_bytes())
    }

    fn is_intact(&self) -> bool {
        self.raw_hash() == self.own_hash
    }
}

impl Header {
    /// The root: derived BLAKE3 of the header page with the root field zeroed. Section hashes and card digests
    /// stand in that page, so it covers every byte that is not zero padding.
    pub fn compute_root(&self) -> Digest {
        let zeroed = Self { root: [0; 32], ..self.clone() };
        blake3::derive_key("gantry 1 root", zeroed.on_disk().as_bytes())
    }

    /// The container id: derived BLAKE3 of the section hashes.
    pub fn compute_id(&self) -> Digest {
        let parts = [self.metadata_hash, self.table_hash, self.manifest_hash].concat();
        blake3::derive_key("gantry 1 container id", &parts)
    }

    /// A card's digest: derived BLAKE3 over container id, card number and its blob hashes in order, so that two
    /// swapped segments, or a segment of another container, do not verify.
    pub fn compute_card_digest<'a>(
        container_id: &Digest,
        card: usize,
        hashes: impl Iterator<Item = &'a Digest>,
    ) -> Digest {
        let mut hasher = blake3::Hasher::new_derive_key("gantry 1 card");
        hasher.update(container_id).update(&(card as u64).to_le_bytes());
        for hash in hashes {
            hasher.update(hash);
        }
        *hasher.finalize().as_bytes()
    }

    fn on_disk(&self) -> Box<OnDiskHeader> {
        let mut page = Box::new(OnDiskHeader::new_zeroed());
        page.magic = MAGIC;
        page.major = self.version.0.into();
        page.minor = self.version.1.into();
        page.header_bytes = (HEADER_BYTES as u32).into();
        page.required = self.required.into();
        page.optional = self.optional.into();
        page.file_bytes = self.file_bytes.into();
        page.segment_align = self.alignment.segment.into();
        page.blob_align = self.alignment.blob.into();
        page.tensor_align = self.alignment.tensor.into();
        page.card_count = (self.cards.len() as u32).into();
        page.sections = [self.metadata, self.table, self.manifest].map(|s| [s.offset.into(), s.bytes.into()]);
        page.metadata_hash = self.metadata_hash;
        page.table_hash = self.table_hash;
        page.manifest_hash = self.manifest_hash;
        page.container_id = self.container_id;
        page.root = self.root;
        for (line, card) in page.cards.iter_mut().zip(&self.cards) {
            *line = OnDiskCard {
                offset: card.offset.into(),
                bytes: card.bytes.into(),
                first_blob: card.first_blob.into(),
                blobs: card.blobs.into(),
                digest: card.digest,
            };
        }
        page
    }

    /// The header page.
    pub fn to_bytes(&self) -> Vec<u8> {
        self.on_disk().as_bytes().to_vec()
    }

    /// Reads a header page: magic, version, features, then the root. `path` is for messages.
    pub fn parse(page: &[u8], path: &Path) -> Result<Self, ContainerError> {
        check_magic(page, &MAGIC, path, |page| raw_root(page) == page.root)?;
        let disk = OnDiskHeader::ref_from_bytes(page).map_err(|_| cut_short("header", page))?;
        let version = (disk.major.get(), disk.minor.get());
        let damaged = || ContainerError::integrity("header", "root hash does not match the header page");
        if version.0 != VERSION.0 {
            // The root tells a flipped version from a newer one, as long as that is hashed the same way.
            let ours = OnDiskHeader { major: VERSION.0.into(), ..disk.clone() };
            if raw_root(&ours) == disk.root {
                return Err(damaged());
            }
            return Err(ContainerError::Incompatible(format!(
                "{}: structure version {}.{} is not {}.x, which this program reads; use a matching gantry",
                path.display(),
                version.0,
                version.1,
                VERSION.0
            )));
        }
        if raw_root(disk) != disk.root {
            return Err(damaged());
        }
        let unknown = disk.required.get() & !REQUIRED_KNOWN;
        if unknown != 0 {
            return Err(ContainerError::Incompatible(format!(
                "{}: requires features that this program does not know (bits {unknown:#x}); use a newer gantry",
                path.display()
            )));
        }
        let count = disk.card_count.get() as usize;
        let section =
            |i: usize| Section { offset: disk.sections[i][0].get(), bytes: disk.sections[i][1].get() };
        let header = Self {
            version,
            required: disk.required.get(),
            optional: disk.optional.get(),
            file_bytes: disk.file_bytes.get(),
            alignment: Alignment {
                segment: disk.segment_align.get(),
                blob: disk.blob_align.get(),
                tensor: disk.tensor_align.get(),
            },
            metadata: section(0),
            table: section(1),
            manifest: section(2),
            metadata_hash: disk.metadata_hash,
            table_hash: disk.table_hash,
            manifest_hash: disk.manifest_hash,
            container_id: disk.container_id,
            root: disk.root,
            cards: disk.cards[..count.min(MAX_CARDS)]
                .iter()
                .map(|c| CardEntry {
                    offset: c.offset.get(),
                    bytes: c.bytes.get(),
                    first_blob: c.first_blob.get(),
                    blobs: c.blobs.get(),
                    digest: c.digest,
                })
                .collect(),
        };
        // What a newer minor version puts into reserved bytes is not looked at.
        if count > MAX_CARDS || (version.1 <= VERSION.1 && header.to_bytes() != page) {
            let what = format!("{count} cards, or reserved bytes that are not zero");
            return Err(ContainerError::malformed("header", what));
        }
        if header.compute_id() != header.container_id {
            return Err(ContainerError::integrity(
                "header",
                "container id does not match the section hashes",
            ));
        }
        if !header.alignment.is_valid() || header.cards.is_empty() {
            return Err(ContainerError::malformed(
                "header",
                format!("{:?} with {count} cards", header.alignment),
            ));
        }
        Ok(header)
    }
}

/// The root over a page as it is.
fn raw_root(page: &OnDiskHeader) -> Digest {
    let zeroed = OnDiskHeader { root: [0; 32], ..page.clone() };
    blake3::derive_key("gantry 1 root", zeroed.as_bytes())
}

fn cut_short(region: &str, page: &[u8]) -> ContainerError {
    ContainerError::integrity(region, format!("the file ends after {} of {HEADER_BYTES} bytes", page.len()))
}

/// Accepts a page that starts with `magic`. `intact` says whether a page's own hash matches: where it does once
/// the magic is put right, only the magic is damaged.
fn check_magic<P: FromBytes + IntoBytes + KnownLayout + Immutable>(
    page: &[u8],
    magic: &[u8; 8],
    path: &Path,
    intact: impl Fn(&P) -> bool,
) -> Result<(), ContainerError> {
    if page.starts_with(magic) {
        return Ok(());
    }
    let mut mended = page.to_vec();
    if let Some(start) = mended.get_mut(..8) {
        start.copy_from_slice(magic);
    }
    if P::read_from_bytes(&mended).is_ok_and(|page| intact(&page)) {
        return Err(ContainerError::integrity("header", "the magic bytes are damaged"));
    }
    let what = match page {
        [] => "the file is empty",
        [b'G', b'G', b'U', b'F', ..] => "it is a GGUF; make a container of it with `gantry convert`",
        [0x89, b'G', b'T', b'C', ..] => "it is one card's file; give the index file beside it",
        [0x89, b'G', b'T', b'R', 0x0d, 0x0a, 0x1a, 0x0a, ..] => {
            "it is a container's index file, not one card's"
        }
        [0x89, b'G', b'T', b'R', ..] => "its line ends were changed, as a text-mode transfer does",
        [0x09, b'G', b'T', b'R', ..] => "its high bits were cleared, as a 7-bit transfer does",
        _ => "it does not start with the magic bytes",
    };
    Err(ContainerError::NotAContainer { path: path.into(), what: what.into() })
}

/// The header of a card's own file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct CardFileHeader {
    pub(super) card: u32,
    pub(super) card_count: u32,
    pub(super) segment: Section,
    pub(super) container_id: Digest,
    pub(super) digest: Digest,
}

impl CardFileHeader {
    pub(super) fn to_bytes(self) -> Vec<u8> {
        let mut page = Box::new(OnDiskCardFile::new_zeroed());
        page.magic = CARD_MAGIC;
        page.major = VERSION.0.into();
        page.minor = VERSION.1.into();
        page.header_bytes = (CARD_HEADER_BYTES as u32).into();
        page.card = self.card.into();
        page.card_count = self.card_count.into();
        page.segment_offset = self.segment.offset.into();
        page.segment_bytes = self.segment.bytes.into();
        page.container_id = self.container_id;
        page.digest = self.digest;
        page.own_hash = page.raw_hash();
        page.as_bytes().to_vec()
    }

    pub(super) fn parse(page: &[u8], path: &Path) -> Result<Self, ContainerError> {
        let region = format!("card file {}, header", path.display());
        check_magic(page, &CARD_MAGIC, path, |page: &OnDiskCardFile| page.is_intact()).map_err(
            |e| match e {
                ContainerError::Integrity { what, .. } => ContainerError::integrity(region.as_str(), what),
                other => other,
            },
        )?;
        let disk = OnDiskCardFile::ref_from_bytes(page).map_err(|_| cut_short(&region, page))?;
        let header = Self {
            card: disk.card.get(),
            card_count: disk.card_count.get(),
            segment: Section { offset: disk.segment_offset.get(), bytes: disk.segment_bytes.get() },
            container_id: disk.container_id,
            digest: disk.digest,
        };
        if !disk.is_intact() || header.to_bytes() != page {
            return Err(ContainerError::integrity(region, "its own hash does not match"));
        }
        Ok(header)
    }
}
