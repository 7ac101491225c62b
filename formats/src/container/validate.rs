//! The rules that hold between header, manifest, metadata and table of a well-formed container.

mod placement;

use super::{
    Bank, BankMatrix, ContainerError, Header, Manifest, Part, StoredTensor, Table,
    header::REQUIRED_SPLIT_CARDS,
};
use crate::gguf;
use crate::hash;
use crate::layout::Layout;
use crate::size;
use std::collections::HashSet;

/// Checks every rule and returns the layouts by index. Hashes have been compared before: what fails here was
/// written wrong, not damaged.
pub(super) fn validate(
    header: &Header,
    manifest: &Manifest,
    headers: &[gguf::Header],
    table: &Table,
) -> Result<Vec<Layout>, ContainerError> {
    let rules = Rules { header, manifest, table };
    rules.regions()?;
    rules.cards()?;
    rules.sources(headers)?;
    let layouts = rules.layouts()?;
    let mut owned = vec![false; table.blobs().len()];
    let mut names = HashSet::with_capacity(manifest.tensors.len());
    for tensor in &manifest.tensors {
        rules.tensor(tensor, &layouts, &mut owned)?;
        unique(&mut names, &tensor.name)?;
    }
    for bank in &manifest.banks {
        rules.bank(bank, &layouts, &mut owned)?;
    }
    rules.placement(&mut names)?;
    if let Some(blob) = owned.iter().position(|o| !o) {
        return Err(bad(format!("blob {blob} belongs to no tensor and no expert")));
    }
    let aliased = !manifest.aliases.is_empty();
    let tensors: HashSet<&str> =
        manifest.tensors.iter().filter(|_| aliased).map(|t| t.name.as_str()).collect();
    let sources: HashSet<&str> =
        manifest.source_tensors.iter().filter(|_| aliased).map(|t| t.name.as_str()).collect();
    for alias in &manifest.aliases {
        // A name that the source gives to a tensor of its own must not lead to another, fused or not.
        if sources.contains(alias.name.as_str()) {
            return Err(bad(format!(
                "alias {}: the source has a tensor of that name; it occurs twice",
                alias.name
            )));
        }
        unique(&mut names, &alias.name)?;
        if !tensors.contains(alias.of.as_str()) {
            return Err(bad(format!("alias {}: there is no tensor {}", alias.name, alias.of)));
        }
    }
    Ok(layouts)
}

fn unique<'m>(names: &mut HashSet<&'m str>, name: &'m str) -> Result<(), ContainerError> {
    if names.insert(name) { Ok(()) } else { Err(bad(format!("the name {name} occurs twice"))) }
}

fn bad(what: impl Into<String>) -> ContainerError {
    ContainerError::malformed("manifest", what)
}

/// What a stored matrix says of itself, in a tensor or in a bank.
struct Stored<'a> {
    name: &'a str,
    layout: u32,
    shape: &'a [u64],
    bytes: u64,
    parts: &'a [Part],
    in_bank: bool,
}

struct Rules<'a> {
    header: &'a Header,
    manifest: &'a Manifest,
    table: &'a Table,
}

impl<'a> Rules<'a> {
    /// Segments and then sections lie each at the next aligned byte after what comes before, and the last byte is
    /// the file's last.
    fn regions(&self) -> Result<(), ContainerError> {
        let h = self.header;
        let bad = |what: String| Err(ContainerError::malformed("header", what));
        let split = h.required & REQUIRED_SPLIT_CARDS != 0;
        let align = u64::from(h.alignment.segment);
        let up = |n, align| size::align_up(n, align).unwrap_or(u64::MAX);
        // Card files begin with a page of the same length.
        let first = up(super::HEADER_BYTES.max(super::CARD_HEADER_BYTES), align);
        let mut at = if split { super::HEADER_BYTES } else { first };
        for (card, c) in h.cards.iter().enumerate() {
            let end = c.offset.checked_add(c.bytes);
            let want = if split { first } else { at };
            let Some(end) = end.filter(|_| c.bytes % align == 0 && c.offset == want) else {
                return bad(format!(
                    "card {card}: segment of {} bytes at {} is misplaced",
                    c.bytes, c.offset
                ));
            };
            if !split {
                at = end;
            }
        }
        for section in [h.metadata, h.table, h.manifest] {
            if section.offset < at {
                return bad(format!("section at {} overlaps what ends at {at}", section.offset));
            }
            if section.offset != up(at, super::build::SECTION_ALIGN) {
                let align = super::build::SECTION_ALIGN;
                return bad(format!(
                    "section at {} is not at the next {align} bytes after {at}",
                    section.offset
                ));
            }
            at = section.offset + section.bytes;
        }
        if at != h.file_bytes {
            return bad(format!("{} bytes follow the last section", h.file_bytes - at));
        }
        Ok(())
    }

