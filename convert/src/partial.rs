//! Partial files: what an output is called until it is whole, and how it gets its name.

use crate::failure::Refusal;
use anyhow::Context;
use gantry_formats::exit::Exit;
use rustix::fs::{FlockOperation, OFlags};
use std::fs::File;
use std::io;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;

/// Opens a partial file for reading and writing, made where it is not there, not emptied, locked against another
/// gantry. What leads elsewhere is refused, a link or a second name of some other file: it would be written over.
pub(crate) fn open(path: &Path) -> anyhow::Result<File> {
    let mut options = File::options();
    options.read(true).write(true).create(true).truncate(false);
    // A pipe is opened without waiting for its other end, and refused below.
    options.custom_flags((OFlags::NOFOLLOW | OFlags::NONBLOCK).bits() as i32);
    let file = options.open(path).map_err(|e| match e.raw_os_error() {
        Some(code) if code == rustix::io::Errno::LOOP.raw_os_error() => odd(path, "is a symbolic link"),
        _ => anyhow::Error::from(e).context(path.display().to_string()),
    })?;
    let meta = file.metadata().with_context(|| path.display().to_string())?;
    if !meta.is_file() {
        return Err(odd(path, "is no regular file"));
    }
    if meta.nlink() != 1 {
        return Err(odd(path, "is a second name of another file"));
    }
    if rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive).is_err() {
        let text = format!("{}: another gantry is writing it", path.display());
        return Err(Refusal::new(Exit::Usage, text));
    }
    Ok(file)
}

fn odd(path: &Path, what: &str) -> anyhow::Error {
    let text =
        format!("{} {what} and would be written over; remove it, or name another output", path.display());
    Refusal::new(Exit::Usage, text)
}

/// Refuses an output that is one of these inputs, under whatever name.
pub(crate) fn check_not_input<'p>(
    target: &Path,
    inputs: impl IntoIterator<Item = &'p Path>,
) -> anyhow::Result<()> {
    let id = |path: &Path| path.metadata().ok().map(|m| (m.dev(), m.ino()));
    let Some(own) = id(target) else { return Ok(()) };
    match inputs.into_iter().find(|input| id(input) == Some(own)) {
        None => Ok(()),
        Some(input) => {
            let (target, input) = (target.display(), input.display());
            let text = format!("{target} is the input {input} itself; give the output another name");
            Err(Refusal::new(Exit::Usage, text))
        }
    }
}

/// Refuses an output that exists, unless `force` is set and it is a regular file or a link.
pub(crate) fn check_target(path: &Path, force: bool) -> anyhow::Result<()> {
    let Ok(meta) = path.symlink_metadata() else { return Ok(()) };
    if !meta.is_file() && !meta.is_symlink() {
        let text = format!("{} is no regular file; name another output", path.display());
        return Err(Refusal::new(Exit::Usage, text));
    }
    if !force {
        return Err(Refusal::new(Exit::Usage, format!("{} exists; --force replaces it", path.display())));
    }
    Ok(())
}

/// Puts a folder's new names on disk, where its file system can.
pub(crate) fn sync_folder(folder: &Path) -> io::Result<()> {
    File::open(folder).and_then(|f| f.sync_all()).or_else(|e| match e.kind() {
        io::ErrorKind::InvalidInput => Ok(()),
        _ => Err(e),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn nothing_else_is_written_over() {
        let dir = tempfile::tempdir().expect("a folder");
        let (precious, partial) = (dir.path().join("precious"), dir.path().join("m.partial"));
        fs::write(&precious, "precious").expect("written");
        std::os::unix::fs::symlink(&precious, &partial).expect("a link");
        assert!(format!("{:#}", open(&partial).expect_err("a link")).contains("symbolic link"));
        fs::remove_file(&partial).expect("removed");
        fs::hard_link(&precious, &partial).expect("a link");
        assert!(format!("{:#}", open(&partial).expect_err("a link")).contains("second name"));
        fs::remove_file(&partial).expect("removed");
        let held = open(&partial).expect("a new file");
        assert!(format!("{:#}", open(&partial).expect_err("held")).contains("another gantry"));
        drop(held);
        open(&partial).expect("free again");
        assert_eq!(fs::read(&precious).expect("read"), b"precious");
        assert!(check_target(dir.path(), true).is_err());
        assert!(check_target(&precious, false).is_err());
        check_target(&precious, true).expect("replaced on demand");
    }
}
