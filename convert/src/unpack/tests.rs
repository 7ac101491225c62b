//! Every source tensor comes back from wherever its rows are.

use super::*;
use crate::sample::{self, Sample};
use gantry_formats::container::{Container, StoredTensor};

fn open(sample: &Sample) -> Container {
    let dir = tempfile::tempdir().expect("a folder");
    Container::open(&sample.write(dir.path())).expect("opens")
}

#[test]
fn any_range_of_any_tensor() {
    let sample = Sample::new();
    let container = open(&sample);
    let unpacker = Unpacker::new(&container);
    let (mut scratch, mut out, mut floats) = (Scratch::default(), Vec::new(), Vec::new());
    for (i, (name, ty, dims, bytes)) in sample::source().iter().enumerate() {
        let want = match unpacker.ty(i).expect("whole") {
            t if t == *ty => bytes.clone(),
            t => {
                assert_eq!((t, *name), (GgmlType::Q8_0, "blk.0.ffn_up.weight"));
                sample::quantize(&sample::floats(*ty, bytes))
            }
        };
        let ty = unpacker.ty(i).expect("whole");
        let elements: u64 = dims.iter().product();
        let step = ty.block_len().max(32);
        for from in (0..=elements).step_by(step as usize) {
            for to in (from..=elements).step_by(step as usize) {
                unpacker.read(i, from..to, &mut scratch, &mut out).expect("readable");
                let at = |n: u64| (n / ty.block_len() * ty.block_bytes()) as usize;
                assert_eq!(out, want[at(from)..at(to)], "{name} {from}..{to}");
                unpacker.values(i, from..to, &mut scratch, &mut floats).expect("readable");
                assert_eq!(floats, sample::floats(ty, &out), "{name} {from}..{to}");
            }
        }
    }
}

/// Puts `blk.0.ffn_up.weight` as one matrix per slice of columns; `None` where a slice is left out.
fn sliced(slices: &[[u64; 2]]) -> Sample {
    let mut sample = Sample::lossless();
    let source = sample::source().swap_remove(6).3;
    let up = sample.manifest.tensors.iter().position(|t| t.name == "blk.0.ffn_up.weight").expect("there");
    let model: StoredTensor = sample.manifest.tensors.remove(up);
    let blob = model.blob as usize;
    for t in sample.manifest.tensors.iter_mut().filter(|t| t.blob > model.blob) {
        t.blob -= 1;
    }
    sample.manifest.banks[1].first_blob -= 1;
    let first = sample.blobs[0].len();
    sample.blobs[1].remove(blob - first);
    let mut at = sample.segments[1];
    for (n, &[left, right]) in slices.iter().enumerate() {
        let rows = source.chunks(128).flat_map(|r| r[left as usize * 2..right as usize * 2].to_vec());
        let bytes: Vec<u8> = rows.collect();
        let mut t = model.clone();
        t.name = format!("slice {n}");
        t.shape = vec![5, right - left];
        t.parts[0].cols = Some([left, right]);
        (t.offset, t.bytes) = (at, bytes.len() as u64);
        t.blob = sample.blobs.iter().map(Vec::len).sum::<usize>() as u64;
        sample.manifest.tensors.push(t);
        sample.blobs[1].push((at, bytes));
        at += 1024;
    }
    sample.segments[1] = (at + 1024).next_multiple_of(4096);
    sample
}

#[test]
fn slices_of_columns_are_put_together() {
    let source = sample::source().swap_remove(6).3;
    for slices in [&[[0, 64]][..], &[[0, 24], [24, 64]], &[[40, 64], [0, 40]], &[[0, 32], [0, 32], [32, 64]]]
    {
        let container = open(&sliced(slices));
        let unpacker = Unpacker::new(&container);
        let (mut scratch, mut out) = (Scratch::default(), Vec::new());
        for (from, to) in [(0, 320), (0, 64), (10, 250), (63, 65), (70, 71)] {
            unpacker.read(6, from..to, &mut scratch, &mut out).expect("readable");
            assert_eq!(out, source[from as usize * 2..to as usize * 2], "{slices:?} {from}..{to}");
        }
        assert_eq!(unpacker.pieces(6).len(), slices.len());
    }
}

#[test]
fn what_is_not_there_is_named() {
    let missing = |slices: &[[u64; 2]]| {
        let container = open(&sliced(slices));
        let unpacker = Unpacker::new(&container);
        let error = unpacker.ty(6).expect_err("not whole");
        error.to_string()
    };
    assert_eq!(
        missing(&[[0, 32]]),
        "tensor blk.0.ffn_up.weight: the container does not hold its columns 32 to 64 of row 0"
    );
    assert!(missing(&[[32, 64]]).contains("columns 0 to 64"));
    assert!(missing(&[]).contains("rows 0 to 5"));
}
