//! Small models of random weights, and those whose drafts are often right.

use gantry_formats::gguf::{GgufWriter, Header, OwnedValue};
use gantry_runtime::backend::device::{CardName, Family};
use gantry_runtime::{Container, Device, Model, ModelOptions, Session};
use gantry_tests::{convert, run_ok};
use std::collections::HashMap;
use std::path::{Path, PathBuf};

/// Whether models run on the first NVIDIA card: with `GANTRY_DEVICE=cuda`, for who has one.
pub(crate) fn on_card() -> bool {
    std::env::var_os("GANTRY_DEVICE").is_some_and(|device| device == "cuda")
}

/// What all of them share: quick ones, in which every part is still there.
const SMALL: &[&str] = &[
    "embedding_length=64",
    "feed_forward_length=64",
    "expert_feed_forward_length=32",
    "expert_count=8",
    "expert_used_count=2",
];

/// A preset and what is made smaller: selections leave something out from a few positions on, windows slide.
fn settings(preset: &str) -> &'static [&'static str] {
    match preset {
        "llama-tiny" => &["embedding_length=64", "feed_forward_length=64", "rope.dimension_count=16"],
        "llama-moe-tiny" => &["rope.dimension_count=16"],
        "olmoe-tiny" => &[],
        "qwen3moe-tiny" => &["attention.key_length=16", "attention.value_length=16"],
        "qwen3next-tiny" => &["expert_shared_feed_forward_length=32", "ssm.state_size=32"],
        "qwen4exp-tiny" | "qwen4exp-mtp-tiny" => &[
            "expert_shared_feed_forward_length=32",
            "ssm.state_size=32",
            "ple.rows=256",
            "hyper_connection.low_rank=16",
            "attention.indexer.top_k=8",
        ],
        "deepseek4-tiny" => &[
            "embedding_length_out=256",
            "attention.sliding_window=8",
            "attention.q_lora_rank=32",
            "attention.output_lora_rank=16",
            "attention.indexer.top_k=2",
            "attention.indexer.key_length=64",
        ],
        "glm-dsa-tiny" => &["attention.q_lora_rank=32", "attention.indexer.top_k=8"],
        other => panic!("no settings for {other}"),
    }
}

/// A model of one file, in a folder of its own.
pub(crate) struct Made {
    folder: tempfile::TempDir,
    gguf: PathBuf,
}

impl Made {
    /// The preset, small, with `more` settings.
    pub(crate) fn new(preset: &str, more: &[&str]) -> Self {
        let folder = tempfile::tempdir().expect("a scratch folder");
        let gguf = folder.path().join("m.gguf");
        let mut args = vec!["synth", preset, "--threads", "1", "-o", gguf.to_str().expect("UTF-8")];
        let small = if preset == "llama-tiny" { &[] } else { SMALL };
        for set in small.iter().chain(settings(preset)).chain(more) {
            args.extend(["--set", set]);
        }
        run_ok("gantry", &args);
        let made = Self { folder, gguf };
        made.pack();
        made
    }

    fn pack(&self) {
        self.pack_as(&["--recipe", "lossless"]);
    }

    /// Packs it anew with these options.
    pub(crate) fn pack_as(&self, options: &[&str]) {
        let target: &[&str] = if on_card() { &["--target", "cuda:sm_80"] } else { &[] };
        convert(&self.gguf, &self.container(), &[options, target].concat());
    }

    pub(crate) fn gguf(&self) -> &Path {
        &self.gguf
    }

    pub(crate) fn folder(&self) -> &Path {
        self.folder.path()
    }

    pub(crate) fn container(&self) -> PathBuf {
        self.folder.path().join("m.gantry")
    }

    pub(crate) fn load(&self, options: &ModelOptions) -> Model {
        self.try_load(options).expect("a model")
    }

    pub(crate) fn try_load(&self, options: &ModelOptions) -> gantry_runtime::Result<Model> {
        let container = Container::open(&self.container()).expect("a container");
        let device = if on_card() {
            Device::cards(&[CardName { family: Family::Cuda, card: 0 }], Some(2))
        } else {
            Device::cpu(Some(2))
        };
        // On cards larger batches have another order of sums.
        let batch = if on_card() { options.batch.min(32) } else { options.batch };
        let options = ModelOptions { batch, ..options.clone() };
        Model::load(&container, &device.expect("a device"), &options)
    }

