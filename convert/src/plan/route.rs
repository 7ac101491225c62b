//! Routes: how a planned tensor's bytes reach the output, chunk by chunk.

use super::TensorPlan;
use gantry_formats::container::{Bank, Part, StoredTensor};
use gantry_formats::layout::Layout;
use gantry_formats::size;
use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, HashMap, HashSet};

/// Most values of one chunk, the step of all packing, where a layout does not want whole rows. Chunks start at
/// multiples of it inside their unit, so that no block of any type is torn and the cut does not depend on threads.
const CHUNK: u64 = 1 << 20;

/// How one planned tensor reaches the output. It is cut into units of equal size: its experts, or itself.
#[derive(Clone, Debug, Default)]
pub(crate) struct Route {
    /// The blob of each unit; of an expert that lies on several cards, the first card's.
    pub(crate) blobs: Vec<u64>,
    /// Values of one unit.
    pub(crate) unit_elements: u64,
    /// Bytes of one unit in the source.
    pub(crate) unit_bytes: u64,
    /// Values of a whole chunk: whole rows where the layout wants them.
    pub(crate) chunk_elements: u64,
    /// Source bytes of a whole chunk.
    pub(crate) chunk_bytes: u64,
    /// Chunks of one unit.
    pub(crate) chunks: u64,
    /// Row of the stored matrix that is this tensor's first.
    pub(crate) first_row: u64,
    /// Rows and columns of the stored matrix.
    pub(crate) matrix: (u64, u64),
    /// First byte of each of the matrix's planes, inside the blob.
    pub(crate) planes: Vec<u64>,
}

/// Blobs that hold the same expert as another, on a later card: by the blob that is packed.
pub(crate) type Replicas = BTreeMap<u64, Vec<u64>>;

/// The routes of all tensors, and the blobs that are copied when they are packed.
pub(super) fn routes(
    tensors: &[TensorPlan],
    stored: &[StoredTensor],
    banks: &[Bank],
    layouts: &[Layout],
) -> (Vec<Route>, Replicas) {
    let place = |t: &TensorPlan| (t.source as u32, t.first_row);
    let by_place = tensors.iter().enumerate().map(|(i, t)| (place(t), i)).collect();
    let mut routes = Routes { tensors, by_place, out: vec![Route::default(); tensors.len()] };
    let copies: HashSet<u64> = tensors.iter().filter_map(|t| t.copy).collect();
    for s in stored.iter().filter(|s| !copies.contains(&s.blob)) {
        routes.fill(&s.parts, layouts[s.layout as usize], &s.shape, 0, &[s.blob]);
    }
    let mut replicas = Replicas::new();
    let mut layers: BTreeMap<u32, Vec<&Bank>> = BTreeMap::new();
    banks.iter().for_each(|b| layers.entry(b.layer).or_default().push(b));
    for banks in layers.into_values() {
        let mut blobs: BTreeMap<u32, u64> = BTreeMap::new();
        for bank in &banks {
            for (&expert, blob) in bank.experts.iter().zip(bank.first_blob..) {
                match blobs.entry(expert) {
                    Entry::Vacant(entry) => drop(entry.insert(blob)),
                    Entry::Occupied(first) => replicas.entry(*first.get()).or_default().push(blob),
                }
            }
        }
        let blobs: Vec<u64> = blobs.into_values().collect();
        // All banks of a layer hold the same matrices in the same places.
        for m in banks.first().iter().flat_map(|b| &b.matrices) {
            routes.fill(&m.parts, layouts[m.layout as usize], &m.shape, m.offset, &blobs);
        }
    }
    (routes.out, replicas)
}

/// Values of a chunk of rows of `cols`.
pub(crate) fn chunk_elements(layout: Layout, cols: u64) -> u64 {
    if !layout.takes_whole_rows() || cols == 0 {
        return CHUNK;
    }
    let tile = layout.row_tile();
    (CHUNK / cols / tile * tile).max(tile) * cols
}

struct Routes<'a> {
    tensors: &'a [TensorPlan],
    /// Planned tensors by source and first row.
    by_place: HashMap<(u32, u64), usize>,
    out: Vec<Route>,
}

impl Routes<'_> {
    fn fill(&mut self, parts: &[Part], layout: Layout, shape: &[u64], offset: u64, blobs: &[u64]) {
        let (cols, rows) =
            shape.split_last().map_or((1, 1), |(cols, rows)| (*cols, size::product(rows).unwrap_or(0)));
        let planes = layout.planes(rows, cols).unwrap_or_default();
        let chunk_elements = chunk_elements(layout, cols);
        let mut first_row = 0;
        for part in parts {
            let index = self.by_place[&(part.source, part.rows[0])];
            let t = &self.tensors[index];
            let units = blobs.len() as u64;
            let unit_elements = t.elements / units;
            self.out[index] = Route {
                unit_elements,
                unit_bytes: t.bytes / units,
                chunk_elements,
                chunk_bytes: chunk_elements / t.ty.block_len() * t.ty.block_bytes(),
                chunks: unit_elements.div_ceil(chunk_elements),
                first_row,
                matrix: (rows, cols),
                planes: planes.iter().map(|p| offset + p.offset).collect(),
                blobs: blobs.to_vec(),
            };
            first_row += part.rows[1] - part.rows[0];
        }
    }
}
