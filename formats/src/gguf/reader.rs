//! An open model: one GGUF, or a split set found from any of its shards.

use super::error::{GgufError, GgufFault};
use super::header::Header;
use super::limits::Budget;
use super::name::display_name;
use super::split::ShardName;
use super::tensor::TensorInfo;
use super::value::Value;
use crate::source::{FileSource, ReadAt};
use std::ffi::OsStr;
use std::ops::{Deref, Range};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// An open model. Tensor names are unique over all shards, every tensor lies inside its file, and the first file
/// names an architecture unless it is an importance matrix.
#[derive(Debug)]
pub struct Gguf<S = FileSource> {
    shards: Vec<Shard<S>>,
    tensor_count: usize,
}

/// One file of a model.
#[derive(Debug)]
pub struct Shard<S = FileSource> {
    file_name: String,
    source: S,
    header: Header,
    first: usize,
}

/// A tensor and where it lies; what the tensor table says of it is reached through [`Deref`].
#[derive(Clone, Copy, Debug)]
pub struct Tensor<'a> {
    /// Index over all shards, in order.
    pub index: usize,
    /// Index of its shard.
    pub shard: usize,
    /// First byte in the shard's file.
    pub start: u64,
    /// Its row in the tensor table.
    pub info: &'a TensorInfo,
}

impl Tensor<'_> {
    /// Its bytes in the shard's file.
    pub fn range(&self) -> Range<u64> {
        self.start..self.start.saturating_add(self.info.bytes)
    }
}

impl Deref for Tensor<'_> {
    type Target = TensorInfo;

    fn deref(&self) -> &TensorInfo {
        self.info
    }
}

impl Gguf<FileSource> {
    /// Opens a GGUF, or the whole set that `path` is a shard of, and checks all headers.
    ///
    /// The other shards are looked for beside `path` as it is given, so that a cache that links names to blobs
    /// works; where they are not there and `path` is a link, beside the file that it leads to.
    ///
    /// # Errors
    /// Where a file cannot be read or breaks a rule, a shard is missing, or shards disagree.
    pub fn open(path: &Path) -> Result<Self, GgufError> {
        let mut budget = Budget::FULL;
        let given = open_file(path, &mut budget)?;
        let fail = |fault| Err(GgufError::new(&given.0, fault));
        let count = match split_key(&given.2, "split.count") {
            Ok(count) => count,
            Err(fault) => return fail(fault),
        };
        let sets = sets(path);
        if count.unwrap_or(0) <= 1 && sets.iter().all(|set| set.name.count() == 1) {
            return Self::assemble(vec![given]);
        }
        let set = match complete(&sets, count) {
            Ok(set) => set,
            Err(fault) => return fail(fault),
        };
        let mut files = Vec::new();
        let mut given = Some(given);
        for number in 1..=set.name.count() {
            let own = if number == set.name.number() { given.take() } else { None };
            files.push(match own {
                Some(file) => file,
                None => open_file(&set.path(number), &mut budget)?,
            });
        }
        Self::assemble(files)
    }
}

impl<S: ReadAt> Gguf<S> {
    /// The same over sources that are open already: one, or all shards in order, each with its file's name.
    ///
    /// # Errors
    /// As [`open`](Gguf::open).
    pub fn from_sources(sources: Vec<(String, S)>) -> Result<Self, GgufError> {
        let mut budget = Budget::FULL;
        let mut files = Vec::new();
        for (name, source) in sources {
            let header = read_header(&name, &source, &mut budget)?;
            files.push((name, source, header));
        }
        Self::assemble(files)
    }

    fn assemble(files: Vec<(String, S, Header)>) -> Result<Self, GgufError> {
        let count = files.len();
        let mut shards = Vec::with_capacity(count);
        let mut first = 0usize;
        for (file_name, source, header) in files {
            let tensors = header.tensors().len();
            shards.push(Shard { file_name, source, header, first });
            first = first.saturating_add(tensors);
        }
        let model = Self { shards, tensor_count: first };
        let Some(head) = model.shards.first() else {
            return Err(GgufError::new("(no file)", GgufFault::Empty));
        };
        if head.header.architecture().is_none() && !model.is_imatrix() {
            return Err(head.error(GgufFault::Architecture { shard: count > 1 }));
        }
        let named = split_key(&head.header, "split.count").map_err(|fault| head.error(fault))?;
        if count > 1 || named.is_some_and(|n| n > 1) {
            model.check_set()?;
        }
        Ok(model)
    }

