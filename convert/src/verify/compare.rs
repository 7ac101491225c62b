//! Derives stored values from their source again and compares them, byte for byte.

use crate::buffer::Buffer;
use crate::encoding::Encoding;
use crate::parallel;
use crate::plan::chunk_elements;
use crate::progress::Progress;
use crate::rows::{self, Buffers as RowBuffers, Group};
use crate::unpack::{Owner, Piece, Scratch, Unpacker, changed};
use gantry_formats::container::Container;
use gantry_formats::gguf::{Gguf, Tensor};
use gantry_formats::hash::{self, Digest};
use gantry_formats::source::{ReadAt, is_zero};
use gantry_packer::{PackError, q8_0};
use std::ops::Range;
use std::sync::{Mutex, MutexGuard};

/// What comparing one tensor found.
#[derive(Clone, Debug, Default)]
pub(super) struct Found {
    /// Blocks (values, in plain types) that differ.
    pub(super) differing: u64,
    /// The first value of the first of them.
    pub(super) first: Option<u64>,
    /// Whether values were quantized to get there.
    pub(super) derived: bool,
    /// Largest |source − stored| where they were.
    pub(super) max_error: f32,
    /// Why it could not be derived.
    pub(super) refused: Option<String>,
    /// BLAKE3 of the source's bytes.
    pub(super) hash: Option<Digest>,
}

/// What was found so far, by tensor.
struct All(Vec<Mutex<Found>>);

impl All {
    fn of(&self, tensor: usize) -> MutexGuard<'_, Found> {
        self.0[tensor].lock().unwrap_or_else(|e| e.into_inner())
    }
}

struct Job<'u> {
    tensor: usize,
    piece: &'u Piece,
    elements: Range<u64>,
    stored: u64,
}

#[derive(Default)]
struct Buffers {
    scratch: Scratch,
    stored: Vec<u8>,
    source: Vec<u8>,
    quants: Vec<u8>,
    scales: Vec<u8>,
    derived: Vec<u8>,
    stored_rows: RowBuffers,
    derived_rows: RowBuffers,
}

/// Compares every piece, replicas too, of the tensors in `which`, and hashes their bytes in the source.
///
/// # Errors
/// Where a file cannot be read.
pub(super) fn tensors(
    unpacker: &Unpacker<'_>,
    gguf: &Gguf,
    encoding: &Encoding,
    which: &[usize],
    threads: usize,
    progress: &Progress,
) -> anyhow::Result<Vec<(usize, Found)>> {
    let all = All((0..gguf.tensor_count()).map(|_| Mutex::default()).collect());
    parallel::for_each(threads, which.iter(), Buffer::default, |buffer, &i| {
        let Some(tensor) = gguf.tensor(i) else { return Ok(()) };
        let digest = tensor_hash(gguf, &tensor, buffer, progress)?;
        all.of(i).hash = Some(digest);
        Ok(())
    })?;
    let jobs = which.iter().flat_map(|&i| jobs(unpacker, gguf, i));
    parallel::for_each(threads, jobs, Buffers::default, |buffers, job| {
        let Some(tensor) = gguf.tensor(job.tensor) else { return Ok(()) };
        let context = Context { unpacker, gguf, encoding, all: &all };
        context.compare(&tensor, &job, buffers)?;
        progress.add(buffers.source.len() as u64);
        Ok(())
    })?;
    Ok(which.iter().map(|&i| (i, std::mem::take(&mut *all.of(i)))).collect())
}

fn jobs<'u>(unpacker: &'u Unpacker<'_>, gguf: &Gguf, i: usize) -> impl Iterator<Item = Job<'u>> + use<'u> {
    let cols = gguf.tensor(i).map_or(1, |t| t.row_len());
    let elements = gguf.tensor(i).map_or(0, |t| t.elements);
    let lines = unpacker.pieces(i).iter().flat_map(move |piece| {
        piece.lines(cols, &(0..elements)).map(move |(range, stored)| (piece, range, stored))
    });
    lines.flat_map(move |(piece, range, stored)| {
        let step = chunk_elements(piece.layout, cols);
        (range.start..range.end).step_by(step as usize).map(move |start| Job {
            tensor: i,
            piece,
            elements: start..range.end.min(start + step),
            stored: stored + start - range.start,
        })
    })
}

/// What every comparison looks at.
struct Context<'a> {
    unpacker: &'a Unpacker<'a>,
    gguf: &'a Gguf,
    encoding: &'a Encoding,
    all: &'a All,
}

