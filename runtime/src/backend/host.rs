//! What the host does for every device: small vectors, angles of rotations, rows of tables that stay in their files.

use crate::load::Weights;
use crate::model::program::{self, Matrix, StepKind};
use crate::{Result, RuntimeError};
use gantry_formats::arch;
use gantry_kernels::cpu::{self as kernels, MatrixView, RopeTable};

use super::cpu::reader;

fn bad(matrix: &Matrix, what: String) -> RuntimeError {
    RuntimeError::Tensor { tensor: matrix.name.to_string(), what }
}

/// `rows` rows of a matrix of which `bytes` are these rows alone, as it is stored.
fn view<'a>(kind: StepKind, matrix: &Matrix, rows: usize, bytes: &'a [u8]) -> Result<MatrixView<'a>> {
    let reader = reader(kind, matrix.layout);
    let reader =
        reader.ok_or_else(|| bad(matrix, format!("no {kind} kernel for layout {}", matrix.layout)))?;
    reader(matrix.layout, rows, matrix.cols, bytes).map_err(|e| bad(matrix, e.to_string()))
}

/// The values of a small vector, from all bytes of the matrix that it is a row of.
#[cfg(feature = "cuda")]
pub(super) fn vector(vector: &Matrix, bytes: &[u8]) -> Result<Vec<f32>> {
    let mut values = vec![0.0; vector.cols];
    let view = view(StepKind::Vector, vector, vector.stored_rows, bytes)?;
    view.row_range(vector.rows.clone()).dequantize_row(0, &mut values);
    Ok(values)
}

/// `[n][columns]` to `[columns][n]`.
pub(super) fn transposed(values: &[f32], columns: usize) -> Vec<f32> {
    let each = |c: usize| values[c..].iter().step_by(columns).copied();
    (0..columns).flat_map(each).collect()
}

/// The angles of a rotation.
pub(super) fn rope_table(rotation: &program::Rotation, vectors: &[Vec<f32>]) -> RopeTable {
    let scaling = match rotation.scaling {
        arch::RopeScaling::None => kernels::RopeScaling::None,
        arch::RopeScaling::Linear { factor } => {
            kernels::RopeScaling::Linear { freq_scale: (1.0 / factor) as f32 }
        }
        arch::RopeScaling::Yarn {
            factor,
            original_context,
            attn_factor,
            ext_factor,
            beta_fast,
            beta_slow,
        } => kernels::RopeScaling::Yarn {
            freq_scale: (1.0 / factor) as f32,
            original_context: u32::try_from(original_context).unwrap_or(u32::MAX),
            ext_factor: ext_factor as f32,
            attn_factor: attn_factor as f32,
            beta_fast: beta_fast as f32,
            beta_slow: beta_slow as f32,
        },
    };
    let divisors = rotation.divisors.map(|id| vectors[id.0].as_slice());
    RopeTable::new(rotation.len, rotation.base as f32, divisors, scaling)
}

/// The hashes of an n-gram table.
pub(super) fn ngram(n: &program::Ngram) -> kernels::Ngram {
    kernels::Ngram {
        size: n.size,
        eos: n.eos,
        multipliers: n.multipliers.clone(),
        offsets: n.offsets.clone(),
        vocabs: n.vocabs.clone(),
    }
}

/// The rows of an n-gram table that `count` tokens from position `start` on hash to, one after another: those of a token
/// side by side. `tokens` are all of the sequence.
pub(super) fn ngram_rows(
    (weights, table): (&Weights, &Matrix),
    hash: &kernels::Ngram,
    tokens: &[u32],
    start: usize,
    bytes: &mut Vec<u8>,
    out: &mut [f32],
) -> Result<()> {
    let mut rows = vec![0; hash.offsets.len()];
    let mut window = vec![None; hash.size];
    for (t, out) in out.chunks_exact_mut(rows.len() * table.cols).enumerate() {
        for (back, seen) in window.iter_mut().enumerate() {
            *seen = (start + t).checked_sub(back).and_then(|p| tokens.get(p).copied());
        }
        hash.rows(&window, &mut rows);
        for (row, out) in rows.iter().zip(out.chunks_exact_mut(table.cols)) {
            table_row(weights, table, *row, bytes, out)?;
        }
    }
    Ok(())
}

/// Row `row` of a table that stays in its file.
fn table_row(
    weights: &Weights,
    table: &Matrix,
    row: u64,
    bytes: &mut Vec<u8>,
    out: &mut [f32],
) -> Result<()> {
    let outside = || bad(table, format!("row {row} lies outside of its {} rows", table.rows.len()));
    let row = usize::try_from(row).ok().filter(|r| *r < table.rows.len()).ok_or_else(outside)?;
    let row = table.rows.start + row;
    let (all, one) = (table.layout.planes(table.stored_rows as u64, table.cols as u64), 1);
    let planes = all.zip(table.layout.planes(one, table.cols as u64)).ok_or_else(outside)?;
    let total = table.layout.bytes(one, table.cols as u64).ok_or_else(outside)?;
    bytes.clear();
    bytes.resize(total as usize, 0);
    for (plane, single) in planes.0.iter().zip(&planes.1) {
        let each = plane.bytes / table.stored_rows as u64;
        let at = table.offset + plane.offset as usize + row * each as usize;
        let into = &mut bytes[single.offset as usize..][..each as usize];
        let read = weights.read(table.card, at, into);
        read.map_err(|e| bad(table, format!("row {row} cannot be read from the container's file: {e}")))?;
    }
    view(StepKind::Rows, table, 1, bytes)?.dequantize_row(0, out);
    Ok(())
}
