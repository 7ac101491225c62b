//! The way back to the file.

use super::*;
use crate::failure::exit_of;
use crate::sample::{self, Sample};
use gantry_formats::block::GgmlType;
use gantry_formats::container::{Container, ShardHeader, Source, SourceTensor};
use gantry_formats::gguf::{Gguf, GgufWriter, Header};
use std::fs;
use std::path::Path;

fn args(container: &Path, output: &Path) -> ExportArgs {
    ExportArgs {
        file: container.into(),
        output: output.into(),
        force: false,
        no_verify: false,
        json: false,
        threads: Some(2),
    }
}

#[test]
fn a_lossless_container_gives_its_source_again() {
    for split_cards in [false, true] {
        let dir = tempfile::tempdir().expect("a folder");
        let sample = Sample { split_cards, ..Sample::lossless() };
        let path = sample.write(dir.path());
        let out = dir.path().join("back.gguf");
        let written = export(&args(&path, &out)).expect("exports");
        assert!(written[0].is_source);
        assert_eq!(fs::read(&out).expect("written"), sample.gguf, "residues too");
        assert!(!dir.path().join("back.gguf.partial").exists());
        let folder = dir.path().join("folder");
        fs::create_dir(&folder).expect("new");
        export(&args(&path, &folder)).expect("exports");
        assert_eq!(fs::read(folder.join("sample.gguf")).expect("written"), sample.gguf);
    }
}

#[test]
fn a_requantized_container_gives_the_types_that_it_has() {
    let dir = tempfile::tempdir().expect("a folder");
    let sample = Sample::new();
    let out = dir.path().join("q.gguf");
    let written = export(&args(&sample.write(dir.path()), &out)).expect("exports");
    assert!(!written[0].is_source);
    assert_eq!(written[0].changed, 1);
    let gguf = Gguf::open(&out).expect("a GGUF");
    for (t, (name, ty, dims, bytes)) in gguf.tensors().zip(sample::source()) {
        assert_eq!((t.display_name().as_str(), t.dims()), (name, &dims[..]));
        let mut found = vec![0; t.bytes as usize];
        gguf.read_tensor(&t, 0, &mut found).expect("readable");
        if name == "blk.0.ffn_up.weight" {
            assert_eq!(t.ty, GgmlType::Q8_0);
            assert_eq!(found, sample::quantize(&sample::floats(ty, &bytes)));
        } else {
            assert_eq!((t.ty, found), (ty, bytes), "{name}");
        }
    }
    assert_eq!(gguf.get("general.quantization_version").and_then(|v| v.as_u64()), Some(2));
    assert_eq!(gguf.get("sample.odd").and_then(|v| v.as_bytes()), Some(&b"\xff\xfe"[..]));
    assert_eq!(fs::metadata(&out).expect("written").len(), gguf.header().file_len());
}

#[test]
fn outputs_that_must_not_be_written() {
    let dir = tempfile::tempdir().expect("a folder");
    let sample = Sample::lossless();
    let path = sample.write(dir.path());
    let out = dir.path().join("back.gguf");
    fs::write(&out, "mine").expect("write");
    let refused = |output: &Path, force: bool| {
        let error = export(&ExportArgs { force, ..args(&path, output) }).map(|_| ()).expect_err("refused");
        (exit_of(&error), error.to_string())
    };
    let (exit, text) = refused(&out, false);
    assert_eq!((exit, text.contains("--force")), (Exit::Usage, true), "{text}");
    assert_eq!(fs::read(&out).expect("kept"), b"mine");
    let link = dir.path().join("link.gguf");
    fs::hard_link(&path, &link).expect("link");
    let before = fs::read(&path).expect("there");
    assert!(refused(&link, true).1.contains("is the container itself"));
    assert!(refused(&path, true).1.contains("is the container itself"));
    assert_eq!(fs::read(&path).expect("there"), before);
    assert_eq!(refused(&dir.path().join("no/x.gguf"), false).0, Exit::Usage);
    export(&ExportArgs { force: true, ..args(&path, &out) }).expect("forced");
    assert_eq!(fs::read(&out).expect("written"), sample.gguf);
}

#[test]
fn damage_and_false_hashes_leave_nothing_behind() {
    let dir = tempfile::tempdir().expect("a folder");
    let out = dir.path().join("back.gguf");
    let mut sample = Sample::lossless();
    sample.manifest.sources[0].blake3 = "11".repeat(32);
    let path = sample.write(dir.path());
    let error = export(&args(&path, &out)).map(|_| ()).expect_err("another hash");
    assert_eq!(exit_of(&error), Exit::Integrity);
    let path = Sample::lossless().write(dir.path());
    let mut bytes = fs::read(&path).expect("there");
    bytes[4096] ^= 1;
    fs::write(&path, bytes).expect("write");
    let error = export(&args(&path, &out)).map(|_| ()).expect_err("damaged");
    assert_eq!(exit_of(&error), Exit::Integrity);
    assert!(format!("{error:#}").contains("token_embd.weight"), "{error:#}");
    let left: Vec<_> = fs::read_dir(dir.path()).expect("there").filter_map(|e| e.ok()).collect();
    assert_eq!(left.len(), 1, "only the container: {left:?}");
}

