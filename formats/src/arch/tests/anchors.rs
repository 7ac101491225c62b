//! Lists written down by hand: what models of the published sizes have, block by block.

use super::super::samples::{self, Sample, Value};
use super::complete;
use Value::{Bool, Float, Floats, Int, Ints};
use std::collections::BTreeMap;

fn sized(mut sample: Sample, list: &[(&str, Value)]) -> BTreeMap<String, Vec<u64>> {
    for (name, value) in list {
        sample.set(name, value.clone());
    }
    complete(&sample).into_iter().collect()
}

/// The tensors of a block, or those outside all, are these and no others.
fn assert_block(all: &BTreeMap<String, Vec<u64>>, block: Option<u32>, want: &[(&str, &[u64])]) {
    let prefix = block.map_or(String::new(), |n| format!("blk.{n}."));
    let here = |name: &&String| match block {
        Some(_) => name.starts_with(&prefix),
        None => !name.starts_with("blk."),
    };
    let got: BTreeMap<&str, &[u64]> =
        all.iter().filter(|(n, _)| here(n)).map(|(n, d)| (&n[prefix.len()..], d.as_slice())).collect();
    let want: BTreeMap<&str, &[u64]> = want.iter().copied().collect();
    assert_eq!(got, want, "block {block:?}");
}

const E: u64 = 2560;
const D: u64 = 4 * E;
const HC: &[(&str, &[u64])] = &[
    ("hc_attn_norm.weight", &[D]),
    ("hc_attn_down.weight", &[D, 320]),
    ("hc_attn_up.weight", &[320, D]),
    ("hc_attn_inject.weight", &[D, 4]),
    ("hc_ffn_norm.weight", &[D]),
    ("hc_ffn_down.weight", &[D, 320]),
    ("hc_ffn_up.weight", &[320, D]),
    ("hc_ffn_inject.weight", &[D, 4]),
    ("ffn_gate_inp.weight", &[E, 512]),
    ("ffn_gate_exps.weight", &[E, 640, 512]),
    ("ffn_up_exps.weight", &[E, 640, 512]),
    ("ffn_down_exps.weight", &[640, E, 512]),
    ("ffn_gate_inp_shexp.weight", &[E]),
    ("ffn_gate_shexp.weight", &[E, 640]),
    ("ffn_up_shexp.weight", &[E, 640]),
    ("ffn_down_shexp.weight", &[640, E]),
];
const FULL: &[(&str, &[u64])] = &[
    ("attn_q.weight", &[E, 12288]),
    ("attn_k.weight", &[E, 512]),
    ("attn_v.weight", &[E, 512]),
    ("attn_output.weight", &[6144, E]),
    ("attn_q_norm.weight", &[256]),
    ("attn_k_norm.weight", &[256]),
    ("indexer.q_proj.weight", &[E, 512]),
    ("indexer.k_proj.weight", &[E, 128]),
    ("indexer.q_norm.weight", &[128]),
    ("indexer.k_norm.weight", &[128]),
];
const LINEAR: &[(&str, &[u64])] = &[
    ("attn_qkv.weight", &[E, 10240]),
    ("attn_gate.weight", &[E, 6144]),
    ("ssm_conv1d.weight", &[4, 10240]),
    ("ssm_dt.bias", &[48]),
    ("ssm_a", &[48]),
    ("ssm_beta.weight", &[E, 48]),
    ("ssm_alpha.weight", &[E, 48]),
    ("ssm_norm.weight", &[128]),
    ("ssm_out.weight", &[6144, E]),
];
const PLE: &[(&str, &[u64])] = &[
    ("ple_key.weight", &[E, D]),
    ("ple_value.weight", &[E, E]),
    ("ple_norm_key.weight", &[D]),
    ("ple_norm_query.weight", &[D]),
    ("ple_norm_conv.weight", &[D]),
    ("ple_conv1d.weight", &[4, D]),
];

