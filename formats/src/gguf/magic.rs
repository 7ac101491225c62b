//! Telling what a file that is no GGUF is instead.

use super::error::GgufFault;

/// First bytes of a GGUF.
pub(super) const MAGIC: &[u8; 4] = b"GGUF";

/// Bytes that [`check`] wants to see, or all where the file has fewer.
pub(super) const HEAD_BYTES: usize = 64;

/// Accepts the start of a little-endian GGUF of version 2 or 3 and gives the version; `head` is the first
/// [`HEAD_BYTES`] bytes.
pub(super) fn check(head: &[u8]) -> Result<u32, GgufFault> {
    if head.is_empty() {
        return Err(GgufFault::Empty);
    }
    let shared = head.len().min(MAGIC.len());
    if head.get(..shared) != MAGIC.get(..shared) {
        return Err(GgufFault::NotGguf { what: describe(head) });
    }
    let Some(version) = head.get(4..8).and_then(|b| b.try_into().ok()).map(u32::from_le_bytes) else {
        return Err(GgufFault::Truncated {
            what: "version",
            at: 4,
            need: 4,
            left: head.len().saturating_sub(4) as u64,
        });
    };
    match version {
        2 | 3 => Ok(version),
        other if other != 0 && other.swap_bytes() <= 0xffff => {
            Err(GgufFault::BigEndian { version: other.swap_bytes() })
        }
        found => Err(GgufFault::Version { found }),
    }
}

/// What a file that starts with `head` most likely is.
fn describe(head: &[u8]) -> String {
    if head.starts_with(&crate::container::MAGIC) {
        return "a Gantry container already, not a GGUF; `gantry replan --target` packs it for another target, \
                `gantry export` gives the GGUF back".into();
    }
    let text = head.strip_prefix(b"\xef\xbb\xbf").unwrap_or(head).trim_ascii_start().to_ascii_lowercase();
    let starts = |prefixes: &[&[u8]]| prefixes.iter().any(|p| text.starts_with(p));
    if starts(&[b"<!doctype html", b"<html", b"<head"]) {
        return "an HTML page, not GGUF: the download got an error or login page; download the file again"
            .into();
    }
    if starts(&[b"<?xml"]) {
        return "an XML document, not GGUF: the download got an error reply; download the file again".into();
    }
    if starts(&[b"version https://git-lfs"]) {
        return "a git-lfs pointer, not the file itself; run `git lfs pull`, or download the file from its page".into();
    }
    if starts(&[b"lmgg", b"fmgg", b"tjgg", b"algg"]) {
        return "a GGML file from before GGUF; convert the original model again with a current llama.cpp"
            .into();
    }
    if starts(&[b"pk\x03\x04"]) {
        return "a zip archive (perhaps a PyTorch checkpoint), not GGUF; convert it with llama.cpp first"
            .into();
    }
    if head.get(8..10) == Some(b"{\"") {
        return "a safetensors file, not GGUF; convert it with llama.cpp's convert_hf_to_gguf.py first"
            .into();
    }
    let shown: Vec<String> = head.iter().take(8).map(|b| format!("{b:02x}")).collect();
    format!("not a GGUF: it starts with {}, expected 47 47 55 46 (\"GGUF\")", shown.join(" "))
}
