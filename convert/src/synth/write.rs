//! A random model's file: made in chunks by several threads, hashed, and given its name when all is on disk.

use super::header::Model;
use crate::failure::Refusal;
use crate::filehash::hash_file;
use crate::interrupt::Interrupt;
use crate::progress::Progress;
use crate::{parallel, partial, units};
use anyhow::Context;
use gantry_formats::exit::Exit;
use gantry_formats::hash;
use gantry_formats::source::FileSource;
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

/// Values that are made at a time: whole blocks of every type.
const CHUNK: u64 = 1 << 19;

const INTERRUPTED: &str = "interrupted; nothing was written under the final name";

/// Writes `model` to `path`; the file's BLAKE3 in hex, and the seconds that writing took.
///
/// # Errors
/// Where there is no room for it, or it cannot be written.
pub(super) fn write(model: &Model, path: &Path, threads: usize) -> anyhow::Result<(String, f64)> {
    let folder = path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
    if !folder.is_dir() {
        let text = format!("the folder {} does not exist; create it first", folder.display());
        return Err(Refusal::new(Exit::Usage, text));
    }
    check_space(folder, model.header.file_len())?;
    let mut name = path.as_os_str().to_owned();
    name.push(".partial");
    let partial = PathBuf::from(name);
    // From here on there is something to clean up; until now a signal may end the program at once.
    let interrupt = Interrupt::listen()?;
    let file = partial::open(&partial)?;
    let result = fill(model, &file, threads, &interrupt).and_then(|done| {
        file.sync_all()?;
        fs::rename(&partial, path).with_context(|| format!("cannot rename {}", partial.display()))?;
        partial::sync_folder(folder)?;
        Ok(done)
    });
    if result.is_err() {
        let _ = fs::remove_file(&partial);
    }
    result
}

fn check_space(folder: &Path, needed: u64) -> anyhow::Result<()> {
    let Ok(stat) = rustix::fs::statvfs(folder) else { return Ok(()) };
    let free = stat.f_bavail.saturating_mul(stat.f_frsize);
    if free >= needed {
        return Ok(());
    }
    let (needed, free) = (units::bytes(needed), units::bytes(free));
    let text = format!("not enough room in {}: {needed} needed, {free} free", folder.display());
    Err(Refusal::new(Exit::Resources, text))
}

fn fill(model: &Model, file: &File, threads: usize, interrupt: &Interrupt) -> anyhow::Result<(String, f64)> {
    let header = &model.header;
    file.set_len(0)?;
    file.set_len(header.file_len())?;
    file.write_all_at(header.raw(), 0)?;
    let jobs = header.tensors().iter().zip(&model.fills).flat_map(|(info, fill)| {
        let (start, end) = (header.range_of(info).start, info.elements);
        // Rows of chosen numbers stay whole.
        let chunk =
            CHUNK.next_multiple_of(if info.ty.block_len() > 1 { info.ty.block_len() } else { fill.row });
        (0..end).step_by(chunk as usize).map(move |from| (fill, start, from..end.min(from + chunk)))
    });
    let progress = Progress::new("making", header.tensors().iter().map(|t| t.bytes).sum());
    let init = || (Vec::new(), Vec::new());
    parallel::for_each(threads, jobs, init, |(scratch, bytes), (fill, start, elements)| {
        if interrupt.is_asked() {
            return Err(interrupt.error(INTERRUPTED));
        }
        let from = elements.start;
        fill.bytes(elements, scratch, bytes)?;
        file.write_all_at(bytes, start + from / fill.ty.block_len() * fill.ty.block_bytes())?;
        progress.add(bytes.len() as u64);
        Ok(())
    })?;
    let seconds = progress.seconds();
    drop(progress);
    let progress = Progress::new("hashing", header.file_len());
    let blake3 = hash::hex(&hash_file(&FileSource::new(file.try_clone()?)?, threads, &progress)?);
    if interrupt.is_asked() {
        return Err(interrupt.error(INTERRUPTED));
    }
    Ok((blake3, seconds))
}