#[test]
fn qwen4exp_as_shipped() {
    let vocabs: Vec<u64> = (0..16).map(|i| 20_000_000 + 6 * i).collect();
    let offsets: Vec<u64> = (0..16).map(|i| vocabs[..i].iter().sum()).collect();
    let rows = vocabs.iter().sum::<u64>();
    let all = sized(
        samples::qwen4exp(),
        &[
            ("vocab_size", Int(248_320)),
            ("embedding_length", Int(2560)),
            ("block_count", Int(49)),
            ("attention.head_count", Int(24)),
            ("attention.head_count_kv", Int(2)),
            ("attention.key_length", Int(256)),
            ("attention.value_length", Int(256)),
            ("rope.dimension_count", Int(64)),
            ("rope.dimension_sections", Ints(vec![11, 11, 10, 0])),
            ("expert_count", Int(512)),
            ("expert_used_count", Int(10)),
            ("expert_feed_forward_length", Int(640)),
            ("expert_shared_feed_forward_length", Int(640)),
            ("ssm.conv_kernel", Int(4)),
            ("ssm.state_size", Int(128)),
            ("ssm.group_count", Int(16)),
            ("ssm.time_step_rank", Int(48)),
            ("ssm.inner_size", Int(6144)),
            ("full_attention_interval", Int(4)),
            ("hyper_connection.count", Int(4)),
            ("hyper_connection.low_rank", Int(320)),
            ("attention.indexer.head_count", Int(4)),
            ("attention.indexer.key_length", Int(128)),
            ("attention.indexer.top_k", Int(2048)),
            ("attention.compress_ratios", Int(4)),
            ("ple.heads_per_ngram", Int(8)),
            ("embedding_length_per_layer_input", Int(160)),
            ("ple.head_offsets", Ints(offsets)),
            ("ple.head_vocab_sizes", Ints(vocabs)),
        ],
    );
    let head = [
        ("token_embd.weight", &[E, 248_320][..]),
        ("output_hc_norm.weight", &[D]),
        ("output_hc_down.weight", &[D, 320]),
        ("output_hc_up.weight", &[320, D]),
        ("per_layer_token_embd.weight", &[160, rows]),
    ];
    assert_block(&all, None, &head);
    assert_block(&all, Some(0), &[HC, LINEAR].concat());
    assert_block(&all, Some(1), &[HC, LINEAR, PLE].concat());
    for full in [3, 7, 47] {
        assert_block(&all, Some(full), &[HC, FULL].concat());
    }
    let mtp: &[(&str, &[u64])] = &[
        ("nextn.enorm.weight", &[E]),
        ("nextn.hnorm.weight", &[D]),
        ("nextn.eh_proj.weight", &[2 * E, E]),
        ("nextn.hc_head_norm.weight", &[D]),
        ("nextn.hc_head_down.weight", &[D, 320]),
        ("nextn.hc_head_up.weight", &[320, D]),
    ];
    assert_block(&all, Some(48), &[HC, FULL, mtp].concat());
    // The published file of the trunk has 1224 tensors, with an output of its own.
    assert_eq!(all.keys().filter(|n| !n.starts_with("blk.48.")).count() + 1, 1224);
}

const V: u64 = 4096;

