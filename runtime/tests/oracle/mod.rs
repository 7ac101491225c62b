//! A llama in f64, written from its formulas and slowly, with random models for it.
#![allow(dead_code, unreachable_pub, reason = "each test binary uses its part of it")]

use crate::packing::Tensor;
use gantry_formats::block::GgmlType;
use gantry_formats::gguf::{GgufWriter, Header, OwnedArray, OwnedValue};
use half::{bf16, f16};
use std::collections::HashMap;
use std::f64::consts::PI;

/// A model's shape.
#[derive(Clone, Debug)]
pub struct Config {
    pub vocab: usize,
    pub embd: usize,
    pub heads: usize,
    pub kv: usize,
    pub head: usize,
    pub ff: usize,
    /// Experts of a layer, 0 in a dense model, and how many a token uses.
    pub experts: usize,
    pub used: usize,
    /// One source tensor for the gates and ups of the experts.
    pub gate_up: bool,
    pub layers: usize,
    pub base: f64,
    pub scaling: Scaling,
    pub biases: bool,
    pub rope_freqs: bool,
    pub tied: bool,
    pub ty: GgmlType,
    /// A vocabulary of single letters.
    pub tokenizer: bool,
    /// Tokens of it that the model has no embedding for.
    pub beyond: usize,
}

#[derive(Clone, Copy, Debug)]
pub enum Scaling {
    None,
    Linear(f64),
    Yarn { factor: f64, original: u64, attn: f64 },
}

impl Default for Config {
    fn default() -> Self {
        Self {
            vocab: 50,
            embd: 64,
            heads: 4,
            kv: 2,
            head: 16,
            ff: 96,
            experts: 0,
            used: 0,
            gate_up: false,
            layers: 3,
            base: 10_000.0,
            scaling: Scaling::None,
            biases: false,
            rope_freqs: false,
            tied: true,
            ty: GgmlType::F32,
            tokenizer: false,
            beyond: 0,
        }
    }
}

const EPS: f64 = 1e-5;
const ROUTER: &str = "ffn_gate_inp";

/// Source tensors, and their values as the source type holds them.
pub struct Model {
    pub config: Config,
    pub header: Header,
    pub tensors: Vec<Tensor>,
    values: HashMap<String, Vec<f64>>,
}

struct Random(u64);

impl Random {
    /// Uniform in −1..1.
    fn next(&mut self) -> f64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((self.0 >> 11) as f64 / (1u64 << 53) as f64) * 2.0 - 1.0
    }
}

fn encode(ty: GgmlType, values: &[f64]) -> (Vec<u8>, Vec<f64>) {
    let mut bytes = Vec::new();
    let mut held = Vec::new();
    match ty {
        GgmlType::F32 => values.iter().for_each(|&v| {
            bytes.extend((v as f32).to_le_bytes());
            held.push(f64::from(v as f32));
        }),
        GgmlType::F16 => values.iter().for_each(|&v| {
            let v = f16::from_f64(v);
            bytes.extend(v.to_le_bytes());
            held.push(v.to_f64());
        }),
        GgmlType::BF16 => values.iter().for_each(|&v| {
            let v = bf16::from_f64(v);
            bytes.extend(v.to_le_bytes());
            held.push(v.to_f64());
        }),
        GgmlType::Q8_0 => values.chunks(32).for_each(|block| {
            let max = block.iter().fold(0f64, |m, v| m.max(v.abs()));
            let scale = f16::from_f64(max / 127.0);
            bytes.extend(scale.to_le_bytes());
            for &v in block {
                let q = (v / (max / 127.0)).round() as i8;
                bytes.push(q as u8);
                held.push(f64::from(q) * scale.to_f64());
            }
        }),
        other => panic!("no {other} here"),
    }
    (bytes, held)
}

