//! The index, where it does not open: which of its parts are damaged.

use super::damage::{Damage, Region};
use crate::weights::file_name;
use gantry_formats::container::{ContainerError, HEADER_BYTES, Header};
use gantry_formats::source::{FileSource, ReadAt};
use std::io;
use std::path::Path;

/// All damage of the index file's header and sections. Empty where the header is whole and every section matches.
///
/// # Errors
/// Where the file cannot be read.
pub(super) fn examine(path: &Path, error: &ContainerError) -> io::Result<Vec<Damage>> {
    let file = FileSource::open(path)?;
    let damage = |region, bytes, what: String, all_zero| Damage {
        region,
        file: file_name(path),
        card: None,
        name: None,
        matrices: Vec::new(),
        blocks: None,
        bytes,
        all_zero,
        what,
    };
    let mut page = vec![0; file.len().min(HEADER_BYTES) as usize];
    file.read_exact_at(0, &mut page)?;
    let header = match Header::parse(&page, path) {
        Ok(header) => header,
        Err(e) => {
            let what = match e {
                ContainerError::Integrity { what, .. } => what,
                other => other.to_string(),
            };
            return Ok(vec![damage(Region::Header, [0, page.len() as u64], what, false)]);
        }
    };
    let mut out = Vec::new();
    if file.len() != header.file_bytes {
        let bytes = [file.len().min(header.file_bytes), file.len().max(header.file_bytes)];
        let what = format!("{} bytes long, the header says {}", file.len(), header.file_bytes);
        out.push(damage(Region::Length, bytes, what, false));
    }
    let sections = [
        (Region::Metadata, header.metadata, header.metadata_hash),
        (Region::Table, header.table, header.table_hash),
        (Region::Manifest, header.manifest, header.manifest_hash),
    ];
    for (region, section, want) in sections {
        let bytes = [section.offset, section.offset.saturating_add(section.bytes)];
        if bytes[1] > file.len() {
            out.push(damage(region, bytes, format!("the file ends at {}", file.len()), false));
            continue;
        }
        let mut hasher = blake3::Hasher::new();
        let mut all_zero = section.bytes > 0;
        let mut buffer = vec![0; 1 << 20];
        let mut at = bytes[0];
        while at < bytes[1] {
            let len = (bytes[1] - at).min(buffer.len() as u64) as usize;
            file.read_exact_at(at, &mut buffer[..len])?;
            hasher.update(&buffer[..len]);
            all_zero &= super::payload::is_zero(&buffer[..len]);
            at += len as u64;
        }
        if *hasher.finalize().as_bytes() != want {
            out.push(damage(region, bytes, "BLAKE3 does not match the header".into(), all_zero));
        }
    }
    // What is whole as bytes and yet does not hold together, such as a card's digest.
    if out.is_empty() {
        out.push(damage(Region::Card, [0, HEADER_BYTES], error.to_string(), false));
    }
    Ok(out)
}