    /// Blobs lie in their segments, aligned, in order, and each card's digest is that of its blobs.
    fn cards(&self) -> Result<(), ContainerError> {
        let h = self.header;
        let table = |what: String| Err(ContainerError::malformed("hash table", what));
        if self.manifest.cards.len() != h.cards.len() {
            return Err(bad(format!(
                "{} cards, the header has {}",
                self.manifest.cards.len(),
                h.cards.len()
            )));
        }
        let mut next = 0u64;
        for (card, c) in h.cards.iter().enumerate() {
            let end = c.first_blob.checked_add(c.blobs).filter(|&end| end <= self.table.blobs().len() as u64);
            let Some(end) = end.filter(|_| c.first_blob == next) else {
                return table(format!("card {card}: blobs {} + {} are not the next", c.first_blob, c.blobs));
            };
            let blobs = &self.table.blobs()[next as usize..end as usize];
            let mut at = 0;
            for (i, blob) in blobs.iter().enumerate() {
                let stop = blob.offset.checked_add(blob.bytes);
                let aligned = blob.offset % u64::from(h.alignment.tensor) == 0;
                let Some(stop) = stop
                    .filter(|&s| s <= c.bytes && blob.offset >= at && aligned && blob.card == card as u64)
                else {
                    return table(format!("blob {} is misplaced on card {card}", next + i as u64));
                };
                at = stop;
            }
            let digest = Header::compute_card_digest(&h.container_id, card, blobs.iter().map(|b| &b.hash));
            if digest != c.digest {
                return Err(ContainerError::integrity(
                    format!("card {card}"),
                    "its digest does not match its blob hashes",
                ));
            }
            next = end;
        }
        if next != self.table.blobs().len() as u64 {
            return table(format!("{} blobs lie on no card", self.table.blobs().len() as u64 - next));
        }
        Ok(())
    }

    /// The manifest lists the tensors of the source's own tables, in their order.
    fn sources(&self, headers: &[gguf::Header]) -> Result<(), ContainerError> {
        let m = self.manifest;
        if m.sources.len() != headers.len() {
            return Err(bad(format!(
                "{} sources, the metadata section has {} shards",
                m.sources.len(),
                headers.len()
            )));
        }
        for (i, (source, header)) in m.sources.iter().zip(headers).enumerate() {
            if hash::from_hex(&source.blake3).is_none() {
                return Err(bad(format!("source {i}: {:?} is no BLAKE3 in hex", source.blake3)));
            }
            if source.bytes != header.file_len() {
                return Err(bad(format!(
                    "source {i}: {} bytes, its shard has {}",
                    source.bytes,
                    header.file_len()
                )));
            }
        }
        let table =
            headers.iter().enumerate().flat_map(|(shard, h)| h.tensors().iter().map(move |t| (shard, t)));
        let count = headers.iter().map(|h| h.tensors().len()).sum::<usize>();
        if m.source_tensors.len() != count {
            return Err(bad(format!(
                "{} source tensors, the GGUF headers have {count}",
                m.source_tensors.len()
            )));
        }
        for (listed, (shard, found)) in m.source_tensors.iter().zip(table) {
            let same = listed.name == found.display_name()
                && listed.shard as usize == shard
                && listed.ty == found.ty
                && listed.dims == found.dims()
                && hash::from_hex(&listed.blake3).is_some();
            if !same {
                let what = format!(
                    "source tensor {} differs from the GGUF header's {}",
                    listed.name,
                    found.display_name()
                );
                return Err(bad(what));
            }
        }
        Ok(())
    }

    fn layouts(&self) -> Result<Vec<Layout>, ContainerError> {
        let m = self.manifest;
        let user = |index: usize| {
            let tensor = m.tensors.iter().find(|t| t.layout as usize == index).map(|t| t.name.clone());
            let matrix = m.banks.iter().flat_map(|b| &b.matrices).find(|b| b.layout as usize == index);
            tensor.or(matrix.map(|b| b.name.clone())).unwrap_or_else(|| format!("layout {index}"))
        };
        let understood = m.layouts.iter().enumerate().map(|(i, tag)| {
            Layout::try_from(tag).map_err(|fault| ContainerError::Layout { tensor: user(i), fault })
        });
        understood.collect()
    }

