//! Vocabularies for the text tests: fetched once, read with a GGUF reader that knows just enough.

use gantry_runtime::text::{Meta, Vocab};
use std::{
    collections::HashMap,
    fs::{self, File},
    path::{Path, PathBuf},
    process::Command,
};

/// The folder with llama.cpp's `ggml-vocab-*` files: `$GANTRY_FIXTURES/vocab`, or `fixtures/vocab` in the target
/// folder. Fetches them when they are absent; fails when that is impossible, so that no machine passes untested.
pub(crate) fn vocab_folder() -> PathBuf {
    let root = match std::env::var_os("GANTRY_FIXTURES") {
        Some(root) => PathBuf::from(root),
        None => Path::new(env!("CARGO_TARGET_TMPDIR")).parent().expect("a target folder").join("fixtures"),
    };
    let folder = root.join("vocab");
    fs::create_dir_all(&root).unwrap_or_else(|error| panic!("{}: {error}", root.display()));
    // Tests are processes of their own: the first fetches, the others wait. The lock ends with its file handle.
    let lock = File::create(root.join("vocab.lock")).expect("the lock file opens");
    lock.lock().expect("the lock is taken");
    if !folder.is_dir() {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures/fetch_vocab.py");
        let status = Command::new("python3").arg(&script).arg(&folder).status();
        assert!(
            status.as_ref().is_ok_and(|status| status.success()) && folder.is_dir(),
            "{} {}: {status:?}; run it by hand, or set GANTRY_FIXTURES to a folder with vocab/",
            script.display(),
            folder.display(),
        );
    }
    folder
}

/// The vocabulary in a GGUF file.
pub(crate) fn read_vocab(path: &Path) -> Vocab {
    let keys = read_keys(path);
    Vocab::from_metadata(&|key: &str| keys.get(key).cloned()).expect("a vocabulary")
}

/// Every key of a GGUF file, as far as the shapes of [`Meta`] go.
pub(crate) fn read_keys(path: &Path) -> HashMap<String, Meta> {
    let bytes = fs::read(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let mut reader = Reader(&bytes);
    assert_eq!(reader.take(4), b"GGUF", "{}", path.display());
    assert!(matches!(reader.u32(), 2 | 3));
    let _tensors = reader.u64();
    (0..reader.u64())
        .filter_map(|_| {
            let key = String::from_utf8(reader.text()).expect("keys are UTF-8");
            let kind = reader.u32();
            Some((key, reader.value(kind)?))
        })
        .collect()
}

struct Reader<'b>(&'b [u8]);

impl<'b> Reader<'b> {
    fn take(&mut self, count: usize) -> &'b [u8] {
        let (head, tail) = self.0.split_at(count);
        self.0 = tail;
        head
    }

    fn array<const N: usize>(&mut self) -> [u8; N] {
        self.take(N).try_into().expect("N bytes")
    }

    fn u32(&mut self) -> u32 {
        u32::from_le_bytes(self.array())
    }

    fn u64(&mut self) -> u64 {
        u64::from_le_bytes(self.array())
    }

    fn text(&mut self) -> Vec<u8> {
        let len = self.u64() as usize;
        self.take(len).to_vec()
    }

    fn value(&mut self, kind: u32) -> Option<Meta> {
        Some(match kind {
            0 => Meta::Int(self.array::<1>()[0].into()),
            1 => Meta::Int(i8::from_le_bytes(self.array()).into()),
            2 => Meta::Int(u16::from_le_bytes(self.array()).into()),
            3 => Meta::Int(i16::from_le_bytes(self.array()).into()),
            4 => Meta::Int(self.u32().into()),
            5 => Meta::Int(i32::from_le_bytes(self.array()).into()),
            6 => Meta::Float(f32::from_le_bytes(self.array()).into()),
            7 => Meta::Bool(self.array::<1>()[0] != 0),
            8 => Meta::Text(self.text()),
            10 => Meta::Int(self.u64() as i64),
            11 => Meta::Int(i64::from_le_bytes(self.array())),
            12 => Meta::Float(f64::from_le_bytes(self.array())),
            9 => {
                let (kind, count) = (self.u32(), self.u64());
                let items: Vec<Meta> = (0..count).filter_map(|_| self.value(kind)).collect();
                return match kind {
                    6 | 12 => Some(Meta::Floats(items.into_iter().filter_map(float).collect())),
                    8 => Some(Meta::Texts(items.into_iter().filter_map(bytes).collect())),
                    7 | 9 => None,
                    _ => Some(Meta::Ints(items.into_iter().filter_map(int).collect())),
                };
            }
            other => panic!("no GGUF value type {other}"),
        })
    }
}

fn float(item: Meta) -> Option<f32> {
    if let Meta::Float(value) = item { Some(value as f32) } else { None }
}

fn int(item: Meta) -> Option<i64> {
    if let Meta::Int(value) = item { Some(value) } else { None }
}

fn bytes(item: Meta) -> Option<Vec<u8>> {
    if let Meta::Text(value) = item { Some(value) } else { None }
}
