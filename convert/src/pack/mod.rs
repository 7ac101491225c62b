//! Carries a plan out: one pass over the source, in bounded memory, on any number of threads.
//!
//! The source's files are cut into windows. A worker takes the next window, reads it once, hashes it for the
//! file's BLAKE3, and packs every chunk that begins in it: hashes the chunk for the source tensor's BLAKE3, packs
//! it, writes it to its place, and hashes what it wrote for the blob's. Hashes grow out of order in
//! [trees](gantry_formats::hash::TreeHash); what could not be hashed on the way (edges that share a KiB with a
//! neighbour, padding between planes) is read back when the blob's last chunk is done. So neither the order of the
//! work nor the number of threads shows in the result.

mod blob;
mod fault;
mod finish;
pub(crate) mod journal;
mod keeper;
pub(crate) mod output;
pub(crate) mod progress;
mod resume;
mod window;
mod worker;

pub(crate) use blob::finish_tree;
pub(crate) use finish::{Summary, Worst, finish, metadata, write};
pub(crate) use keeper::Done;

use crate::interrupt::Interrupt;
use crate::pack::journal::Journal;
use crate::pack::output::Outputs;
use crate::pack::progress::Progress;
use crate::plan::Plan;
use anyhow::{Error, Result};
use blob::Growing;
use gantry_formats::gguf::Gguf;
use gantry_formats::hash::{self, Digest};
use gantry_packer::q8_0::Stats;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::Duration;
use window::Windows;

pub(crate) use resume::resume;

/// Most threads that work: more would pass the memory limit, and storage is slower than these.
pub(crate) const MAX_THREADS: usize = 32;

/// What a run works on.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Job<'a> {
    pub(crate) plan: &'a Plan,
    pub(crate) source: &'a Gguf,
    pub(crate) outputs: &'a Outputs,
    pub(crate) interrupt: &'a Interrupt,
    pub(crate) threads: usize,
    /// Bytes of finished blobs after which they are synced and recorded.
    pub(crate) sync_bytes: u64,
}

/// All that packing found out.
#[derive(Debug)]
pub(crate) struct Packed {
    /// By blob.
    pub(crate) blobs: Vec<Done>,
    /// BLAKE3 of each source tensor.
    pub(crate) sources: Vec<Digest>,
    /// BLAKE3 of each source file.
    pub(crate) files: Vec<Digest>,
    /// What happened to each planned tensor's values.
    pub(crate) stats: Vec<Stats>,
}

/// Why packing ended early, and whether what was packed is worth keeping.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) error: Error,
    pub(crate) keep: bool,
}

impl Failure {
    fn fatal(error: impl Into<Error>) -> Self {
        Self { error: error.into(), keep: false }
    }

    fn resumable(error: impl Into<Error>) -> Self {
        Self { error: error.into(), keep: true }
    }
}

/// State that the workers share.
struct Engine<'a> {
    job: Job<'a>,
    windows: Windows,
    next: AtomicU64,
    /// Windows from this one on are not begun: one before them failed.
    end: AtomicU64,
    failure: Mutex<Option<(u64, Failure)>>,
    files: Vec<Growing>,
    sources: Vec<Growing>,
    source_hashes: Vec<OnceLock<Digest>>,
    blobs: Vec<Growing>,
    /// Blobs that an earlier run finished.
    resumed: Vec<Option<Done>>,
    /// Bytes that are through, for the progress.
    through: AtomicU64,
}

/// Packs everything that `resumed` does not hold yet. `journal` learns of each blob that is on disk.
pub(crate) fn pack(
    job: Job<'_>,
    mut resumed: Vec<Option<Done>>,
    journal: &mut Journal,
    progress: &mut Progress,
) -> Result<Packed, Failure> {
    resumed.resize(job.plan.blobs.len(), None);
    let engine = Engine::new(job, resumed);
    let threads = job.threads.clamp(1, MAX_THREADS).min((engine.windows.count() as usize).max(1));
    let (finished, inbox) = mpsc::channel();
    let kept = std::thread::scope(|scope| {
        let keeper = scope.spawn(|| keeper::keep(job, inbox, journal));
        let (alive, ended) = mpsc::channel::<()>();
        for _ in 0..threads {
            let (engine, finished, alive) = (&engine, finished.clone(), alive.clone());
            scope.spawn(move || {
                let _alive = alive;
                engine.work(&finished);
            });
        }
        drop(alive);
        while ended.recv_timeout(Duration::from_millis(100)) == Err(RecvTimeoutError::Timeout) {
            progress.show(engine.through.load(Ordering::Relaxed));
            if keeper.is_finished() {
                // It ends by itself only where it failed.
                engine.end.store(0, Ordering::Relaxed);
            }
        }
        progress.clear();
        engine.empty_blobs(&finished);
        drop(finished);
        keeper.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    });
    let failure = engine.failure.lock().unwrap_or_else(PoisonError::into_inner).take();
    let fresh = match (failure, kept) {
        (Some((_, failure)), _) | (None, Err(failure)) => return Err(failure),
        (None, Ok(fresh)) => fresh,
    };
    if job.interrupt.is_asked() {
        return Err(Failure::resumable(job.interrupt.error("interrupted")));
    }
    engine.collect(fresh).map_err(Failure::resumable)
}

