//! Attention. Bound: 3e-6 of the largest value that takes part, from f64.

use gantry_kernels::cpu::{KvShape, KvType, Window, kv_int8_row};
use half::f16;

use crate::attention_case::{Case, Lists};
use crate::launch::{Arg, launch, maybe, on_a_card, read, write};
use crate::random::{Rng, assert_same, assert_written, poison};

const BOUND: f64 = 3e-6;

/// How a case is run: so many tokens at once, into rings of so many rows, in stretches of so many keys.
#[derive(Clone, Copy, Debug)]
struct How {
    batch: usize,
    capacity: usize,
    chunk: usize,
}

/// A cache on the device, full of NaN.
struct Ring {
    shape: KvShape,
    kind: KvType,
    capacity: usize,
    /// Byte of the values, and of the scales of keys and of values.
    values: usize,
    scales: [usize; 2],
    bytes: Vec<u8>,
}

impl Ring {
    fn new(shape: KvShape, kind: KvType, capacity: usize) -> Self {
        let KvShape { heads, key_len, value_len, shared } = shape;
        let value_len = if shared { 0 } else { value_len };
        let size = [4, 2, 1][kind as usize];
        let each = capacity * heads;
        let whole = |bytes: usize| if kind == KvType::Int8 { bytes.next_multiple_of(16) } else { bytes };
        let values = whole(each * key_len * size);
        let keys_end = values + whole(each * value_len * size);
        let scales = [keys_end, keys_end + if shared { 0 } else { whole(each * 2) }];
        let end = if kind == KvType::Int8 { scales[1] + each * 2 } else { keys_end };
        Ring { shape, kind, capacity, values, scales, bytes: vec![0xff; end.next_multiple_of(64)] }
    }