impl Model {
    pub fn random(config: Config, seed: u64) -> Self {
        let c = &config;
        let mut shapes: Vec<(String, Vec<usize>)> = vec![("token_embd.weight".into(), vec![c.embd, c.vocab])];
        let (q, kv) = (c.heads * c.head, c.kv * c.head);
        for l in 0..c.layers {
            let mut add =
                |name: &str, dims: &[usize]| shapes.push((format!("blk.{l}.{name}"), dims.to_vec()));
            add("attn_norm.weight", &[c.embd]);
            add("attn_q.weight", &[c.embd, q]);
            add("attn_k.weight", &[c.embd, kv]);
            add("attn_v.weight", &[c.embd, kv]);
            add("attn_output.weight", &[q, c.embd]);
            add("ffn_norm.weight", &[c.embd]);
            if c.experts > 0 {
                add("ffn_gate_inp.weight", &[c.embd, c.experts]);
                if c.gate_up {
                    add("ffn_gate_up_exps.weight", &[c.embd, 2 * c.ff, c.experts]);
                } else {
                    add("ffn_gate_exps.weight", &[c.embd, c.ff, c.experts]);
                    add("ffn_up_exps.weight", &[c.embd, c.ff, c.experts]);
                }
                add("ffn_down_exps.weight", &[c.ff, c.embd, c.experts]);
            } else {
                add("ffn_gate.weight", &[c.embd, c.ff]);
                add("ffn_up.weight", &[c.embd, c.ff]);
                add("ffn_down.weight", &[c.ff, c.embd]);
            }
            if c.biases {
                for (name, len) in [("attn_q", q), ("attn_k", kv), ("attn_v", kv), ("attn_output", c.embd)] {
                    add(&format!("{name}.bias"), &[len]);
                }
                for (name, len) in [("ffn_gate", c.ff), ("ffn_up", c.ff), ("ffn_down", c.embd)] {
                    add(&format!("{name}.bias"), &[len]);
                }
            }
        }
        shapes.push(("output_norm.weight".into(), vec![c.embd]));
        if !c.tied {
            shapes.push(("output.weight".into(), vec![c.embd, c.vocab]));
        }
        if c.rope_freqs {
            shapes.push(("rope_freqs.weight".into(), vec![c.head / 2]));
        }
        let mut random = Random(seed);
        let mut writer = GgufWriter::new(3);
        keys(c, &mut writer);
        let mut tensors = Vec::new();
        let mut values = HashMap::new();
        for (name, dims) in shapes {
            let count: usize = dims.iter().product();
            let spread = 1.7 / (dims[0] as f64).sqrt();
            let raw: Vec<f64> = match &name {
                n if n.contains("norm") => (0..count).map(|_| 1.0 + 0.3 * random.next()).collect(),
                n if n.contains("rope_freqs") => (0..count).map(|_| 2.0 + random.next()).collect(),
                n if n.contains("bias") => (0..count).map(|_| 0.5 * random.next()).collect(),
                n if n.contains("token_embd") => (0..count).map(|_| random.next()).collect(),
                _ => (0..count).map(|_| spread * random.next()).collect(),
            };
            let exact = dims.len() == 1 || name.contains(ROUTER);
            let ty = if exact { GgmlType::F32 } else { c.ty };
            let (bytes, held) = encode(ty, &raw);
            let dims: Vec<u64> = dims.iter().map(|&d| d as u64).collect();
            writer.tensor(&name, &dims, ty).unwrap();
            values.insert(name.clone(), held);
            tensors.push(Tensor { name, ty, dims, bytes });
        }
        Self { header: writer.finish().unwrap(), config, tensors, values }
    }

    /// Logits of every token, by the formulas.
    pub fn logits(&self, tokens: &[u32]) -> Vec<f64> {
        let c = &self.config;
        let w = |name: &str| self.values[name].as_slice();
        let mut keys: Vec<Vec<Vec<f64>>> = vec![Vec::new(); c.layers];
        let mut values = keys.clone();
        let mut out = Vec::new();
        for (position, &token) in tokens.iter().enumerate() {
            let mut x = w("token_embd.weight")[token as usize * c.embd..][..c.embd].to_vec();
            for l in 0..c.layers {
                let name = |n: &str| format!("blk.{l}.{n}");
                let n = norm(&x, w(&name("attn_norm.weight")));
                let mut q = self.linear(&name("attn_q"), &n);
                let mut k = self.linear(&name("attn_k"), &n);
                let v = self.linear(&name("attn_v"), &n);
                for head in q.chunks_mut(c.head).chain(k.chunks_mut(c.head)) {
                    self.rotate(head, position);
                }
                keys[l].push(k);
                values[l].push(v);
                let mut attended = Vec::new();
                for h in 0..c.heads {
                    let g = h / (c.heads / c.kv) * c.head;
                    let q = &q[h * c.head..][..c.head];
                    let score = |k: &Vec<f64>| dot(q, &k[g..][..c.head]) / (c.head as f64).sqrt();
                    let scores: Vec<f64> = keys[l].iter().map(score).collect();
                    let max = scores.iter().cloned().fold(f64::MIN, f64::max);
                    let e: Vec<f64> = scores.iter().map(|s| (s - max).exp()).collect();
                    let sum: f64 = e.iter().sum();
                    for d in 0..c.head {
                        attended.push(e.iter().zip(&values[l]).map(|(e, v)| e * v[g + d]).sum::<f64>() / sum);
                    }
                }
                let a = self.linear(&name("attn_output"), &attended);
                x.iter_mut().zip(a).for_each(|(x, a)| *x += a);
                let n = norm(&x, w(&name("ffn_norm.weight")));
                let f = if c.experts > 0 {
                    self.experts(l, &n)
                } else {
                    let gate = self.linear(&name("ffn_gate"), &n);
                    let up = self.linear(&name("ffn_up"), &n);
                    self.linear(&name("ffn_down"), &swiglu(&gate, &up))
                };
                x.iter_mut().zip(f).for_each(|(x, f)| *x += f);
            }
            let n = norm(&x, w("output_norm.weight"));
            let output = if c.tied { "token_embd" } else { "output" };
            out.extend(self.linear(output, &n));
        }
        out
    }

