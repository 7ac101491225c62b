//! Finds the tensors that an architecture asks for among those that are stored, whatever they were fused with.

use super::program::{Matrix, VectorId};
use crate::{Container, Result, RuntimeError};
use gantry_formats::container::StoredTensor;
use gantry_formats::layout::Layout;
use gantry_formats::size;
use std::collections::HashMap;
use std::ops::Range;

/// Source tensors by name, with the rows of the stored matrix that hold them.
pub(super) struct Weights<'a> {
    container: &'a Container,
    by_name: HashMap<&'a str, (&'a StoredTensor, Range<u64>)>,
    vectors: Vec<Matrix>,
}

impl<'a> Weights<'a> {
    pub(super) fn new(container: &'a Container) -> Self {
        let manifest = container.manifest();
        let mut by_name = HashMap::new();
        for tensor in &manifest.tensors {
            let mut row = 0;
            for part in &tensor.parts {
                let [from, to] = part.rows;
                let range = row..row + (to - from);
                row = range.end;
                let source = &manifest.source_tensors[part.source as usize];
                let source_rows = size::product(source.dims.get(1..).unwrap_or(&[]));
                // A slice of a source, for another card, does not stand for the whole.
                if from == 0 && Some(to) == source_rows && part.cols.is_none() {
                    by_name.insert(source.name.as_str(), (tensor, range));
                }
            }
        }
        for alias in &manifest.aliases {
            if let Some(found) = by_name.get(alias.of.as_str()).cloned() {
                by_name.insert(&alias.name, found);
            }
        }
        Self { container, by_name, vectors: Vec::new() }
    }

    /// Whether there is a tensor of this name.
    pub(super) fn has(&self, name: &str) -> bool {
        self.by_name.contains_key(name)
    }

    /// Columns of the tensor, the source's `ne0`, and its rows.
    pub(super) fn shape(&self, name: &str) -> Result<(usize, usize)> {
        let (tensor, rows) = self.find(name)?;
        let cols = tensor.shape.last().copied().unwrap_or(1);
        Ok((addressable(name, rows.end - rows.start)?, addressable(name, cols)?))
    }

    /// The matrix called `name`, which must be `[rows][cols]`.
    pub(super) fn matrix(&self, name: &str, rows: usize, cols: usize) -> Result<Matrix> {
        let (tensor, range) = self.find(name)?;
        let found = self.shape(name)?;
        if found != (rows, cols) {
            return Err(wrong_shape(name, found, (rows, cols)));
        }
        let start = addressable(name, range.start)?;
        self.rows_of(tensor, start..start + rows, cols, name)
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
        let (tensor, _) = self.find(names[0])?;
        self.rows_of(tensor, first.rows.start..last.rows.end, cols, &tensor.name).map(Some)
    }

    /// The vector called `name` of `len` values.
    pub(super) fn vector(&mut self, name: &str, len: usize) -> Result<VectorId> {
        let (tensor, _) = self.find(name)?;
        if size::product(&tensor.shape) != Some(len as u64) {
            let what = format!("its shape is {:?}, expected {len} values", tensor.shape);
            return Err(RuntimeError::Tensor { tensor: name.into(), what });
        }
        let vector = self.rows_of(tensor, 0..1, len, name)?;
        self.vectors.push(Matrix { stored_rows: 1, ..vector });
        Ok(VectorId(self.vectors.len() - 1))
    }

    /// [`vector`](Self::vector), where there is one.
    pub(super) fn optional(&mut self, name: &str, len: usize) -> Result<Option<VectorId>> {
        if self.has(name) { self.vector(name, len).map(Some) } else { Ok(None) }
    }

    /// The vectors asked for, in order of their ids.
    pub(super) fn into_vectors(self) -> Vec<Matrix> {
        self.vectors
    }

    fn find(&self, name: &str) -> Result<(&'a StoredTensor, Range<u64>)> {
        self.by_name.get(name).cloned().ok_or_else(|| RuntimeError::Tensor {
            tensor: name.into(),
            what: "the architecture needs this tensor and the container lacks it".into(),
        })
    }

    fn rows_of(&self, tensor: &StoredTensor, rows: Range<usize>, cols: usize, name: &str) -> Result<Matrix> {
        let stored = tensor.shape.split_last().map_or(Some(1), |(_, outer)| size::product(outer));
        Ok(Matrix {
            name: name.into(),
            card: tensor.card as usize,
            offset: addressable(name, tensor.offset)?,
            stored_rows: addressable(name, stored.unwrap_or(u64::MAX))?,
            rows,
            cols,
            layout: self.layout(tensor),
        })
    }

    fn layout(&self, tensor: &StoredTensor) -> Layout {
        self.container.layouts()[tensor.layout as usize]
    }
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
