//! Going on after an interruption: what the journal says is on disk is hashed again before it is believed.

use super::blob::finish_tree;
use super::{Done, Job, MAX_THREADS};
use crate::pack::journal::Entry;
use crate::pack::progress::Progress;
use anyhow::Result;
use gantry_formats::hash;
use std::os::unix::fs::FileExt;
use std::sync::Mutex;
use std::sync::PoisonError;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::Duration;

/// The blobs of `entries` whose bytes are as they should be, by blob. Padding is zeroed anew.
pub(crate) fn resume(job: Job<'_>, entries: &[Entry], progress: &mut Progress) -> Result<Vec<Option<Done>>> {
    let count = job.plan.blobs.len();
    let entries: Vec<&Entry> = entries.iter().filter(|e| (e.blob as usize) < count).collect();
    let (next, through) = (AtomicUsize::new(0), AtomicU64::new(0));
    let found = Mutex::new(vec![None; count]);
    let work = || {
        let mut buffer = Vec::new();
        while let Some(entry) = entries.get(next.fetch_add(1, Ordering::Relaxed)) {
            if job.interrupt.is_asked() {
                return;
            }
            let bytes = job.plan.blobs[entry.blob as usize].bytes;
            if let Some(done) = check(job, entry, &mut buffer) {
                found.lock().unwrap_or_else(PoisonError::into_inner)[entry.blob as usize] = Some(done);
            }
            through.fetch_add(bytes, Ordering::Relaxed);
        }
    };
    std::thread::scope(|scope| {
        let (alive, ended) = mpsc::channel::<()>();
        for _ in 0..job.threads.clamp(1, MAX_THREADS) {
            let alive = alive.clone();
            let work = &work;
            scope.spawn(move || {
                let _alive = alive;
                work();
            });
        }
        drop(alive);
        while ended.recv_timeout(Duration::from_millis(100)) == Err(RecvTimeoutError::Timeout) {
            progress.show(through.load(Ordering::Relaxed));
        }
    });
    progress.clear();
    zero_padding(job)?;
    Ok(found.into_inner().unwrap_or_else(PoisonError::into_inner))
}

fn check(job: Job<'_>, entry: &Entry, buffer: &mut Vec<u8>) -> Option<Done> {
    let place = job.plan.blobs[entry.blob as usize];
    let base = job.plan.segment(place.card).offset + place.offset;
    let file = job.outputs.card(place.card);
    let read = |offset, bytes: &mut [u8]| file.read_exact_at(bytes, base + offset);
    let (digest, values) = if place.bytes == 0 {
        (hash::hash(&[]), Vec::new())
    } else {
        finish_tree(place.bytes, None, buffer, read).ok()?
    };
    (digest == entry.hash).then(|| Done { entry: entry.clone(), values, bytes: place.bytes })
}

/// Writes zeros wherever no value of a blob goes: between blobs, and between planes and matrices inside them. A
/// fresh file reads as zeros there; of one that an accident left, nothing is known.
fn zero_padding(job: Job<'_>) -> Result<()> {
    let plan = job.plan;
    let mut used: Vec<Vec<(u64, u64)>> = vec![Vec::new(); plan.cards.len()];
    let mut add = |blob: u64, layout: u32, shape: &[u64], offset: u64| {
        let place = plan.blobs[blob as usize];
        let (cols, rows) = shape.split_last().map_or((1, 1), |(c, r)| (*c, r.iter().product()));
        for plane in plan.layouts[layout as usize].planes(rows, cols).unwrap_or_default() {
            let start = place.offset + offset + plane.offset;
            used[place.card].push((start, start + plane.bytes));
        }
    };
    plan.stored.iter().for_each(|s| add(s.blob, s.layout, &s.shape, 0));
    for bank in &plan.banks {
        for slot in 0..bank.experts.len() as u64 {
            bank.matrices.iter().for_each(|m| add(bank.first_blob + slot, m.layout, &m.shape, m.offset));
        }
    }
    let zeros = vec![0; 1 << 20];
    for (card, mut ranges) in used.into_iter().enumerate() {
        ranges.sort_unstable();
        let segment = plan.segment(card);
        ranges.push((segment.bytes, segment.bytes));
        let mut at = 0;
        for (start, end) in ranges {
            while at < start {
                let n = (start - at).min(zeros.len() as u64);
                job.outputs.card(card).write_all_at(&zeros[..n as usize], segment.offset + at)?;
                at += n;
            }
            at = at.max(end);
        }
    }
    Ok(())
}
