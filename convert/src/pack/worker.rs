//! What one worker does with one window.

use super::window::{Chunk, Window};
use super::{Done, Engine, Failure, fault, finish_tree};
use crate::failure::Refusal;
use crate::pack::journal::Entry;
use crate::plan::{SourcePlan, TensorPlan};
use crate::rows::{self, Buffers, Group};
use anyhow::Context;
use gantry_formats::exit::Exit;
use gantry_formats::hash::{self, Digest, Piece};
use gantry_formats::layout::Layout;
use gantry_formats::source::ReadAt;
use gantry_packer::q8_0::{self, Stats};
use gantry_packer::{PackError, check_finite};
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::atomic::Ordering;
use std::sync::mpsc::Sender;

/// One worker's buffers.
struct Scratch {
    input: Vec<u8>,
    quants: Vec<u8>,
    scales: Vec<u8>,
    rows: Buffers,
    back: Vec<u8>,
}

impl Engine<'_> {
    /// Takes windows until there are none, one failed, or the user wants to stop.
    pub(super) fn work(&self, finished: &Sender<Done>) {
        let mut scratch = Scratch {
            input: vec![0; self.windows.buffer_bytes()],
            quants: Vec::new(),
            scales: Vec::new(),
            rows: Buffers::default(),
            back: Vec::new(),
        };
        loop {
            let number = self.next.fetch_add(1, Ordering::Relaxed);
            if number >= self.end.load(Ordering::Relaxed) || self.job.interrupt.is_asked() {
                return;
            }
            if let Err(failure) = self.window(self.windows.get(number), &mut scratch, finished) {
                self.fail(number, failure);
                return;
            }
        }
    }

    fn window(&self, window: Window, scratch: &mut Scratch, finished: &Sender<Done>) -> Result<(), Failure> {
        let chunks = self.windows.chunks(self.job.plan, window);
        let end = chunks.last().map_or(window.end, |c| window.end.max(c.start + c.bytes));
        let mut input = std::mem::take(&mut scratch.input);
        let bytes = &mut input[..(end - window.start) as usize];
        self.read(window.shard, window.start, bytes).map_err(Failure::resumable)?;
        let own = &bytes[..(window.end - window.start) as usize];
        let file = &self.files[window.shard];
        file.insert(&hash::pieces(file.len(), window.start, own));
        for chunk in chunks {
            if self.job.interrupt.is_asked() {
                break;
            }
            let at = (chunk.start - window.start) as usize;
            self.chunk(chunk, &bytes[at..at + chunk.bytes as usize], scratch, finished)?;
            self.through.fetch_add(chunk.bytes, Ordering::Relaxed);
        }
        scratch.input = input;
        Ok(())
    }

    fn read(&self, shard: usize, at: u64, bytes: &mut [u8]) -> anyhow::Result<()> {
        let shard = &self.job.source.shards()[shard];
        shard.source().read_exact_at(at, bytes).map_err(|e| match e.kind() {
            io::ErrorKind::UnexpectedEof => {
                let text = format!("{}: file changed while reading: it became shorter", shard.file_name());
                Refusal::new(Exit::Input, text)
            }
            _ => anyhow::Error::from(e).context(format!("cannot read {}", shard.file_name())),
        })
    }

    fn chunk(
        &self,
        chunk: Chunk,
        src: &[u8],
        scratch: &mut Scratch,
        finished: &Sender<Done>,
    ) -> Result<(), Failure> {
        let t = &self.job.plan.tensors[chunk.tensor];
        let source = &self.job.plan.sources[t.source];
        let at = chunk.start - source.start;
        let own_pieces = hash::pieces(source.bytes, at, src);
        let blob = t.route.blobs[chunk.unit as usize] as usize;
        let stats = match self.resumed[blob] {
            Some(_) => None,
            None => self.store(t, &chunk, src, blob, &own_pieces, scratch)?,
        };
        let mark = fingerprint(t.source, at, &own_pieces, src);
        self.blobs[blob].note(&mark, chunk.tensor as u32, stats.as_ref());
        if let Some(copy) = t.copy {
            let copy = copy as usize;
            if self.resumed[copy].is_none() {
                self.copy(copy, chunk.start - t.start, src, (source, at), &own_pieces)?;
            }
            self.blobs[copy].note(&mark, chunk.tensor as u32, None);
            if self.blobs[copy].chunk_done() {
                self.blob_done(copy, scratch, finished)?;
            }
        }
        self.sources[t.source].insert(&own_pieces);
        if self.sources[t.source].chunk_done() {
            let read = |offset, bytes: &mut [u8]| {
                self.read(source.shard, source.start + offset, bytes).map_err(io::Error::other)
            };
            let hashed = self.sources[t.source].finish(&mut scratch.back, read);
            let (digest, _) = hashed.map_err(Failure::resumable)?;
            let _ = self.source_hashes[t.source].set(digest);
        }
        if self.blobs[blob].chunk_done() {
            self.blob_done(blob, scratch, finished)?;
        }
        Ok(())
    }

    /// Packs a chunk, writes it to its place and hands its hashes in.
    fn store(
        &self,
        t: &TensorPlan,
        chunk: &Chunk,
        src: &[u8],
        blob: usize,
        own_pieces: &[Piece],
        scratch: &mut Scratch,
    ) -> Result<Option<Stats>, Failure> {
        let refuse = |fault: PackError| {
            let moved = fault.moved(chunk.element, chunk.element / t.ty.block_len());
            Failure::fatal(fault::refusal(t, chunk.unit, &moved))
        };
        let first = t.route.first_row * t.route.matrix.1 + chunk.element;
        match t.layout {
            Layout::Raw(ty) | Layout::Block(ty) => {
                check_finite(ty, src).map_err(refuse)?;
                let at = t.route.planes[0] + super::source_offset(ty, first);
                let source = &self.job.plan.sources[t.source];
                self.copy(blob, at, src, (source, chunk.start - source.start), own_pieces)?;
                Ok(None)
            }
            Layout::Q8_0Split { .. } => {
                let n = chunk.elements as usize;
                scratch.quants.resize(scratch.quants.len().max(n), 0);
                scratch.scales.resize(scratch.scales.len().max(n / 16), 0);
                let (quants, scales) = (&mut scratch.quants[..n], &mut scratch.scales[..n / 16]);
                let stats = q8_0::quantize(t.ty, src, quants, scales).map_err(refuse)?;
                let places =
                    [(t.route.planes[0] + first, &*quants), (t.route.planes[1] + first / 16, &*scales)];
                places.into_iter().try_for_each(|(at, bytes)| self.put(blob, at, bytes))?;
                // A scale that was subnormal in the source is the source's affair, not ours.
                Ok((!t.exact).then_some(stats))
            }
            Layout::I8 { .. } | Layout::E8Block98 { .. } | Layout::E8Planar { .. } => {
                self.store_rows(t, chunk, src, blob, &mut scratch.rows, refuse)
            }
        }
    }

    /// Packs a chunk of whole rows and writes each plane's bytes to their place.
    fn store_rows(
        &self,
        t: &TensorPlan,
        chunk: &Chunk,
        src: &[u8],
        blob: usize,
        buffers: &mut Buffers,
        refuse: impl FnOnce(PackError) -> Failure,
    ) -> Result<Option<Stats>, Failure> {
        let cols = t.route.matrix.1;
        let (row, rows) = (chunk.element / cols, chunk.elements / cols);
        let group = Group { layout: t.layout, ty: t.ty, rows, cols };
        let encoding = &self.job.plan.encoding;
        let unit = (chunk.unit, t.route.blobs.len() as u64);
        let name = &self.job.plan.sources[t.source].name;
        let importance = encoding.importance(name, t.layout, unit, cols);
        let stats = buffers.pack(group, encoding.e8(), importance, src).map_err(refuse)?;
        for run in rows::runs(t.layout, t.route.matrix, t.route.first_row + row, rows) {
            let bytes = &buffers.planes[run.plane][run.from..][..run.len];
            self.put(blob, t.route.planes[run.plane] + run.to, bytes)?;
        }
        Ok((!t.exact).then_some(stats))
    }

    /// Writes bytes of a blob as they are from byte `from` of a source tensor on, where they have `own_pieces`.
    fn copy(
        &self,
        blob: usize,
        at: u64,
        src: &[u8],
        (source, from): (&SourcePlan, u64),
        own_pieces: &[Piece],
    ) -> Result<(), Failure> {
        self.write(blob, at, src)?;
        // Where the blob is the source tensor itself, so are the pieces.
        if at == from && self.blobs[blob].len() == source.bytes {
            self.blobs[blob].insert(own_pieces);
        } else {
            self.blobs[blob].insert(&hash::pieces(self.blobs[blob].len(), at, src));
        }
        Ok(())
    }

    /// Writes bytes of a blob and hands their hashes in.
    fn put(&self, blob: usize, at: u64, bytes: &[u8]) -> Result<(), Failure> {
        self.write(blob, at, bytes)?;
        self.blobs[blob].insert(&hash::pieces(self.blobs[blob].len(), at, bytes));
        Ok(())
    }

    fn write(&self, blob: usize, at: u64, bytes: &[u8]) -> Result<(), Failure> {
        let place = self.job.plan.blobs[blob];
        let base = self.job.plan.segment(place.card).offset + place.offset;
        let written = self.job.outputs.card(place.card).write_all_at(bytes, base + at);
        written.context("cannot write the output").map_err(write_failure)
    }

    fn blob_done(&self, blob: usize, scratch: &mut Scratch, finished: &Sender<Done>) -> Result<(), Failure> {
        let (source, stats) = self.blobs[blob].take_notes();
        let (hash, values) = match &self.resumed[blob] {
            Some(earlier) => {
                same_source(earlier, &source)?;
                (earlier.entry.hash, earlier.values.clone())
            }
            None => {
                let read = |offset, bytes: &mut [u8]| self.read_back(blob, offset, bytes);
                let hashed = self.blobs[blob].finish(&mut scratch.back, read);
                let (hash, values) =
                    hashed.context("cannot read the output back").map_err(Failure::resumable)?;
                let entry = Entry { blob: blob as u64, hash, source, stats };
                // The keeper is gone only where it failed, and its failure ends the run.
                let _ = finished.send(Done {
                    entry,
                    values: values.clone(),
                    bytes: self.job.plan.blobs[blob].bytes,
                });
                (hash, values)
            }
        };
        for &replica in self.job.plan.replicas.get(&(blob as u64)).into_iter().flatten() {
            match &self.resumed[replica as usize] {
                Some(earlier) => same_source(earlier, &source)?,
                None => {
                    self.replicate(blob, replica as usize, &hash, &mut scratch.back)?;
                    // What packing did to the values is counted once.
                    let entry = Entry { blob: replica, hash, source, stats: Vec::new() };
                    let bytes = self.job.plan.blobs[blob].bytes;
                    let _ = finished.send(Done { entry, values: values.clone(), bytes });
                }
            }
        }
        Ok(())
    }

    /// Copies a finished blob to another card, and hashes what was copied.
    fn replicate(&self, blob: usize, to: usize, hash: &Digest, buffer: &mut Vec<u8>) -> Result<(), Failure> {
        let place = self.job.plan.blobs[to];
        let base = self.job.plan.segment(place.card).offset + place.offset;
        let copy = |offset, bytes: &mut [u8]| {
            self.read_back(blob, offset, bytes)?;
            self.job.outputs.card(place.card).write_all_at(bytes, base + offset)
        };
        let copied = finish_tree(place.bytes, None, buffer, copy);
        let (copied, _) = copied.context("cannot write the output").map_err(write_failure)?;
        match copied == *hash {
            true => Ok(()),
            false => {
                Err(Failure::fatal(Refusal::new(Exit::Integrity, "the output changed while it was written")))
            }
        }
    }

    fn read_back(&self, blob: usize, offset: u64, bytes: &mut [u8]) -> io::Result<()> {
        let place = self.job.plan.blobs[blob];
        let base = self.job.plan.segment(place.card).offset + place.offset;
        self.job.outputs.card(place.card).read_exact_at(bytes, base + offset)
    }
}

