//! Stored matrices: which source tensors are stacked into one, and which experts share a blob.

use super::TensorPlan;
use crate::failure::Refusal;
use anyhow::Result;
use gantry_formats::container::{Alignment, Part};
use gantry_formats::exit::Exit;
use gantry_formats::hotness;
use gantry_formats::layout::Layout;
use gantry_formats::role::Kind;
use gantry_formats::size;
use std::collections::{BTreeMap, HashSet};

/// Most experts of a layer that make a bank; a tensor that claims more is stored as one matrix.
pub(crate) const MAX_EXPERTS: u64 = hotness::MAX_EXPERTS as u64;

/// Roles that are read together, as one matrix: their parts in order, and the role of the whole.
const FUSIONS: [(&[&str], &str); 2] =
    [(&["attn_q", "attn_k", "attn_v"], "attn_qkv"), (&["ffn_gate", "ffn_up"], "ffn_gate_up")];

/// Order of the matrices inside an expert's blob.
const EXPERT_ORDER: [&str; 4] = ["ffn_gate_exps", "ffn_up_exps", "ffn_gate_up_exps", "ffn_down_exps"];

/// A matrix and the source rows that it is made of.
#[derive(Clone, Debug)]
pub(super) struct Matrix {
    pub(super) name: String,
    pub(super) role: String,
    pub(super) layer: Option<u32>,
    pub(super) layout: Layout,
    /// Outermost first.
    pub(super) shape: Vec<u64>,
    pub(super) bytes: u64,
    pub(super) parts: Vec<Part>,
    /// The planned tensors of the parts, in the same order.
    pub(super) members: Vec<usize>,
}

/// What is placed as a whole.
#[derive(Clone, Debug)]
pub(super) enum Group {
    /// One blob with one matrix.
    Tensor(Matrix),
    /// One blob with the source's bytes of a tensor that is packed besides.
    Copy(Matrix),
    /// One blob per expert, with all its matrices at these offsets.
    Bank { layer: u32, experts: u64, bytes: u64, matrices: Vec<(u64, Matrix)> },
}

/// Groups all tensors, in the order in which the first of each group stands in the source, then the copies: of all that
/// holds some rows the packed matrix comes first.
pub(super) fn group(tensors: &[TensorPlan], fuse: bool, alignment: Alignment) -> Result<Vec<Group>> {
    let mut out: BTreeMap<usize, Group> = BTreeMap::new();
    let mut taken = HashSet::new();
    for (first, bank) in banks(tensors, alignment)? {
        if let Group::Bank { matrices, .. } = &bank {
            taken.extend(matrices.iter().flat_map(|(_, m)| &m.members));
        }
        out.insert(first, bank);
    }
    if fuse {
        for members in fusions(tensors) {
            let first = members.1.iter().copied().min().unwrap_or(0);
            taken.extend(members.1.iter().copied());
            out.insert(first, Group::Tensor(fused(tensors, &members.1, members.0)?));
        }
    }
    for (i, t) in tensors.iter().enumerate() {
        if !taken.contains(&i) {
            out.insert(i, Group::Tensor(single(i, t)?));
        }
    }
    let copies: Vec<Group> = copies(tensors)?.into_iter().map(Group::Copy).collect();
    Ok(out.into_values().chain(copies).collect())
}

/// What the name of a copy of a tensor ends with.
const COPY: &str = ".source";

/// The source's bytes of the tensors that keep them.
fn copies(tensors: &[TensorPlan]) -> Result<Vec<Matrix>> {
    let kept = tensors.iter().enumerate().filter(|(_, t)| t.with_source);
    let copies = kept.map(|(i, t)| {
        let name = format!("{}{COPY}", t.name);
        if tensors.iter().any(|t| t.name == name) {
            let text =
                format!("{}: no copy of the source can be kept, for {name} is a tensor's name", t.name);
            return Err(Refusal::new(Exit::Usage, text));
        }
        let as_it_is = TensorPlan { name, layout: Layout::identity(t.ty), ..t.clone() };
        single(i, &as_it_is)
    });
    copies.collect()
}

fn overflow(name: &str) -> anyhow::Error {
    Refusal::new(Exit::Input, format!("{name}: its size overflows 64 bits"))
}

fn single(index: usize, t: &TensorPlan) -> Result<Matrix> {
    let cols = t.dims.first().copied().unwrap_or(1);
    let rows = size::product(t.dims.get(1..).unwrap_or(&[])).ok_or_else(|| overflow(&t.name))?;
    Ok(Matrix {
        name: t.name.clone(),
        role: t.role.clone(),
        layer: t.layer,
        layout: t.layout,
        shape: t.dims.iter().rev().copied().collect(),
        bytes: t.layout.bytes(rows, cols).ok_or_else(|| overflow(&t.name))?,
        parts: vec![part(t, rows)],
        members: vec![index],
    })
}

