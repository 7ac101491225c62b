//! Metadata of small models of every architecture, for tests: all sizes that can differ do.

use super::Metadata;
use std::collections::BTreeMap;

/// A value in metadata.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Value {
    Int(u64),
    Float(f64),
    Bool(bool),
    Text(&'static str),
    Ints(Vec<u64>),
    Floats(Vec<f64>),
}
use Value::{Bool, Float, Floats, Int, Ints, Text};

/// Metadata by full key.
#[derive(Clone, Debug, Default)]
pub(super) struct Sample {
    pub(super) arch: &'static str,
    pub(super) keys: BTreeMap<String, Value>,
}

impl Sample {
    pub(super) fn set(&mut self, name: &str, value: Value) -> &mut Self {
        self.keys.insert(format!("{}.{name}", self.arch), value);
        self
    }

    pub(super) fn remove(&mut self, name: &str) -> &mut Self {
        self.keys.remove(&format!("{}.{name}", self.arch));
        self
    }

    fn with(mut self, list: &[(&str, Value)]) -> Self {
        for (name, value) in list {
            self.set(name, value.clone());
        }
        self
    }
}

impl Metadata for Sample {
    fn u64(&self, key: &str) -> Option<u64> {
        if let Some(Int(v)) = self.keys.get(key) { Some(*v) } else { None }
    }
    fn f64(&self, key: &str) -> Option<f64> {
        if let Some(Float(v)) = self.keys.get(key) { Some(*v) } else { self.u64(key).map(|v| v as f64) }
    }
    fn bool(&self, key: &str) -> Option<bool> {
        if let Some(Bool(v)) = self.keys.get(key) { Some(*v) } else { None }
    }
    fn text(&self, key: &str) -> Option<String> {
        if let Some(Text(v)) = self.keys.get(key) { Some((*v).into()) } else { None }
    }
    fn array_len(&self, key: &str) -> Option<u64> {
        match self.keys.get(key)? {
            Ints(v) => Some(v.len() as u64),
            Floats(v) => Some(v.len() as u64),
            _ => None,
        }
    }
    fn u64_array(&self, key: &str) -> Option<Vec<u64>> {
        if let Some(Ints(v)) = self.keys.get(key) { Some(v.clone()) } else { None }
    }
    fn f64_array(&self, key: &str) -> Option<Vec<f64>> {
        if let Some(Floats(v)) = self.keys.get(key) { Some(v.clone()) } else { None }
    }
}

fn basic(arch: &'static str, embd: u64, blocks: u64, ff: u64, heads: (u64, u64, u64), rot: u64) -> Sample {
    let sample = Sample { arch, keys: [("general.architecture".to_string(), Text(arch))].into() };
    sample.with(&[
        ("vocab_size", Int(97)),
        ("context_length", Int(1024)),
        ("embedding_length", Int(embd)),
        ("block_count", Int(blocks)),
        ("feed_forward_length", Int(ff)),
        ("attention.head_count", Int(heads.0)),
        ("attention.head_count_kv", Int(heads.1)),
        ("attention.key_length", Int(heads.2)),
        ("attention.value_length", Int(heads.2)),
        ("attention.layer_norm_rms_epsilon", Float(1e-6)),
        ("rope.dimension_count", Int(rot)),
    ])
}

