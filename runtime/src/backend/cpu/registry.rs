//! Which kernels there are: by step and layout.

use crate::model::program::StepKind;
use gantry_formats::block::GgmlType;
use gantry_formats::layout::Layout;
use gantry_kernels::cpu::{MatrixError, MatrixView};

/// Makes the view that the kernels of a layout work on: layout, rows, columns, the stored bytes.
pub(super) type Reader = for<'a> fn(Layout, usize, usize, &'a [u8]) -> Result<MatrixView<'a>, MatrixError>;

/// The reader of `layout` for `step`; `None` where no kernel takes it.
pub(super) fn reader(step: StepKind, layout: Layout) -> Option<Reader> {
    match (step, layout) {
        (_, Layout::Raw(GgmlType::F32)) => Some(|_, rows, cols, bytes| MatrixView::f32(rows, cols, bytes)),
        (_, Layout::Raw(GgmlType::F16)) => Some(|_, rows, cols, bytes| MatrixView::f16(rows, cols, bytes)),
        (_, Layout::Raw(GgmlType::BF16)) => Some(|_, rows, cols, bytes| MatrixView::bf16(rows, cols, bytes)),
        (StepKind::Embed | StepKind::Gemm, Layout::Q8_0Split { .. }) => Some(split),
        _ => None,
    }
}

fn split(layout: Layout, rows: usize, cols: usize, bytes: &[u8]) -> Result<MatrixView<'_>, MatrixError> {
    let planes = layout.planes(rows as u64, cols as u64).ok_or(MatrixError::Columns { cols })?;
    let plane = |i: usize| {
        let range = planes.get(i).map_or(0..0, |p| p.offset as usize..(p.offset + p.bytes) as usize);
        bytes.get(range).unwrap_or_default()
    };
    MatrixView::q8_0_split(rows, cols, plane(0), plane(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_promised_at_packing_is_registered() {
        for layout in Layout::all() {
            let promised = gantry_formats::target::takes("cpu", layout);
            assert_eq!(reader(StepKind::Gemm, layout).is_some(), promised, "{layout}");
            assert_eq!(reader(StepKind::Embed, layout).is_some(), promised, "{layout}");
        }
    }
}