    /// A row of keys and values, all heads of each.
    fn put(&mut self, position: usize, row: &[f32]) {
        let KvShape { heads, key_len, value_len, shared } = self.shape;
        let keys = heads * key_len;
        let planes = [(0, key_len, &row[..keys]), (self.values, value_len, &row[keys..])];
        for (plane, (at, len, row)) in planes.into_iter().enumerate().take(if shared { 1 } else { 2 }) {
            for (head, values) in row.chunks_exact(len).take(heads).enumerate() {
                let index = position % self.capacity * heads + head;
                let mut put = |at: usize, new: &[u8]| self.bytes[at..at + new.len()].copy_from_slice(new);
                match self.kind {
                    KvType::F32 => {
                        let new: Vec<u8> = values.iter().flat_map(|v| v.to_le_bytes()).collect();
                        put(at + index * len * 4, &new);
                    }
                    KvType::F16 => {
                        let new: Vec<u8> =
                            values.iter().flat_map(|v| f16::from_f32(*v).to_le_bytes()).collect();
                        put(at + index * len * 2, &new);
                    }
                    KvType::Int8 => {
                        let mut q = vec![0; len];
                        let scale = kv_int8_row(values, &mut q);
                        let new: Vec<u8> = q.iter().map(|q| q.cast_unsigned()).collect();
                        put(at + index * len, &new);
                        put(self.scales[plane] + index * 2, &scale.to_le_bytes());
                    }
                }
            }
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
        let name = format!("gantry_attention_{}", name(case.kind));
        let blocks = (case.n_heads / kv).div_ceil(4);
        if !launch(&name, [n, kv * blocks, splits], &mut args) {
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

fn name(kind: KvType) -> &'static str {
    match kind {
        KvType::F32 => "f32",
        KvType::F16 => "f16",
        KvType::Int8 => "i8",
    }
}

/// All tokens of a case by matrix instructions: `batch` at once into a ring of `capacity` rows, each by itself, in up to
/// `pieces` pieces and `spare` empty ones; or in tiles.
fn instructed(case: &Case, (batch, capacity): (usize, usize), how: Option<(usize, usize)>) -> Vec<f32> {
    let KvShape { heads: kv, key_len: len, .. } = case.shape;
    let (stride, heads, grouped) = (case.stride(), case.n_heads, case.n_heads / kv);
    let mut ring = Ring::new(case.shape, case.kind, capacity);
    let mut all = Vec::new();
    for first in (0..case.tokens).step_by(batch) {
        let n = batch.min(case.tokens - first);
        for p in first..first + n {
            ring.put(p, &case.rows[p * stride + case.q_width()..]);
        }
        let mut states = vec![0xffu8; 64];
        states.extend_from_slice(&ring.bytes);
        let offsets = [0u64, 64];
        let q = &case.rows[first * stride..][..n * stride];
        let mut y = poison(n * case.width());
        let window = case.window.unwrap_or(0);
        let int = |values: &[usize]| values.iter().map(|v| Arg::U32(*v as u32)).collect::<Vec<_>>();
        let long = [stride, 0, capacity].map(|v| Arg::U64(v as u64));
        let sinks = maybe(case.sinks.as_deref());
        match how {
            None => {
                let mut args = vec![read(q), read(&states), read(&offsets), sinks, write(&mut y)];
                args.extend(long);
                args.extend(int(&[0, n, first, 1, heads, kv, window]));
                args.push(Arg::F32(case.scale));
                let name = format!("gantry_attend_tiles_{}_{len}", name(case.kind));
                launch(&name, [n.div_ceil(64), heads * len.div_ceil(128), 1], &mut args);
            }
            Some((pieces, spare)) => {
                let group = [4, 8, 16].into_iter().find(|g| *g >= grouped).unwrap_or(16);
                let group = if len == 256 { 8 } else { group };
                let seen = (first + n).min(if window > 0 { window } else { usize::MAX });
                let splits = seen.div_ceil(256).min(pieces) + spare;
                let positions: Vec<u32> = (first..first + n).map(|p| p as u32).collect();
                let slots = vec![1u32; n];
                let mut partial = poison(n * heads * splits * (2 + len));
                let mut args = vec![read(q), read(&states), read(&offsets), read(&positions), read(&slots)];
                args.extend([sinks, write(&mut y)]);
                args.push(if splits > 1 { write(&mut partial) } else { Arg::Null });
                args.extend(long);
                args.extend(int(&[heads, kv, window, pieces, splits]));
                args.push(Arg::F32(case.scale));
                let name = format!("gantry_attend_{}_{len}_{group}", name(case.kind));
                launch(&name, [n, kv * grouped.div_ceil(group), splits], &mut args);
                drop(args);
                if splits > 1 {
                    let mut args = vec![read(&partial), maybe(case.sinks.as_deref()), write(&mut y)];
                    args.extend(int(&[heads, len, splits]));
                    launch("gantry_attend_join", [n, heads, len / 64], &mut args);
                }
            }
        }
        assert_written(&y);
        all.extend(y);
    }
    all
}

#[test]
pub(crate) fn by_instructions() {
    if !on_a_card() {
        return;
    }
    let mut rng = Rng(4);
    for kind in [KvType::F16, KvType::Int8] {
        for (len, grouped) in [
            (128, 4),
            (256, 8),
            (64, 3),
            (64, 8),
            (64, 16),
            (128, 7),
            (128, 16),
            (128, 18),
            (256, 1),
            (256, 9),
        ] {
            let tokens = 300;
            let mut case = Case::new(&mut rng, 2 * grouped, shape(2, len, len, false), tokens, kind, 2.0);
            if grouped % 2 == 0 {
                case = case.with_sinks(&mut rng);
            }
            let what = format!("{grouped} heads of {len}, {kind:?}");
            let all = (tokens, tokens + 2);
            let y = instructed(&case, all, Some((4, 0)));
            let exact = case.oracles();
            case.assert_near(&exact, &y, BOUND, &what);
            // Alone a token has the same bits, and whatever the pieces of the others.
            assert_same(&instructed(&case, (1, tokens + 2), Some((4, 0))), &y, &format!("{what} alone"));
            assert_same(&instructed(&case, all, Some((4, 3))), &y, &format!("{what}, more pieces"));
            for how in [all, (77, tokens)] {
                let y = instructed(&case, how, None);
                case.assert_near(&exact, &y, BOUND, &format!("{what} in tiles, {how:?}"));
            }
            case.window = Some(150);
            let exact = case.oracles();
            for how in [Some((4, 1)), None] {
                let y = instructed(&case, (40, 192), how);
                case.assert_near(&exact, &y, BOUND, &format!("{what} in a ring, {how:?}"));
            }
        }
    }
}

/// Queries as large and as small as f32 has them, and keys and values at the ends of f16. Matrix instructions align products by
/// exponents before they add them, where a subnormal half counts as one of 2^-14: up to ten bits less of those remain (seen on
/// an H200).
#[test]
fn by_instructions_at_the_ends_of_numbers() {
    if !on_a_card() {
        return;
    }
    let mut rng = Rng(5);
    for (kind, size) in
        [(KvType::F16, 60_000.0f32), (KvType::F16, 1e-7), (KvType::Int8, 1e6), (KvType::Int8, 1e-4)]
    {
        for q_size in [1e30f32, 1e-30, 1e-42, 0.0] {
            let tokens = 70;
            let mut case = Case::new(&mut rng, 4, shape(1, 64, 64, false), tokens, kind, 1.0);
            let (stride, width) = (case.stride(), case.q_width());
            for row in case.rows.chunks_exact_mut(stride) {
                row[..width].iter_mut().for_each(|q| *q *= q_size);
                row[width..].iter_mut().for_each(|x| *x *= size);
            }
            // Scores of usual size.
            case.scale = if q_size > 0.0 {
                (1.0 / (f64::from(q_size) * f64::from(size))).min(1e30) as f32
            } else {
                1.0
            };
            for how in [Some((4, 0)), None] {
                let y = instructed(&case, (tokens, tokens), how);
                let subnormal = kind == KvType::F16 && size < f32::from(f16::MIN_POSITIVE);
                let bound = if subnormal { 1024.0 * BOUND } else { 3.0 * BOUND };
                let what = format!("{kind:?} of {size:e}, queries of {q_size:e}, {how:?}");
                case.assert_close(&y, bound, &what);
            }
        }
    }
}

#[test]
fn int8_rows_are_the_cpus() {
    let mut rng = Rng(6);
    for (heads, key_len, value_len, shared) in [(2, 64, 32, false), (1, 576, 512, true), (3, 7, 130, false)] {
        let (n, capacity) = (9, 5);
        let row = heads * (key_len + value_len);
        let mut x: Vec<f32> = (0..n).flat_map(|t| rng.units(row, [1.0, 1e-6, 3e7][t % 3])).collect();
        x[3] = 0.5;
        let first = 4 * row;
        x[first] = f32::INFINITY;
        x[first + row] = f32::NAN;
        let shape = shape(heads, key_len, value_len, shared);
        let mut ring = Ring::new(shape, KvType::Int8, capacity);
        let mut states = ring.bytes.clone();
        // The last tokens only: several would write the same row at once.
        let positions: Vec<u32> = (4..9).collect();
        let (slots, offsets) = ([0u32; 5], [0u64]);
        let mut args =
            vec![read(&x[first..]), write(&mut states), read(&offsets), read(&positions), read(&slots)];
        args.extend([row, 0, heads * key_len, capacity].map(|v| Arg::U64(v as u64)));
        let values = if shared { 0 } else { heads * value_len };
        args.extend([5, heads * key_len, values, heads].map(|v| Arg::U32(v as u32)));
        if !launch("gantry_store_i8", [heads * if shared { 1 } else { 2 }, 5, 1], &mut args) {
            return;
        }
        drop(args);
        for p in 4..9 {
            ring.put(p, &x[p * row..][..row]);
        }
        let scales = |bytes: &[u8]| -> Vec<f32> {
            let halves = bytes[ring.scales[0]..].as_chunks::<2>().0.iter();
            halves.map(|b| f16::from_le_bytes(*b).to_f32()).collect()
        };
        assert!(states[..ring.scales[0]] == ring.bytes[..ring.scales[0]], "{shape:?}: other values");
        assert_same(&scales(&states), &scales(&ring.bytes), &format!("{shape:?}: scales"));
    }
}

fn shape(heads: usize, key_len: usize, value_len: usize, shared: bool) -> KvShape {
    KvShape { heads, key_len, value_len, shared }
}

#[test]
pub(crate) fn dense_attention_of_every_shape() {
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
        for kind in [KvType::F32, KvType::F16, KvType::Int8] {
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
    for kind in [KvType::F32, KvType::F16, KvType::Int8] {
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
    for kind in [KvType::F32, KvType::F16, KvType::Int8] {
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
