//! Attention. Bound: 3e-6 of the largest value that takes part, from f64.

use gantry_kernels::cpu::{KvShape, KvType, Window};
use half::f16;

use crate::attention_case::{Case, Lists};
use crate::launch::{Arg, launch, maybe, read, write};
use crate::random::{Rng, assert_same, assert_written, poison};

const BOUND: f64 = 3e-6;

/// How a case is run: so many tokens at once, into rings of so many rows, in stretches of so many keys.
#[derive(Clone, Copy, Debug)]
struct How {
    batch: usize,
    capacity: usize,
    chunk: usize,
}

fn put(kind: KvType, bytes: &mut [u8], at: usize, values: &[f32]) {
    match kind {
        KvType::F32 => {
            bytes[at * 4..].chunks_mut(4).zip(values).for_each(|(b, v)| b.copy_from_slice(&v.to_le_bytes()))
        }
        KvType::F16 => bytes[at * 2..]
            .chunks_mut(2)
            .zip(values)
            .for_each(|(b, v)| b.copy_from_slice(&f16::from_f32(*v).to_le_bytes())),
    }
}

/// A cache on the device, full of NaN.
struct Ring {
    shape: KvShape,
    kind: KvType,
    capacity: usize,
    bytes: Vec<u8>,
}

impl Ring {
    fn new(shape: KvShape, kind: KvType, capacity: usize) -> Self {
        let values = if shape.shared { 0 } else { shape.value_len };
        let size = if kind == KvType::F32 { 4 } else { 2 };
        let bytes = capacity * shape.heads * (shape.key_len + values) * size;
        Ring { shape, kind, capacity, bytes: vec![0xff; bytes.next_multiple_of(64)] }
    }

    /// A row of keys and values, all heads of each.
    fn put(&mut self, position: usize, row: &[f32]) {
        let KvShape { heads, key_len, value_len, shared } = self.shape;
        let (row_at, keys) = (position % self.capacity, heads * key_len);
        put(self.kind, &mut self.bytes, row_at * keys, &row[..keys]);
        if !shared {
            let at = self.capacity * keys + row_at * heads * value_len;
            put(self.kind, &mut self.bytes, at, &row[keys..][..heads * value_len]);
        }
    }
}

fn places(lists: &Lists, first: usize, n: usize) -> (Vec<u32>, usize) {
    let per_token = lists.iter().map(Vec::len).max().unwrap_or(0) + 1;
    let mut ids = Vec::new();
    for list in &lists[first..first + n] {
        ids.extend_from_slice(list);
        ids.resize(ids.len() + per_token - list.len(), u32::MAX);
    }
    (ids, per_token)
}

/// All tokens of a case on the device; none where there is no device.
fn run(case: &Case, how: How) -> Option<Vec<f32>> {
    let KvShape { heads: kv, key_len, value_len, shared } = case.shape;
    let mut ring = Ring::new(case.shape, case.kind, how.capacity);
    let mut entries =
        case.more.as_ref().map(|more| Ring::new(case.shape, more.kind, case.tokens / more.ratio + 2));
    if let (Some(more), Some(ring)) = (&case.more, &mut entries) {
        let row = kv * (key_len + value_len);
        more.rows.chunks(row).enumerate().for_each(|(b, row)| ring.put(b, row));
    }
    let (stride, mut all) = (case.stride(), Vec::new());
    for first in (0..case.tokens).step_by(how.batch) {
        let n = how.batch.min(case.tokens - first);
        for p in first..first + n {
            ring.put(p, &case.rows[p * stride + case.q_width()..]);
        }
        // Another sequence's cache comes first; nobody reads it.
        let before = 64;
        let mut states = vec![0xffu8; before];
        states.extend_from_slice(&ring.bytes);
        let entries_at = states.len() as u64;
        states.extend(entries.iter().flat_map(|ring| &ring.bytes));
        let offsets = [0, before as u64];
        let entry_offsets = entries.as_ref().map(|_| [0, entries_at]);
        let positions: Vec<u32> = (first..first + n).map(|p| p as u32).collect();
        let slots = vec![1u32; n];
        let chosen = case.chosen.as_ref().map(|lists| places(lists, first, n));
        let more = case.more.as_ref();
        let entry_chosen = more.and_then(|more| more.chosen.as_ref()).map(|lists| places(lists, first, n));
        let most = first + n + more.map_or(0, |more| (first + n) / more.ratio);
        let splits = most.div_ceil(how.chunk);
        let q = &case.rows[first * stride..][..n * stride];
        let mut y = poison(n * case.width());
        let mut partial = poison(n * case.n_heads * splits * (2 + value_len));
        let mut args =
            vec![read(q), read(&states), read(&offsets), maybe(entry_offsets.as_ref().map(|o| &o[..]))];
        args.extend([read(&positions), read(&slots)]);
        args.extend([&chosen, &entry_chosen].map(|c| maybe(c.as_ref().map(|c| &c.0[..]))));
        args.push(maybe(case.sinks.as_deref()));
        args.push(write(&mut y));
        args.push(if splits > 1 { write(&mut partial) } else { Arg::Null });
        let entry_capacity = entries.as_ref().map_or(0, |ring| ring.capacity);
        args.extend([stride, 0, how.capacity, entry_capacity].map(|v| Arg::U64(v as u64)));
        let per = [&chosen, &entry_chosen].map(|c| c.as_ref().map_or(0, |c| c.1));
        let numbers = [case.n_heads, kv, key_len, value_len, usize::from(shared), case.window.unwrap_or(0)];
        args.extend(numbers.iter().chain(&per).map(|&v| Arg::U32(v as u32)));
        args.extend([more.map_or(0, |more| more.ratio), how.chunk, splits].map(|v| Arg::U32(v as u32)));
        args.push(Arg::F32(case.scale));
        let name = if case.kind == KvType::F32 { "gantry_attention_f32" } else { "gantry_attention_f16" };
        let blocks = (case.n_heads / kv).div_ceil(4);
        if !launch(name, [n, kv * blocks, splits], &mut args) {
            return None;
        }
        drop(args);
        if splits > 1 {
            let mut args = vec![read(&partial), maybe(case.sinks.as_deref()), write(&mut y)];
            args.extend([case.n_heads, value_len, splits].map(|v| Arg::U32(v as u32)));
            launch("gantry_attention_combine", [n, case.n_heads, 1], &mut args);
        }
        assert_written(&y);
        all.extend(y);
    }
    Some(all)
}

