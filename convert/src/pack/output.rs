//! Output files: written as `NAME.partial`, and given their names only when every byte is on disk.

use crate::failure::Refusal;
use crate::partial;
use crate::plan::Plan;
use crate::units;
use anyhow::{Context, Result};
use gantry_formats::container::card_file_name;
use gantry_formats::exit::Exit;
use gantry_formats::gguf::Gguf;
use gantry_formats::source::FileSource;
use rustix::fs::FallocateFlags;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// The names that an output will have.
#[derive(Clone, Debug)]
pub(crate) struct Names {
    index: PathBuf,
    /// One per card in a split container, else none.
    cards: Vec<PathBuf>,
}

fn with_suffix(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    name.into()
}

fn folder_of(path: &Path) -> &Path {
    path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

impl Names {
    /// The names for an output at `index`.
    pub(crate) fn new(index: &Path, plan: &Plan) -> Result<Self> {
        let bad = |text: String| Err(Refusal::new(Exit::Usage, text));
        let Some(name) = index.file_name() else {
            return bad(format!("{} is not a file name; give one with -o", index.display()));
        };
        let folder = folder_of(index);
        if !folder.is_dir() {
            return bad(format!("the folder {} does not exist; create it first", folder.display()));
        }
        if index.is_dir() {
            return bad(format!("{} is a folder; give a file name with -o", index.display()));
        }
        let name = name.to_string_lossy();
        let split = if plan.skeleton.split_cards { plan.cards.len() } else { 0 };
        let cards = (0..split).map(|card| index.with_file_name(card_file_name(&name, card))).collect();
        Ok(Self { index: index.into(), cards })
    }

    /// All final names, the index last: it is what makes an output complete.
    fn all(&self) -> impl Iterator<Item = &PathBuf> {
        self.cards.iter().chain(std::iter::once(&self.index))
    }

    fn partials(&self) -> impl Iterator<Item = PathBuf> {
        self.all().map(|p| with_suffix(p, ".partial"))
    }

    /// The index file's final name.
    pub(crate) fn index(&self) -> &Path {
        &self.index
    }

    /// The journal's name.
    pub(crate) fn journal(&self) -> PathBuf {
        with_suffix(&self.index, ".partial.journal")
    }

    /// Whether an earlier run left all its partial files.
    pub(crate) fn partials_exist(&self) -> bool {
        self.partials().all(|p| p.is_file())
    }

    fn folder(&self) -> &Path {
        folder_of(&self.index)
    }

    /// Refuses an output that is one of its own sources, open files with their names, and one that exists unless
    /// `force` is set.
    pub(crate) fn check<'f>(
        &self,
        sources: impl Iterator<Item = (&'f File, &'f str)>,
        force: bool,
    ) -> Result<()> {
        let id = |m: fs::Metadata| (m.dev(), m.ino());
        let sources = sources.map(|(file, name)| Ok((id(file.metadata()?), name)));
        let sources = sources.collect::<io::Result<Vec<_>>>()?;
        for path in self.all().cloned().chain(self.partials()).chain([self.journal()]) {
            let Ok(found) = fs::metadata(&path).map(id) else { continue };
            if let Some((_, file)) = sources.iter().find(|(source, _)| *source == found) {
                let text =
                    format!("{} is the source {file} itself; give another name with -o", path.display());
                return Err(Refusal::new(Exit::Usage, text));
            }
        }
        self.all().try_for_each(|path| partial::check_target(path, force))
    }

    /// Refuses to write over what else was given to be read.
    pub(crate) fn check_inputs(&self, inputs: &[&Path]) -> Result<()> {
        self.all().try_for_each(|path| partial::check_not_input(path, inputs.iter().copied()))
    }

    /// Bytes that are free for this output: on its file system, and in what an earlier run left.
    pub(crate) fn free(&self) -> Option<u64> {
        let stat = rustix::fs::statvfs(self.folder()).ok()?;
        let left: u64 = self.partials().filter_map(|p| Some(fs::metadata(p).ok()?.blocks() * 512)).sum();
        Some(stat.f_bavail.saturating_mul(stat.f_frsize).saturating_add(left))
    }

    /// Refuses where the output does not fit.
    pub(crate) fn check_space(&self, needed: u64) -> Result<()> {
        match self.free() {
            Some(free) if free < needed => {
                let (needed, free) = (units::bytes(needed), units::bytes(free));
                let folder = self.folder().display();
                let text = format!("not enough room in {folder}: {needed} needed, {free} free");
                Err(Refusal::new(Exit::Resources, text))
            }
            _ => Ok(()),
        }
    }
}

/// The open partial files.
#[derive(Debug)]
pub(crate) struct Outputs {
    names: Names,
    /// In the order of [`Names::all`].
    files: Vec<File>,
}

