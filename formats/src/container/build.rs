//! Puts a container together: places blobs in segments, and once they are hashed, makes header and sections.

use super::header::{CardFileHeader, VERSION};
use super::open::{METADATA_LIMIT, TABLE_LIMIT, manifest_limit};
use super::*;
use crate::hash::{self, Digest};
use crate::size;

/// Alignment of the three sections behind the segments.
pub(super) const SECTION_ALIGN: u64 = 64;

/// Gives each blob of one card its offset, in the order they come.
#[derive(Clone, Copy, Debug)]
pub struct Placer {
    alignment: Alignment,
    at: u64,
}

impl Placer {
    /// An empty segment.
    pub fn new(alignment: Alignment) -> Self {
        Self { alignment, at: 0 }
    }

    /// Offset of a tensor of `bytes`; `None` where the segment would pass 64 bits.
    pub fn tensor(&mut self, bytes: u64) -> Option<u64> {
        self.place(bytes, self.alignment.tensor)
    }

    /// Offset and stride of a bank of `slots` blobs of `bytes` each.
    pub fn bank(&mut self, slots: u64, bytes: u64) -> Option<(u64, u64)> {
        let stride = size::align_up(bytes, self.alignment.blob.into())?;
        Some((self.place(size::mul(slots, stride)?, self.alignment.blob)?, stride))
    }

    fn place(&mut self, bytes: u64, align: u32) -> Option<u64> {
        let offset = size::align_up(self.at, align.into())?;
        self.at = offset.checked_add(bytes)?;
        Some(offset)
    }

    /// Length of the segment so far, rounded up to its alignment.
    pub fn segment_bytes(&self) -> Option<u64> {
        size::align_up(self.at, self.alignment.segment.into())
    }
}

/// Where segments and sections lie, known before a byte is packed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Skeleton {
    /// Alignments.
    pub alignment: Alignment,
    /// Whether each card has a file of its own.
    pub split_cards: bool,
    /// Each card's segment, in the container or in the card's file.
    pub segments: Vec<Section>,
    /// Where the sections start in the index file.
    pub tail_offset: u64,
}

impl Skeleton {
    /// Lays out segments of these lengths (multiples of the segment alignment); `None` past 64 bits.
    pub fn new(alignment: Alignment, split_cards: bool, segment_bytes: &[u64]) -> Option<Self> {
        let first = size::align_up(HEADER_BYTES, alignment.segment.into())?;
        let mut at = first;
        let mut segments = Vec::new();
        for &bytes in segment_bytes {
            segments.push(Section { offset: if split_cards { first } else { at }, bytes });
            at = at.checked_add(bytes)?;
        }
        let tail_offset = if split_cards { HEADER_BYTES } else { at };
        Some(Self {
            alignment,
            split_cards,
            segments,
            tail_offset: size::align_up(tail_offset, SECTION_ALIGN)?,
        })
    }

    /// Length of card `card`'s own file in a split container.
    pub fn card_file_bytes(&self, card: usize) -> u64 {
        self.segments[card].offset + self.segments[card].bytes
    }
}

/// Header and sections of a finished container.
#[derive(Debug)]
pub struct Finished {
    /// The header, parsed form.
    pub header: Header,
    /// Bytes from [`Skeleton::tail_offset`] to the end of the index file.
    pub tail: Vec<u8>,
}

/// Makes the sections and the header. The table's blobs are in order of card and offset.
pub fn finish(
    skeleton: &Skeleton,
    manifest: &Manifest,
    metadata: &Metadata,
    table: &Table,
) -> Result<Finished, ContainerError> {
    let bad = |what: &str| ContainerError::malformed("container", what);
    let mut tail = Vec::new();
    let mut place = |bytes: Vec<u8>| {
        tail.resize(tail.len().next_multiple_of(SECTION_ALIGN as usize), 0);
        let section = Section { offset: skeleton.tail_offset + tail.len() as u64, bytes: bytes.len() as u64 };
        tail.extend_from_slice(&bytes);
        (section, hash::hash(&bytes))
    };
    let (metadata_at, metadata_hash) = place(metadata.to_bytes());
    let (table_at, table_hash) = place(table.to_bytes());
    let json = serde_json::to_vec(manifest).map_err(|e| bad(&format!("manifest: {e}")))?;
    let (manifest_at, manifest_hash) = place(json);
    let manifest_limit = manifest_limit(table.blobs().len(), manifest.source_tensors.len());
    let limits = [
        ("metadata section", metadata_at, METADATA_LIMIT),
        ("hash table", table_at, TABLE_LIMIT),
        ("manifest", manifest_at, manifest_limit),
    ];
    if let Some((name, section, limit)) = limits.into_iter().find(|(_, s, limit)| s.bytes > *limit) {
        return Err(ContainerError::malformed(name, format!("{} bytes, at most {limit}", section.bytes)));
    }
    let file_bytes = skeleton.tail_offset + tail.len() as u64;
    let mut header = Header {
        version: VERSION,
        required: if skeleton.split_cards { REQUIRED_SPLIT_CARDS } else { 0 },
        optional: 0,
        file_bytes,
        alignment: skeleton.alignment,
        metadata: metadata_at,
        table: table_at,
        manifest: manifest_at,
        metadata_hash,
        table_hash,
        manifest_hash,
        container_id: [0; 32],
        root: [0; 32],
        cards: Vec::new(),
    };
    header.container_id = header.compute_id();
    if skeleton.segments.len() > MAX_CARDS {
        return Err(bad(&format!("{} cards, at most {MAX_CARDS}", skeleton.segments.len())));
    }
    let mut first_blob = 0;
    for (card, segment) in skeleton.segments.iter().enumerate() {
        let blobs = table.blobs()[first_blob..].iter().take_while(|b| b.card == card as u64);
        let hashes: Vec<Digest> = blobs.map(|b| b.hash).collect();
        header.cards.push(CardEntry {
            offset: segment.offset,
            bytes: segment.bytes,
            first_blob: first_blob as u64,
            blobs: hashes.len() as u64,
            digest: Header::compute_card_digest(&header.container_id, card, hashes.iter()),
        });
        first_blob += hashes.len();
    }
    header.root = header.compute_root();
    Ok(Finished { header, tail })
}

/// The header page of card `card`'s own file.
pub fn card_file_header(header: &Header, card: usize) -> Vec<u8> {
    let entry = &header.cards[card];
    CardFileHeader {
        card: card as u32,
        card_count: header.cards.len() as u32,
        segment: Section { offset: entry.offset, bytes: entry.bytes },
        container_id: header.container_id,
        digest: entry.digest,
    }
    .to_bytes()
}

/// Name of card `card`'s own file beside the index file `index` (a file name): `m.gantry` → `m.card0.gantry`.
pub fn card_file_name(index: &str, card: usize) -> String {
    match index.strip_suffix(".gantry") {
        Some(stem) => format!("{stem}.card{card}.gantry"),
        None => format!("{index}.card{card}"),
    }
}
