//! Experts as rotated E8, whose input is rotated once: W·x = (WQ)(Qᵀx).

use super::models::{Made, Random};
use gantry_formats::block::{e8, fp16};
use gantry_formats::container::Container;
use gantry_formats::gguf::Header;
use gantry_formats::layout::Layout;
use gantry_runtime::model::program::{BufferId, Program, Step};
use gantry_runtime::{ModelOptions, model};
use std::collections::HashMap;

/// Widths of the residual and of the experts: rotations take multiples of 256. 512 = one block of its own.
const EMBD: usize = 512;
const FF: usize = 256;
const SHARED: usize = 64;
const EXPERTS: usize = 6;
const USED: usize = 2;

/// One layer whose attention adds nothing, and a head that shows the residual: logits are its norm.
fn showing() -> Made {
    let settings = [
        format!("embedding_length={EMBD}"),
        format!("expert_feed_forward_length={FF}"),
        format!("expert_shared_feed_forward_length={SHARED}"),
        format!("expert_count={EXPERTS}"),
        format!("expert_used_count={USED}"),
        "block_count=1".into(),
        "full_attention_interval=1".into(),
        "vocab_size=512".into(),
    ];
    let made = Made::new("qwen3next-tiny", &settings.each_ref().map(String::as_str));
    made.rewrite(
        |_| (),
        |name, values, _| match name {
            "blk.0.attn_output.weight" => values.fill(0.0),
            "output_norm.weight" => values.fill(1.0),
            "output.weight" => {
                values.fill(0.0);
                values.iter_mut().step_by(EMBD + 1).for_each(|v| *v = 1.0);
            }
            _ => {}
        },
    )
}

/// Some bytes of a container's first card with their layout and shape.
struct Stored<'a> {
    layout: Layout,
    rows: usize,
    cols: usize,
    bytes: &'a [u8],
}

impl Stored<'_> {
    fn plane(&self, index: usize) -> &[u8] {
        let planes = self.layout.planes(self.rows as u64, self.cols as u64).expect("planes");
        &self.bytes[planes[index].offset as usize..][..planes[index].bytes as usize]
    }

    /// What its bytes say, row by row; of a rotated matrix that is W·Q.
    fn values(&self) -> Vec<Vec<f64>> {
        let blocks = self.cols / 256;
        let half = |plane: &[u8], i: usize| -> f64 {
            f64::from(fp16::f16_to_f32(u16::from_le_bytes([plane[2 * i], plane[2 * i + 1]])))
        };
        let row = |n: usize| -> Vec<f64> {
            match self.layout {
                Layout::E8Planar { rotated: true, .. } => {
                    let block = |b: usize| {
                        let mut block = [0; e8::BYTES];
                        block[..64].copy_from_slice(&self.plane(0)[64 * b..][..64]);
                        block[64..96].copy_from_slice(&self.plane(1)[32 * b..][..32]);
                        block[96..].copy_from_slice(&self.plane(2)[2 * b..][..2]);
                        e8::decode(&block).map(f64::from)
                    };
                    (n * blocks..(n + 1) * blocks).flat_map(block).collect()
                }
                Layout::I8 { order, .. } => {
                    let of = |k: usize| {
                        let (rows, cols) = (self.rows as u64, self.cols as u64);
                        let at = order.offset(n as u64, k as u64, rows, cols) as usize;
                        f64::from(self.plane(0)[at] as i8) * half(self.plane(1), n * self.cols / 32 + k / 32)
                    };
                    (0..self.cols).map(of).collect()
                }
                other => panic!("{other} is not what these are packed as"),
            }
        };
        (0..self.rows).map(row).collect()
    }
}

/// Qᵀx of one block, from its definition: signs, then the Hadamard matrix, each entry (−1)^popcount(i & j) / √n.
fn rotated(x: &[f64]) -> Vec<f64> {
    let n = x.len();
    assert!(n.is_power_of_two() && n <= 4096, "one block");
    let mut state = 417 + n as u64;
    let mut signed = x.to_vec();
    for eight in signed.chunks_mut(8) {
        state ^= state >> 12;
        state ^= state << 25;
        state ^= state >> 27;
        let byte = (state.wrapping_mul(2_685_821_657_736_338_717) >> 56) as u8;
        eight.iter_mut().enumerate().filter(|(j, _)| byte >> j & 1 == 1).for_each(|(_, v)| *v = -*v);
    }
    let sign = |i: usize, j: usize| if (i & j).count_ones().is_multiple_of(2) { 1.0 } else { -1.0 };
    let entry = |i| signed.iter().enumerate().map(|(j, v)| sign(i, j) * v).sum::<f64>() / (n as f64).sqrt();
    (0..n).map(entry).collect()
}

