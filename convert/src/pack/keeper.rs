//! The keeper: gets finished blobs onto the disk and into the journal while the workers go on.

use super::worker::write_failure;
use super::{Failure, Job};
use crate::pack::journal::{Entry, Journal};
use anyhow::Context;
use gantry_formats::hash::{self, Digest};
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

/// Time after which finished blobs are put on disk however few they are, for slow recipes.
const SYNC_EVERY: Duration = Duration::from_secs(10);

/// A blob that was packed and hashed.
#[derive(Clone, Debug)]
pub(crate) struct Done {
    pub(crate) entry: Entry,
    /// Chaining values to store.
    pub(crate) values: Vec<Digest>,
    pub(crate) bytes: u64,
}

impl Done {
    pub(super) fn empty(blob: u64) -> Self {
        let entry = Entry { blob, hash: hash::hash(&[]), source: [0; 4], stats: Vec::new() };
        Self { entry, values: Vec::new(), bytes: 0 }
    }
}

/// Takes finished blobs until all workers are gone, and returns them.
pub(super) fn keep(job: Job<'_>, inbox: Receiver<Done>, journal: &mut Journal) -> Result<Vec<Done>, Failure> {
    let mut all: Vec<Done> = Vec::new();
    let (mut kept, mut pending, mut since) = (0, 0u64, Instant::now());
    loop {
        let open = match inbox.recv_timeout(Duration::from_secs(1)) {
            Ok(done) => {
                pending += done.bytes;
                all.push(done);
                true
            }
            Err(RecvTimeoutError::Timeout) => true,
            Err(RecvTimeoutError::Disconnected) => false,
        };
        let due = pending >= job.sync_bytes || since.elapsed() >= SYNC_EVERY;
        // At the end all is synced anyway, and the journal removed, unless the run was cut short.
        let is_needed = if open { due } else { job.interrupt.is_asked() };
        if is_needed && kept < all.len() {
            job.outputs.sync().context("cannot sync the output").map_err(write_failure)?;
            let entries = all[kept..].iter().map(|d| &d.entry);
            journal.append(entries).context("cannot write the journal").map_err(write_failure)?;
            (kept, pending, since) = (all.len(), 0, Instant::now());
        }
        if !open {
            return Ok(all);
        }
    }
}
