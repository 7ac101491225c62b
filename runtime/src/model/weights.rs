//! Finds the tensors that an architecture asks for among those that are stored, whatever they were fused with.

use super::program::{ExpertMatrices, Matrix, VectorId};
use crate::load::{BankPlace, Places, TensorPlace};
use crate::{Container, Result, RuntimeError};
use gantry_formats::container::{BankMatrix, StoredTensor};
use gantry_formats::layout::Layout;
use gantry_formats::size;
use std::cell::RefCell;
use std::collections::{HashMap, HashSet};
use std::ops::Range;
use std::sync::Arc;

/// A matrix of a bank, and the rows of one expert's matrix that hold a source tensor's.
type Banked<'a> = (&'a BankPlace, &'a BankMatrix, Range<u64>);

/// A stored tensor, where it lies, and the rows of it that are meant.
type Found<'a> = (&'a StoredTensor, TensorPlace, Range<u64>);

/// Source tensors by name, with the rows of the stored matrix that hold them.
pub(super) struct Weights<'a> {
    container: &'a Container,
    by_name: HashMap<&'a str, Found<'a>>,
    /// The same for experts in banks, by card.
    banked: HashMap<&'a str, Vec<Banked<'a>>>,
    vectors: Vec<Matrix>,
    /// Names that were asked for.
    asked: RefCell<HashSet<String>>,
}

impl<'a> Weights<'a> {
    /// The tensors of `container` at `places`, which are for it.
    pub(super) fn new(container: &'a Container, places: &'a Places) -> Self {
        let manifest = container.manifest();
        let mut by_name = HashMap::new();
        for (tensor, place) in manifest.tensors.iter().zip(&places.tensors) {
            let mut row = 0;
            for part in &tensor.parts {
                let [from, to] = part.rows;
                let range = row..row + (to - from);
                row = range.end;
                let source = &manifest.source_tensors[part.source as usize];
                let source_rows = size::product(source.dims.get(1..).unwrap_or(&[]));
                // A slice of a source, for another card, does not stand for the whole.
                if from == 0 && Some(to) == source_rows && part.cols.is_none() {
                    // The first that holds it is packed; a copy of the source comes after.
                    by_name.entry(source.name.as_str()).or_insert((tensor, *place, range));
                }
            }
        }
        for (tensor, place) in manifest.tensors.iter().zip(&places.tensors) {
            // Some rows of a source that merges several tensors are one of those, under its own name.
            if let [part] = &tensor.parts[..]
                && part.cols.is_none()
                && !manifest.source_tensors.iter().any(|s| s.name == tensor.name)
            {
                let range = 0..part.rows[1] - part.rows[0];
                by_name.entry(tensor.name.as_str()).or_insert((tensor, *place, range));
            }
        }
        for alias in &manifest.aliases {
            if let Some(found) = by_name.get(alias.of.as_str()).cloned() {
                by_name.insert(&alias.name, found);
            }
        }
        let mut banked: HashMap<&str, Vec<_>> = HashMap::new();
        let matrices = |b: &'a BankPlace| manifest.banks[b.like].matrices.iter().map(move |m| (b, m));
        for (bank, matrix) in places.banks.iter().flat_map(matrices) {
            let mut row = 0;
            for part in &matrix.parts {
                let [from, to] = part.rows;
                let range = row..row + (to - from);
                row = range.end;
                let source = &manifest.source_tensors[part.source as usize];
                if from == 0 && Some(to) == source.dims.get(1).copied() && part.cols.is_none() {
                    banked.entry(source.name.as_str()).or_default().push((bank, matrix, range));
                }
            }
        }
        Self { container, by_name, banked, vectors: Vec::new(), asked: RefCell::default() }
    }

    /// Whether there is a tensor of this name.
    pub(super) fn has(&self, name: &str) -> bool {
        self.by_name.contains_key(name) || self.banked.contains_key(name)
    }

    /// Columns of the tensor, the source's `ne0`, and its rows.
    pub(super) fn shape(&self, name: &str) -> Result<(usize, usize)> {
        let (tensor, _, rows) = self.find(name)?;
        let cols = tensor.shape.last().copied().unwrap_or(1);
        Ok((addressable(name, rows.end - rows.start)?, addressable(name, cols)?))
    }