/// Activations as products take them: per 32, rounded to 127 steps of the largest.
fn rounded(x: &[f64]) -> Vec<f64> {
    let block = |block: &[f64]| {
        let step = block.iter().fold(0.0f64, |m, v| m.max(v.abs())) / 127.0;
        block.iter().map(move |v| (v / step).round_ties_even() * step).collect::<Vec<_>>()
    };
    x.chunks(32).flat_map(block).collect()
}

fn product(w: &[Vec<f64>], x: &[f64]) -> Vec<f64> {
    w.iter().map(|row| row.iter().zip(x).map(|(w, x)| w * x).sum()).collect()
}

fn silu(x: f64) -> f64 {
    x / (1.0 + (-x).exp())
}

/// silu(gate) · up, where the first half of `both` is the gates.
fn gated(both: &[f64]) -> Vec<f64> {
    let (gate, up) = both.split_at(both.len() / 2);
    gate.iter().zip(up).map(|(g, u)| silu(*g) * u).collect()
}

/// x over its root mean square.
fn normed(x: &[f64], eps: f64) -> Vec<f64> {
    let mean = x.iter().map(|v| v * v).sum::<f64>() / x.len() as f64;
    x.iter().map(|v| v / (mean + eps).sqrt()).collect()
}

/// What a container says that its layer's feed-forward is, in f64.
struct Oracle {
    /// Gates and ups, and downs, by expert: W·Q.
    experts: Vec<[Vec<Vec<f64>>; 2]>,
    /// Of the shared expert: W.
    shared: [Vec<Vec<f64>>; 2],
    router: Vec<Vec<f64>>,
    shared_gate: Vec<f64>,
    norm: Vec<f64>,
}

/// Gates and ups, which may be one matrix or two, and downs.
fn feed_forward(kind: &str, matrix: &dyn Fn(&str) -> Option<Vec<Vec<f64>>>) -> [Vec<Vec<f64>>; 2] {
    let named = |base: &str| matrix(&format!("ffn_{base}_{kind}"));
    let both = named("gate_up").or_else(|| Some([named("gate")?, named("up")?].concat()));
    [both.expect("gates and ups"), named("down").expect("downs")]
}

/// How inputs go into products.
#[derive(Clone, Copy)]
struct How {
    rotate: bool,
    round: bool,
}

impl Oracle {
    fn read(made: &Made) -> Self {
        let container = Container::open(&made.container()).expect("a container");
        let file = std::fs::read(made.container()).expect("bytes");
        let segment = &file[container.header().cards[0].offset as usize..];
        let manifest = container.manifest();
        let stored = |layout: u32, shape: &[u64], at: u64, bytes: u64| Stored {
            layout: container.layouts()[layout as usize],
            rows: shape[0] as usize,
            cols: shape[1] as usize,
            bytes: &segment[at as usize..][..bytes as usize],
        };
        let bank = &manifest.banks[0];
        let expert = |e: usize| {
            let slot = bank.experts.iter().position(|id| *id as usize == e).expect("an expert");
            let matrix = |role: &str| {
                let m = bank.matrices.iter().find(|m| m.role == role)?;
                let at = bank.offset + slot as u64 * bank.stride + m.offset;
                let stored = stored(m.layout, &m.shape, at, m.bytes);
                assert!(stored.layout.is_rotated(), "{role}");
                Some(stored.values())
            };
            feed_forward("exps", &matrix)
        };
        let shared = feed_forward("shexp", &|role: &str| {
            let t = manifest.tensors.iter().find(|t| t.role == role)?;
            let stored = stored(t.layout, &t.shape, t.offset, t.bytes);
            assert!(!stored.layout.is_rotated(), "{role}");
            Some(stored.values())
        });
        // What stays as it is, is read from the source.
        let exact = source(made);
        let rows = |name: &str, len: usize| exact[name].chunks(len).map(<[f64]>::to_vec).collect::<Vec<_>>();
        Self {
            experts: (0..EXPERTS).map(expert).collect(),
            shared,
            router: rows("blk.0.ffn_gate_inp.weight", EMBD),
            shared_gate: exact["blk.0.ffn_gate_inp_shexp.weight"].clone(),
            norm: exact["blk.0.post_attention_norm.weight"].clone(),
        }
    }