/// Refuses to go on from a blob that was made of other values.
fn same_source(earlier: &Done, source: &[u64; 4]) -> Result<(), Failure> {
    if earlier.entry.source == *source {
        return Ok(());
    }
    let text = "the source changed since the conversion was begun; --no-resume starts over";
    Err(Failure::resumable(Refusal::new(Exit::Input, text)))
}

/// A full disk leaves nothing behind; after other faults the next run goes on.
pub(super) fn write_failure(error: anyhow::Error) -> Failure {
    let full = error.chain().filter_map(|e| e.downcast_ref::<io::Error>()).any(|e| {
        matches!(
            e.kind(),
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded | io::ErrorKind::FileTooLarge
        )
    });
    Failure { error, keep: !full }
}

/// Names a source chunk's content: a hash over the chaining values of its stretches and the bytes at its edges,
/// which no stretch covers. The bytes were hashed already; this costs next to nothing.
fn fingerprint(tensor: usize, at: u64, pieces: &[Piece], src: &[u8]) -> Digest {
    let end = at + src.len() as u64;
    let mut hasher = blake3::Hasher::new();
    hasher.update(&(tensor as u64).to_le_bytes()).update(&at.to_le_bytes());
    let (mut from, mut to) = (end, end);
    if let (Some(first), Some(last)) = (pieces.first(), pieces.last()) {
        (from, to) = (first.range(end).start, last.range(end).end);
        pieces.iter().for_each(|p| {
            hasher.update(p.value());
        });
    }
    hasher.update(&src[..(from - at) as usize]).update(&src[(to - at) as usize..]);
    *hasher.finalize().as_bytes()
}
