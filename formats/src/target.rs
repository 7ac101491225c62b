//! Targets: device families, and which layouts their kernels take.
//!
//! `gantry` asks here when it plans, so that a layout without a kernel is told before hours of work and not at run
//! time; a test of the runtime holds its registered kernels against this.

use crate::arch::{Architecture, Hparams};
use crate::block::GgmlType;
use crate::layout::Layout;

/// Every target that this program packs for.
pub const TARGETS: [&str; 1] = ["cpu"];

/// Whether the kernels of `target` multiply by matrices in `layout`.
pub fn takes(target: &str, layout: Layout) -> bool {
    match target {
        "cpu" => matches!(
            layout,
            Layout::Raw(GgmlType::F32 | GgmlType::F16 | GgmlType::BF16) | Layout::Q8_0Split { .. }
        ),
        _ => false,
    }
}

/// Why the runtime cannot run a complete model of this architecture with these layouts, one reason a line; empty
/// where it can.
pub fn obstacles<'a>(
    target: &str,
    arch: Option<&Architecture>,
    hparams: &Hparams,
    layouts: impl Iterator<Item = &'a Layout>,
) -> Vec<String> {
    let mut out = Vec::new();
    if let Some(arch) = arch.filter(|a| if hparams.experts > 0 { !a.runs_experts } else { !a.runs_dense }) {
        let form = if hparams.experts > 0 { "with experts" } else { "dense" };
        out.push(format!("gantry-run does not run {} in the form {form} yet", arch.name));
    }
    let missing: Vec<String> = layouts.filter(|l| !takes(target, **l)).map(Layout::to_string).collect();
    if !missing.is_empty() {
        out.push(format!("gantry-run has no {target} kernel for {}", missing.join(", ")));
    }
    out
}
