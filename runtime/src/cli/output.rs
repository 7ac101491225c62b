//! Files that take their name when they are complete, and errors.

use super::failure::Refusal;
use anyhow::Context;
use gantry_formats::exit::Exit;
use gantry_formats::message::wrapped;
use std::io::{ErrorKind, IsTerminal, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use tempfile::NamedTempFile;

/// Says what ends the program; on a terminal in lines that fit it.
pub(crate) fn error(text: &str) {
    let mut stderr = std::io::stderr();
    let text = if stderr.is_terminal() { wrapped(text) } else { text.to_owned() };
    // Where standard error is closed, there is nobody left to tell.
    let _ = writeln!(stderr, "{text}");
}

/// A new file in the folder of `out`, with the rights of any new file.
pub(crate) fn beside(out: &Path) -> anyhow::Result<NamedTempFile> {
    let folder = out.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let permissions = std::fs::Permissions::from_mode(0o666);
    let made = tempfile::Builder::new().permissions(permissions).tempfile_in(folder);
    // The error of the system names the temporary file, which nobody gave.
    made.map_err(|e| {
        let exit = match e.kind() {
            ErrorKind::StorageFull => Exit::Resources,
            _ => Exit::Usage,
        };
        Refusal::error(exit, format!("cannot write to the folder {}: {}", folder.display(), e.kind()))
    })
}

/// Refuses, before anything is computed, a file for `option` that cannot be written: in a folder where nothing can be,
/// or something else than a file, as a device, which would be lost.
pub(crate) fn check(option: &str, out: &Path) -> anyhow::Result<()> {
    if out.exists() && !out.is_file() {
        let text = format!("{} is no regular file; name another for {option}", out.display());
        return Err(Refusal::error(Exit::Usage, text));
    }
    drop(beside(out)?);
    Ok(())
}

/// Writes `bytes` to `out`, in place of the file that was there.
pub(crate) fn replace(out: &Path, bytes: &[u8]) -> anyhow::Result<()> {
    let name = || format!("cannot write {}", out.display());
    let mut file = beside(out)?;
    file.write_all(bytes).with_context(name)?;
    file.persist(out).map_err(|e| e.error).with_context(name)?;
    Ok(())
}