impl Context<'_> {
    fn compare(&self, tensor: &Tensor<'_>, job: &Job<'_>, b: &mut Buffers) -> anyhow::Result<()> {
        let count = job.elements.end - job.elements.start;
        let bytes = |n: u64| n / tensor.ty.block_len() * tensor.ty.block_bytes();
        b.source.resize(bytes(count) as usize, 0);
        let file = self.gguf.shards()[tensor.shard].source();
        file.read_exact_at(tensor.start + bytes(job.elements.start), &mut b.source).map_err(changed)?;
        let ty = job.piece.ty();
        if job.piece.layout.keeps(tensor.ty) {
            // The way back must give the very bytes.
            self.unpacker.read_piece(job.piece, job.stored, count, &mut b.scratch, &mut b.stored)?;
            let differing = differing(&b.source, &b.stored, ty.block_bytes() as usize, ty.block_len());
            self.note(job, false, 0.0, differing);
            return Ok(());
        }
        if job.piece.layout.takes_whole_rows() && job.piece.cols != (0..tensor.row_len()) {
            self.all.of(job.tensor).refused = Some("columns of rows that were packed whole".into());
            return Ok(());
        }
        let derived = match job.piece.layout.takes_whole_rows() {
            true => self.derive_rows(tensor, job, b)?,
            false => self.derive_split(tensor, job, count, b)?,
        };
        match derived {
            Ok((max_error, differing)) => self.note(job, true, max_error, differing),
            Err(fault) => {
                let blocks = job.elements.start / tensor.ty.block_len();
                let text = fault.moved(job.elements.start, blocks).to_string();
                self.all.of(job.tensor).refused = Some(text);
            }
        }
        Ok(())
    }

    /// Packs a group of rows again and compares the bytes of its planes.
    fn derive_rows(&self, tensor: &Tensor<'_>, job: &Job<'_>, b: &mut Buffers) -> anyhow::Result<Derived> {
        let (piece, cols) = (job.piece, tensor.row_len());
        let (row, rows) = (job.stored / cols, (job.elements.end - job.elements.start) / cols);
        let group = self.unpacker.read_group(piece, row, rows, &mut b.stored_rows)?;
        let manifest = self.unpacker.container().manifest();
        let name = &manifest.source_tensors[job.tensor].name;
        let unit = match piece.owner {
            Owner::Tensor(_) => (0, 1),
            Owner::Expert(bank, _, slot) => {
                let experts = tensor.dims().get(2).copied().unwrap_or(1);
                (manifest.banks[bank].experts[slot].into(), experts)
            }
        };
        let importance = self.encoding.importance(name, group.layout, unit, cols);
        let stats = b.derived_rows.pack(group, self.encoding.e8(), importance, &b.source);
        Ok(stats.map(|stats| {
            let differing = differing_rows(group, &b.derived_rows.planes, &b.stored_rows.planes);
            (stats.max_abs_error, differing)
        }))
    }

    /// Quantizes to Q8_0 again and compares the blocks.
    fn derive_split(
        &self,
        tensor: &Tensor<'_>,
        job: &Job<'_>,
        count: u64,
        b: &mut Buffers,
    ) -> anyhow::Result<Derived> {
        self.unpacker.read_piece(job.piece, job.stored, count, &mut b.scratch, &mut b.stored)?;
        b.quants.resize(count as usize, 0);
        b.scales.resize(count as usize / q8_0::LEN * 2, 0);
        let stats = match q8_0::quantize(tensor.ty, &b.source, &mut b.quants, &mut b.scales) {
            Ok(stats) => stats,
            Err(fault) => return Ok(Err(fault)),
        };
        b.derived.resize(b.stored.len(), 0);
        q8_0::join_q8_0(&b.quants, &b.scales, &mut b.derived)?;
        Ok(Ok((stats.max_abs_error, differing(&b.derived, &b.stored, q8_0::BYTES, q8_0::LEN as u64))))
    }

    /// Records what was found; `differing`: the first value of a block that differs, counted from the job's first, and
    /// how many differ.
    fn note(&self, job: &Job<'_>, derived: bool, max_error: f32, differing: Option<(u64, u64)>) {
        let mut found = self.all.of(job.tensor);
        found.derived |= derived;
        found.max_error = found.max_error.max(max_error);
        if let Some((first, count)) = differing {
            let first = job.elements.start + first;
            found.differing += count;
            found.first = Some(found.first.map_or(first, |before| before.min(first)));
        }
    }
}

