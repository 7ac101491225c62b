use super::*;
use crate::arch::Subject;
use crate::arch::find;
use crate::arch::samples::{self, Sample, Value};
use crate::arch::subject::Subjects;
use Value::{Bool, Float, Floats, Int, Ints};

/// The first error of the subjects of the sample's architecture.
fn first_error(sample: &Sample) -> Option<HparamsError> {
    let h = Hparams::read(sample);
    let read = |s: &Subject| Subjects::default().read(*s, &h, sample).err();
    find(sample.arch).unwrap().subjects.iter().find_map(read)
}

#[test]
fn samples_are_consistent() {
    for sample in samples::all() {
        assert_eq!(first_error(&sample), None, "{}", sample.arch);
    }
}

#[test]
fn the_subjects_of_qwen4exp() {
    let sample = samples::qwen4exp();
    let h = Hparams::read(&sample);
    assert_eq!((h.blocks, h.nextn, h.layers), (Some(5), 1, Some(4)));
    let ssm = Ssm::read(&h, &sample).unwrap();
    assert_eq!((ssm.conv, ssm.dim, ssm.key_heads, ssm.value_heads), (5, 24, 2, 6));
    assert_eq!(ssm.recurrent, [true, true, false, true, false]);
    let hyper = Hyper::read(&h, &sample).unwrap();
    assert_eq!(hyper, Hyper { streams: 3, rank: Some(28), iterations: 0, eps: 0.0 });
    let indexer = Indexer::read(&h, &sample).unwrap();
    assert_eq!((indexer.heads, indexer.key_len, indexer.top_k), (7, 44, 32));
    assert_eq!(Compression::read(&h, &sample).unwrap().ratios, [0, 0, 4, 0, 0]);
    assert_eq!(sections(&h, &sample), Ok([6, 5, 5, 0]));
    let ple = Ple::read(&h, &sample).unwrap().unwrap();
    assert_eq!((ple.layer, ple.ngram, ple.heads, ple.conv, ple.eos, ple.dim), (1, 3, 4, 4, 2, 16));
    assert_eq!(ple.multipliers[..2], [(1 << 45) + 1, (1 << 46) + 3]);
    assert_eq!((ple.offsets.len(), ple.rows()), (4, 420));
}

#[test]
fn absent_subjects_of_qwen4exp() {
    let mut sample = samples::qwen4exp();
    sample.remove("ple.layers").remove("attention.compress_ratios").remove("full_attention_interval");
    let h = Hparams::read(&sample);
    assert_eq!(Ple::read(&h, &sample), Ok(None));
    assert_eq!(Compression::read(&h, &sample).unwrap().ratios, [0; 5]);
    assert_eq!(Ssm::read(&h, &sample).unwrap().recurrent, [true, true, true, false, false]);
    // The array wins over the interval, and MTP blocks are never linear.
    sample.set("attention.recurrent_layers", Ints(vec![0, 1, 0, 1, 1]));
    let h = Hparams::read(&sample);
    assert_eq!(Ssm::read(&h, &sample).unwrap().recurrent, [false, true, false, true, false]);
    // One ratio for all: of layers that attend.
    sample.set("attention.compress_ratios", Int(4));
    assert_eq!(Compression::read(&h, &sample).unwrap().ratios, [4, 0, 4, 0, 0]);
}

#[test]
fn the_subjects_of_deepseek4() {
    let sample = samples::deepseek4();
    let h = Hparams::read(&sample);
    let own = Deepseek4::read(&h, &sample).unwrap();
    assert_eq!((own.q_rank, own.window, own.out_groups, own.out_rank, own.hash_layers), (52, 32, 3, 20, 1));
    assert_eq!((own.clamp, own.clamp_shared), (vec![10.0; 5], vec![10.0; 5]));
    let hyper = Hyper::read(&h, &sample).unwrap();
    assert_eq!(hyper, Hyper { streams: 4, rank: None, iterations: 20, eps: 1e-6 });
    let compression = Compression::read(&h, &sample).unwrap();
    assert_eq!((compression.ratios, compression.freq_base), (vec![0, 4, 128, 0, 0], 160_000.0));
    let experts = Experts::read(&h, &sample).unwrap();
    let want = Experts { gating: Some(4), scale: 1.5, normalize: Some(true), groups: 1, groups_used: 1 };
    assert_eq!(experts, want);
    assert_eq!((h.expert_ff, h.expert_shared, h.expert_shared_ff), (Some(44), 2, Some(88)));
}