    /// Softmax over all experts, the best of them, their weights divided by their sum.
    fn experts(&self, layer: usize, x: &[f64]) -> Vec<f64> {
        let c = &self.config;
        let name = |n: &str| format!("blk.{layer}.{n}");
        let logits = self.linear(&name(ROUTER), x);
        let e: Vec<f64> = logits.iter().map(|l| l.exp()).collect();
        let mut order: Vec<usize> = (0..c.experts).collect();
        order.sort_by(|&a, &b| e[b].total_cmp(&e[a]));
        order.truncate(c.used);
        let sum: f64 = order.iter().map(|&i| e[i]).sum();
        let mut y = vec![0.0; c.embd];
        for &expert in &order {
            let part = |n: &str, rows: usize, x: &[f64]| {
                let all = &self.values[&format!("{}.weight", name(n))];
                self.product(&all[expert * rows * x.len()..][..rows * x.len()], x)
            };
            let (gate, up) = if c.gate_up {
                let both = part("ffn_gate_up_exps", 2 * c.ff, x);
                (both[..c.ff].to_vec(), both[c.ff..].to_vec())
            } else {
                (part("ffn_gate_exps", c.ff, x), part("ffn_up_exps", c.ff, x))
            };
            let answer = part("ffn_down_exps", c.embd, &swiglu(&gate, &up));
            y.iter_mut().zip(answer).for_each(|(y, a)| *y += e[expert] / sum * a);
        }
        y
    }

    /// W x; for Q8_0 with x rounded per 32 as the kernels round it.
    fn product(&self, weight: &[f64], x: &[f64]) -> Vec<f64> {
        let x = if self.config.ty == GgmlType::Q8_0 { rounded(x) } else { x.to_vec() };
        weight.chunks(x.len()).map(|row| dot(row, &x)).collect()
    }

    /// W x + b, of the router exactly.
    fn linear(&self, name: &str, x: &[f64]) -> Vec<f64> {
        let weight = &self.values[&format!("{name}.weight")];
        let mut y = if name.contains(ROUTER) {
            weight.chunks(x.len()).map(|row| dot(row, x)).collect()
        } else {
            self.product(weight, x)
        };
        if let Some(bias) = self.values.get(&format!("{name}.bias")) {
            y.iter_mut().zip(bias).for_each(|(y, b)| *y += b);
        }
        y
    }

    fn rotate(&self, head: &mut [f64], position: usize) {
        let c = &self.config;
        let n = c.head as f64;
        for j in 0..c.head / 2 {
            let mut step = c.base.powf(-2.0 * j as f64 / n);
            if c.rope_freqs {
                step /= self.values["rope_freqs.weight"][j];
            }
            let mut magnitude = 1.0;
            match c.scaling {
                Scaling::None => (),
                Scaling::Linear(factor) => step /= factor,
                Scaling::Yarn { factor, original, attn } => {
                    let dim =
                        |beta: f64| n * (original as f64 / (beta * 2.0 * PI)).ln() / (2.0 * c.base.ln());
                    let (low, high) = (dim(32.0).floor().max(0.0), dim(1.0).ceil().min(n - 1.0));
                    let ramp = 1.0 - ((j as f64 - low) / (high - low).max(0.001)).clamp(0.0, 1.0);
                    step = step / factor * (1.0 - ramp) + step * ramp;
                    magnitude = attn * (1.0 + 0.1 * factor.ln());
                }
            }
            let (sin, cos) = (position as f64 * step).sin_cos();
            let (a, b) = (head[2 * j], head[2 * j + 1]);
            head[2 * j] = (a * cos - b * sin) * magnitude;
            head[2 * j + 1] = (a * sin + b * cos) * magnitude;
        }
    }
}

