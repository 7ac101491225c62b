//! Matrices that change on their way to another container: int8 from one order to another.

use super::matching::Origin;
use super::{Repack, refuse};
use crate::pack::finish_tree;
use crate::pack::output::Outputs;
use crate::parallel;
use crate::plan::{Plan, chunk_elements};
use crate::progress::Progress;
use crate::rows::{self, Buffers, Group};
use crate::unpack::{changed, matrix_dims};
use anyhow::{Context, Result};
use gantry_formats::block::GgmlType;
use gantry_formats::container::{Container, Table};
use gantry_formats::hash::Digest;
use gantry_formats::layout::{Layout, Scales};
use gantry_formats::source::ReadAt;
use gantry_packer::fragment;
use std::collections::HashMap;
use std::os::unix::fs::FileExt;
use std::sync::Mutex;

/// Bytes that are copied at a time.
const COPY: u64 = 4 << 20;

/// A matrix in a card's segment.
#[derive(Clone, Copy, Debug)]
struct Place {
    card: usize,
    /// First byte inside the segment.
    at: u64,
    layout: Layout,
    rows: u64,
    cols: u64,
}

/// A matrix and where it goes.
#[derive(Clone, Copy, Debug)]
struct Move {
    from: Place,
    to: Place,
}

/// A piece of a move.
#[derive(Clone, Copy, Debug)]
enum Job {
    /// Bytes of the matrix, which are the same.
    Copy { matrix: Move, from: u64, to: u64, len: u64 },
    /// Rows of a matrix of int8.
    Permute { matrix: Move, row: u64, rows: u64 },
}

/// Writes every matrix of the blobs of `plan` that are not the same in the container.
///
/// # Errors
/// Where the container cannot be read or the output not be written.
pub(super) fn changed_ones(work: Repack<'_>, progress: &Progress) -> Result<()> {
    let Repack { old, plan, origins, outputs, threads, .. } = work;
    let moves = moves(old, plan, origins)?;
    let jobs = moves.into_iter().flat_map(jobs);
    let mover = Mover { old, plan, outputs };
    let init = || (Buffers::default(), Buffers::default(), Vec::new());
    parallel::for_each(threads, jobs, init, |(from, to, bytes), job| {
        work.go_on()?;
        match job {
            Job::Copy { matrix, from, to, len } => {
                bytes.resize(len as usize, 0);
                mover.read(matrix.from, from, bytes)?;
                mover.write(matrix.to, to, bytes)?;
                progress.add(len);
            }
            Job::Permute { matrix, row, rows } => {
                mover.permute(matrix, row, rows, from, to, bytes)?;
                progress.add(rows * matrix.to.cols);
            }
        }
        Ok(())
    })
}

/// The hash table: of blobs that are the same, what the container says, which was compared with what was carried; the
/// others are hashed as they are on disk.
///
/// # Errors
/// Where the output cannot be read back.
pub(super) fn hash(work: Repack<'_>, progress: &Progress) -> Result<Table> {
    let Repack { old, plan, origins, outputs, threads, .. } = work;
    type Done = Option<(Digest, Vec<Digest>)>;
    let done: Mutex<Vec<Done>> = Mutex::new(vec![None; plan.blobs.len()]);
    let changed = plan.blobs.iter().enumerate().filter(|(i, _)| !origins[*i].same);
    parallel::for_each(threads, changed, Vec::new, |buffer, (i, blob)| {
        work.go_on()?;
        let base = plan.segment(blob.card).offset + blob.offset;
        let file = outputs.card(blob.card);
        let read = |at, bytes: &mut [u8]| file.read_exact_at(bytes, base + at);
        let hashed = finish_tree(blob.bytes, None, buffer, read).context("cannot read the output back")?;
        done.lock().unwrap_or_else(|e| e.into_inner())[i] = Some(hashed);
        progress.add(blob.bytes);
        Ok(())
    })?;
    let mut table = Table::default();
    let done = done.into_inner().unwrap_or_else(|e| e.into_inner());
    for ((blob, origin), done) in plan.blobs.iter().zip(origins).zip(done) {
        let card = blob.card as u64;
        if origin.same {
            let from = &old.table().blobs()[origin.old];
            table.push(card, blob.offset, blob.bytes, from.hash, old.table().values(from));
            continue;
        }
        let (hash, values) = done.context("a blob was not hashed")?;
        table.push(card, blob.offset, blob.bytes, hash, &values);
    }
    Ok(table)
}