/// All `rows` of `t`.
fn part(t: &TensorPlan, rows: u64) -> Part {
    Part { source: t.source as u32, rows: [t.first_row, t.first_row + rows], cols: None }
}

/// Layers' tensors that fuse: the role of the whole, and the members in order.
fn fusions(tensors: &[TensorPlan]) -> Vec<(&'static str, Vec<usize>)> {
    let mut by_role: BTreeMap<(u32, &str), usize> = BTreeMap::new();
    for (i, t) in tensors.iter().enumerate() {
        if let (Some(layer), Kind::Matrix, 2) = (t.layer, t.kind, t.dims.len()) {
            by_role.insert((layer, &t.role), i);
        }
    }
    let layers: std::collections::BTreeSet<u32> = by_role.keys().map(|k| k.0).collect();
    let names: HashSet<&str> = tensors.iter().map(|t| t.name.as_str()).collect();
    let mut out = Vec::new();
    for layer in layers {
        for (parts, whole) in FUSIONS {
            let members: Option<Vec<usize>> =
                parts.iter().map(|&role| by_role.get(&(layer, role)).copied()).collect();
            let Some(members) = members else { continue };
            let one = &tensors[members[0]];
            // What fuses does not depend on the target: every order of int8 has the same tile, and an order that was
            // asked for by name is not taken for the target's own.
            let named = |t: &TensorPlan| t.chosen.is_some_and(|w| w.names_an_order());
            let tiles = |t: &TensorPlan| t.dims[1].is_multiple_of(one.layout.row_tile());
            let alike = members.iter().all(|&m| {
                let t = &tensors[m];
                t.layout == one.layout
                    && named(t) == named(one)
                    && t.dims[0] == one.dims[0]
                    && t.elements > 0
                    && tiles(t)
            });
            if alike && !names.contains(fused_name(layer, whole).as_str()) {
                out.push((whole, members));
            }
        }
    }
    out
}

fn fused_name(layer: u32, role: &str) -> String {
    format!("blk.{layer}.{role}.weight")
}

fn fused(tensors: &[TensorPlan], members: &[usize], role: &str) -> Result<Matrix> {
    let one = &tensors[members[0]];
    let layer = one.layer.unwrap_or(0);
    let name = fused_name(layer, role);
    let parts: Vec<Part> = members.iter().map(|&m| part(&tensors[m], tensors[m].dims[1])).collect();
    let rows = parts.iter().try_fold(0u64, |n, p| n.checked_add(p.rows[1])).ok_or_else(|| overflow(&name))?;
    Ok(Matrix {
        bytes: one.layout.bytes(rows, one.dims[0]).ok_or_else(|| overflow(&name))?,
        role: role.into(),
        layer: Some(layer),
        layout: one.layout,
        shape: vec![rows, one.dims[0]],
        parts,
        members: members.to_vec(),
        name,
    })
}

/// Banks, each with the index of its first source tensor.
fn banks(tensors: &[TensorPlan], alignment: Alignment) -> Result<Vec<(usize, Group)>> {
    let mut layers: BTreeMap<u32, Vec<usize>> = BTreeMap::new();
    for (i, t) in tensors.iter().enumerate() {
        if let (Kind::Experts, Some(layer), [_, _, 1..=MAX_EXPERTS]) = (t.kind, t.layer, t.dims.as_slice())
            && t.elements > 0
        {
            layers.entry(layer).or_default().push(i);
        }
    }
    let mut out = Vec::new();
    for (layer, mut members) in layers {
        let experts = tensors[members[0]].dims[2];
        // In a complete model all agree; what does not is stored by itself.
        members.retain(|&m| tensors[m].dims[2] == experts);
        let first = members.iter().copied().min().unwrap_or(0);
        let rank = |m: &usize| {
            EXPERT_ORDER.iter().position(|r| *r == tensors[*m].role).unwrap_or(EXPERT_ORDER.len())
        };
        members.sort_by_key(|m| (rank(m), *m));
        let mut matrices = Vec::new();
        let mut at = 0u64;
        for m in members {
            let t = &tensors[m];
            let (cols, rows) = (t.dims[0], t.dims[1]);
            let bytes = t.layout.bytes(rows, cols).ok_or_else(|| overflow(&t.name))?;
            let offset = size::align_up(at, alignment.tensor.into()).ok_or_else(|| overflow(&t.name))?;
            at = offset.checked_add(bytes).ok_or_else(|| overflow(&t.name))?;
            let matrix = Matrix {
                name: t.name.clone(),
                role: t.role.clone(),
                layer: Some(layer),
                layout: t.layout,
                shape: vec![rows, cols],
                bytes,
                parts: vec![part(t, rows)],
                members: vec![m],
            };
            matrices.push((offset, matrix));
        }
        out.push((first, Group::Bank { layer, experts, bytes: at, matrices }));
    }
    Ok(out)
}
