//! Windows: the stretches of source files that workers take, and the chunks that begin in each.

use super::MAX_THREADS;
use crate::plan::{CHUNK, Plan};

/// One window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Window {
    pub(super) shard: usize,
    pub(super) start: u64,
    pub(super) end: u64,
}

/// A chunk: up to [`CHUNK`] values of one unit of one source tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Chunk {
    pub(super) tensor: usize,
    pub(super) unit: u64,
    /// First value, inside the unit.
    pub(super) element: u64,
    pub(super) elements: u64,
    /// First byte in the source file.
    pub(super) start: u64,
    pub(super) bytes: u64,
}

/// All windows of a source.
#[derive(Debug)]
pub(super) struct Windows {
    size: u64,
    /// Number of the first window of each shard, and at the end the number of all.
    first: Vec<u64>,
    lengths: Vec<u64>,
    /// Tensors of each shard with data, in order of their place.
    tensors: Vec<Vec<usize>>,
    longest: u64,
}

impl Windows {
    /// 8 MiB, less where many threads hold one each. The cut changes no byte of the result.
    pub(super) fn new(plan: &Plan, threads: usize) -> Self {
        Self::of_size(plan, if threads > MAX_THREADS / 2 { 4 << 20 } else { 8 << 20 })
    }

    fn of_size(plan: &Plan, size: u64) -> Self {
        let lengths: Vec<u64> = plan.shards.iter().map(|s| s.bytes).collect();
        let mut first = vec![0];
        for len in &lengths {
            first.push(first[first.len() - 1] + len.div_ceil(size));
        }
        let mut tensors = vec![Vec::new(); lengths.len()];
        for (i, t) in plan.tensors.iter().enumerate().filter(|(_, t)| t.bytes > 0) {
            tensors[t.shard].push(i);
        }
        tensors.iter_mut().for_each(|list| list.sort_by_key(|&i| plan.tensors[i].start));
        let longest =
            plan.tensors.iter().map(|t| t.route.chunk_bytes.min(t.route.unit_bytes)).max().unwrap_or(0);
        Self { size, first, lengths, tensors, longest }
    }

    /// Number of windows.
    pub(super) fn count(&self) -> u64 {
        self.first[self.lengths.len()]
    }

    /// Most bytes that a window and its last chunk take together.
    pub(super) fn buffer_bytes(&self) -> usize {
        (self.size + self.longest) as usize
    }

    /// The window of this number.
    pub(super) fn get(&self, number: u64) -> Window {
        let shard = self.first.partition_point(|&f| f <= number) - 1;
        let start = (number - self.first[shard]) * self.size;
        Window { shard, start, end: (start + self.size).min(self.lengths[shard]) }
    }

    /// The chunks whose first byte lies in `window`, in order.
    pub(super) fn chunks(&self, plan: &Plan, window: Window) -> Vec<Chunk> {
        let list = &self.tensors[window.shard];
        let from = list.partition_point(|&i| plan.tensors[i].start + plan.tensors[i].bytes <= window.start);
        let mut out = Vec::new();
        for &tensor in &list[from..] {
            let t = &plan.tensors[tensor];
            if t.start >= window.end {
                break;
            }
            let route = &t.route;
            let skipped = window.start.saturating_sub(t.start);
            let mut unit = skipped / route.unit_bytes;
            let mut number = (skipped % route.unit_bytes).div_ceil(route.chunk_bytes);
            while unit < route.blobs.len() as u64 {
                if number >= route.chunks {
                    (unit, number) = (unit + 1, 0);
                    continue;
                }
                let start = t.start + unit * route.unit_bytes + number * route.chunk_bytes;
                if start >= window.end {
                    break;
                }
                let element = number * CHUNK;
                let elements = CHUNK.min(route.unit_elements - element);
                let bytes = super::source_bytes(t.ty, elements);
                out.push(Chunk { tensor, unit, element, elements, start, bytes });
                number += 1;
            }
        }
        out
    }
}
