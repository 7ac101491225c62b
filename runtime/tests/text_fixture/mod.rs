//! Vocabularies for the text tests.

use gantry_formats::gguf::Gguf;
use gantry_runtime::{text::Vocab, vocab};
use std::{
    path::{Path, PathBuf},
    process::Command,
};

/// The folder with llama.cpp's `ggml-vocab-*` files, made by `tests/fixtures/make_fixtures.py` where it is not there
/// yet. Fails when that is impossible, so that no machine passes untested.
pub(crate) fn vocab_folder() -> PathBuf {
    let out = Path::new(env!("CARGO_TARGET_TMPDIR")).parent().expect("a target folder").join("fixtures");
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures/make_fixtures.py");
    let status = Command::new("python3").arg(&script).arg(&out).arg("vocab").status();
    let made = status.as_ref().is_ok_and(|status| status.success());
    assert!(made, "python3 {} {} vocab: {status:?}", script.display(), out.display());
    out.join("vocab")
}

/// The vocabulary in a GGUF file.
pub(crate) fn read_vocab(path: &Path) -> Vocab {
    let gguf = Gguf::open(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    vocab(gguf.header()).expect("a vocabulary")
}
