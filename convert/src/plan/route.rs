//! Routes: how a source tensor's bytes reach the output, chunk by chunk.

use super::TensorPlan;
use gantry_formats::container::{Bank, Part, StoredTensor};
use gantry_formats::layout::Layout;
use gantry_formats::size;

/// Most values of one chunk, the step of all packing. Chunks start at multiples of it inside their unit, so that
/// no block of any type is torn and the cut does not depend on threads.
pub(crate) const CHUNK: u64 = 1 << 20;

/// How one source tensor reaches the output. It is cut into units of equal size: its experts, or itself.
#[derive(Clone, Debug, Default)]
pub(crate) struct Route {
    /// The blob of each unit.
    pub(crate) blobs: Vec<u64>,
    /// Values of one unit.
    pub(crate) unit_elements: u64,
    /// Bytes of one unit in the source.
    pub(crate) unit_bytes: u64,
    /// Source bytes of a whole chunk.
    pub(crate) chunk_bytes: u64,
    /// Chunks of one unit.
    pub(crate) chunks: u64,
    /// Values of the stored matrix that come before this tensor's.
    pub(crate) first_element: u64,
    /// First byte of each of the matrix's planes, inside the blob.
    pub(crate) planes: Vec<u64>,
}

/// The routes of all tensors.
pub(super) fn routes(
    tensors: &[TensorPlan],
    stored: &[StoredTensor],
    banks: &[Bank],
    layouts: &[Layout],
) -> Vec<Route> {
    let mut out = vec![Route::default(); tensors.len()];
    for s in stored {
        let planes = planes(layouts[s.layout as usize], &s.shape, 0);
        fill(&mut out, tensors, &s.parts, &planes, vec![s.blob]);
    }
    for bank in banks {
        let mut blobs = vec![0; bank.experts.len()];
        for (slot, &expert) in bank.experts.iter().enumerate() {
            blobs[expert as usize] = bank.first_blob + slot as u64;
        }
        for m in &bank.matrices {
            let planes = planes(layouts[m.layout as usize], &m.shape, m.offset);
            fill(&mut out, tensors, &m.parts, &planes, blobs.clone());
        }
    }
    out
}

fn planes(layout: Layout, shape: &[u64], offset: u64) -> Vec<u64> {
    let (cols, rows) =
        shape.split_last().map_or((1, 1), |(cols, rows)| (*cols, size::product(rows).unwrap_or(0)));
    layout.planes(rows, cols).unwrap_or_default().iter().map(|p| offset + p.offset).collect()
}

fn fill(out: &mut [Route], tensors: &[TensorPlan], parts: &[Part], planes: &[u64], blobs: Vec<u64>) {
    let mut first_element = 0;
    for part in parts {
        let t = &tensors[part.source as usize];
        let units = blobs.len() as u64;
        let unit_elements = t.elements / units;
        out[part.source as usize] = Route {
            unit_elements,
            unit_bytes: t.bytes / units,
            chunk_bytes: CHUNK / t.ty.block_len() * t.ty.block_bytes(),
            chunks: unit_elements.div_ceil(CHUNK),
            first_element,
            planes: planes.to_vec(),
            blobs: blobs.clone(),
        };
        first_element += unit_elements;
    }
}