    /// The matrix called `name`, which must be `[rows][cols]`.
    pub(super) fn matrix(&self, name: &str, rows: usize, cols: usize) -> Result<Matrix> {
        let (tensor, place, range) = self.find(name)?;
        self.asked.borrow_mut().insert(name.into());
        let found = self.shape(name)?;
        if found != (rows, cols) {
            return Err(wrong_shape(name, found, (rows, cols)));
        }
        let start = addressable(name, range.start)?;
        self.rows_of((tensor, place), start..start + rows, cols, name)
    }

    /// One matrix for all of `names`, stacked, where they were fused in this order; else `None`.
    pub(super) fn fused(&self, names: &[&str], rows: &[usize], cols: usize) -> Result<Option<Matrix>> {
        let parts = names.iter().zip(rows).map(|(name, &rows)| self.matrix(name, rows, cols));
        let parts = parts.collect::<Result<Vec<_>>>()?;
        let follows = |w: &[Matrix]| {
            (w[0].card, w[0].offset, w[0].rows.end) == (w[1].card, w[1].offset, w[1].rows.start)
        };
        if !parts.windows(2).all(follows) {
            return Ok(None);
        }
        let (Some(first), Some(last)) = (parts.first(), parts.last()) else { return Ok(None) };
        let (tensor, place, _) = self.find(names[0])?;
        self.rows_of((tensor, place), first.rows.start..last.rows.end, cols, &tensor.name).map(Some)
    }

    /// The matrices called `name` of `count` experts, each `[rows][cols]`: from banks, or stacked in one tensor.
    pub(super) fn experts(
        &self,
        name: &str,
        count: usize,
        rows: usize,
        cols: usize,
    ) -> Result<ExpertMatrices> {
        let fault = |what: String| RuntimeError::Tensor { tensor: name.into(), what };
        let matrices = match self.banked.get(name) {
            Some(banks) => {
                self.asked.borrow_mut().insert(name.into());
                banked(name, banks, self.container.layouts(), (count, rows, cols))?
            }
            None => {
                let stacked = self.matrix(name, rows.saturating_mul(count), cols)?;
                let tile = stacked.layout.row_tile();
                let whole = |n: usize| (n as u64).is_multiple_of(tile);
                if !whole(rows) || !whole(stacked.rows.start) {
                    let what =
                        format!("experts of {rows} rows cut through the tiles of {tile} rows of its layout");
                    return Err(fault(what));
                }
                let start = |e: usize| stacked.rows.start + e * rows;
                let one = |e| Matrix { rows: start(e)..start(e) + rows, ..stacked.clone() };
                (0..count).map(|e| vec![one(e)]).collect()
            }
        };
        ExpertMatrices::new(matrices).ok_or_else(|| {
            fault("its layout differs between cards; the experts of a layer must agree".into())
        })
    }

    /// The vector called `name` of `len` values.
    pub(super) fn vector(&mut self, name: &str, len: usize) -> Result<VectorId> {
        let (tensor, place, _) = self.find(name)?;
        self.asked.borrow_mut().insert(name.into());
        if size::product(&tensor.shape) != Some(len as u64) {
            let what = format!("its shape is {:?}, expected {len} values", tensor.shape);
            return Err(RuntimeError::Tensor { tensor: name.into(), what });
        }
        let vector = self.rows_of((tensor, place), 0..1, len, name)?;
        self.vectors.push(Matrix { stored_rows: 1, ..vector });
        Ok(VectorId(self.vectors.len() - 1))
    }

    /// [`vector`](Self::vector), where there is one.
    pub(super) fn optional(&mut self, name: &str, len: usize) -> Result<Option<VectorId>> {
        if self.has(name) { self.vector(name, len).map(Some) } else { Ok(None) }
    }

