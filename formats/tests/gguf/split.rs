//! Split sets: found from any shard, and refused as a whole.

use crate::bytes::*;
use gantry_formats::gguf::{Gguf, GgufError};
use std::path::Path;

/// One shard with one tensor.
fn shard(no: u16, count: u16, total: i32, name: &str) -> File {
    let mut file = good();
    if no > 0 {
        file.kvs.clear();
    }
    file.tensors = vec![tensor(name.as_bytes(), &[32], BF16, 0)];
    file.key(kv("split.no", U16, &no.to_le_bytes()))
        .key(kv("split.count", U16, &count.to_le_bytes()))
        .key(kv("split.tensors.count", I32, &total.to_le_bytes()))
}

/// Three shards with a, b and c.
fn three() -> Vec<File> {
    vec![shard(0, 3, 3, "a"), shard(1, 3, 3, "b"), shard(2, 3, 3, "c")]
}

fn name(i: usize, count: usize) -> String {
    format!("m-{:05}-of-{count:05}.gguf", i + 1)
}

fn open(files: &[File]) -> Result<Gguf<Vec<u8>>, GgufError> {
    Gguf::from_sources(files.iter().enumerate().map(|(i, f)| (name(i, files.len()), f.build())).collect())
}

fn write(folder: &Path, files: &[File]) {
    for (i, file) in files.iter().enumerate() {
        std::fs::write(folder.join(name(i, files.len())), file.build()).expect("written");
    }
}

#[track_caller]
fn says<T>(result: Result<T, GgufError>, words: &[&str]) {
    let Err(error) = result else { panic!("was accepted, expected {words:?}") };
    let said = error.to_string();
    assert!(words.iter().all(|word| said.contains(word)), "expected {words:?} in {said:?}");
}

#[test]
fn found_from_any_shard() {
    let folder = tempfile::tempdir().expect("a folder");
    write(folder.path(), &three());
    for i in 0..3 {
        let model = Gguf::open(&folder.path().join(name(i, 3))).expect("the set");
        assert_eq!(model.tensor_count(), 3);
        assert_eq!(model.header().architecture(), Some(&b"llama"[..]));
        let got: Vec<_> = model.tensors().map(|t| (t.index, t.shard, t.display_name())).collect();
        assert_eq!(got, [(0, 0, "a".to_owned()), (1, 1, "b".into()), (2, 2, "c".into())]);
        for t in model.tensors() {
            assert_eq!(model.tensor(t.index).map(|t| (t.shard, t.start)), Some((t.shard, t.start)));
            assert_eq!(model.find(t.name()).map(|t| t.index), Some(t.index));
            assert_eq!(t.range().end, model.shards()[t.shard].len());
        }
        assert!(model.tensor(3).is_none());
        assert_eq!(model.shards()[2].file_name(), name(2, 3));
    }
}

#[test]
fn found_in_a_cache_of_links() {
    let root = tempfile::tempdir().expect("a folder");
    let (blobs, names) = (root.path().join("blobs"), root.path().join("names"));
    std::fs::create_dir(&blobs).expect("made");
    std::fs::create_dir(&names).expect("made");
    for (i, file) in three().iter().enumerate() {
        std::fs::write(blobs.join(format!("hash{i}")), file.build()).expect("written");
        std::os::unix::fs::symlink(format!("../blobs/hash{i}"), names.join(name(i, 3))).expect("linked");
    }
    assert_eq!(Gguf::open(&names.join(name(1, 3))).expect("the set").tensor_count(), 3);
    says(Gguf::open(&blobs.join("hash1")), &["split.count is 3", "NAME-00001-of-00003.gguf"]);
    std::fs::remove_file(names.join(name(2, 3))).expect("removed");
    says(Gguf::open(&names.join(name(1, 3))), &["m-00003-of-00003.gguf is missing"]);
}

#[test]
fn found_through_a_link_of_another_name() {
    let root = tempfile::tempdir().expect("a folder");
    let set = root.path().join("set");
    std::fs::create_dir(&set).expect("made");
    write(&set, &three());
    for link in ["model.gguf", &name(2, 3)] {
        let link = root.path().join(link);
        std::os::unix::fs::symlink(set.join(name(2, 3)), &link).expect("linked");
        assert_eq!(Gguf::open(&link).expect("the set").tensor_count(), 3);
    }
}

#[test]
fn a_missing_shard_is_named() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("s2-00001-of-00002.gguf");
    std::fs::write(&path, shard(0, 2, 2, "a").build()).expect("written");
    says(Gguf::open(&path), &["s2-00002-of-00002.gguf is missing"]);
    let path = folder.path().join("s3-00001-of-00002.gguf");
    std::fs::write(&path, shard(0, 3, 3, "a").build()).expect("written");
    says(Gguf::open(&path), &["split.count is 3", "expected 2", "s3-00002-of-00002.gguf is missing"]);
}

#[test]
fn a_name_that_says_more_than_the_keys() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("m-00001-of-00002.gguf");
    std::fs::write(&path, good().build()).expect("written");
    says(Gguf::open(&path), &["split.count is missing", "expected 2"]);
    let path = folder.path().join("m-00001-of-00001.gguf");
    std::fs::write(&path, good().build()).expect("written");
    assert_eq!(Gguf::open(&path).expect("a single file").tensor_count(), 1);
    std::fs::write(&path, shard(0, 1, 1, "a").build()).expect("written");
    assert_eq!(Gguf::open(&path).expect("a set of one").tensor_count(), 1);
}

#[test]
fn shards_that_disagree() {
    assert_eq!(open(&three()).expect("the set").tensor_count(), 3);
    let with = |i: usize, file: File| {
        let mut files = three();
        files[i] = file;
        open(&files)
    };
    says(with(1, shard(1, 2, 3, "b")), &["m-00002-of-00003.gguf", "split.count is 2", "expected 3"]);
    says(with(2, shard(1, 3, 3, "c")), &["m-00003-of-00003.gguf", "split.no is 1", "expected 2"]);
    says(with(0, shard(0, 3, 4, "a")), &["split.tensors.count is 4", "expected 3"]);
    says(with(2, shard(2, 3, 2, "c")), &["m-00003-of-00003.gguf", "split.tensors.count is 2"]);
    says(with(2, shard(2, 3, 3, "a")), &["duplicate tensor `a`", "m-00001-of-00003.gguf"]);
    says(with(0, shard(1, 3, 3, "a")), &["general.architecture"]);
    let mut bare = good();
    bare.tensors = vec![tensor(b"b", &[32], BF16, 0)];
    says(with(1, bare), &["m-00002-of-00003.gguf", "split.count is missing"]);
    let odd = good().key(kv_str("split.count", b"3"));
    says(with(0, odd), &["split.count is of type str"]);
    says(open(&three()[..1]), &["split.count is 3", "expected 1"]);
}

#[test]
fn a_set_shares_one_budget() {
    let mut files = three();
    for file in &mut files {
        file.kvs.push(kv_array("x", U8, 11 << 20, &vec![0; 11 << 20]));
    }
    says(open(&files), &["m-00003-of-00003.gguf", "at most 33554432"]);
}