    /// Changes the source and packs it anew: `tensor` gets each F32 tensor's name and values, and `get` to read
    /// others' as they were.
    pub(crate) fn rewrite(
        self,
        header: impl FnOnce(&mut GgufWriter),
        tensor: impl Fn(&str, &mut [f32], &dyn Fn(&str) -> Vec<f32>),
    ) -> Self {
        let bytes = std::fs::read(&self.gguf).expect("a model");
        let old = Header::read(&bytes, "a model").expect("a GGUF header");
        let range = |t| {
            let range = old.range_of(t);
            range.start as usize..range.end as usize
        };
        let values = |name: &str| -> Vec<f32> {
            let (_, info) = old.find(name).unwrap_or_else(|| panic!("no tensor {name}"));
            floats(&bytes[range(info)])
        };
        let mut data = bytes.clone();
        for info in old.tensors().iter().filter(|t| t.ty.name() == "F32") {
            let mut new = floats(&bytes[range(info)]);
            tensor(&info.display_name(), &mut new, &values);
            let new: Vec<u8> = new.iter().flat_map(|v| v.to_le_bytes()).collect();
            data[range(info)].copy_from_slice(&new);
        }
        let mut writer = GgufWriter::from_header(&old);
        header(&mut writer);
        let new = writer.finish().expect("a GGUF header");
        let mut out = new.raw().to_vec();
        out.resize(new.data_offset() as usize, 0);
        out.extend(&data[old.data_offset() as usize..]);
        std::fs::write(&self.gguf, out).expect("space");
        self.pack();
        self
    }

    /// Writes 3, 4, … 63, 0, … and on: each of the first 64 tokens has a dimension of its own, layers add nothing,
    /// and the head takes each to the next. The draft block does not look at the token that it is given: it goes one
    /// on from the trunk's streams of the token before, so that a draft is right where, and only where, it finds
    /// those.
    pub(crate) fn counting(self) -> Self {
        const EMBD: usize = 64;
        let one = |values: &mut [f32], cols: usize, at: &dyn Fn(usize) -> usize| {
            values.fill(0.0);
            (0..EMBD).for_each(|row| values[row * cols + at(row)] = 8.0);
        };
        self.foreseeable(0.0).rewrite(
            |_| (),
            |name, values, _| match name {
                "token_embd.weight" => one(values, EMBD, &|row| row),
                "output.weight" => one(values, EMBD, &|row| (row + EMBD - 1) % EMBD),
                _ if name.ends_with("nextn.eh_proj.weight") => {
                    one(values, 2 * EMBD, &|row| EMBD + (row + EMBD - 1) % EMBD);
                }
                _ => {}
            },
        )
    }

    /// Layers that add `share` of what they would, and a draft block that passes the next token's embedding on as
    /// the trunk's head reads it: where layers add little, drafts say what the trunk says.
    pub(crate) fn foreseeable(self, share: f32) -> Self {
        const ADDED: [&str; 7] = [
            "attn_output.weight",
            "attn_output_b.weight",
            "ssm_out.weight",
            "ffn_down_exps.weight",
            "ffn_down_shexp.weight",
            "ple_value.weight",
            "ple_conv1d.weight",
        ];
        self.rewrite(
            |_| (),
            |name, values, get| {
                let base = name.splitn(3, '.').nth(2).unwrap_or("");
                if ADDED.contains(&base) {
                    values.iter_mut().for_each(|v| *v *= share);
                }
                match base {
                    "nextn.enorm.weight" | "nextn.hnorm.weight" => values.fill(1.0),
                    "nextn.eh_proj.weight" => {
                        let embd = (values.len() / 2).isqrt();
                        values.fill(0.0);
                        (0..embd).for_each(|i| values[i * 2 * embd + i] = 1.0);
                    }
                    _ => {}
                }
                if let Some(part) = base.strip_prefix("nextn.hc_head_") {
                    values.copy_from_slice(&get(&format!("output_hc_{part}")));
                }
            },
        )
    }

    /// With metadata keys set.
    pub(crate) fn with_keys(self, keys: &HashMap<&str, OwnedValue>) -> Self {
        let set = |writer: &mut GgufWriter| {
            for (key, value) in keys {
                writer.set(*key, value.view());
            }
        };
        self.rewrite(set, |_, _, _| ())
    }
}

fn floats(bytes: &[u8]) -> Vec<f32> {
    bytes.as_chunks::<4>().0.iter().map(|b| f32::from_le_bytes(*b)).collect()
}

/// xorshift64*.
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    /// Below `n`.
    pub(crate) fn below(&mut self, n: usize) -> usize {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(2_685_821_657_736_338_717) >> 33) as usize % n
    }

    pub(crate) fn tokens(&mut self, count: usize) -> Vec<u32> {
        (0..count).map(|_| 3 + self.below(509) as u32).collect()
    }
}

pub(crate) fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|v| v.to_bits()).collect()
}

/// The logits of the last of `tokens` in a new session of `model`.
pub(crate) fn alone(model: &Model, tokens: &[u32]) -> Vec<u32> {
    let mut session = model.session().expect("a session");
    bits(session.prefill(tokens).expect("logits"))
}

/// What `session` says after `tokens` more, which must be what a new session says of `all` with them.
pub(crate) fn goes_on(session: &mut Session, all: &[u32], tokens: &[u32], what: &str) {
    let model = session.model().clone();
    let got = bits(session.prefill(tokens).expect("logits"));
    assert!(got == alone(&model, &[all, tokens].concat()), "{what}: goes on otherwise than a new session");
}