#[test]
fn the_subjects_of_glm_dsa() {
    let sample = samples::glm_dsa();
    let h = Hparams::read(&sample);
    let mla = Mla::read(&h, &sample).unwrap();
    assert_eq!(mla, Mla { q_rank: 52, kv_rank: 48, key_len: 56, value_len: 36, rot: 16 });
    assert_eq!(Indexer::read(&h, &sample).unwrap().full, [true, true, false, true, true]);
}

#[test]
fn defaults_of_expert_widths() {
    let mut sample = samples::qwen4exp();
    sample.remove("expert_feed_forward_length").set("expert_shared_feed_forward_length", Int(0));
    sample.set("feed_forward_length", Int(90));
    let h = Hparams::read(&sample);
    assert_eq!((h.expert_ff, h.expert_shared_ff), (Some(30), Some(90)));
    // One width for all blocks is a width; different ones are none.
    sample.set("expert_feed_forward_length", Ints(vec![40; 5]));
    assert_eq!(Hparams::read(&sample).expert_ff, Some(40));
    sample.set("expert_feed_forward_length", Ints(vec![40, 40, 41, 40, 40]));
    assert_eq!(Hparams::read(&sample).expert_ff, None);
    let mut llama = samples::all().remove(1);
    llama.remove("expert_feed_forward_length");
    assert_eq!(Hparams::read(&llama).expert_ff, Some(80));
}

#[test]
fn absent_mtp_blocks_are_dropped() {
    let read = |sample: &Sample, there: bool| {
        let mut h = Hparams::read(sample);
        h.drop_absent_nextn(|name| there && name == "blk.4.nextn.eh_proj.weight");
        (h.blocks, h.nextn, h.layers)
    };
    for sample in [samples::glm_dsa(), samples::deepseek4(), samples::qwen4exp()] {
        assert_eq!(read(&sample, true), (Some(5), 1, Some(4)), "{}", sample.arch);
    }
    assert_eq!(read(&samples::glm_dsa(), false), (Some(4), 0, Some(4)));
    assert_eq!(read(&samples::deepseek4(), false), (Some(5), 0, Some(5)));
    assert_eq!(read(&samples::qwen4exp(), false), (Some(5), 1, Some(4)));
}

#[test]
fn a_negative_ext_factor_says_nothing() {
    let mut sample = samples::deepseek4();
    sample.set("rope.scaling.type", Value::Text("yarn")).set("rope.scaling.factor", Float(16.0));
    for (value, want) in [(-1.0, 1.0), (0.0, 0.0), (0.5, 0.5)] {
        sample.set("rope.scaling.yarn_ext_factor", Float(value));
        let scaling = Hparams::read(&sample).rope_scaling(&sample).unwrap();
        assert!(matches!(scaling, RopeScaling::Yarn { ext_factor, .. } if ext_factor == want), "{scaling:?}");
    }
}

