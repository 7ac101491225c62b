//! Tensors that newer converters merge: split into the parts that have a role each.
//!
//! `hc_attn_down_inject` and `hc_ffn_down_inject` stack the low-rank `down` of a hyper-connection and its `inject`
//! rows. They take different layouts, so each becomes a tensor of its own; the manifest's parts say which rows of
//! which source tensor they are, and the way back joins them again.

use super::{Route, SourcePlan, TensorPlan};
use gantry_formats::arch::Hparams;
use gantry_formats::layout::Layout;
use gantry_formats::role::Role;
use gantry_formats::size;
use std::collections::HashMap;

const MERGED: &str = "_down_inject.weight";

/// The tensors that the sources hold, with their roles; layouts still as in the source.
pub(super) fn split(sources: &[SourcePlan], hparams: &Hparams) -> Vec<TensorPlan> {
    let by_name: HashMap<&str, &SourcePlan> = sources.iter().map(|s| (s.name.as_str(), s)).collect();
    let mut out = Vec::with_capacity(sources.len());
    for (i, s) in sources.iter().enumerate() {
        match parts(s, &by_name, hparams) {
            Some([down, inject]) => {
                let rows = s.dims[1];
                out.push(tensor(i, s, down.0, 0..down.1));
                out.push(tensor(i, s, inject.0, down.1..rows));
            }
            None => {
                out.push(tensor(i, s, s.name.clone(), 0..s.rows()));
            }
        }
    }
    out
}

/// Names and rows of the parts of a merged tensor: the rank is the width of the `up` beside it, or what the
/// hyperparameters say.
fn parts(
    s: &SourcePlan,
    by_name: &HashMap<&str, &SourcePlan>,
    hparams: &Hparams,
) -> Option<[(String, u64); 2]> {
    let stem = s.name.strip_suffix(MERGED).filter(|stem| stem.contains("hc_"))?;
    let [_, rows] = s.dims[..] else { return None };
    let up = by_name.get(format!("{stem}_up.weight").as_str());
    let rank = up.and_then(|up| up.dims.first().copied()).or(hparams.hyper_connection_rank)?;
    let names = ["down", "inject"].map(|part| format!("{stem}_{part}.weight"));
    let free = names.iter().all(|name| !by_name.contains_key(name.as_str()));
    let [down, inject] = names;
    (free && 0 < rank && rank < rows).then(|| [(down, rank), (inject, rows - rank)])
}

/// Some rows of source tensor `source`, or all, as a planned tensor; its layout still as in the source.
pub(super) fn tensor(source: usize, s: &SourcePlan, name: String, rows: std::ops::Range<u64>) -> TensorPlan {
    let cols = s.dims.first().copied().unwrap_or(1);
    let whole = rows == (0..s.rows());
    let (dims, elements) = match whole {
        true => (s.dims.clone(), size::product(&s.dims).unwrap_or(0)),
        false => (vec![cols, rows.end - rows.start], (rows.end - rows.start) * cols),
    };
    let bytes = |elements: u64| elements / s.ty.block_len() * s.ty.block_bytes();
    let role = Role::of(&name, dims.iter().filter(|&&d| d > 1).count());
    let (role, layer, kind) = (role.base.to_string(), role.layer, role.kind);
    TensorPlan {
        source,
        first_row: rows.start,
        shard: s.shard,
        start: s.start + if whole { 0 } else { bytes(rows.start * cols) },
        bytes: if whole { s.bytes } else { bytes(elements) },
        ty: s.ty,
        elements,
        layout: Layout::identity(s.ty),
        exact: true,
        with_source: false,
        copy: None,
        fallback: None,
        chosen: None,
        route: Route::default(),
        name,
        dims,
        role,
        layer,
        kind,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gantry_formats::block::GgmlType;
    use gantry_formats::role::Kind;

    fn source(name: &str, dims: &[u64], start: u64) -> SourcePlan {
        let bytes = size::product(dims).expect("small") * 2;
        SourcePlan { name: name.into(), shard: 0, start, bytes, ty: GgmlType::BF16, dims: dims.to_vec() }
    }

    #[test]
    fn a_merged_tensor_becomes_its_parts() {
        let sources = [
            source("blk.0.hc_attn_down_inject.weight", &[1024, 260], 0),
            source("blk.0.hc_attn_up.weight", &[256, 1024], 532_480),
        ];
        let list = split(&sources, &Hparams::default());
        let seen: Vec<_> = list
            .iter()
            .map(|t| (t.name.as_str(), t.source, t.first_row, t.dims.clone(), t.start, t.bytes, t.kind))
            .collect();
        let down = ("blk.0.hc_attn_down.weight", 0, 0, vec![1024, 256], 0, 524_288, Kind::HyperConnection);
        let inject = ("blk.0.hc_attn_inject.weight", 0, 256, vec![1024, 4], 524_288, 8192, Kind::Exact);
        let up = ("blk.0.hc_attn_up.weight", 1, 0, vec![256, 1024], 532_480, 524_288, Kind::HyperConnection);
        assert_eq!(seen, [down, inject, up]);
    }

    #[test]
    fn without_a_rank_it_stays_whole() {
        let sources = [source("blk.0.hc_attn_down_inject.weight", &[64, 20], 0)];
        let whole = split(&sources, &Hparams::default());
        assert_eq!((whole.len(), whole[0].dims.clone(), whole[0].bytes), (1, vec![64, 20], 2560));
        let known = Hparams { hyper_connection_rank: Some(16), ..Hparams::default() };
        assert_eq!(split(&sources, &known).len(), 2);
        let absurd = Hparams { hyper_connection_rank: Some(20), ..Hparams::default() };
        assert_eq!(split(&sources, &absurd).len(), 1);
    }
}