    /// The layer's answer to the residual `x`.
    fn answer(&self, x: &[f64], how: How) -> Vec<f64> {
        let into = |x: &[f64], rotate: bool| {
            let x = if rotate { rotated(x) } else { x.to_vec() };
            if how.round { rounded(&x) } else { x }
        };
        let m: Vec<f64> = normed(x, 1e-6).iter().zip(&self.norm).map(|(v, w)| v * w).collect();
        let logits = product(&self.router, &m);
        let highest = logits.iter().fold(f64::MIN, |a, b| a.max(*b));
        let shares: Vec<f64> = logits.iter().map(|l| (l - highest).exp()).collect();
        let mut order: Vec<usize> = (0..EXPERTS).collect();
        order.sort_by(|a, b| shares[*b].total_cmp(&shares[*a]));
        let sum: f64 = order[..USED].iter().map(|e| shares[*e]).sum();
        let mut y = vec![0.0; EMBD];
        let mut add = |share: f64, answer: Vec<f64>| {
            y.iter_mut().zip(answer).for_each(|(y, a)| *y += share * a);
        };
        for &e in &order[..USED] {
            let [gate_up, down] = &self.experts[e];
            let hidden = gated(&product(gate_up, &into(&m, how.rotate)));
            add(shares[e] / sum, product(down, &into(&hidden, how.rotate)));
        }
        let [gate_up, down] = &self.shared;
        let hidden = gated(&product(gate_up, &into(&m, false)));
        let gate: f64 = self.shared_gate.iter().zip(&m).map(|(w, x)| w * x).sum();
        add(1.0 / (1.0 + (-gate).exp()), product(down, &into(&hidden, false)));
        y
    }
}

/// The F32 tensors of the source by name.
fn source(made: &Made) -> HashMap<String, Vec<f64>> {
    let bytes = std::fs::read(made.gguf()).expect("a model");
    let header = Header::read(&bytes, "a model").expect("a GGUF header");
    let floats = |range: std::ops::Range<u64>| {
        let bytes = bytes[range.start as usize..range.end as usize].as_chunks::<4>().0;
        bytes.iter().map(|b| f64::from(f32::from_le_bytes(*b))).collect()
    };
    header.tensors().iter().map(|t| (t.display_name(), floats(header.range_of(t)))).collect()
}

#[test]
fn a_layer_of_rotated_experts_is_what_its_bytes_say() {
    let made = showing();
    let keep = ["--set", "token_embd=keep", "--set", "output=keep"];
    made.pack_as(&[&["--recipe", "compact"][..], &keep].concat());
    let oracle = Oracle::read(&made);
    let table = source(&made).remove("token_embd.weight").expect("embeddings");
    let model = made.load(&ModelOptions { context: Some(64), batch: 7, ..ModelOptions::default() });
    let tokens = Random::new(1).tokens(24);
    let mut got = Vec::new();
    let mut session = model.session().expect("a session");
    session.prefill_all(&tokens, &mut |rows| got.extend_from_slice(rows)).expect("logits");

    // Errors of the norm beside what the layer adds to it.
    let error = |how: How| {
        let (mut wrong, mut size) = (0.0, 0.0);
        for (got, token) in got.chunks(512).zip(&tokens) {
            let x = &table[*token as usize * EMBD..][..EMBD];
            let after: Vec<f64> = x.iter().zip(oracle.answer(x, how)).map(|(x, y)| x + y).collect();
            let (before, after) = (normed(x, 1e-6), normed(&after, 1e-6));
            wrong += got.iter().zip(&after).map(|(g, w)| (f64::from(*g) - w).powi(2)).sum::<f64>();
            size += before.iter().zip(&after).map(|(b, a)| (a - b).powi(2)).sum::<f64>();
        }
        wrong / size
    };
    let rounded = error(How { rotate: true, round: true });
    let exact = error(How { rotate: true, round: false });
    let unrotated = error(How { rotate: false, round: false });
    println!("against inputs as rounded {rounded:.2e}, exact {exact:.2e}, not rotated {unrotated:.2e}");
    // f32 against f64, and a value that is rounded the other way now and then.
    assert!(rounded < 1e-6, "{rounded:e}");
    assert!(rounded < exact && exact < 1e-3, "{exact:e}: rounding to 8 bits");
    assert!(unrotated > 0.1, "{unrotated:e}: without its rotation it is another matrix");
}