    fn matrix(&self, stored: &Stored<'_>, layouts: &[Layout]) -> Result<(), ContainerError> {
        let Stored { name, layout, shape, bytes, parts, in_bank } = *stored;
        let layout = *layouts
            .get(layout as usize)
            .ok_or_else(|| bad(format!("{name}: layout {layout} of {}", layouts.len())))?;
        let (rows, cols) =
            matrix_dims(shape).ok_or_else(|| bad(format!("{name}: shape {shape:?} overflows")))?;
        if layout.bytes(rows, cols) != Some(bytes) {
            let want = match layout.bytes(rows, cols) {
                Some(want) => format!("{layout} of {shape:?} has {want}"),
                None => format!("{layout} cannot have the shape {shape:?}"),
            };
            return Err(bad(format!("{name}: {bytes} bytes, {want}")));
        }
        let mut next = 0u64;
        for part in parts {
            let source = self.manifest.source_tensors.get(part.source as usize);
            let source =
                source.ok_or_else(|| bad(format!("{name}: there is no source tensor {}", part.source)))?;
            let source_cols = source.dims.first().copied().unwrap_or(1);
            let outer = source.dims.get(1..).unwrap_or(&[]);
            let source_rows = match outer {
                [rows, _experts] if in_bank => *rows,
                _ if in_bank => {
                    let dims = &source.dims;
                    return Err(bad(format!("{name}: {} {dims:?} is no stack of experts", source.name)));
                }
                outer => size::product(outer).unwrap_or(0),
            };
            let [from, to] = part.rows;
            let [left, right] = part.cols.unwrap_or([0, source_cols]);
            let fits = from <= to
                && to <= source_rows
                && left <= right
                && right <= source_cols
                && right - left == cols;
            let keeps_type = match layout {
                Layout::Raw(ty) | Layout::Block(ty) => ty == source.ty,
                _ => true,
            };
            if !fits || !keeps_type {
                return Err(bad(format!(
                    "{name}: part {part:?} does not fit {} of {} as {layout}",
                    source.name, source.ty
                )));
            }
            if !next.is_multiple_of(layout.row_tile()) {
                return Err(bad(format!(
                    "{name}: part {part:?} begins at row {next}, inside a tile of {} rows of {layout}",
                    layout.row_tile()
                )));
            }
            next = next.checked_add(to - from).ok_or_else(|| bad(format!("{name}: too many rows")))?;
        }
        if next != rows && !(rows > 0 && cols == 0) {
            return Err(bad(format!("{name}: its parts have {next} rows, its shape {rows}")));
        }
        Ok(())
    }

    fn tensor(&self, t: &StoredTensor, layouts: &[Layout], owned: &mut [bool]) -> Result<(), ContainerError> {
        let StoredTensor { name, layout, shape, bytes, parts, .. } = t;
        let (layout, bytes) = (*layout, *bytes);
        self.matrix(&Stored { name, layout, shape, bytes, parts, in_bank: false }, layouts)?;
        self.own(t.blob, (t.card, t.offset, bytes), name, owned)
    }

    fn own(
        &self,
        blob: u64,
        (card, offset, bytes): (u32, u64, u64),
        name: &str,
        owned: &mut [bool],
    ) -> Result<(), ContainerError> {
        let index = usize::try_from(blob).unwrap_or(usize::MAX);
        let Some((entry, owned)) = self.table.blobs().get(index).zip(owned.get_mut(index)) else {
            return Err(bad(format!("{name}: there is no blob {blob}")));
        };
        if std::mem::replace(owned, true) {
            return Err(bad(format!("{name}: blob {blob} is used twice")));
        }
        if (entry.card, entry.offset, entry.bytes) != (card.into(), offset, bytes) {
            let want = format!("card {} offset {} bytes {}", entry.card, entry.offset, entry.bytes);
            return Err(bad(format!(
                "{name}: card {card} offset {offset} bytes {bytes}, the hash table says {want}"
            )));
        }
        Ok(())
    }

    fn bank(&self, b: &Bank, layouts: &[Layout], owned: &mut [bool]) -> Result<(), ContainerError> {
        let name = format!("bank of layer {} on card {}", b.layer, b.card);
        let aligned = b.stride.is_multiple_of(self.header.alignment.blob.into());
        if b.stride < b.bytes || !aligned || b.experts.is_empty() {
            return Err(bad(format!(
                "{name}: {} slots of {} bytes at stride {}",
                b.experts.len(),
                b.bytes,
                b.stride
            )));
        }
        if !b.offset.is_multiple_of(self.header.alignment.blob.into()) {
            let align = self.header.alignment.blob;
            return Err(bad(format!("{name}: offset {} is no multiple of {align}", b.offset)));
        }
        let align = u64::from(self.header.alignment.tensor);
        let mut at = 0;
        for m in &b.matrices {
            if !m.offset.is_multiple_of(align) {
                return Err(bad(format!("{}: offset {} is no multiple of {align}", m.name, m.offset)));
            }
            let BankMatrix { name, layout, shape, bytes, parts, .. } = m;
            let (layout, bytes) = (*layout, *bytes);
            self.matrix(&Stored { name, layout, shape, bytes, parts, in_bank: true }, layouts)?;
            let end = m.offset.checked_add(m.bytes).filter(|&e| e <= b.bytes && m.offset >= at);
            at = end.ok_or_else(|| bad(format!("{}: lies outside its blob or overlaps", m.name)))?;
        }
        for slot in 0..b.experts.len() as u64 {
            let offset = size::mul(slot, b.stride).and_then(|o| o.checked_add(b.offset));
            let offset = offset.ok_or_else(|| bad(format!("{name}: slot {slot} overflows")))?;
            let blob = b
                .first_blob
                .checked_add(slot)
                .ok_or_else(|| bad(format!("{name}: slot {slot} overflows")))?;
            self.own(blob, (b.card, offset, b.bytes), &name, owned)?;
        }
        Ok(())
    }
}

/// `(rows, cols)` of a shape given outermost first; no dims: one value.
pub(super) fn matrix_dims(shape: &[u64]) -> Option<(u64, u64)> {
    match shape {
        [] => Some((1, 1)),
        [rows @ .., cols] => Some((size::product(rows)?, *cols)),
    }
}