#[test]
fn each_inconsistent_number_is_named() {
    let cases: Vec<(Sample, Vec<(&str, Value)>)> = vec![
        (
            samples::qwen4exp(),
            vec![
                ("attention.head_count_kv", Int(4)),
                ("attention.value_length", Int(40)),
                ("rope.dimension_count", Int(33)),
                ("rope.dimension_count", Int(38)),
                ("rope.dimension_sections", Ints(vec![6, 5, 4, 1])),
                ("rope.dimension_sections", Ints(vec![0, 0, 0, 0])),
                ("rope.dimension_sections", Ints(vec![6, 5, 5])),
                ("rope.dimension_sections", Int(6)),
                ("expert_used_count", Int(13)),
                ("expert_used_count", Int(0)),
                ("expert_group_count", Int(5)),
                ("expert_gating_func", Int(9)),
                ("expert_weights_scale", Float(f64::NAN)),
                ("ssm.inner_size", Int(145)),
                ("ssm.group_count", Int(4)),
                ("ssm.group_count", Int(0)),
                ("ssm.conv_kernel", Int(1 << 31)),
                ("full_attention_interval", Int(0)),
                ("attention.recurrent_layers", Ints(vec![1, 1, 0, 1])),
                ("nextn_predict_layers", Int(5)),
                ("hyper_connection.count", Int(1)),
                ("hyper_connection.low_rank", Int(0)),
                ("attention.indexer.key_length", Int(31)),
                ("attention.indexer.top_k", Int(0)),
                ("attention.compress_ratios", Ints(vec![0, 0, 4])),
                ("attention.compress_ratios", Ints(vec![0, 0, 4, 8, 0])),
                ("attention.compress_ratios", Int(1)),
                ("attention.compress_ratios", Int(5)),
                ("ple.layers", Ints(vec![2])),
                ("ple.layers", Ints(vec![0, 1])),
                ("ple.layers", Ints(vec![99])),
                ("ple.layers", Int(1)),
                ("ple.ngram_size", Int(1)),
                ("ple.ngram_size", Int(9)),
                ("ple.heads_per_ngram", Int(33)),
                ("ple.conv_kernel", Int(0)),
                ("ple.eos_token_id", Int(1 << 32)),
                ("embedding_length_per_layer_input", Int(15)),
                ("ple.layer_multipliers", Ints(vec![1, 3])),
                ("ple.head_offsets", Ints(vec![0, 1, 2])),
                ("ple.head_vocab_sizes", Ints(vec![101, 103, 107, i32::MAX as u64])),
                ("ple.head_vocab_sizes", Ints(vec![101, 103, 107, u64::MAX])),
                ("ple.head_vocab_sizes", Ints(vec![101, 0, 107, 109])),
            ],
        ),
        (
            samples::deepseek4(),
            vec![
                ("attention.head_count_kv", Int(2)),
                ("attention.output_group_count", Int(4)),
                ("attention.compress_ratios", Ints(vec![0, 4, 64, 0, 0])),
                ("attention.compress_ratios", Ints(vec![0, 4])),
                ("attention.compress_ratios", Int(4)),
                ("attention.compress_rope_freq_base", Float(0.0)),
                ("expert_gating_func", Int(2)),
                ("hyper_connection.count", Int(3)),
                ("hyper_connection.sinkhorn_iterations", Int(0)),
                ("hyper_connection.epsilon", Float(-1.0)),
                ("swiglu_clamp_exp", Floats(vec![10.0; 4])),
                ("swiglu_clamp_exp", Floats(vec![10.0, 1.0, f64::INFINITY, 0.0, 1.0])),
                ("swiglu_clamp_exp", Bool(true)),
                ("swiglu_clamp_shexp", Float(-1.0)),
            ],
        ),
        (
            samples::glm_dsa(),
            vec![
                ("attention.key_length", Int(65)),
                ("attention.value_length", Int(64)),
                ("rope.dimension_count", Int(56)),
                ("attention.q_lora_rank", Int(0)),
                ("attention.indexer.types", Ints(vec![0, 1, 1, 1])),
                ("attention.indexer.types", Ints(vec![1, 1])),
                ("expert_group_used_count", Int(2)),
            ],
        ),
        (
            samples::all().remove(0),
            vec![("rope.dimension_count", Int(8)), ("attention.head_count_kv", Int(3))],
        ),
        (samples::all().remove(5), vec![("attention.head_count_kv", Int(2))]),
    ];
    for (sample, list) in cases {
        for (name, value) in list {
            let mut damaged = sample.clone();
            damaged.set(name, value.clone());
            let error = first_error(&damaged).unwrap_or_else(|| panic!("{name} = {value:?} was taken"));
            assert_eq!(error.key(), format!("{}.{name}", sample.arch), "{value:?}: {error}");
        }
    }
}