impl Outputs {
    /// Opens the partial files, emptied unless `resume` is set, and reserves room for the segments.
    pub(crate) fn open(names: &Names, plan: &Plan, resume: bool) -> Result<Self> {
        let mut files = Vec::new();
        for path in names.partials() {
            let file = partial::open(&path)?;
            if !resume {
                file.set_len(0).with_context(|| path.display().to_string())?;
            }
            files.push(file);
        }
        let outputs = Self { names: names.clone(), files };
        if let Err(error) = outputs.reserve(plan) {
            outputs.discard();
            return Err(error);
        }
        Ok(outputs)
    }

    fn reserve(&self, plan: &Plan) -> Result<()> {
        for (i, (file, path)) in self.files.iter().zip(self.names.partials()).enumerate() {
            let bytes = match self.names.cards.get(i) {
                Some(_) => plan.skeleton.card_file_bytes(i),
                None => plan.skeleton.tail_offset,
            };
            // Reserved room reads as zeros, so padding need not be written, and a full disk shows at once.
            match rustix::fs::fallocate(file, FallocateFlags::empty(), 0, bytes.max(1)) {
                Ok(()) => {}
                Err(rustix::io::Errno::OPNOTSUPP) => {
                    if file.metadata()?.len() < bytes {
                        file.set_len(bytes)?;
                    }
                }
                Err(e) => {
                    let what = format!("{}: cannot reserve {}", path.display(), units::bytes(bytes));
                    return Err(io::Error::from(e)).context(what);
                }
            }
        }
        Ok(())
    }

    /// The file that holds card `card`'s segment.
    pub(crate) fn card(&self, card: usize) -> &File {
        if self.names.cards.is_empty() { self.index() } else { &self.files[card] }
    }

    /// The index file.
    pub(crate) fn index(&self) -> &File {
        &self.files[self.files.len() - 1]
    }

    /// Puts all that was written on disk.
    pub(crate) fn sync(&self) -> io::Result<()> {
        self.files.iter().try_for_each(File::sync_data)
    }

    /// Gives the files their names.
    pub(crate) fn publish(&self) -> Result<()> {
        for file in &self.files {
            file.sync_all()?;
        }
        for (path, partial) in self.names.all().zip(self.names.partials()) {
            fs::rename(&partial, path).with_context(|| format!("cannot rename {}", partial.display()))?;
        }
        let _ = fs::remove_file(self.names.journal());
        partial::sync_folder(self.names.folder())?;
        Ok(())
    }

    /// Removes the partial files and the journal.
    pub(crate) fn discard(&self) {
        for path in self.names.partials().chain([self.names.journal()]) {
            let _ = fs::remove_file(path);
        }
    }
}

/// Whether a source's files are still as they were: length and time of change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Stamp(Vec<(u64, i64, i64)>);

impl Stamp {
    /// The files as they are now.
    pub(crate) fn of(source: &Gguf) -> io::Result<Self> {
        let stamp = |file: &FileSource| file.file().metadata().map(|m| (m.len(), m.mtime(), m.mtime_nsec()));
        source.shards().iter().map(|s| stamp(s.source())).collect::<io::Result<_>>().map(Self)
    }

    /// One word per file for the journal's fingerprint.
    pub(crate) fn text(&self) -> String {
        format!("{:?}", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    /// An index that is there says that its cards' files are too, also where a run ends between renames.
    #[test]
    fn the_index_gets_its_name_after_every_card() {
        for blocked in 0..=3 {
            let folder = tempfile::tempdir().expect("a folder");
            let path = |name: &str| folder.path().join(name);
            let names = Names {
                index: path("m.gantry"),
                cards: (0..3).map(|c| path(&format!("m.card{c}.gantry"))).collect(),
            };
            let mut files = Vec::new();
            for (partial, name) in names.partials().zip(names.all()) {
                fs::write(name, "old").expect("written");
                let mut file = partial::open(&partial).expect("a partial file");
                file.write_all(b"new").expect("written");
                files.push(file);
            }
            let order: Vec<PathBuf> = names.all().cloned().collect();
            assert_eq!(order.last(), Some(&names.index));
            // No file takes the name of a folder: the run ends there.
            fs::remove_file(&order[blocked]).expect("removed");
            fs::create_dir(&order[blocked]).expect("a folder");
            let error = Outputs { names, files }.publish().expect_err("a folder is there");
            assert!(format!("{error:#}").contains("cannot rename"), "{error:#}");
            for (i, name) in order.iter().enumerate().filter(|(i, _)| *i != blocked) {
                let want: &[u8] = if i < blocked { b"new" } else { b"old" };
                assert_eq!(fs::read(name).expect("there"), want, "{i} of {blocked}");
            }
        }
    }
}
