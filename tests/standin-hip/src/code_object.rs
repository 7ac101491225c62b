//! Code objects, as the compiler writes them: ELF files.
//!
//! <https://llvm.org/docs/AMDGPUUsage.html#elf-code-object>

use crate::code::{Code, INVALID_IMAGE, INVALID_VALUE};
use crate::metadata::{Told, kernels};
use std::collections::BTreeMap;

/// `EM_AMDGPU`
const MACHINE: usize = 224;

/// `EF_AMDGPU_MACH_…`: what the lowest byte of the flags says.
const GENERATIONS: [(u8, &str); 13] = [
    (0x2f, "gfx906"),
    (0x30, "gfx908"),
    (0x33, "gfx1010"),
    (0x36, "gfx1030"),
    (0x3f, "gfx90a"),
    (0x40, "gfx940"),
    (0x41, "gfx1100"),
    (0x44, "gfx1103"),
    (0x46, "gfx1101"),
    (0x47, "gfx1102"),
    (0x48, "gfx1200"),
    (0x4c, "gfx942"),
    (0x4e, "gfx1201"),
];
const GFX950: (u8, &str) = (0x4f, "gfx950");

const HEADER: usize = 64;
const SECTION: usize = 64;
const NOTES: usize = 7;
const DYNAMIC_SYMBOLS: usize = 11;
const WITHOUT_BYTES: usize = 8;
/// `NT_AMDGPU_METADATA`
const METADATA: usize = 32;

/// What is in one.
pub(crate) struct CodeObject {
    /// Which generation of cards it is for; none that is known here where it is another.
    pub(crate) generation: Option<&'static str>,
    /// Kernels by name, of those that have a descriptor.
    pub(crate) kernels: BTreeMap<String, Told>,
}

impl CodeObject {
    /// Reads the one at `image`.
    ///
    /// # Safety
    /// A whole one lies there, or something else of at least 64 bytes.
    pub(crate) unsafe fn read(image: *const u8) -> Result<Self, Code> {
        if image.is_null() {
            return Err(INVALID_VALUE);
        }
        // SAFETY: as the caller says.
        let header = unsafe { std::slice::from_raw_parts(image, HEADER) };
        let magic = header.starts_with(&[0x7f, b'E', b'L', b'F', 2, 1]);
        if !magic || number(header, 18, 2) != Some(MACHINE) {
            return Err(INVALID_IMAGE);
        }
        let [table, count] = [(40, 8), (60, 2)].map(|(at, len)| number(header, at, len).unwrap_or(0));
        let end =
            count.checked_mul(SECTION).and_then(|bytes| bytes.checked_add(table)).ok_or(INVALID_IMAGE)?;
        // SAFETY: the table of sections stands where the header says, and the file goes on at least to its end.
        let known = unsafe { std::slice::from_raw_parts(image, end) };
        let ends =
            (0..count).filter_map(|i| Section::of(known, table, i)).filter(|s| s.kind != WITHOUT_BYTES);
        let end = ends.map(|s| s.at.saturating_add(s.bytes)).max().unwrap_or(0).max(end);
        // SAFETY: the file goes on to the end of its last section.
        let whole = unsafe { std::slice::from_raw_parts(image, end) };
        Self::parse(whole, table, count).ok_or(INVALID_IMAGE)
    }

    fn parse(file: &[u8], table: usize, count: usize) -> Option<Self> {
        let flags = number(file, 48, 4)? as u8;
        let generation =
            GENERATIONS.iter().chain([&GFX950]).find(|(mach, _)| *mach == flags).map(|(_, name)| *name);
        let sections: Vec<Section> = (0..count).filter_map(|i| Section::of(file, table, i)).collect();
        let note = sections.iter().filter(|s| s.kind == NOTES).find_map(|s| metadata(s.of_file(file)?))?;
        let mut told = kernels(note)?;
        // A kernel can be launched where its descriptor is among the symbols.
        let symbols = sections.iter().find(|s| s.kind == DYNAMIC_SYMBOLS)?;
        let names = sections.get(symbols.link)?.of_file(file)?;
        let named: Vec<&[u8]> =
            symbols.of_file(file)?.chunks_exact(24).filter_map(|s| name_of(s, names)).collect();
        told.retain(|name, _| named.contains(&format!("{name}.kd").as_bytes()));
        Some(Self { generation, kernels: told })
    }
}

/// A little-endian number of `len` bytes.
fn number(bytes: &[u8], at: usize, len: usize) -> Option<usize> {
    let bytes = bytes.get(at..at.checked_add(len)?)?;
    Some(bytes.iter().rev().fold(0, |n, byte| n << 8 | usize::from(*byte)))
}

struct Section {
    kind: usize,
    at: usize,
    bytes: usize,
    link: usize,
}

impl Section {
    fn of(file: &[u8], table: usize, index: usize) -> Option<Self> {
        let start = table + index * SECTION;
        let field = |at: usize, len: usize| number(file, start + at, len);
        Some(Self { kind: field(4, 4)?, at: field(24, 8)?, bytes: field(32, 8)?, link: field(40, 4)? })
    }

    fn of_file<'a>(&self, file: &'a [u8]) -> Option<&'a [u8]> {
        file.get(self.at..self.at.checked_add(self.bytes)?)
    }
}

fn metadata(mut notes: &[u8]) -> Option<&[u8]> {
    while !notes.is_empty() {
        let [name, text, kind] = [0, 4, 8].map(|at| number(notes, at, 4));
        let (name, text) = (name?, text?);
        let text_at = 12usize.checked_add(name.checked_next_multiple_of(4)?)?;
        let end = text_at.checked_add(text)?;
        if kind? == METADATA && notes.get(12..12 + name)? == b"AMDGPU\0" {
            return notes.get(text_at..end);
        }
        notes = notes.get(end.checked_next_multiple_of(4)?..)?;
    }
    None
}

fn name_of<'a>(symbol: &[u8], names: &'a [u8]) -> Option<&'a [u8]> {
    let name = names.get(number(symbol, 0, 4)?..)?;
    name.split(|byte| *byte == 0).next()
}