/// Walks a list of steps and says of each product with experts, and of each other, by which steps its inputs were
/// rotated; how many rotations there are.
struct Rotations {
    count: usize,
    experts: Vec<Vec<Option<usize>>>,
    others: Vec<(String, Option<usize>)>,
}

impl Rotations {
    fn of(program: &Program) -> Self {
        let mut out = Self { count: 0, experts: Vec::new(), others: Vec::new() };
        // By which rotation what a buffer holds now was made.
        let mut now: HashMap<usize, usize> = HashMap::new();
        let by = |now: &HashMap<usize, usize>, x: &BufferId| now.get(&x.0).copied();
        for step in program.steps() {
            let made = match step {
                Step::Rotate { .. } => {
                    out.count += 1;
                    Some(out.count)
                }
                Step::Quantize { x, .. } => by(&now, x),
                Step::Experts { ids: Some(_), products, .. } => {
                    out.experts.push(products.iter().map(|p| by(&now, &p.x)).collect());
                    assert!(products.iter().all(|p| p.weights.layout().is_rotated()));
                    None
                }
                Step::Gemm { weight, x, .. } => {
                    out.others.push((weight.name.to_string(), by(&now, x)));
                    assert_eq!(weight.layout.is_rotated(), by(&now, x).is_some(), "{}", weight.name);
                    None
                }
                _ => None,
            };
            for y in step.written() {
                match made {
                    Some(rotation) => now.insert(y.0, rotation),
                    None => now.remove(&y.0),
                };
            }
        }
        out
    }
}

#[test]
fn a_layer_rotates_its_input_once() {
    let wide = ["embedding_length=256", "expert_feed_forward_length=256"];
    let of = |preset: &str, more: &[&str]| {
        let made = Made::new(preset, &[&wide[..], more].concat());
        made.pack_as(&["--recipe", "compact"]);
        let container = Container::open(&made.container()).expect("a container");
        model::plan(&container, 64).expect("a program")
    };
    for (preset, layers, more) in [
        ("llama-moe-tiny", 4, &["feed_forward_length=256", "rope.dimension_count=64"][..]),
        ("qwen3next-tiny", 4, &[]),
        ("qwen4exp-mtp-tiny", 5, &[]),
        ("deepseek4-tiny", 5, &["embedding_length_out=1024"]),
    ] {
        let found = Rotations::of(&of(preset, more));
        // The layer's input for gates and ups, and what is between for downs.
        assert_eq!(found.count, 2 * layers, "{preset}");
        assert_eq!(found.experts.len(), 2 * layers, "{preset}");
        for (i, pair) in found.experts.chunks(2).enumerate() {
            let (gate_up, down) = (&pair[0], &pair[1]);
            assert!(gate_up.iter().all(|by| *by == Some(2 * i + 1)), "{preset}, layer {i}: {gate_up:?}");
            assert_eq!(*down, [Some(2 * i + 2)], "{preset}, layer {i}");
        }
        // The shared expert, attention and head take theirs as it is.
        assert!(found.others.len() > layers, "{preset}");
        assert!(found.others.iter().all(|(_, by)| by.is_none()), "{preset}: {:?}", found.others);
    }
    // A dense model's feed-forward: gates and ups of one input.
    let dense = of("llama-tiny", &["feed_forward_length=256", "rope.dimension_count=64"]);
    let found = Rotations::of(&dense);
    assert_eq!(found.count, 2 * 4, "dense");
    let fed = found.others.iter().filter(|(_, by)| by.is_some()).count();
    assert!([2 * 4, 3 * 4].contains(&fed), "gates and ups in one or two, downs: {:?}", found.others);
}