#[test]
fn names_from_the_container_do_not_leave_the_folder() {
    let dir = tempfile::tempdir().expect("a folder");
    for file in ["../evil.gguf", "/tmp/evil.gguf", "a/b.gguf", "..", ""] {
        let mut sample = Sample::lossless();
        sample.manifest.sources[0].file = file.into();
        let path = sample.write(dir.path());
        let error = export(&args(&path, dir.path())).map(|_| ()).expect_err("refused");
        assert_eq!(exit_of(&error), Exit::Input, "{file}");
    }
}

/// The sample as a set of two shards.
fn set() -> (Sample, [Vec<u8>; 2]) {
    let mut sample = Sample::lossless();
    let tensors = sample::source();
    let shard = |no: u16, header: &Header, tensors: &[sample::SourceTensorBytes]| {
        let mut writer = if no == 0 { GgufWriter::from_header(header) } else { GgufWriter::new(3) };
        if no == 0 {
            // A writer cannot drop tensors, so the first shard is made anew from the keys.
            let mut fresh = GgufWriter::new(3);
            header.entries().for_each(|e| drop(e.value().map(|v| fresh.set(e.key, v).finish())));
            writer = fresh;
        }
        writer.set("split.no", gantry_formats::gguf::Value::U16(no));
        writer.set("split.count", gantry_formats::gguf::Value::U16(2));
        writer.set("split.tensors.count", gantry_formats::gguf::Value::I32(10));
        for (name, ty, dims, _) in tensors {
            writer.tensor(name, dims, *ty).expect("legal");
        }
        let header = writer.finish().expect("legal");
        let mut file = vec![0; header.file_len() as usize];
        file[..header.raw().len()].copy_from_slice(header.raw());
        for (info, (.., bytes)) in header.tensors().iter().zip(tensors) {
            let range = header.range_of(info);
            file[range.start as usize..range.end as usize].copy_from_slice(bytes);
        }
        (header, file)
    };
    let whole = sample::header(&tensors);
    let shards = [shard(0, &whole, &tensors[..4]), shard(1, &whole, &tensors[4..])];
    let kept = |(header, file): &(Header, Vec<u8>)| ShardHeader {
        file_bytes: file.len() as u64,
        header: header.raw().to_vec(),
        data_offset: header.data_offset(),
        residues: Vec::new(),
    };
    sample.metadata.shards = shards.iter().map(kept).collect();
    let source = |(n, (_, file)): (usize, &(Header, Vec<u8>))| Source {
        file: format!("sample-0000{}-of-00002.gguf", n + 1),
        bytes: file.len() as u64,
        blake3: hash::hex(&hash::hash(file)),
    };
    sample.manifest.sources = shards.iter().enumerate().map(source).collect();
    sample.manifest.source_tensors.iter_mut().skip(4).for_each(|t: &mut SourceTensor| t.shard = 1);
    (sample, shards.map(|s| s.1))
}

#[test]
fn a_set_becomes_the_same_set() {
    let dir = tempfile::tempdir().expect("a folder");
    let (sample, files) = set();
    let path = sample.write(dir.path());
    let expect = |name: &str| {
        for (n, file) in files.iter().enumerate() {
            let path = dir.path().join(format!("{name}-0000{}-of-00002.gguf", n + 1));
            assert_eq!(&fs::read(&path).expect("written"), file);
        }
    };
    for (output, name) in
        [("other.gguf", "other"), ("third-00002-of-00002.gguf", "third"), ("bare", "bare"), ("", "sample")]
    {
        export(&args(&path, &dir.path().join(output))).expect("exports");
        expect(name);
    }
    Gguf::open(&dir.path().join("other-00002-of-00002.gguf")).expect("a set");
}

#[test]
fn a_tensor_that_is_not_there_is_named() {
    let dir = tempfile::tempdir().expect("a folder");
    let mut sample = Sample::lossless();
    sample.manifest.tensors[2].parts[1] = sample.manifest.tensors[2].parts[0].clone();
    sample.manifest.tensors[2].parts[1].rows = [0, 4];
    let path = sample.write(dir.path());
    Container::open(&path).expect("the format allows it");
    let error = export(&args(&path, &dir.path().join("x.gguf"))).map(|_| ()).expect_err("not whole");
    assert!(error.to_string().contains("blk.0.attn_k.weight"), "{error}");
}
