//! Tensors of two models, value by value, in chunks and in parallel.

use crate::parallel;
use crate::progress::Progress;
use crate::unpack::{CHUNK, Scratch};
use crate::values::Difference;
use crate::weights::Weights;
use gantry_formats::block::GgmlType;
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Mutex;

/// What one side has under a name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Side {
    /// Type that it unpacks to; `None` where pieces differ.
    pub(super) ty: Option<GgmlType>,
    /// Type or layouts that it is stored in.
    pub(super) stored: String,
    /// Dims, `ne0` first.
    pub(super) dims: Vec<u64>,
}

/// One name.
#[derive(Clone, Debug)]
pub(super) struct Compared {
    pub(super) name: String,
    pub(super) a: Option<Side>,
    pub(super) b: Option<Side>,
    /// Where both have it, in one shape, and values were compared.
    pub(super) values: Option<Difference>,
}

impl Compared {
    /// Whether this is the same tensor on both sides: shape, type and every value.
    pub(super) fn is_same(&self) -> bool {
        let (Some(a), Some(b)) = (&self.a, &self.b) else { return false };
        let values = self.values.as_ref().is_none_or(|d| d.differing == 0);
        a.dims == b.dims && a.ty == b.ty && values
    }
}

struct Job {
    pair: usize,
    elements: Range<u64>,
}

#[derive(Default)]
struct Buffers {
    scratch: Scratch,
    bytes: [Vec<u8>; 2],
    floats: [Vec<f32>; 2],
}

/// Compares all tensors by name, in the order of A, then those that only B has.
///
/// # Errors
/// Where a side cannot be read.
pub(super) fn compare(
    a: &Weights<'_>,
    b: &Weights<'_>,
    values: bool,
    threads: usize,
) -> anyhow::Result<Vec<Compared>> {
    let in_b: BTreeMap<String, usize> = (0..b.len()).map(|i| (b.name(i), i)).collect();
    let mut seen = vec![false; b.len()];
    let mut out = Vec::new();
    let mut pairs = Vec::new();
    for i in 0..a.len() {
        let name = a.name(i);
        let other = in_b.get(&name).copied();
        let (x, y) = (side(a, i)?, other.map(|j| side(b, j)).transpose()?);
        if let Some(j) = other {
            seen[j] = true;
            if values && y.as_ref().is_some_and(|y| y.dims == x.dims) {
                pairs.push((out.len(), i, j));
            }
        }
        out.push(Compared { name, a: Some(x), b: y, values: None });
    }
    for j in (0..b.len()).filter(|j| !seen[*j]) {
        out.push(Compared { name: b.name(j), a: None, b: Some(side(b, j)?), values: None });
    }
    let found: Vec<Mutex<Difference>> = pairs.iter().map(|_| Mutex::default()).collect();
    let jobs = pairs.iter().enumerate().flat_map(|(pair, &(_, i, _))| {
        let end = a.elements(i);
        (0..end)
            .step_by(CHUNK as usize)
            .map(move |start| Job { pair, elements: start..end.min(start + CHUNK) })
    });
    let total = pairs.iter().map(|&(_, i, _)| a.elements(i).saturating_mul(4)).fold(0, u64::saturating_add);
    let progress = Progress::new("compare", total);
    parallel::for_each(threads, jobs, Buffers::default, |buffers, job| {
        let (at, i, j) = pairs[job.pair];
        let count = job.elements.end - job.elements.start;
        let types = [&out[at].a, &out[at].b].map(|s| s.as_ref().and_then(|s| s.ty));
        let difference = chunk(a, b, (i, j), types, job.elements, buffers)?;
        found[job.pair].lock().unwrap_or_else(|e| e.into_inner()).merge(&difference);
        progress.add(count * 4);
        Ok(())
    })?;
    for (found, (at, ..)) in found.into_iter().zip(&pairs) {
        out[*at].values = Some(found.into_inner().unwrap_or_else(|e| e.into_inner()));
    }
    Ok(out)
}

fn side(weights: &Weights<'_>, i: usize) -> anyhow::Result<Side> {
    Ok(Side { ty: weights.ty(i)?, stored: weights.stored_as(i), dims: weights.dims(i) })
}

/// Bytes first, where both sides have one type: equal bytes are equal values.
fn chunk(
    a: &Weights<'_>,
    b: &Weights<'_>,
    (i, j): (usize, usize),
    types: [Option<GgmlType>; 2],
    elements: Range<u64>,
    buffers: &mut Buffers,
) -> anyhow::Result<Difference> {
    let Buffers { scratch, bytes: [x, y], floats: [u, v] } = buffers;
    let mut difference = Difference::default();
    if let [Some(s), Some(t)] = types
        && s == t
    {
        a.read(i, elements.clone(), scratch, x)?;
        b.read(j, elements.clone(), scratch, y)?;
        if x == y {
            difference.same(elements.end - elements.start);
            return Ok(difference);
        }
    }
    a.values(i, elements.clone(), scratch, u)?;
    b.values(j, elements, scratch, v)?;
    difference.add(u, v);
    Ok(difference)
}
