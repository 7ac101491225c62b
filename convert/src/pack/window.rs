//! Windows: the stretches of source files that workers take, and the chunks that begin in each.

use crate::plan::Plan;

/// One window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Window {
    pub(super) shard: usize,
    pub(super) start: u64,
    pub(super) end: u64,
}

/// A chunk: values of one unit of one planned tensor, as many as its [route](crate::plan::Route) says.
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
    /// Of 4 MiB: the bytes stay in the last-level cache between the three hashes, and 32 of them with their last
    /// chunks keep to the memory limit. (8 MiB took 1.2 times the CPU time on a lossless run.) The cut changes no
    /// byte of the result.
    pub(super) fn new(plan: &Plan) -> Self {
        Self::of_size(plan, 4 << 20)
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
                let element = number * route.chunk_elements;
                let elements = route.chunk_elements.min(route.unit_elements - element);
                let bytes = super::source_bytes(t.ty, elements);
                out.push(Chunk { tensor, unit, element, elements, start, bytes });
                number += 1;
            }
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::encoding::Encoding;
    use crate::plan::{CardOptions, Options};
    use crate::recipe::Recipe;
    use crate::unpack::CHUNK;
    use gantry_formats::block::GgmlType;
    use gantry_formats::container::Alignment;
    use gantry_formats::gguf::{DataWriter, Gguf, GgufWriter, Value};
    use gantry_formats::target::Target;

    fn plan(recipe: &str) -> Plan {
        let list: [(&str, &[u64], GgmlType); 6] = [
            ("blk.0.a.weight", &[32, 33_000], GgmlType::BF16),
            ("blk.0.ffn_gate_exps.weight", &[32, 3, 50], GgmlType::Q8_0),
            ("empty", &[0], GgmlType::F32),
            ("blk.0.ffn_up_exps.weight", &[64, 16_500, 2], GgmlType::Q4_0),
            ("n", &[7], GgmlType::F32),
            ("blk.0.b.weight", &[256, 4100], GgmlType::Q4_K),
        ];
        let mut writer = GgufWriter::new(3);
        writer.set("general.architecture", Value::Str(b"none"));
        for (name, dims, ty) in list {
            writer.tensor(name, dims, ty).expect("a legal tensor");
        }
        let header = writer.finish().expect("a legal header");
        let file = tempfile::NamedTempFile::new().expect("a file");
        let mut data = DataWriter::new(file.as_file(), &header).expect("written");
        header.tensors().iter().for_each(|t| data.write(&vec![0; t.bytes as usize]).expect("written"));
        data.finish().expect("written");
        let options = Options {
            recipe: Recipe::built_in(recipe).expect("built in"),
            overrides: Vec::new(),
            encoding: Encoding::default(),
            target: Target::find("cpu").expect("a target"),
            fuse: true,
            cards: CardOptions::one(),
            split_cards: false,
            alignment: Alignment::default(),
            allow_incomplete: true,
            context: None,
        };
        Plan::make(&Gguf::open(file.path()).expect("sound"), &options).expect("a plan")
    }

    #[test]
    fn every_byte_of_every_tensor_is_in_exactly_one_chunk() {
        check(&plan("q8"), CHUNK);
        // Chunks of whole tiles of rows.
        check(&plan("w8a8"), 32 * 16);
    }

    fn check(plan: &Plan, step: u64) {
        for size in [512, 4096, 100_000, 1 << 20, 8 << 20] {
            let windows = Windows::of_size(plan, size);
            let mut covered: Vec<u64> = plan.tensors.iter().map(|t| t.start).collect();
            let mut end = 0;
            for window in (0..windows.count()).map(|n| windows.get(n)) {
                assert_eq!(window.start, end);
                end = window.end;
                for chunk in windows.chunks(plan, window) {
                    assert!((window.start..window.end).contains(&chunk.start));
                    assert!(chunk.bytes > 0 && chunk.element.is_multiple_of(step));
                    assert!(chunk.start + chunk.bytes - window.start <= windows.buffer_bytes() as u64);
                    assert_eq!(chunk.start, covered[chunk.tensor]);
                    covered[chunk.tensor] += chunk.bytes;
                }
            }
            assert_eq!(end, plan.shards[0].bytes);
            assert!(plan.tensors.iter().zip(&covered).all(|(t, &at)| at == t.start + t.bytes));
        }
    }
}