fn experts(ff: u64) -> [(&'static str, Value); 3] {
    [("expert_count", Int(12)), ("expert_used_count", Int(3)), ("expert_feed_forward_length", Int(ff))]
}

/// Gated delta nets of 2 key heads and 6 value heads of 24.
fn ssm() -> [(&'static str, Value); 5] {
    [
        ("ssm.conv_kernel", Int(5)),
        ("ssm.state_size", Int(24)),
        ("ssm.group_count", Int(2)),
        ("ssm.time_step_rank", Int(6)),
        ("ssm.inner_size", Int(144)),
    ]
}

fn indexer(key_len: u64) -> [(&'static str, Value); 3] {
    [
        ("attention.indexer.head_count", Int(7)),
        ("attention.indexer.key_length", Int(key_len)),
        ("attention.indexer.top_k", Int(32)),
    ]
}

/// Linear, linear with PLE, full and sparse, linear; then an MTP block.
pub(super) fn qwen4exp() -> Sample {
    basic("qwen4exp", 64, 5, 80, (6, 3, 36), 32).with(&experts(40)).with(&ssm()).with(&indexer(44)).with(&[
        ("rope.dimension_sections", Ints(vec![6, 5, 5, 0])),
        ("full_attention_interval", Int(3)),
        ("nextn_predict_layers", Int(1)),
        ("expert_shared_feed_forward_length", Int(56)),
        ("hyper_connection.count", Int(3)),
        ("hyper_connection.low_rank", Int(28)),
        ("attention.compress_ratios", Ints(vec![0, 0, 4, 0, 0])),
        ("ple.layers", Ints(vec![1])),
        ("ple.ngram_size", Int(3)),
        ("ple.heads_per_ngram", Int(2)),
        ("ple.conv_kernel", Int(4)),
        ("ple.eos_token_id", Int(2)),
        ("embedding_length_per_layer_input", Int(16)),
        ("ple.layer_multipliers", Ints(vec![(1 << 45) + 1, (1 << 46) + 3, 5])),
        ("ple.head_offsets", Ints(vec![0, 101, 204, 311])),
        ("ple.head_vocab_sizes", Ints(vec![101, 103, 107, 109])),
    ])
}

/// Uncompressed by a table, compressed by 4, by 128, uncompressed; then an MTP block.
pub(super) fn deepseek4() -> Sample {
    let mut sample =
        basic("deepseek4", 72, 5, 80, (6, 1, 40), 16).with(&experts(44)).with(&indexer(24)).with(&[
            ("nextn_predict_layers", Int(1)),
            ("attention.q_lora_rank", Int(52)),
            ("attention.sliding_window", Int(32)),
            ("attention.output_group_count", Int(3)),
            ("attention.output_lora_rank", Int(20)),
            ("attention.compress_ratios", Ints(vec![0, 4, 128, 0, 0])),
            ("attention.compress_rope_freq_base", Float(160_000.0)),
            ("expert_shared_count", Int(2)),
            ("expert_weights_scale", Float(1.5)),
            ("expert_weights_norm", Bool(true)),
            ("expert_gating_func", Int(4)),
            ("swiglu_clamp_exp", Floats(vec![10.0; 5])),
            ("hyper_connection.count", Int(4)),
            ("hyper_connection.sinkhorn_iterations", Int(20)),
            ("hyper_connection.epsilon", Float(1e-6)),
            ("hash_layer_count", Int(1)),
        ]);
    sample.remove("feed_forward_length");
    sample
}

/// One dense layer, three with experts, the third of which shares the second's indices; then an MTP block.
pub(super) fn glm_dsa() -> Sample {
    basic("glm-dsa", 72, 5, 80, (5, 1, 64), 16).with(&experts(44)).with(&indexer(24)).with(&[
        ("nextn_predict_layers", Int(1)),
        ("leading_dense_block_count", Int(1)),
        ("attention.value_length", Int(48)),
        ("attention.q_lora_rank", Int(52)),
        ("attention.kv_lora_rank", Int(48)),
        ("attention.key_length_mla", Int(56)),
        ("attention.value_length_mla", Int(36)),
        ("attention.indexer.types", Ints(vec![1, 1, 0, 1])),
        ("expert_shared_count", Int(2)),
        ("expert_gating_func", Int(2)),
    ])
}

pub(super) fn qwen3next() -> Sample {
    basic("qwen3next", 64, 4, 80, (6, 3, 36), 16).with(&experts(40)).with(&ssm()).with(&[
        ("attention.recurrent_layers", Ints(vec![1, 0, 1, 0])),
        ("expert_shared_feed_forward_length", Int(56)),
        ("nextn_predict_layers", Int(1)),
    ])
}

/// One of each.
pub(super) fn all() -> Vec<Sample> {
    vec![
        basic("llama", 48, 2, 80, (4, 2, 16), 16),
        basic("llama", 48, 2, 80, (4, 2, 16), 16).with(&experts(40)),
        basic("qwen2", 48, 2, 80, (4, 2, 16), 16),
        basic("qwen3", 48, 2, 80, (4, 2, 16), 16),
        basic("qwen3moe", 48, 2, 80, (4, 2, 16), 16).with(&experts(40)),
        basic("olmoe", 48, 2, 80, (4, 4, 16), 16).with(&experts(40)),
        qwen3next(),
        qwen4exp(),
        deepseek4(),
        glm_dsa(),
    ]
}