#[test]
fn deepseek4_flash() {
    let ratios: Vec<u64> = [0, 0].into_iter().chain((0..41).map(|i| [4, 128][i % 2])).chain([0]).collect();
    let all = sized(
        samples::deepseek4(),
        &[
            ("vocab_size", Int(129_280)),
            ("embedding_length", Int(4096)),
            ("block_count", Int(44)),
            ("attention.head_count", Int(64)),
            ("attention.key_length", Int(512)),
            ("attention.value_length", Int(512)),
            ("rope.dimension_count", Int(64)),
            ("attention.q_lora_rank", Int(1024)),
            ("attention.sliding_window", Int(128)),
            ("attention.output_group_count", Int(8)),
            ("attention.output_lora_rank", Int(1024)),
            ("attention.compress_ratios", Ints(ratios)),
            ("attention.indexer.head_count", Int(64)),
            ("attention.indexer.key_length", Int(128)),
            ("attention.indexer.top_k", Int(512)),
            ("expert_count", Int(256)),
            ("expert_used_count", Int(6)),
            ("expert_shared_count", Int(1)),
            ("expert_feed_forward_length", Int(2048)),
            ("expert_weights_norm", Bool(true)),
            ("swiglu_clamp_exp", Float(10.0)),
            ("swiglu_clamp_shexp", Floats(vec![10.0; 44])),
            ("hash_layer_count", Int(3)),
        ],
    );
    let head: &[(&str, &[u64])] = &[
        ("token_embd.weight", &[V, 129_280]),
        ("output_norm.weight", &[V]),
        ("output.weight", &[V, 129_280]),
        ("output_hc_fn.weight", &[4 * V, 4]),
        ("output_hc_base.weight", &[4]),
        ("output_hc_scale.weight", &[1]),
    ];
    let every: &[(&str, &[u64])] = &[
        ("attn_norm.weight", &[V]),
        ("ffn_norm.weight", &[V]),
        ("attn_sinks.weight", &[64]),
        ("attn_q_a.weight", &[V, 1024]),
        ("attn_q_a_norm.weight", &[1024]),
        ("attn_q_b.weight", &[1024, 64 * 512]),
        ("attn_kv.weight", &[V, 512]),
        ("attn_kv_a_norm.weight", &[512]),
        ("attn_output_a.weight", &[4096, 8192]),
        ("attn_output_b.weight", &[8192, V]),
        ("hc_attn_fn.weight", &[4 * V, 24]),
        ("hc_attn_base.weight", &[24]),
        ("hc_attn_scale.weight", &[3]),
        ("hc_ffn_fn.weight", &[4 * V, 24]),
        ("hc_ffn_base.weight", &[24]),
        ("hc_ffn_scale.weight", &[3]),
        ("ffn_gate_inp.weight", &[V, 256]),
        ("ffn_gate_exps.weight", &[V, 2048, 256]),
        ("ffn_up_exps.weight", &[V, 2048, 256]),
        ("ffn_down_exps.weight", &[2048, V, 256]),
        ("ffn_gate_shexp.weight", &[V, 2048]),
        ("ffn_up_shexp.weight", &[V, 2048]),
        ("ffn_down_shexp.weight", &[2048, V]),
    ];
    let hash: &[(&str, &[u64])] = &[("ffn_gate_tid2eid.weight", &[6, 129_280])];
    let scored: &[(&str, &[u64])] = &[("exp_probs_b.bias", &[256])];
    let by_4: &[(&str, &[u64])] = &[
        ("attn_compressor_kv.weight", &[V, 1024]),
        ("attn_compressor_gate.weight", &[V, 1024]),
        ("attn_compressor_ape.weight", &[1024, 4]),
        ("attn_compressor_norm.weight", &[512]),
        ("indexer.proj.weight", &[V, 64]),
        ("indexer.attn_q_b.weight", &[1024, 64 * 128]),
        ("indexer_compressor_kv.weight", &[V, 256]),
        ("indexer_compressor_gate.weight", &[V, 256]),
        ("indexer_compressor_ape.weight", &[256, 4]),
        ("indexer_compressor_norm.weight", &[128]),
    ];
    let by_128: &[(&str, &[u64])] = &[
        ("attn_compressor_kv.weight", &[V, 512]),
        ("attn_compressor_gate.weight", &[V, 512]),
        ("attn_compressor_ape.weight", &[512, 128]),
        ("attn_compressor_norm.weight", &[512]),
    ];
    let mtp: &[(&str, &[u64])] =
        &[("nextn.eh_proj.weight", &[2 * V, V]), ("nextn.enorm.weight", &[V]), ("nextn.hnorm.weight", &[V])];
    assert_block(&all, None, head);
    assert_block(&all, Some(0), &[every, hash].concat());
    assert_block(&all, Some(2), &[every, hash, by_4].concat());
    assert_block(&all, Some(3), &[every, scored, by_128].concat());
    assert_block(&all, Some(42), &[every, scored, by_4].concat());
    assert_block(&all, Some(43), &[every, scored, mtp].concat());
}