/// The largest error and what differs, or why the source cannot be packed so.
type Derived = Result<(f32, Option<(u64, u64)>), PackError>;

/// The value that the first byte to differ is for, of the plane where that is earliest, and the number of bytes that
/// differ.
fn differing_rows(group: Group, a: &[Vec<u8>; 3], b: &[Vec<u8>; 3]) -> Option<(u64, u64)> {
    let planes = group.layout.planes(group.rows, group.cols).unwrap_or_default().len();
    let found = (0..planes).filter_map(|plane| {
        let (at, count) = differing(&a[plane], &b[plane], 1, 1)?;
        let (row, col) = rows::element(group, plane, at).unwrap_or_default();
        Some((row * group.cols + col, count))
    });
    found.reduce(|(first, count), (element, more)| (first.min(element), count + more))
}

/// The first value of the first block that differs, and how many do, in blocks of `block` bytes and `len` values.
fn differing(a: &[u8], b: &[u8], block: usize, len: u64) -> Option<(u64, u64)> {
    if a == b {
        return None;
    }
    let mut unequal = a.chunks(block).zip(b.chunks(block)).enumerate().filter(|(_, (x, y))| x != y);
    let (first, _) = unequal.next()?;
    Some((first as u64 * len, 1 + unequal.count() as u64))
}

fn tensor_hash(
    gguf: &Gguf,
    tensor: &Tensor<'_>,
    buffer: &mut Buffer,
    progress: &Progress,
) -> anyhow::Result<Digest> {
    let file = gguf.shards()[tensor.shard].source();
    let mut hasher = blake3::Hasher::new();
    let range = tensor.range();
    for start in range.clone().step_by(1 << 20) {
        let bytes = buffer.take((range.end - start).min(1 << 20) as usize);
        file.read_exact_at(start, bytes).map_err(changed)?;
        hasher.update(bytes);
        progress.add(bytes.len() as u64);
    }
    Ok(*hasher.finalize().as_bytes())
}

/// The bytes inside blobs that belong to no plane and must be zero, where they are not: the matrix's name and the
/// bytes' place in its card's segment.
///
/// # Errors
/// Where a file cannot be read.
pub(super) fn dirty_gaps(container: &Container) -> anyhow::Result<Vec<(String, usize, Range<u64>)>> {
    let mut out = Vec::new();
    let manifest = container.manifest();
    for t in &manifest.tensors {
        let planes = planes(container, t.layout, &t.shape, 0);
        check_gaps(container, t.card, t.offset, t.bytes, planes, || t.name.clone(), &mut out)?;
    }
    for bank in &manifest.banks {
        let matrices = bank.matrices.iter();
        let planes: Vec<_> = matrices.flat_map(|m| planes(container, m.layout, &m.shape, m.offset)).collect();
        for (slot, expert) in bank.experts.iter().enumerate() {
            let at = bank.offset + slot as u64 * bank.stride;
            let name = || format!("layer {} expert {expert}", bank.layer);
            check_gaps(container, bank.card, at, bank.bytes, planes.clone(), name, &mut out)?;
        }
    }
    Ok(out)
}

fn planes(container: &Container, layout: u32, shape: &[u64], at: u64) -> Vec<Range<u64>> {
    let (rows, cols) = crate::unpack::matrix_dims(shape);
    let planes = container.layouts()[layout as usize].planes(rows, cols).unwrap_or_default();
    planes.iter().map(|p| at + p.offset..at + p.offset + p.bytes).collect()
}

fn check_gaps(
    container: &Container,
    card: u32,
    at: u64,
    bytes: u64,
    planes: Vec<Range<u64>>,
    name: impl Fn() -> String,
    out: &mut Vec<(String, usize, Range<u64>)>,
) -> anyhow::Result<()> {
    let mut next = 0;
    for plane in planes.into_iter().chain(std::iter::once(bytes..bytes)) {
        let gap = next..plane.start;
        next = plane.end;
        if gap.is_empty() {
            continue;
        }
        let source = container.card(card as usize)?;
        let start = source.offset + at;
        if !is_zero(source.file, start + gap.start..start + gap.end).map_err(changed)? {
            out.push((name(), card as usize, at + gap.start..at + gap.end));
        }
    }
    Ok(())
}

/// Whether a digest is the one written as hex.
pub(super) fn is_hex_of(text: &str, digest: &Digest) -> bool {
    hash::from_hex(text).is_some_and(|want| want == *digest)
}