fn shape(heads: usize, key_len: usize, value_len: usize, shared: bool) -> KvShape {
    KvShape { heads, key_len, value_len, shared }
}

#[test]
fn dense_attention_of_every_shape() {
    let mut rng = Rng(1);
    let shapes = [
        (1, shape(1, 1, 1, false)),
        (4, shape(2, 64, 64, false)),
        (12, shape(1, 576, 512, true)),
        (3, shape(3, 7, 5, false)),
        (16, shape(1, 96, 130, false)),
        (6, shape(2, 20, 20, true)),
    ];
    for (n_heads, shape) in shapes {
        for kind in [KvType::F32, KvType::F16] {
            let tokens = 71;
            let mut case = Case::new(&mut rng, n_heads, shape, tokens, kind, 2.0);
            if shape.key_len == 64 {
                case = case.with_sinks(&mut rng);
            }
            let how = How { batch: tokens, capacity: tokens + 2, chunk: 1024 };
            let Some(y) = run(&case, how) else { return };
            case.assert_close(&y, BOUND, &format!("{n_heads} heads, {shape:?}, {kind:?}"));
            // Alone and in stretches a token has the same bits; with other stretches it is as close.
            let Some(alone) = run(&case, How { batch: 1, ..how }) else { return };
            assert_same(&alone, &y, "alone");
            let cut = How { batch: 40, chunk: 32, ..how };
            let (Some(cut_y), Some(one)) = (run(&case, cut), run(&case, How { batch: 1, ..cut })) else {
                return;
            };
            case.assert_close(&cut_y, BOUND, &format!("{n_heads} heads, {shape:?}, {kind:?} in stretches"));
            assert_same(&one, &cut_y, "alone in stretches");
        }
    }
}

#[test]
fn windows_in_rings() {
    let mut rng = Rng(2);
    for kind in [KvType::F32, KvType::F16] {
        for (window, batch) in [(1, 1), (5, 3), (40, 7), (64, 80)] {
            let mut case =
                Case::new(&mut rng, 4, shape(2, 32, 32, false), 80, kind, 2.0).with_sinks(&mut rng);
            case.window = Some(window);
            case.store = Some(Window { keep: window, batch });
            let how = How { batch, capacity: window + batch, chunk: 32 };
            let Some(y) = run(&case, how) else { return };
            case.assert_close(&y, BOUND, &format!("a window of {window}, {batch} at a time"));
        }
    }
}

#[test]
fn chosen_positions_and_entries() {
    let mut rng = Rng(3);
    for kind in [KvType::F32, KvType::F16] {
        let shared = shape(1, 64, 64, true);
        let cases = [
            Case::new(&mut rng, 9, shape(1, 80, 48, true), 90, kind, 2.0).with_chosen(&mut rng, 40),
            Case::new(&mut rng, 8, shared, 90, kind, 2.0).with_more(&mut rng, 4, None, kind),
            Case::new(&mut rng, 8, shared, 90, kind, 2.0)
                .with_more(&mut rng, 4, Some(5), kind)
                .with_sinks(&mut rng),
            Case::new(&mut rng, 8, shared, 90, kind, 2.0)
                .with_chosen(&mut rng, 7)
                .with_more(&mut rng, 32, None, kind),
        ];
        for (i, mut case) in cases.into_iter().enumerate() {
            for window in [None, Some(16)] {
                case.window = window;
                for chunk in [32, 1024] {
                    let how = How { batch: 45, capacity: 90, chunk };
                    let Some(y) = run(&case, how) else { return };
                    case.assert_close(&y, BOUND, &format!("case {i}, window {window:?}, {kind:?}"));
                }
            }
        }
    }
}
