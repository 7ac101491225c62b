//! Products of several matrices, each with its own tokens, in one step: the experts of a layer.

use super::int8::I8Rows;
use super::isa::Isa;
use super::matrix::MatrixView;
use super::pool::Pool;
use super::product::{Activations, Input, Product, chunk};
use super::q8::Q8Rows;

/// One product of [`gemm_grouped`]: y\[i\] = W · x\[tokens\[i\]\].
#[derive(Debug)]
pub struct Group<'a> {
    /// The weights.
    pub w: MatrixView<'a>,
    /// The activations of all tokens, of the kind that [`MatrixView::activations`] says.
    pub x: Activations<'a>,
    /// Rows of `x`, in any order; a row may come again.
    pub tokens: &'a [u32],
    /// `[tokens.len()][w.rows()]`.
    pub y: &'a mut [f32],
}

/// Rows of activations that do not follow one another, brought together.
enum Gathered {
    None,
    F32(Vec<f32>),
    Q8(Q8Rows),
    I8(I8Rows),
}

/// All the groups' products. Threads share the tiles of all of them, so that ten small experts of one token take
/// one step. Each output has the bits that [`gemm`](super::gemm) gives for the same row of activations.
///
/// Where a group's tokens do not ascend one by one, their rows are copied together first.
///
/// # Panics
/// As [`gemm`](super::gemm), and where a token is no row of the activations.
pub fn gemm_grouped(isa: Isa, pool: &Pool, groups: &mut [Group<'_>]) {
    for group in &*groups {
        let rows = group.x.tokens(group.w.cols());
        let bad = group.tokens.iter().find(|&&token| token as usize >= rows);
        assert_eq!(bad, None, "a token of {rows}");
    }
    let mut gathered = Vec::new();
    if !groups.iter().all(|group| consecutive(group.tokens)) {
        gathered.resize_with(groups.len(), || Gathered::None);
        pool.for_rows(&mut gathered, 1, 1, |i, out| out[0] = gather(&groups[i]));
    }
    // Products with the number of tiles before each.
    let mut products = Vec::with_capacity(groups.len());
    let mut tiles = 0;
    for (i, group) in groups.iter_mut().enumerate() {
        let n = group.tokens.len();
        let x = match gathered.get(i).unwrap_or(&Gathered::None) {
            Gathered::None => {
                let first = group.tokens.first().map_or(0, |&token| token as usize);
                group.x.slice(first..first + n, group.w.cols())
            }
            Gathered::F32(x) => Input::F32(x),
            Gathered::Q8(x) => Input::Q8(x.slice(0..n)),
            Gathered::I8(x) => Input::I8(x.slice(0..n)),
        };
        let product = Product::new(group.w, x, group.y);
        if n > 0 {
            let before = tiles;
            tiles += product.tiles();
            products.push((before, product));
        }
    }
    pool.for_chunks(tiles, chunk(tiles, pool), |range| {
        let mut at = range.start;
        let mut i = products.partition_point(|(before, _)| *before <= at) - 1;
        while at < range.end {
            let (before, product) = &products[i];
            let end = range.end.min(before + product.tiles());
            product.run(isa, at - before..end - before);
            (at, i) = (end, i + 1);
        }
    });
}

fn consecutive(tokens: &[u32]) -> bool {
    tokens.windows(2).all(|pair| pair[0].checked_add(1) == Some(pair[1]))
}

fn gather(group: &Group<'_>) -> Gathered {
    if consecutive(group.tokens) {
        return Gathered::None;
    }
    match group.x {
        Activations::F32(x) => {
            let cols = group.w.cols();
            Gathered::F32(
                group.tokens.iter().flat_map(|&t| &x[t as usize * cols..][..cols]).copied().collect(),
            )
        }
        Activations::Q8(x) => Gathered::Q8(x.gather(group.tokens)),
        Activations::I8(x) => Gathered::I8(x.gather(group.tokens)),
    }
}
