//! Where weights lie.

use gantry_formats::layout::Layout;
use std::ops::Range;
use std::sync::Arc;

/// Some rows of a stored matrix: where it lies and how to read it.
#[derive(Clone, Debug)]
pub struct Matrix {
    /// The tensor's name.
    pub name: Arc<str>,
    /// Card.
    pub card: usize,
    /// First byte of the stored matrix inside the card's arena.
    pub offset: usize,
    /// Rows of the stored matrix.
    pub stored_rows: usize,
    /// The rows that are meant: one value comes out for each.
    pub rows: Range<usize>,
    /// Columns: values that go in.
    pub cols: usize,
    /// How the bytes are ordered.
    pub layout: Layout,
}

/// One matrix of every expert of a layer, by expert: alike in layout, rows and columns, each where its card has it.
#[derive(Clone, Debug)]
pub struct ExpertMatrices(Vec<Matrix>);

impl ExpertMatrices {
    /// `None` where there are none, or where they are not alike.
    pub fn new(matrices: Vec<Matrix>) -> Option<Self> {
        let alike = |w: &[Matrix]| {
            let [a, b] = [&w[0], &w[1]].map(|m| (m.layout, m.rows.len(), m.cols));
            a == b
        };
        (!matrices.is_empty() && matrices.windows(2).all(alike)).then_some(Self(matrices))
    }

    /// The same matrix `count` times.
    pub fn repeated(matrix: Matrix, count: usize) -> Self {
        Self(vec![matrix; count.max(1)])
    }

    /// The matrix of `expert`.
    pub fn get(&self, expert: usize) -> Option<&Matrix> {
        self.0.get(expert)
    }

    /// All of them, by expert.
    pub fn iter(&self) -> std::slice::Iter<'_, Matrix> {
        self.0.iter()
    }

    /// One matrix for each expert of both, stacked, where they were fused in this order; else `None`.
    pub fn fused(&self, below: &Self) -> Option<Self> {
        let joined = self.iter().zip(below.iter()).map(|(a, b)| {
            let follows = (a.card, a.offset, a.rows.end) == (b.card, b.offset, b.rows.start);
            follows.then(|| Matrix { rows: a.rows.start..b.rows.end, ..a.clone() })
        });
        Self::new(joined.collect::<Option<Vec<_>>>()?)
    }

    /// How their bytes are ordered.
    pub fn layout(&self) -> Layout {
        self.0[0].layout
    }

    /// Rows of each: values that come out.
    pub fn rows(&self) -> usize {
        self.0[0].rows.len()
    }

    /// Columns of each: values that go in.
    pub fn cols(&self) -> usize {
        self.0[0].cols
    }
}
