//! Which blob of the old container each new one is made of, and whether it is the same bytes.

use super::refuse;
use crate::plan::Plan;
use anyhow::Result;
use gantry_formats::container::{Bank, Container};
use std::collections::HashMap;

/// Where a new blob comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Origin {
    /// Index of the old blob. Of an expert with several copies, the first.
    pub(super) old: usize,
    /// Whether both hold the same bytes; else int8 goes from one order to another.
    pub(super) same: bool,
}

/// The origin of every blob of `plan`.
///
/// # Errors
/// Where the container lacks one.
pub(super) fn origins(container: &Container, plan: &Plan) -> Result<Vec<Origin>> {
    let manifest = container.manifest();
    let tensors: HashMap<&str, usize> =
        manifest.tensors.iter().enumerate().map(|(i, t)| (t.name.as_str(), i)).collect();
    let mut experts: HashMap<(u32, u32), (&Bank, u64)> = HashMap::new();
    for bank in &manifest.banks {
        for (&expert, blob) in bank.experts.iter().zip(bank.first_blob..) {
            experts.entry((bank.layer, expert)).or_insert((bank, blob));
        }
    }
    let old_layout = |i: u32| container.layouts()[i as usize];
    let new_layout = |i: u32| plan.layouts[i as usize];
    let mut out: Vec<Option<Origin>> = vec![None; plan.blobs.len()];
    for t in &plan.stored {
        let old = tensors.get(t.name.as_str()).map(|i| &manifest.tensors[*i]);
        let old = old.ok_or_else(|| refuse(format!("{} is not in the container", t.name)))?;
        let same = old_layout(old.layout) == new_layout(t.layout) && old.bytes == t.bytes;
        out[t.blob as usize] = Some(Origin { old: old.blob as usize, same });
    }
    for bank in &plan.banks {
        for (&expert, blob) in bank.experts.iter().zip(bank.first_blob..) {
            let (layer, found) = (bank.layer, experts.get(&(bank.layer, expert)));
            let (old, from) = *found
                .ok_or_else(|| refuse(format!("layer {layer} expert {expert} is not in the container")))?;
            let matrices = old.matrices.iter().zip(&bank.matrices);
            let alike = matrices.fold(old.matrices.len() == bank.matrices.len(), |alike, (a, b)| {
                let layouts = old_layout(a.layout) == new_layout(b.layout);
                alike && layouts && (&a.name, a.offset, a.bytes) == (&b.name, b.offset, b.bytes)
            });
            out[blob as usize] = Some(Origin { old: from as usize, same: alike && old.bytes == bank.bytes });
        }
    }
    let lost = || refuse("a blob of the plan belongs to nothing".into());
    out.into_iter().map(|o| o.ok_or_else(lost)).collect()
}
