//! Copies of GGUF files with other metadata, so that small models reach what only large ones do.

use std::path::{Path, PathBuf};

/// A copy of `gguf` in `folder` whose u32 `key` is `value`.
pub(super) fn with_u32(folder: &Path, gguf: &Path, key: &str, value: u32) -> PathBuf {
    let mut file = std::fs::read(gguf).expect("a file");
    let name = [&(key.len() as u64).to_le_bytes(), key.as_bytes(), &U32.to_le_bytes()].concat();
    let at = file.windows(name.len()).position(|w| w == name).expect("the key as a u32") + name.len();
    file[at..at + 4].copy_from_slice(&value.to_le_bytes());
    write(folder, gguf, &file)
}

/// A copy of `gguf` in `folder` with YaRN, which its architecture's layers apply where they do: 16 times what is meant
/// to be a context of 64.
pub(super) fn with_yarn(folder: &Path, gguf: &Path, arch: &str) -> PathBuf {
    let file = std::fs::read(gguf).expect("a file");
    let mut pairs = pair(&format!("{arch}.rope.scaling.type"), STRING, &string("yarn"));
    pairs.extend(pair(&format!("{arch}.rope.scaling.factor"), F32, &16f32.to_le_bytes()));
    pairs.extend(pair(&format!("{arch}.rope.scaling.original_context_length"), U32, &64u32.to_le_bytes()));
    // What follows stays aligned where what comes in between fills whole blocks of 32.
    let filler = |len: usize| pair("general.description", STRING, &string(&"x".repeat(len)));
    let missing = (pairs.len() + filler(0).len()).wrapping_neg() % 32;
    pairs.extend(filler(missing));

    // Magic and version, number of tensors, number of pairs, pairs.
    let count = u64::from_le_bytes(file[16..24].try_into().expect("eight bytes")) + 4;
    let file = [&file[..16], &count.to_le_bytes(), &pairs, &file[24..]].concat();
    write(folder, gguf, &file)
}

const U32: u32 = 4;
const F32: u32 = 6;
const STRING: u32 = 8;

fn string(text: &str) -> Vec<u8> {
    [&(text.len() as u64).to_le_bytes(), text.as_bytes()].concat()
}

fn pair(key: &str, ty: u32, value: &[u8]) -> Vec<u8> {
    [&string(key), &ty.to_le_bytes()[..], value].concat()
}

fn write(folder: &Path, gguf: &Path, file: &[u8]) -> PathBuf {
    let out = folder.join(gguf.file_name().expect("a name"));
    std::fs::write(&out, file).expect("the copy");
    out
}