    /// Checks what shards say of each other.
    fn check_set(&self) -> Result<(), GgufError> {
        let count = u32::try_from(self.shards.len()).unwrap_or(u32::MAX);
        let tensors = self.tensor_count as u64;
        for (expected, shard) in (0u32..).zip(&self.shards) {
            let key = |name| split_key(&shard.header, name).map_err(|fault| shard.error(fault));
            let found = key("split.count")?;
            if found != Some(count.into()) {
                let why = "the number of files in the set";
                return Err(shard.error(GgufFault::SplitCount {
                    found,
                    expected: count,
                    why,
                    missing: None,
                }));
            }
            let found = key("split.no")?;
            if found != Some(expected.into()) {
                return Err(shard.error(GgufFault::SplitNumber { found, expected }));
            }
            let found = key("split.tensors.count")?;
            if found != Some(tensors) && (expected == 0 || found.is_some()) {
                let why = "the number of tensors in all shards together";
                return Err(shard.error(GgufFault::SplitTensors { found, expected: tensors, why }));
            }
        }
        let mut names: Vec<Tensor<'_>> = self.tensors().collect();
        names.sort_unstable_by(|a, b| a.name().cmp(b.name()).then(a.index.cmp(&b.index)));
        for pair in names.windows(2) {
            if let [a, b] = pair
                && a.name() == b.name()
                && let (Some(first), Some(second)) = (self.shards.get(a.shard), self.shards.get(b.shard))
            {
                let other = first.file_name.clone();
                return Err(second.error(GgufFault::DuplicateAcross { name: b.display_name(), other }));
            }
        }
        Ok(())
    }

    /// The files, in order.
    pub fn shards(&self) -> &[Shard<S>] {
        &self.shards
    }

    /// The first file's header, which holds the metadata.
    pub fn header(&self) -> &Header {
        &self.shards[0].header
    }

    /// A metadata value of the first file.
    pub fn get(&self, key: impl AsRef<[u8]>) -> Option<Value<'_>> {
        self.header().get(key)
    }

    /// Whether this is an importance matrix (`general.type`): the one kind of GGUF that the standard tools write
    /// without an architecture.
    pub fn is_imatrix(&self) -> bool {
        self.get("general.type") == Some(Value::Str(b"imatrix"))
    }

    /// Number of tensors in all files.
    pub fn tensor_count(&self) -> usize {
        self.tensor_count
    }

    /// All tensors, shard after shard, in the order of the files.
    pub fn tensors(&self) -> impl Iterator<Item = Tensor<'_>> {
        self.shards.iter().enumerate().flat_map(|(number, shard)| {
            shard.header.tensors().iter().enumerate().map(move |(i, info)| shard.tensor(number, i, info))
        })
    }

    /// The tensor of this index over all shards.
    pub fn tensor(&self, index: usize) -> Option<Tensor<'_>> {
        let number = self.shards.partition_point(|shard| shard.first <= index).checked_sub(1)?;
        let shard = self.shards.get(number)?;
        let i = index.checked_sub(shard.first)?;
        shard.header.tensors().get(i).map(|info| shard.tensor(number, i, info))
    }

    /// The tensor of this name.
    pub fn find(&self, name: impl AsRef<[u8]>) -> Option<Tensor<'_>> {
        let name = name.as_ref();
        self.shards.iter().enumerate().find_map(|(number, shard)| {
            let (i, info) = shard.header.find(name)?;
            Some(shard.tensor(number, i, info))
        })
    }

    /// Fills `buf` with the tensor's bytes from `offset` (inside the tensor) on.
    ///
    /// # Errors
    /// Where the range goes beyond the tensor, or the file cannot be read.
    pub fn read_tensor(&self, tensor: &Tensor<'_>, offset: u64, buf: &mut [u8]) -> Result<(), GgufError> {
        let Some(shard) = self.shards.get(tensor.shard) else {
            let what = format!("there is no shard {}", tensor.shard);
            return Err(GgufError::new("(no file)", GgufFault::Absent { what }));
        };
        let end = offset.checked_add(buf.len() as u64).filter(|end| *end <= tensor.info.bytes);
        let start = end.and_then(|_| tensor.start.checked_add(offset));
        start
            .ok_or_else(|| std::io::Error::from(std::io::ErrorKind::UnexpectedEof))
            .and_then(|start| shard.source.read_exact_at(start, buf))
            .map_err(|source| {
                let doing = format!("read tensor `{}` at its byte {offset}", tensor.display_name());
                shard.error(GgufFault::Io { doing, source })
            })
    }
}