    /// A factor (`X.scale`) beside a matrix that was asked for, which itself was not, nor is among those that `omit`
    /// says are left out on purpose: what would be computed without it is not the model.
    pub(super) fn ignored_scale(&self, omit: impl Fn(&str) -> bool) -> Option<&'a str> {
        let asked = self.asked.borrow();
        let ignored = |name: &&&str| {
            let base = name.strip_suffix(".scale");
            base.is_some_and(|base| asked.contains(&format!("{base}.weight")))
                && !asked.contains(**name)
                && !omit(name)
        };
        self.by_name.keys().filter(ignored).min().copied()
    }

    /// The vectors asked for, in order of their ids.
    pub(super) fn into_vectors(self) -> Vec<Matrix> {
        self.vectors
    }

    fn find(&self, name: &str) -> Result<Found<'a>> {
        self.by_name.get(name).cloned().ok_or_else(|| RuntimeError::Tensor {
            tensor: name.into(),
            what: "the architecture needs this tensor and the container lacks it".into(),
        })
    }

    fn rows_of(
        &self,
        (tensor, place): (&StoredTensor, TensorPlace),
        rows: Range<usize>,
        cols: usize,
        name: &str,
    ) -> Result<Matrix> {
        Ok(Matrix {
            name: name.into(),
            card: place.card,
            offset: addressable(name, place.offset)?,
            stored_rows: addressable(name, stored_rows(&tensor.shape))?,
            rows,
            cols,
            layout: self.layout(tensor),
        })
    }

    fn layout(&self, tensor: &StoredTensor) -> Layout {
        self.container.layouts()[tensor.layout as usize]
    }
}

/// Rows of a stored shape: all dims but the last.
fn stored_rows(shape: &[u64]) -> u64 {
    shape.split_last().map_or(Some(1), |(_, outer)| size::product(outer)).unwrap_or(u64::MAX)
}

/// The matrices of each expert from its banks, in order of their cards.
fn banked(
    name: &str,
    banks: &[Banked<'_>],
    layouts: &[Layout],
    (count, rows, cols): (usize, usize, usize),
) -> Result<Vec<Vec<Matrix>>> {
    let fault = |what: String| RuntimeError::Tensor { tensor: name.into(), what };
    let shared: Arc<str> = name.into();
    let mut found: HashMap<u32, Vec<Matrix>> = HashMap::new();
    for (bank, matrix, range) in banks {
        let stored = stored_rows(&matrix.shape);
        let width = addressable(name, matrix.shape.last().copied().unwrap_or(0))?;
        let start = addressable(name, range.start)?;
        let have = (addressable(name, range.end - range.start)?, width);
        if have != (rows, cols) {
            return Err(wrong_shape(name, have, (rows, cols)));
        }
        for (number, slot) in bank.slots.iter().enumerate() {
            // Every slot lies in its arena, so that nothing overflows here.
            let offset = bank.offset + number as u64 * bank.stride + matrix.offset;
            let one = Matrix {
                name: Arc::clone(&shared),
                card: bank.card,
                offset: addressable(name, offset)?,
                stored_rows: addressable(name, stored)?,
                rows: start..start + rows,
                cols,
                layout: layouts[matrix.layout as usize],
            };
            found.entry(slot.expert).or_default().push(one);
        }
    }
    if found.len() != count {
        return Err(fault(format!(
            "its banks hold {} experts, the hyperparameters say {count}",
            found.len()
        )));
    }
    found.values_mut().for_each(|copies| copies.sort_by_key(|m| m.card));
    let by_expert = (0..count as u32).map(|e| found.remove(&e));
    by_expert.collect::<Option<Vec<_>>>().ok_or_else(|| fault("its banks lack an expert".into()))
}

fn addressable(name: &str, n: u64) -> Result<usize> {
    usize::try_from(n).map_err(|_| RuntimeError::Tensor {
        tensor: name.into(),
        what: format!("{n} is more than this machine can address"),
    })
}

fn wrong_shape(name: &str, found: (usize, usize), expected: (usize, usize)) -> RuntimeError {
    let what = format!(
        "it has {} rows of {}, the hyperparameters say {} rows of {}",
        found.0, found.1, expected.0, expected.1
    );
    RuntimeError::Tensor { tensor: name.into(), what }
}
