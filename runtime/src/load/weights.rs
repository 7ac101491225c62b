//! What loading gives: arenas, and the files of what was left there.

use super::{Arena, Left, Lift, LoadOptions, Places};
use crate::RuntimeError;
use crate::model::program::Matrix;
use gantry_formats::container::{Container, ContainerError};
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::time::SystemTime;

/// A container's weights: the arenas of its cards, and what stays in its files.
pub struct Weights {
    arenas: Vec<Arena>,
    left: Vec<LeftFile>,
    /// What lies on cards, until the device takes it.
    lifted: Option<Box<dyn Lift>>,
}

impl std::fmt::Debug for Weights {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Weights")
            .field("arenas", &self.arenas)
            .field("left", &self.left)
            .field("on cards", &self.lifted.is_some())
            .finish()
    }
}

/// Part of an arena that stayed in its file, as that was when it was verified.
#[derive(Debug)]
pub(super) struct LeftFile {
    /// Card of this run.
    card: usize,
    /// Inside the card's arena.
    range: Range<usize>,
    file: File,
    /// Where the first byte of it lies in the file.
    start: u64,
    len: u64,
    modified: Option<SystemTime>,
}

impl Weights {
    pub(super) fn new(arenas: Vec<Arena>, left: Vec<LeftFile>) -> Self {
        Self { arenas, left, lifted: None }
    }

    /// Weights whose arenas are on cards; `arenas` are those of the host's cards beside them, empty for the others.
    pub(super) fn lifted(cards: Box<dyn Lift>, arenas: Vec<Arena>, left: Vec<LeftFile>) -> Self {
        Self { arenas, left, lifted: Some(cards) }
    }

    /// No weights that anybody would read here, for measuring with others.
    #[cfg(feature = "cards")]
    pub(crate) fn none() -> Self {
        Self::new(Vec::new(), Vec::new())
    }

    /// The cards' arenas, for the device whose cards they are.
    #[cfg(feature = "cards")]
    pub(crate) fn take_lifted(&mut self) -> Option<Box<dyn Lift>> {
        self.lifted.take()
    }

    /// Weights of some cards, all in memory.
    #[cfg(test)]
    pub(crate) fn of(cards: &[Vec<u8>]) -> io::Result<Self> {
        let arenas = cards.iter().map(|bytes| Arena::of(bytes)).collect::<io::Result<_>>()?;
        Ok(Self::new(arenas, Vec::new()))
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

    /// Refuses a file that was written to after what a card left in it was verified, as far as its length and its
    /// time of change tell.
    ///
    /// # Errors
    /// [`ContainerError::Integrity`].
    pub(crate) fn check_unchanged(&self, card: usize) -> Result<(), ContainerError> {
        for known in self.left.iter().filter(|l| l.card == card) {
            let now = known.file.metadata().ok().map(|m| (m.len(), m.modified().ok()));
            if now != Some((known.len, known.modified)) {
                let what =
                    "a table that is read by row was verified, and its file was changed since".to_string();
                return Err(ContainerError::Integrity { region: "file changed while running".into(), what });
            }
        }
        Ok(())
    }

    /// Reads what a card's arena holds at `offset`: from its file what was left there, and what was mapped through the
    /// mapping.
    ///
    /// # Errors
    /// What the system says; [`io::ErrorKind::UnexpectedEof`] outside the arena.
    pub fn read(&self, card: usize, offset: usize, into: &mut [u8]) -> io::Result<()> {
        let end = offset.checked_add(into.len()).ok_or(io::ErrorKind::UnexpectedEof)?;
        let holds = |l: &&LeftFile| l.card == card && l.range.start <= offset && end <= l.range.end;
        if let Some(LeftFile { range, file, start, .. }) = self.left.iter().find(holds) {
            return file.read_exact_at(into, start + (offset - range.start) as u64);
        }
        let bytes = self.arenas.get(card).and_then(|a| a.bytes().get(offset..end));
        into.copy_from_slice(bytes.ok_or(io::ErrorKind::UnexpectedEof)?);
        Ok(())
    }
}

/// The files of what is left in them.
pub(super) fn left(
    container: &Container,
    places: &Places,
    options: &LoadOptions,
) -> Result<Vec<LeftFile>, RuntimeError> {
    options.left.iter().map(|left| file_of(container, places, left)).collect()
}

fn file_of(container: &Container, places: &Places, left: &Left) -> Result<LeftFile, RuntimeError> {
    let mut tensors = places.tensors.iter().zip(&container.manifest().tensors);
    let held = tensors.find_map(|(place, tensor)| {
        let first = left.range.start.checked_sub(place.offset).filter(|_| place.card == left.card)?;
        let fits = left.range.end.checked_sub(place.offset)? <= tensor.bytes;
        fits.then_some((tensor, first))
    });
    let outside = || {
        let Left { card, range } = left;
        RuntimeError::Placement(format!("bytes {}..{} of card {card} are no tensor", range.start, range.end))
    };
    let (tensor, first) = held.ok_or_else(outside)?;
    let source = container.card(tensor.card as usize)?;
    let io = |source| ContainerError::Io { path: container.path().into(), source };
    let file = source.file.file().try_clone().map_err(io)?;
    let meta = file.metadata().map_err(io)?;
    let address = |n: u64| usize::try_from(n).map_err(|_| outside());
    Ok(LeftFile {
        card: left.card,
        range: address(left.range.start)?..address(left.range.end)?,
        file,
        start: source.offset + tensor.offset + first,
        len: meta.len(),
        modified: meta.modified().ok(),
    })
}
