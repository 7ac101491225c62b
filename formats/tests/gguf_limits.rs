//! What hostile files cost: under 64 MiB and under a second each. The only test of its process, since the peak
//! memory is the process's.

use gantry_formats::gguf::{Gguf, limits};
use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;
use std::time::{Duration, Instant};

/// Peak resident memory of this process in bytes.
fn peak() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").expect("Linux");
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).expect("a peak");
    line.trim().trim_end_matches("kB").trim().parse::<u64>().expect("a number") << 10
}

struct Out(BufWriter<File>);

impl Out {
    fn new(path: &Path, tensors: u64, keys: u64) -> Self {
        let mut out = Self(BufWriter::new(File::create(path).expect("created")));
        out.put(b"GGUF").put(&3u32.to_le_bytes()).u64(tensors).u64(keys);
        out.key(b"general.architecture", 8).text(b"llama");
        out
    }

    fn put(&mut self, bytes: &[u8]) -> &mut Self {
        self.0.write_all(bytes).expect("written");
        self
    }

    fn u64(&mut self, n: u64) -> &mut Self {
        self.put(&n.to_le_bytes())
    }

    fn text(&mut self, bytes: &[u8]) -> &mut Self {
        self.u64(bytes.len() as u64).put(bytes)
    }

    fn key(&mut self, key: &[u8], ty: u32) -> &mut Self {
        self.text(key).put(&ty.to_le_bytes())
    }

    fn array(&mut self, key: &[u8], elem: u32, len: u64) -> &mut Self {
        self.key(key, 9).put(&elem.to_le_bytes()).u64(len)
    }

    fn sparse(self, len: u64) {
        self.0.into_inner().expect("flushed").set_len(len).expect("extended");
    }
}

/// Opens the file, and checks what it says and what it took. Time is the best of three, for busy machines.
fn cheap(path: &Path, word: &str, before: u64) {
    let mut best = Duration::MAX;
    for _ in 0..3 {
        let start = Instant::now();
        let said = Gguf::open(path).map_or_else(|e| e.to_string(), |_| "accepted".into());
        best = best.min(start.elapsed());
        assert!(said.contains(word), "expected {word:?} in {said:?}");
    }
    let grown = peak() - before;
    println!("{word}: {best:?}, peak +{} KiB", grown >> 10);
    assert!(best < Duration::from_secs(1), "{word}: took {best:?}");
    assert!(grown < 64 << 20, "{word}: took {grown} bytes");
}

#[test]
fn hostile_files_are_cheap() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("x.gguf");
    let before = peak();

    let mut out = Out::new(&path, 0, 2);
    out.array(b"x", 0, 1 << 30);
    out.sparse(8 << 30);
    cheap(&path, "header goes on past", before);

    let mut out = Out::new(&path, 0, 2);
    out.array(b"x", 10, 1 << 28);
    out.sparse(8 << 30);
    cheap(&path, "array length", before);

    let mut out = Out::new(&path, 0, 2);
    out.key(b"x", 8).u64(1 << 37);
    out.sparse(8 << 30);
    cheap(&path, "string length", before);

    // Four million empty strings, up to the limit and beyond.
    let mut out = Out::new(&path, 0, 2);
    out.array(b"x", 8, 1 << 27);
    out.sparse(8 << 30);
    cheap(&path, "header goes on past", before);

    // All counts that there can be, of nothing.
    let out = Out::new(&path, limits::MAX_TENSORS, limits::MAX_KEYS);
    out.sparse(8 << 30);
    cheap(&path, "empty key", before);

    // As many keys, tensors and bytes of header as there can be, alike to their last bytes; two tensors the same.
    let mut out = Out::new(&path, limits::MAX_TENSORS, limits::MAX_KEYS);
    for i in 0..limits::MAX_KEYS - 2 {
        let key = format!("{}{i:08}", "k".repeat(112));
        out.key(key.as_bytes(), 0).put(&[0]);
    }
    out.array(b"x", 8, 1 << 20);
    for _ in 0..1 << 20 {
        out.u64(0);
    }
    for i in 0..limits::MAX_TENSORS {
        let name = format!("{}{:08}", "n".repeat(55), i.max(1).reverse_bits() >> 40);
        out.text(name.as_bytes()).put(&4u32.to_le_bytes());
        out.u64(1).u64(1).u64(1).u64(1).put(&24u32.to_le_bytes()).u64(i * 32);
    }
    out.sparse(8 << 30);
    cheap(&path, "duplicate tensor", before);
}
