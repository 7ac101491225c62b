//! What loading gives: arenas, and the files of what was left there.

use super::{Arena, LoadMode, LoadOptions};
use crate::RuntimeError;
use crate::model::program::Matrix;
use gantry_formats::container::{Container, ContainerError};
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::time::SystemTime;

/// A container's weights: the segments of its cards in memory, and what stays in their files.
#[derive(Debug)]
pub struct Weights {
    arenas: Vec<Arena>,
    /// By card: its file, where something of it was left.
    files: Vec<Option<CardFile>>,
}

/// A card's file, as it was when it was verified.
#[derive(Debug)]
pub(super) struct CardFile {
    file: File,
    /// Where the segment begins.
    start: u64,
    len: u64,
    modified: Option<SystemTime>,
}

impl Weights {
    pub(super) fn new(arenas: Vec<Arena>, files: Vec<Option<CardFile>>) -> Self {
        Self { arenas, files }
    }

    /// Weights of one card, all in memory.
    #[cfg(test)]
    pub(crate) fn of(bytes: &[u8]) -> io::Result<Self> {
        Ok(Self { arenas: vec![Arena::of(bytes)?], files: vec![None] })
    }

    /// By card.
    pub fn arenas(&self) -> &[Arena] {
        &self.arenas
    }

    /// Refuses a matrix that does not lie within its segment.
    ///
    /// # Errors
    /// [`RuntimeError::Tensor`].
    pub(crate) fn check(&self, matrix: &Matrix) -> Result<(), RuntimeError> {
        let bytes = matrix.layout.bytes(matrix.stored_rows as u64, matrix.cols as u64);
        let end = bytes.and_then(|b| matrix.offset.checked_add(usize::try_from(b).ok()?));
        let fits =
            end.zip(self.arenas.get(matrix.card)).is_some_and(|(end, arena)| end <= arena.bytes().len());
        let what = || "it lies outside its arena".into();
        if fits {
            Ok(())
        } else {
            Err(RuntimeError::Tensor { tensor: matrix.name.to_string(), what: what() })
        }
    }

    /// Refuses a card's file that was written to after it was verified, as far as its length and its time of change
    /// tell.
    ///
    /// # Errors
    /// [`ContainerError::Integrity`].
    pub(crate) fn check_unchanged(&self, card: usize) -> Result<(), ContainerError> {
        let Some(Some(known)) = self.files.get(card) else { return Ok(()) };
        let now = known.file.metadata().ok().map(|m| (m.len(), m.modified().ok()));
        if now == Some((known.len, known.modified)) {
            return Ok(());
        }
        let what = "a table that is read by row was verified, and its file was changed since".to_string();
        Err(ContainerError::Integrity { region: "file changed while running".into(), what })
    }

    /// Reads from a card's segment what was left in its file; what was mapped is read through the mapping.
    ///
    /// # Errors
    /// What the system says; [`io::ErrorKind::UnexpectedEof`] where the segment ends early.
    pub fn read(&self, card: usize, offset: usize, into: &mut [u8]) -> io::Result<()> {
        if let Some(Some(CardFile { file, start, .. })) = self.files.get(card) {
            return file.read_exact_at(into, start + offset as u64);
        }
        let end = offset.checked_add(into.len());
        let bytes = self.arenas.get(card).zip(end).and_then(|(a, end)| a.bytes().get(offset..end));
        into.copy_from_slice(bytes.ok_or(io::ErrorKind::UnexpectedEof)?);
        Ok(())
    }
}

/// The files of the cards of which something was left.
pub(super) fn files(
    container: &Container,
    options: &LoadOptions,
) -> Result<Vec<Option<CardFile>>, ContainerError> {
    let cards = container.header().cards.len();
    let mut files = Vec::with_capacity(cards);
    for card in 0..cards {
        let left = options.mode == LoadMode::Read && options.left.iter().any(|l| l.card == card);
        files.push(if left {
            let source = container.card(card)?;
            let io = |source| ContainerError::Io { path: container.path().into(), source };
            let file = source.file.file().try_clone().map_err(io)?;
            let meta = file.metadata().map_err(io)?;
            let (start, len, modified) = (source.offset, meta.len(), meta.modified().ok());
            Some(CardFile { file, start, len, modified })
        } else {
            None
        });
    }
    Ok(files)
}