/// The matrices of blobs that change, paired by name, expert by expert.
fn moves(old: &Container, plan: &Plan, origins: &[Origin]) -> Result<Vec<Move>> {
    let mut from: HashMap<(&str, Option<u32>), Place> = HashMap::new();
    let manifest = old.manifest();
    for t in &manifest.tensors {
        let (rows, cols) = matrix_dims(&t.shape);
        let layout = old.layouts()[t.layout as usize];
        let place = Place { card: t.card as usize, at: t.offset, layout, rows, cols };
        from.insert((&t.name, None), place);
    }
    for b in &manifest.banks {
        for (slot, &expert) in b.experts.iter().enumerate() {
            for m in &b.matrices {
                let (rows, cols) = matrix_dims(&m.shape);
                let layout = old.layouts()[m.layout as usize];
                let at = b.offset + slot as u64 * b.stride + m.offset;
                let place = Place { card: b.card as usize, at, layout, rows, cols };
                // Of copies the first, which is the one whose bytes were verified.
                from.entry((&m.name, Some(expert))).or_insert(place);
            }
        }
    }
    let pair = |name: &str, expert: Option<u32>, to: Place| {
        let from =
            *from.get(&(name, expert)).ok_or_else(|| refuse(format!("{name} is not in the container")))?;
        let fits = match (from.layout, to.layout) {
            (Layout::I8 { scales: a, .. }, Layout::I8 { scales: b, .. }) => a == b,
            (a, b) => a == b,
        };
        match fits && (from.rows, from.cols) == (to.rows, to.cols) {
            true => Ok(Move { from, to }),
            false => Err(refuse(format!("{name}: {} does not become {}", from.layout, to.layout))),
        }
    };
    let mut out = Vec::new();
    for t in plan.stored.iter().filter(|t| !origins[t.blob as usize].same) {
        let (rows, cols) = matrix_dims(&t.shape);
        let layout = plan.layouts[t.layout as usize];
        let place = Place { card: t.card as usize, at: t.offset, layout, rows, cols };
        out.push(pair(&t.name, None, place)?);
    }
    for b in &plan.banks {
        let slots = b.experts.iter().enumerate();
        for (slot, &expert) in slots.filter(|(slot, _)| !origins[b.first_blob as usize + slot].same) {
            for m in &b.matrices {
                let (rows, cols) = matrix_dims(&m.shape);
                let layout = plan.layouts[m.layout as usize];
                let at = b.offset + slot as u64 * b.stride + m.offset;
                let place = Place { card: b.card as usize, at, layout, rows, cols };
                out.push(pair(&m.name, Some(expert), place)?);
            }
        }
    }
    Ok(out)
}

fn jobs(matrix: Move) -> Vec<Job> {
    let Move { from, to } = matrix;
    if from.layout != to.layout {
        let step = chunk_elements(to.layout, to.cols) / to.cols.max(1);
        let starts = (0..to.rows).step_by(step.max(1) as usize);
        return starts.map(|row| Job::Permute { matrix, row, rows: step.min(to.rows - row) }).collect();
    }
    let planes = to.layout.planes(to.rows, to.cols).unwrap_or_default();
    let pieces = planes.into_iter().flat_map(|plane| {
        (0..plane.bytes).step_by(COPY as usize).map(move |at| {
            let (at, len) = (plane.offset + at, COPY.min(plane.bytes - at));
            Job::Copy { matrix, from: at, to: at, len }
        })
    });
    pieces.collect()
}

struct Mover<'a> {
    old: &'a Container,
    plan: &'a Plan,
    outputs: &'a Outputs,
}

impl Mover<'_> {
    fn read(&self, from: Place, at: u64, bytes: &mut [u8]) -> Result<()> {
        let card = self.old.card(from.card)?;
        card.file.read_exact_at(card.offset + from.at + at, bytes).map_err(changed)
    }

    fn write(&self, to: Place, at: u64, bytes: &[u8]) -> Result<()> {
        let base = self.plan.segment(to.card).offset + to.at;
        self.outputs.card(to.card).write_all_at(bytes, base + at).context("cannot write the output")
    }

    /// Rows of int8 from one order to another; scales stay, their padding may differ.
    fn permute(
        &self,
        matrix: Move,
        row: u64,
        rows: u64,
        from: &mut Buffers,
        to: &mut Buffers,
        plain: &mut Vec<u8>,
    ) -> Result<()> {
        let cols = matrix.to.cols;
        let (Layout::I8 { order: old, scales, .. }, Layout::I8 { order: new, .. }) =
            (matrix.from.layout, matrix.to.layout)
        else {
            return Err(refuse(format!("{} is not moved row by row", matrix.to.layout)));
        };
        let group = |layout| Group { layout, ty: GgmlType::Q8_0, rows, cols };
        from.resize(group(matrix.from.layout));
        to.resize(group(matrix.to.layout));
        let planes = |place: Place| place.layout.planes(place.rows, place.cols).unwrap_or_default();
        let old_planes = planes(matrix.from);
        for run in rows::runs(matrix.from.layout, (matrix.from.rows, cols), row, rows) {
            let bytes = &mut from.planes[run.plane][run.from..][..run.len];
            self.read(matrix.from, old_planes[run.plane].offset + run.to, bytes)?;
        }
        let (n, k) = (rows as usize, cols as usize);
        plain.resize(n * k, 0);
        fragment::unpermute(old, n, k, &from.planes[0], plain)?;
        fragment::permute(new, n, k, plain, &mut to.planes[0])?;
        move_scales(scales, n, k, &from.planes[1], &mut to.planes[1]);
        let new_planes = planes(matrix.to);
        for run in rows::runs(matrix.to.layout, (matrix.to.rows, cols), row, rows) {
            let bytes = &to.planes[run.plane][run.from..][..run.len];
            self.write(matrix.to, new_planes[run.plane].offset + run.to, bytes)?;
        }
        Ok(())
    }
}

/// Scales of `rows` rows whose ends are padded differently.
fn move_scales(scales: Scales, rows: usize, cols: usize, from: &[u8], to: &mut [u8]) {
    let padded = rows.next_multiple_of(16);
    let own = match scales {
        Scales::Channel => 4,
        Scales::Block32 => cols / 16,
    };
    to.fill(0);
    let (from_row, to_row) = (from.len() / padded, to.len() / padded);
    if own == 0 {
        return;
    }
    for (to, from) in to.chunks_exact_mut(to_row).zip(from.chunks_exact(from_row)).take(rows) {
        to[..own].copy_from_slice(&from[..own]);
    }
}
