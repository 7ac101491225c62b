//! Where an export goes: names, checks, partial files, and the final names once all is on disk.

use crate::failure::Refusal;
use crate::partial;
use crate::units;
use anyhow::Context;
use gantry_formats::container::{Container, Source};
use gantry_formats::exit::Exit;
use gantry_formats::gguf::ShardName;
use std::ffi::OsStr;
use std::fs::{self, File};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// The names of the files, one per source.
#[derive(Debug)]
pub(super) struct Targets {
    paths: Vec<PathBuf>,
}

impl Targets {
    /// A folder takes the sources' own names; for several sources a name takes the numbers of a set.
    ///
    /// # Errors
    /// Where a source's name is no file name, or the folder does not exist.
    pub(super) fn new(output: &Path, sources: &[Source]) -> anyhow::Result<Self> {
        let paths = if output.is_dir() || output.as_os_str().as_bytes().ends_with(b"/") {
            let own = |s: &Source| {
                // The name comes from the container; it must not lead out of the folder.
                let name = Path::new(&s.file).file_name().filter(|name| *name == OsStr::new(&s.file));
                let text = || format!("{} is no file name; give one with -o", s.file);
                name.map(|name| output.join(name)).ok_or_else(|| Refusal::new(Exit::Input, text()))
            };
            sources.iter().map(own).collect::<anyhow::Result<Vec<_>>>()?
        } else if sources.len() == 1 {
            vec![output.to_path_buf()]
        } else {
            let count = sources.len() as u32;
            let name = output.file_name().unwrap_or_default().as_bytes();
            let shard = ShardName::parse(name).filter(|s| s.count() == count);
            let prefix = shard.as_ref().map_or(name.strip_suffix(b".gguf").unwrap_or(name), |s| s.prefix());
            let path = |n| output.with_file_name(OsStr::from_bytes(&ShardName::format(prefix, n, count)));
            (1..=count).map(path).collect()
        };
        let this = Self { paths };
        if !this.folder().is_dir() {
            let text = format!("the folder {} does not exist; create it first", this.folder().display());
            return Err(Refusal::new(Exit::Usage, text));
        }
        Ok(this)
    }

    /// The final names.
    pub(super) fn paths(&self) -> &[PathBuf] {
        &self.paths
    }

    fn folder(&self) -> &Path {
        let parent = self.paths.first().and_then(|p| p.parent());
        parent.filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."))
    }

    fn partial(path: &Path) -> PathBuf {
        let mut name = path.as_os_str().to_owned();
        name.push(".partial");
        name.into()
    }

    /// Refuses an output that is a file of the container itself, whatever its name, and one that exists.
    ///
    /// # Errors
    /// Usage.
    pub(super) fn check(&self, container: &Container, force: bool) -> anyhow::Result<()> {
        let id = |m: fs::Metadata| (m.dev(), m.ino());
        let mut own = vec![id(container.index_file().file().metadata()?)];
        for card in 0..container.header().cards.len() {
            if let Ok(source) = container.card(card) {
                own.push(id(source.file.file().metadata()?));
            }
        }
        for path in &self.paths {
            for path in [path.clone(), Self::partial(path)] {
                if fs::metadata(&path).map(id).is_ok_and(|found| own.contains(&found)) {
                    let text =
                        format!("{} is the container itself; give another name with -o", path.display());
                    return Err(Refusal::new(Exit::Usage, text));
                }
            }
            partial::check_target(path, force)?;
        }
        Ok(())
    }

    /// Refuses where the output does not fit.
    ///
    /// # Errors
    /// Resources, with what is needed and what is free.
    pub(super) fn check_space(&self, needed: u64) -> anyhow::Result<()> {
        let Ok(stat) = rustix::fs::statvfs(self.folder()) else { return Ok(()) };
        let free = stat.f_bavail.saturating_mul(stat.f_frsize);
        if free < needed {
            let (needed, free, folder) = (units::bytes(needed), units::bytes(free), self.folder().display());
            let text = format!("not enough room in {folder}: {needed} needed, {free} free");
            return Err(Refusal::new(Exit::Resources, text));
        }
        Ok(())
    }

    /// Creates the partial files, empty.
    ///
    /// # Errors
    /// Where that fails.
    pub(super) fn create(&self) -> anyhow::Result<Partials> {
        let mut partials = Partials { names: Vec::new(), files: Vec::new() };
        for path in &self.paths {
            let partial = Self::partial(path);
            let emptied = partial::open(&partial).and_then(|f| Ok(f.set_len(0).map(|()| f)?));
            match emptied.with_context(|| partial.display().to_string()) {
                Ok(file) => partials.files.push(file),
                Err(error) => {
                    partials.discard();
                    return Err(error);
                }
            }
            partials.names.push((partial, path.clone()));
        }
        Ok(partials)
    }
}

/// The partial files, open.
#[derive(Debug)]
pub(super) struct Partials {
    names: Vec<(PathBuf, PathBuf)>,
    files: Vec<File>,
}

impl Partials {
    /// The files, in the order of the sources.
    pub(super) fn files(&self) -> &[File] {
        &self.files
    }

    /// Puts all on disk, then gives the files their names.
    ///
    /// # Errors
    /// Where that fails.
    pub(super) fn publish(&self) -> anyhow::Result<()> {
        self.files.iter().try_for_each(File::sync_all)?;
        for (partial, path) in &self.names {
            fs::rename(partial, path).with_context(|| format!("cannot rename {}", partial.display()))?;
        }
        let folder = self.names.first().and_then(|(_, path)| path.parent());
        let folder = folder.filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
        Ok(partial::sync_folder(folder)?)
    }

    /// Removes what was written.
    pub(super) fn discard(&self) {
        for (partial, _) in &self.names {
            let _ = fs::remove_file(partial);
        }
    }
}