impl<S> Shard<S> {
    /// The file's name without folders, as [`display_name`] shows it.
    pub fn file_name(&self) -> &str {
        &self.file_name
    }

    /// Length of the file.
    pub fn len(&self) -> u64 {
        self.header.file_len()
    }

    /// Never: a shard has a header.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Its header.
    pub fn header(&self) -> &Header {
        &self.header
    }

    /// The open file.
    pub fn source(&self) -> &S {
        &self.source
    }

    /// What is neither header nor tensor data, see [`Header::gaps`].
    pub fn gaps(&self) -> Vec<Range<u64>> {
        self.header.gaps()
    }

    fn tensor<'a>(&self, shard: usize, i: usize, info: &'a TensorInfo) -> Tensor<'a> {
        Tensor { index: self.first.saturating_add(i), shard, start: self.header.range_of(info).start, info }
    }

    fn error(&self, fault: GgufFault) -> GgufError {
        GgufError::new(&self.file_name, fault)
    }
}

/// The set that a path's name says it belongs to.
struct Set {
    folder: PathBuf,
    name: ShardName,
}

impl Set {
    fn of(path: &Path) -> Option<Self> {
        let name = ShardName::parse(path.file_name()?.as_bytes())?;
        Some(Self { folder: path.parent()?.to_owned(), name })
    }

    fn path(&self, number: u32) -> PathBuf {
        self.folder.join(OsStr::from_bytes(&self.name.sibling(number)))
    }

    /// The first shard that is not there.
    fn missing(&self) -> Option<String> {
        let number = (1..=self.name.count()).find(|n| !self.path(*n).exists())?;
        Some(display_name(&self.name.sibling(number)))
    }
}

/// The sets that `path` may belong to: by its own name, then by the name of what it links to.
fn sets(path: &Path) -> Vec<Set> {
    let target = if path.is_symlink() { path.canonicalize().ok() } else { None };
    Set::of(path).into_iter().chain(target.as_deref().and_then(Set::of)).collect()
}

/// The first of these sets that has as many shards as the file says, all of them there.
fn complete(sets: &[Set], count: Option<u64>) -> Result<&Set, GgufFault> {
    let Some(first) = sets.first() else {
        return Err(GgufFault::ShardName { count: count.unwrap_or(0) });
    };
    let mut fault = None;
    for set in sets.iter().filter(|set| count == Some(set.name.count().into())) {
        match set.missing() {
            None => return Ok(set),
            Some(missing) => {
                fault.get_or_insert(GgufFault::MissingShard { missing, count: set.name.count() })
            }
        };
    }
    Err(fault.unwrap_or_else(|| GgufFault::SplitCount {
        found: count,
        expected: first.name.count(),
        why: "as the file's name says",
        missing: first.missing(),
    }))
}

fn open_file(path: &Path, budget: &mut Budget) -> Result<(String, FileSource, Header), GgufError> {
    let name = display_name(path.file_name().unwrap_or(path.as_os_str()).as_bytes());
    let source = FileSource::open(path).map_err(|source| {
        GgufError::new(
            &display_name(path.as_os_str().as_bytes()),
            GgufFault::Io { doing: "open".into(), source },
        )
    })?;
    let header = read_header(&name, &source, budget)?;
    Ok((name, source, header))
}

fn read_header(name: &str, source: &dyn ReadAt, budget: &mut Budget) -> Result<Header, GgufError> {
    let header = Header::read_within(source, *budget).map_err(|fault| GgufError::new(name, fault))?;
    budget.header_bytes = budget.header_bytes.saturating_sub(header.raw().len() as u64);
    budget.tensors = budget.tensors.saturating_sub(header.tensors().len() as u64);
    Ok(header)
}

/// A split key's value: a count, of whatever integer type.
fn split_key(header: &Header, key: &'static str) -> Result<Option<u64>, GgufFault> {
    match header.get(key) {
        None => Ok(None),
        Some(value) => match value.as_u64() {
            Some(count) => Ok(Some(count)),
            None => Err(GgufFault::SplitKey { key, found: value.ty() }),
        },
    }
}
