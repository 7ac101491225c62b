//! A model opened for reading: its metadata, and its tensors under the names that they have in a GGUF, wherever
//! and however they are stored.

use crate::failure::Refusal;
use crate::unpack::{Scratch, Unpacker, changed};
use gantry_formats::block::{self, GgmlType};
use gantry_formats::container::Container;
use gantry_formats::exit::Exit;
use gantry_formats::gguf::{Gguf, Header, display_name};
use gantry_formats::source::ReadAt;
use std::fs::File;
use std::io::Read;
use std::ops::Range;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// A container or a GGUF.
pub(crate) enum Opened {
    /// A container.
    Container(Box<Container>),
    /// A GGUF, all its shards.
    Gguf(Box<Gguf>),
}

impl Opened {
    /// Opens what `path` is, by its first bytes.
    ///
    /// # Errors
    /// Where it cannot be read or is neither.
    pub(crate) fn open(path: &Path) -> anyhow::Result<Self> {
        let mut magic = [0; 4];
        let read = File::open(path).and_then(|mut file| file.read(&mut magic));
        let extension = path.extension().is_some_and(|e| e == "gantry");
        let container = match read {
            Ok(n) if n >= 4 && magic == *b"GGUF" => false,
            Ok(_) => extension || matches!(magic, [_, b'G', b'T', _]),
            // Whoever is asked to open it says why that does not work.
            Err(_) => extension,
        };
        if container {
            Ok(Self::Container(Box::new(Container::open(path)?)))
        } else {
            Ok(Self::Gguf(Box::new(Gguf::open(path)?)))
        }
    }

    /// The GGUF headers, one for each shard: of a container, those of its source.
    pub(crate) fn headers(&self) -> Vec<&Header> {
        match self {
            Self::Container(container) => container.gguf_headers().iter().collect(),
            Self::Gguf(gguf) => gguf.shards().iter().map(|s| s.header()).collect(),
        }
    }
}

/// The tensors of a model, in the order of the source.
pub(crate) enum Weights<'a> {
    /// As they are in the file.
    Gguf(&'a Gguf),
    /// Unpacked.
    Container(Unpacker<'a>),
}

impl<'a> Weights<'a> {
    /// The tensors of `opened`.
    pub(crate) fn new(opened: &'a Opened) -> Self {
        match opened {
            Opened::Gguf(gguf) => Self::Gguf(gguf),
            Opened::Container(container) => Self::Container(Unpacker::new(container)),
        }
    }

    /// Number of tensors.
    pub(crate) fn len(&self) -> usize {
        match self {
            Self::Gguf(gguf) => gguf.tensor_count(),
            Self::Container(unpacker) => unpacker.container().manifest().source_tensors.len(),
        }
    }

    /// The name of tensor `i`, for people.
    pub(crate) fn name(&self, i: usize) -> String {
        match self {
            Self::Gguf(gguf) => gguf.tensor(i).map_or_else(String::new, |t| display_name(t.name())),
            Self::Container(unpacker) => unpacker.container().manifest().source_tensors[i].name.clone(),
        }
    }

    /// The dims of tensor `i`, `ne0` first.
    pub(crate) fn dims(&self, i: usize) -> Vec<u64> {
        match self {
            Self::Gguf(gguf) => gguf.tensor(i).map_or_else(Vec::new, |t| t.dims().to_vec()),
            Self::Container(unpacker) => unpacker.container().manifest().source_tensors[i].dims.clone(),
        }
    }

    /// Number of values of tensor `i`.
    pub(crate) fn elements(&self, i: usize) -> u64 {
        gantry_formats::size::product(&self.dims(i)).unwrap_or(0)
    }

    /// The type whose bytes [`read`](Self::read) gives; `None` where there is not one.
    ///
    /// # Errors
    /// Where the container does not hold all of it.
    pub(crate) fn ty(&self, i: usize) -> anyhow::Result<Option<GgmlType>> {
        match self {
            Self::Gguf(gguf) => Ok(gguf.tensor(i).map(|t| t.ty)),
            Self::Container(unpacker) => unpacker.ty(i).map(Some),
        }
    }

    /// How tensor `i` is stored: its type, or its layouts.
    pub(crate) fn stored_as(&self, i: usize) -> String {
        match self {
            Self::Gguf(gguf) => gguf.tensor(i).map_or_else(String::new, |t| t.ty.to_string()),
            Self::Container(unpacker) => {
                let mut names: Vec<String> =
                    unpacker.pieces(i).iter().map(|p| p.layout.to_string()).collect();
                names.dedup();
                names.join("+")
            }
        }
    }

    /// Reads values `elements` of tensor `i`, whole blocks, as bytes of its [`ty`](Self::ty).
    ///
    /// # Errors
    /// Where they are not all there or cannot be read.
    pub(crate) fn read(
        &self,
        i: usize,
        elements: Range<u64>,
        scratch: &mut Scratch,
        out: &mut Vec<u8>,
    ) -> anyhow::Result<()> {
        match self {
            Self::Container(unpacker) => unpacker.read(i, elements, scratch, out),
            Self::Gguf(gguf) => {
                let none = || Refusal::new(Exit::Other, format!("there is no tensor {i}"));
                let tensor = gguf.tensor(i).ok_or_else(none)?;
                let bytes = |n: u64| n / tensor.ty.block_len() * tensor.ty.block_bytes();
                out.clear();
                out.resize(bytes(elements.end - elements.start) as usize, 0);
                let source = gguf.shards()[tensor.shard].source();
                source.read_exact_at(tensor.start + bytes(elements.start), out).map_err(changed)
            }
        }
    }

    /// Reads values `elements` of tensor `i`, whole blocks, as f32.
    ///
    /// # Errors
    /// As [`read`](Self::read).
    pub(crate) fn values(
        &self,
        i: usize,
        elements: Range<u64>,
        scratch: &mut Scratch,
        out: &mut Vec<f32>,
    ) -> anyhow::Result<()> {
        match self {
            Self::Container(unpacker) => unpacker.values(i, elements, scratch, out),
            Self::Gguf(gguf) => {
                let ty = gguf.tensor(i).map_or(GgmlType::F32, |t| t.ty);
                let mut bytes = Vec::new();
                out.clear();
                out.resize((elements.end - elements.start) as usize, 0.0);
                self.read(i, elements, scratch, &mut bytes)?;
                Ok(block::dequantize(ty, &bytes, out)?)
            }
        }
    }
}

/// A path's file name, for people.
pub(crate) fn file_name(path: &Path) -> String {
    display_name(path.file_name().unwrap_or(path.as_os_str()).as_bytes())
}
