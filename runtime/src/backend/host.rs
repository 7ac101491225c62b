//! What the host does for every device: small vectors, angles of rotations.

use crate::model::program::{self, Matrix, StepKind};
use crate::{Result, RuntimeError};
use gantry_formats::arch;
use gantry_kernels::cpu::{self as kernels, MatrixView, RopeTable};

use super::cpu::reader;

pub(super) fn bad(matrix: &Matrix, what: String) -> RuntimeError {
    RuntimeError::Tensor { tensor: matrix.name.to_string(), what }
}

/// `rows` rows of a matrix of which `bytes` are these rows alone, as it is stored.
pub(super) fn view<'a>(
    kind: StepKind,
    matrix: &Matrix,
    rows: usize,
    bytes: &'a [u8],
) -> Result<MatrixView<'a>> {
    let reader = reader(kind, matrix.layout);
    let reader =
        reader.ok_or_else(|| bad(matrix, format!("no {kind} kernel for layout {}", matrix.layout)))?;
    reader(matrix.layout, rows, matrix.cols, bytes).map_err(|e| bad(matrix, e.to_string()))
}

/// The values of a small vector, from all bytes of the matrix that it is a row of.
#[cfg(feature = "cards")]
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
