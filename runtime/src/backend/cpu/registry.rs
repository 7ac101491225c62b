//! Which kernels there are: by step and layout.

use crate::model::program::StepKind;
use gantry_formats::block::GgmlType;
use gantry_formats::layout::Layout;
use gantry_kernels::cpu::{MatrixError, MatrixView};

/// Makes the view that the kernels of a layout work on: layout, rows, columns, the stored bytes.
pub(super) type Reader = for<'a> fn(Layout, usize, usize, &'a [u8]) -> Result<MatrixView<'a>, MatrixError>;

/// The reader of `layout` for `step`; `None` where no kernel takes it. Products read every layout with values;
/// rows that are used as they are must not be rotated, and vectors not be padded to tiles of rows.
pub(in crate::backend) fn reader(step: StepKind, layout: Layout) -> Option<Reader> {
    let taken = match step {
        StepKind::Gemm | StepKind::Experts => true,
        StepKind::Embed => !layout.is_rotated(),
        StepKind::Vector => matches!(layout, Layout::Raw(_) | Layout::Block(_) | Layout::Q8_0Split { .. }),
        StepKind::Ids => false,
        // Each of its planes has a stretch for each row.
        StepKind::Rows => {
            matches!(layout, Layout::Raw(_) | Layout::Block(_) | Layout::Q8_0Split { .. })
        }
    };
    let reader: Reader = match layout {
        Layout::Raw(GgmlType::F32) => |_, rows, cols, bytes| MatrixView::f32(rows, cols, bytes),
        Layout::Raw(GgmlType::F16) => |_, rows, cols, bytes| MatrixView::f16(rows, cols, bytes),
        Layout::Raw(GgmlType::BF16) => |_, rows, cols, bytes| MatrixView::bf16(rows, cols, bytes),
        Layout::Raw(_) => return None,
        Layout::Block(_) => block,
        Layout::Q8_0Split { .. } => split,
        Layout::E8Block98 { .. } => |_, rows, cols, bytes| MatrixView::e8_block98(rows, cols, bytes),
        Layout::E8Planar { .. } => planar,
        Layout::I8 { .. } => int8,
    };
    taken.then_some(reader)
}

fn block(layout: Layout, rows: usize, cols: usize, bytes: &[u8]) -> Result<MatrixView<'_>, MatrixError> {
    match layout {
        Layout::Block(ty) => MatrixView::block(ty, rows, cols, bytes),
        _ => Err(MatrixError::Shape { rows, cols }),
    }
}

fn split(layout: Layout, rows: usize, cols: usize, bytes: &[u8]) -> Result<MatrixView<'_>, MatrixError> {
    let [quants, scales] = planes(layout, rows, cols, bytes)?;
    MatrixView::q8_0_split(rows, cols, quants, scales)
}

fn planar(layout: Layout, rows: usize, cols: usize, bytes: &[u8]) -> Result<MatrixView<'_>, MatrixError> {
    let [indices, words, scales] = planes(layout, rows, cols, bytes)?;
    MatrixView::e8_planar(rows, cols, indices, words, scales)
}

fn int8(layout: Layout, rows: usize, cols: usize, bytes: &[u8]) -> Result<MatrixView<'_>, MatrixError> {
    let Layout::I8 { order, scales, .. } = layout else { return Err(MatrixError::Shape { rows, cols }) };
    let [quants, plane] = planes(layout, rows, cols, bytes)?;
    MatrixView::i8(order, scales, rows, cols, quants, plane)
}

/// The planes of a matrix; one that lies outside of `bytes` is empty, which its view refuses.
fn planes<const N: usize>(
    layout: Layout,
    rows: usize,
    cols: usize,
    bytes: &[u8],
) -> Result<[&[u8]; N], MatrixError> {
    let planes = layout.planes(rows as u64, cols as u64).ok_or(MatrixError::Columns { cols })?;
    Ok(std::array::from_fn(|i| {
        let range = planes.get(i).map_or(0..0, |p| p.offset as usize..(p.offset + p.bytes) as usize);
        bytes.get(range).unwrap_or_default()
    }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use gantry_formats::target::Target;

    #[test]
    fn what_is_promised_at_packing_is_registered() {
        let cpu = Target::find("cpu").unwrap();
        for layout in Layout::all() {
            let promised = cpu.takes(layout);
            assert_eq!(reader(StepKind::Gemm, layout).is_some(), promised, "{layout}");
            assert_eq!(reader(StepKind::Experts, layout).is_some(), promised, "{layout}");
            let rows = promised && !layout.is_rotated();
            assert_eq!(reader(StepKind::Embed, layout).is_some(), rows, "{layout}");
        }
    }
}
