//! The files that a command reads and writes, by whatever name: nothing is written over what is read, and no two
//! things into one file.

use super::failure::Refusal;
use gantry_formats::exit::Exit;
use gantry_runtime::Container;
use std::ffi::OsString;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// What a path leads to.
#[derive(Debug, PartialEq, Eq)]
enum Place {
    /// A file that is there, by device and inode.
    File(u64, u64),
    /// A name in a folder, where nothing is yet.
    Name(u64, u64, OsString),
}

impl Place {
    /// `None` where there is no such folder: whoever wants to write there says so.
    fn of(path: &Path) -> Option<Self> {
        if let Ok(file) = path.metadata() {
            return Some(Self::File(file.dev(), file.ino()));
        }
        let folder = path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let folder = folder.metadata().ok()?;
        Some(Self::Name(folder.dev(), folder.ino(), path.file_name()?.into()))
    }
}

/// What a command does with files.
#[derive(Debug)]
pub(crate) struct Files {
    read: Vec<PathBuf>,
    /// With the option that names it.
    written: Vec<(&'static str, PathBuf)>,
}

impl Files {
    /// Of a command that reads `container` and `others`.
    pub(crate) fn of<'p>(container: &Container, others: impl IntoIterator<Item = &'p Path>) -> Self {
        let others = others.into_iter().map(Path::to_path_buf);
        Self { read: container.files().chain(others).collect(), written: Vec::new() }
    }

    /// Adds what `option` is to write, where it is given.
    pub(crate) fn writes(mut self, option: &'static str, path: Option<&Path>) -> Self {
        self.written.extend(path.map(|path| (option, path.to_path_buf())));
        self
    }

    /// Refuses what would be lost.
    ///
    /// # Errors
    /// Where an output is a file that is read, or another output.
    pub(crate) fn check(&self) -> anyhow::Result<()> {
        let read: Vec<_> = self.read.iter().map(|path| (Place::of(path), path)).collect();
        let written: Vec<_> = self.written.iter().map(|(_, path)| Place::of(path)).collect();
        for (i, ((option, path), place)) in self.written.iter().zip(&written).enumerate() {
            if place.is_none() {
                continue;
            }
            let shown = path.display();
            if let Some((_, input)) = read.iter().find(|(other, _)| other == place) {
                let text = format!(
                    "{option} {shown} is the input {} itself and would be written over; name another {option}",
                    input.display()
                );
                return Err(Refusal::error(Exit::Usage, text));
            }
            if let Some(before) = written[..i].iter().position(|other| other == place) {
                let (first, other) = &self.written[before];
                let text = format!(
                    "{first} {} and {option} {shown} are one file, and one of them would be lost; give each its own",
                    other.display()
                );
                return Err(Refusal::error(Exit::Usage, text));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(read: &[&Path], written: &[&Path]) -> Option<String> {
        let read = read.iter().map(|path| path.to_path_buf()).collect();
        let written = written.iter().zip(["--a", "--b"]).map(|(path, option)| (option, path.to_path_buf()));
        Files { read, written: written.collect() }.check().err().map(|e| e.to_string())
    }

    #[test]
    fn a_file_is_one_by_whatever_name() {
        let folder = tempfile::tempdir().unwrap();
        let (there, absent) = (folder.path().join("there"), folder.path().join("absent"));
        std::fs::write(&there, "x").unwrap();
        std::fs::create_dir(folder.path().join("sub")).unwrap();
        let (link, way) = (folder.path().join("link"), folder.path().join("way"));
        std::os::unix::fs::symlink(&there, &link).unwrap();
        std::os::unix::fs::symlink(folder.path(), &way).unwrap();
        let hard = folder.path().join("hard");
        std::fs::hard_link(&there, &hard).unwrap();
        for name in ["there", "./there", "sub/../there", "link", "way/there", "hard"] {
            let other = folder.path().join(name);
            let text = refused(&[&there], &[&other]).expect(name);
            assert!(text.contains("--a") && text.contains("the input"), "{text}");
            assert!(refused(&[], &[&there, &other]).expect(name).contains("one file"));
        }
        for name in ["absent", "sub/../absent", "way/absent"] {
            let other = folder.path().join(name);
            assert!(refused(&[], &[&absent, &other]).expect(name).contains("--b"), "{name}");
            assert_eq!(refused(&[&there], &[&other]), None);
        }
        assert_eq!(refused(&[&there], &[&absent, &folder.path().join("sub/absent")]), None);
        // Whether there is such a folder is not asked here.
        let nowhere = folder.path().join("no/where");
        assert_eq!(refused(&[&nowhere], &[&nowhere]), None);
    }
}