impl<'a> Engine<'a> {
    fn new(job: Job<'a>, resumed: Vec<Option<Done>>) -> Self {
        let plan = job.plan;
        let windows = Windows::new(plan);
        let mut chunks = vec![0u64; plan.blobs.len()];
        for route in plan.tensors.iter().map(|t| &t.route) {
            route.blobs.iter().for_each(|&b| chunks[b as usize] += route.chunks);
        }
        for (t, copy) in plan.tensors.iter().filter_map(|t| Some((t, t.copy?))) {
            chunks[copy as usize] += t.route.chunks * t.route.blobs.len() as u64;
        }
        let mut by_source = vec![0u64; plan.sources.len()];
        for t in &plan.tensors {
            by_source[t.source] += t.route.chunks * t.route.blobs.len() as u64;
        }
        Self {
            end: AtomicU64::new(windows.count()),
            files: plan.shards.iter().map(|s| Growing::new(s.bytes, 0)).collect(),
            sources: plan.sources.iter().zip(by_source).map(|(s, n)| Growing::new(s.bytes, n)).collect(),
            source_hashes: plan.sources.iter().map(|_| OnceLock::new()).collect(),
            blobs: plan.blobs.iter().zip(chunks).map(|(b, n)| Growing::new(b.bytes, n)).collect(),
            resumed,
            windows,
            next: AtomicU64::new(0),
            failure: Mutex::new(None),
            through: AtomicU64::new(0),
            job,
        }
    }

    /// Keeps the failure of the earliest window: the same one for any number of threads.
    fn fail(&self, window: u64, failure: Failure) {
        self.end.fetch_min(window, Ordering::Relaxed);
        let mut slot = self.failure.lock().unwrap_or_else(PoisonError::into_inner);
        if slot.as_ref().is_none_or(|(w, _)| window < *w) {
            *slot = Some((window, failure));
        }
    }

    /// Blobs without a byte have no chunk that finishes them.
    fn empty_blobs(&self, finished: &Sender<Done>) {
        for (i, blob) in self.job.plan.blobs.iter().enumerate().filter(|(_, b)| b.bytes == 0) {
            if self.resumed[i].is_none() {
                debug_assert!(self.blobs[i].is_complete() && blob.bytes == 0);
                let _ = finished.send(Done::empty(i as u64));
            }
        }
    }

    fn collect(self, fresh: Vec<Done>) -> Result<Packed> {
        let mut blobs = self.resumed;
        for done in fresh {
            let at = done.entry.blob as usize;
            blobs[at] = Some(done);
        }
        let lost = || anyhow::anyhow!("a blob was not packed");
        let blobs = blobs.into_iter().collect::<Option<Vec<_>>>().ok_or_else(lost)?;
        let mut stats = vec![Stats::default(); self.job.plan.tensors.len()];
        for (tensor, one) in blobs.iter().flat_map(|b| &b.entry.stats) {
            stats[*tensor as usize].merge(one);
        }
        let mut buffer = Vec::new();
        let mut files = Vec::new();
        for (file, shard) in self.files.iter().zip(self.job.source.shards()) {
            let source = shard.source();
            let read =
                |at, bytes: &mut [u8]| gantry_formats::source::ReadAt::read_exact_at(source, at, bytes);
            files.push(file.finish(&mut buffer, read)?.0);
        }
        let empty = hash::hash(&[]);
        let sources = self.source_hashes.iter().map(|h| *h.get().unwrap_or(&empty)).collect();
        Ok(Packed { blobs, sources, files, stats })
    }
}

/// What a chunk of `len` values of `ty` takes in the source.
fn source_bytes(ty: gantry_formats::block::GgmlType, len: u64) -> u64 {
    len / ty.block_len() * ty.block_bytes()
}

/// Offset of value `first` in a row-major run of `ty`.
fn source_offset(ty: gantry_formats::block::GgmlType, first: u64) -> u64 {
    first / ty.block_len() * ty.block_bytes()
}
