//! What packing says of a fault: which tensor, expert, row and column, and what to do about it.

use crate::failure::Refusal;
use crate::plan::TensorPlan;
use gantry_formats::block::e8::E8Error;
use gantry_formats::exit::Exit;
use gantry_packer::PackError;

/// The refusal of `tensor`, whose unit `unit` (an expert, where it has several) shows `fault`; its indices count
/// from the start of the unit.
pub(super) fn refusal(tensor: &TensorPlan, unit: u64, fault: &PackError) -> anyhow::Error {
    let name = &tensor.name;
    let cols = tensor.dims.first().copied().unwrap_or(1).max(1);
    let experts = tensor.route.blobs.len() > 1;
    let damaged = "; the source is damaged there, download or convert it again";
    let text = match *fault {
        PackError::NonFinite { element, kind } => {
            let (row, col) = (element / cols, element % cols);
            let place = match experts {
                true => format!("expert {unit} row {row} col {col}"),
                false => format!("element {element}"),
            };
            let detail = if experts { String::new() } else { format!(" (row {row}, col {col})") };
            format!("{name} {place} {kind}{detail}{damaged}")
        }
        PackError::NonFiniteScale { block, field, kind } => {
            let blocks = (cols / tensor.ty.block_len()).max(1);
            let row = block / blocks;
            match experts {
                true => {
                    format!("{name} expert {unit} row {row} block {} {field} {kind}{damaged}", block % blocks)
                }
                false => format!("{name} block {block} {field} {kind} (row {row}){damaged}"),
            }
        }
        PackError::ScaleOverflow { element, amax } => {
            let (row, block) = (element / cols, element % cols / 32);
            let expert = if experts { format!(" expert {unit}") } else { String::new() };
            format!(
                "{name}{expert} element {element}: {amax}/127 does not fit fp16 (row {row}, block {block}); \
                 --set '{name}=keep' stores the tensor as {}",
                tensor.ty
            )
        }
        PackError::SuperScaleOverflow { element, .. } => {
            let (row, block) = (element / cols, element % cols / 256);
            let expert = if experts { format!(" expert {unit}") } else { String::new() };
            format!(
                "{name}{expert} row {row} super-block {block}: {fault}; --set '{name}=i8.channel' has a scale that \
                 does, --set '{name}=keep' stores the tensor as {}",
                tensor.ty
            )
        }
        PackError::E8 { block, ref error } => {
            let (row, block) = (block / (cols / 256).max(1), block % (cols / 256).max(1));
            let expert = if experts { format!(" expert {unit}") } else { String::new() };
            let advice = match error {
                E8Error::NonFinite(_) => damaged.to_string(),
                _ => format!("; --set '{name}=keep' stores it as it is"),
            };
            format!("{name}{expert} row {row} block {block}: {error}{advice}")
        }
        ref other => format!("{name}: {other}"),
    };
    Refusal::new(Exit::Input, text)
}
