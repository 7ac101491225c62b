//! The bytes of exported files, by several threads, each tensor in chunks.

use super::header::ShardPlan;
use crate::interrupt::Interrupt;
use crate::parallel;
use crate::progress::Progress;
use crate::unpack::{CHUNK, Scratch, Unpacker};
use gantry_formats::block::GgmlType;
use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::FileExt;

struct Job {
    shard: usize,
    tensor: usize,
    elements: Range<u64>,
    /// Where the tensor's first byte goes.
    start: u64,
    ty: GgmlType,
}

/// Fills `files`, one per plan. What nobody writes stays zero.
///
/// # Errors
/// Where the container cannot be read or a file not be written.
pub(super) fn all(
    unpacker: &Unpacker<'_>,
    plans: &[ShardPlan<'_>],
    files: &[File],
    threads: usize,
    interrupt: &Interrupt,
) -> anyhow::Result<()> {
    for (plan, file) in plans.iter().zip(files) {
        file.set_len(plan.file_bytes)?;
        file.write_all_at(plan.header.raw(), 0)?;
        for (offset, bytes) in plan.residues {
            file.write_all_at(bytes, *offset)?;
        }
    }
    let jobs = plans.iter().enumerate().flat_map(|(shard, plan)| {
        let tensors = plan.tensors.iter().zip(plan.header.tensors());
        tensors.flat_map(move |(&tensor, info)| {
            let (end, start, ty) = (info.elements, plan.header.range_of(info).start, info.ty);
            (0..end).step_by(CHUNK as usize).map(move |from| Job {
                shard,
                tensor,
                elements: from..end.min(from + CHUNK),
                start,
                ty,
            })
        })
    });
    let progress = Progress::new("export", plans.iter().map(|p| p.file_bytes).fold(0, u64::saturating_add));
    let init = || (Scratch::default(), Vec::new());
    parallel::for_each(threads, jobs, init, |(scratch, bytes), job| {
        if interrupt.is_asked() {
            return Err(interrupt.error(super::INTERRUPTED));
        }
        unpacker.read(job.tensor, job.elements.clone(), scratch, bytes)?;
        let at = job.start + job.elements.start / job.ty.block_len() * job.ty.block_bytes();
        files[job.shard].write_all_at(bytes, at)?;
        progress.add(bytes.len() as u64);
        Ok(())
    })
}