#[test]
fn glm_5() {
    const G: u64 = 6144;
    let mut sample = samples::glm_dsa();
    sample.remove("attention.indexer.types");
    let keys = [
        ("context_length", Int(1 << 20)),
        ("vocab_size", Int(154_880)),
        ("embedding_length", Int(6144)),
        ("block_count", Int(79)),
        ("leading_dense_block_count", Int(3)),
        ("feed_forward_length", Int(12_288)),
        ("attention.head_count", Int(64)),
        ("attention.key_length", Int(576)),
        ("attention.value_length", Int(512)),
        ("rope.dimension_count", Int(64)),
        ("attention.q_lora_rank", Int(2048)),
        ("attention.kv_lora_rank", Int(512)),
        ("attention.key_length_mla", Int(256)),
        ("attention.value_length_mla", Int(256)),
        ("attention.indexer.head_count", Int(32)),
        ("attention.indexer.key_length", Int(128)),
        ("attention.indexer.top_k", Int(2048)),
        ("expert_count", Int(256)),
        ("expert_used_count", Int(8)),
        ("expert_shared_count", Int(1)),
        ("expert_feed_forward_length", Int(2048)),
    ];
    let all = sized(sample.clone(), &keys);
    let every: &[(&str, &[u64])] = &[
        ("attn_norm.weight", &[G]),
        ("attn_q_a.weight", &[G, 2048]),
        ("attn_q_a_norm.weight", &[2048]),
        ("attn_q_b.weight", &[2048, 64 * 256]),
        ("attn_kv_a_mqa.weight", &[G, 576]),
        ("attn_kv_a_norm.weight", &[512]),
        ("attn_k_b.weight", &[192, 512, 64]),
        ("attn_v_b.weight", &[512, 256, 64]),
        ("attn_output.weight", &[64 * 256, G]),
        ("ffn_norm.weight", &[G]),
    ];
    let indexer: &[(&str, &[u64])] = &[
        ("indexer.k_norm.weight", &[128]),
        ("indexer.k_norm.bias", &[128]),
        ("indexer.proj.weight", &[G, 32]),
        ("indexer.attn_k.weight", &[G, 128]),
        ("indexer.attn_q_b.weight", &[2048, 32 * 128]),
    ];
    let dense: &[(&str, &[u64])] = &[
        ("ffn_gate.weight", &[G, 12_288]),
        ("ffn_up.weight", &[G, 12_288]),
        ("ffn_down.weight", &[12_288, G]),
    ];
    let experts: &[(&str, &[u64])] = &[
        ("ffn_gate_inp.weight", &[G, 256]),
        ("ffn_gate_exps.weight", &[G, 2048, 256]),
        ("ffn_up_exps.weight", &[G, 2048, 256]),
        ("ffn_down_exps.weight", &[2048, G, 256]),
        ("ffn_gate_shexp.weight", &[G, 2048]),
        ("ffn_up_shexp.weight", &[G, 2048]),
        ("ffn_down_shexp.weight", &[2048, G]),
    ];
    let mtp: &[(&str, &[u64])] =
        &[("nextn.eh_proj.weight", &[2 * G, G]), ("nextn.enorm.weight", &[G]), ("nextn.hnorm.weight", &[G])];
    // The built-in pattern of the model with a context of 2^20: 0, 1, 2, then every fourth.
    assert_block(&all, Some(1), &[every, indexer, dense].concat());
    assert_block(&all, Some(2), &[every, indexer, dense].concat());
    assert_block(&all, Some(3), &[every, experts].concat());
    assert_block(&all, Some(6), &[every, indexer, experts].concat());
    assert_block(&all, Some(77), &[every, experts].concat());
    assert_block(&all, Some(78), &[every, indexer, experts, mtp].concat());
    // With a shorter context every layer chooses for itself.
    let earlier = [&keys[..], &[("context_length", Int(202_752))]].concat();
    assert_block(&sized(sample, &earlier), Some(3), &[every, indexer, experts].concat());
}