fn keys(c: &Config, writer: &mut GgufWriter) {
    let mut set = |key: &str, value: OwnedValue| {
        writer.set(key, value.view());
    };
    set("general.architecture", "llama".into());
    for (key, value) in [
        ("context_length", 512),
        ("embedding_length", c.embd),
        ("block_count", c.layers),
        ("feed_forward_length", c.ff),
        ("expert_count", c.experts),
        ("expert_used_count", c.used),
        ("attention.head_count", c.heads),
        ("attention.head_count_kv", c.kv),
        ("attention.key_length", c.head),
        ("attention.value_length", c.head),
        ("rope.dimension_count", c.head),
    ] {
        set(&format!("llama.{key}"), (value as u32).into());
    }
    set("llama.rope.freq_base", (c.base as f32).into());
    set("llama.attention.layer_norm_rms_epsilon", (EPS as f32).into());
    match c.scaling {
        Scaling::None => (),
        Scaling::Linear(factor) => {
            set("llama.rope.scaling.type", "linear".into());
            set("llama.rope.scaling.factor", (factor as f32).into());
        }
        Scaling::Yarn { factor, original, attn } => {
            set("llama.rope.scaling.type", "yarn".into());
            set("llama.rope.scaling.factor", (factor as f32).into());
            set("llama.rope.scaling.original_context_length", (original as u32).into());
            set("llama.rope.scaling.attn_factor", (attn as f32).into());
        }
    }
    if c.tokenizer {
        letters(c.vocab + c.beyond, &mut set);
    } else {
        set("tokenizer.ggml.model", "no_vocab".into());
    }
}

/// A SentencePiece vocabulary: three control tokens, a space and letters, then bytes for the rest.
fn letters(vocab: usize, set: &mut dyn FnMut(&str, OwnedValue)) {
    let mut tokens = vec!["<unk>".to_string(), "<s>".into(), "</s>".into()];
    let mut types = vec![2i32, 3, 3];
    for byte in 0..=255u8 {
        tokens.push(format!("<0x{byte:02X}>"));
        types.push(6);
    }
    tokens.push("\u{2581}".into());
    tokens.extend(('a'..='z').map(String::from));
    types.resize(tokens.len(), 1);
    assert!(tokens.len() <= vocab);
    while tokens.len() < vocab {
        tokens.push(format!("<unused{}>", tokens.len()));
        types.push(5);
    }
    let scores: Vec<f32> = (0..vocab).map(|i| -(i as f32)).collect();
    set("tokenizer.ggml.model", "llama".into());
    set("tokenizer.ggml.tokens", OwnedValue::Array(OwnedArray::new(tokens.iter().map(String::as_str))));
    set("tokenizer.ggml.scores", OwnedValue::Array(OwnedArray::new(scores)));
    set("tokenizer.ggml.token_type", OwnedValue::Array(OwnedArray::new(types)));
    set("tokenizer.ggml.bos_token_id", 1u32.into());
    set("tokenizer.ggml.eos_token_id", 2u32.into());
    set("tokenizer.ggml.unknown_token_id", 0u32.into());
}

fn swiglu(gate: &[f64], up: &[f64]) -> Vec<f64> {
    gate.iter().zip(up).map(|(g, u)| g / (1.0 + (-g).exp()) * u).collect()
}

fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

fn norm(x: &[f64], w: &[f64]) -> Vec<f64> {
    let scale = 1.0 / (dot(x, x) / x.len() as f64 + f64::from(EPS as f32)).sqrt();
    x.iter().zip(w).map(|(x, w)| x * scale * w).collect()
}

fn rounded(x: &[f64]) -> Vec<f64> {
    let block = |block: &[f64]| {
        let d = block.iter().fold(0f64, |m, v| m.max(v.abs())) / 127.0;
        block.iter().map(|v| if d == 0.0 { 0.0 } else { (v / d).round_ties_even() * d }).collect::<Vec<_>>()
    };
    x.chunks(32).flat_map(block).collect()
}

/// Σ(a − b)² / Σb².
pub fn nmse(a: &[f32], b: &[f64]) -> f64 {
    assert_eq!(a.len(), b.len());
    let error: f64 = a.iter().zip(b).map(|(a, b)| (f64::from(*a) - b).powi(2)).sum();
    error / dot(b, b)
}

/// Token ids that differ and repeat.
pub fn tokens(n: usize, vocab: usize) -> Vec<u32> {
    let mut random = Random(99);
    (0..n).map(|_| ((random.next() + 1.0) / 2.0 * vocab as f64) as u32 % vocab as u32).collect()
}
