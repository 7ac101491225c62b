//! Complete models of every architecture, and each way to damage one.

use super::super::samples::{self, Sample, Value};
use super::super::{Dim, Finding, Hparams, Problem, Resolved, check};
use super::{Tensors, complete, findings, table};

fn one(sample: &Sample, tensors: &Tensors, problem: Problem, name: &str) {
    let got = findings(sample, tensors);
    let seen: Vec<_> = got.iter().map(|f| (f.problem, f.name.as_str())).collect();
    assert_eq!(seen, [(problem, name)], "{}", sample.arch);
}

#[test]
fn a_complete_model_has_no_findings() {
    for sample in samples::all() {
        let tensors = complete(&sample);
        assert!(tensors.len() > 15, "{}: {}", sample.arch, tensors.len());
        assert_eq!(findings(&sample, &tensors), [], "{}", sample.arch);
    }
}

#[test]
fn each_missing_tensor_is_named() {
    for sample in samples::all() {
        let whole = complete(&sample);
        for (i, (name, _)) in whole.iter().enumerate() {
            let mut tensors = whole.clone();
            tensors.remove(i);
            // Without it these have no MTP block, and what is left of that is too much.
            if name.ends_with("nextn.eh_proj.weight") && ["glm-dsa", "deepseek4"].contains(&sample.arch) {
                let got = findings(&sample, &tensors);
                assert!(got.iter().any(|f| f.name.contains("nextn.enorm")), "{got:?}");
                continue;
            }
            one(&sample, &tensors, Problem::MissingTensor, name);
        }
    }
}

#[test]
fn each_transposed_or_missized_tensor_is_named() {
    for sample in samples::all() {
        let whole = complete(&sample);
        let arch = table(&sample);
        for i in 0..whole.len() {
            let name = whole[i].0.clone();
            let mut tensors = whole.clone();
            tensors[i].1.reverse();
            if tensors[i].1 != whole[i].1 {
                one(&sample, &tensors, Problem::Shape, &name);
                let text = findings(&sample, &tensors)[0].to_string();
                assert!(text.ends_with("(transposed)"), "{text}");
            }
            let base = name.splitn(3, '.').nth(2).filter(|_| name.starts_with("blk.")).unwrap_or(&name);
            let rule = arch.rules().find(|r| r.name == base).expect("a row");
            for (d, dim) in rule.shape.iter().enumerate() {
                let mut tensors = whole.clone();
                tensors[i].1[d] += 1;
                match dim {
                    // A table may be padded.
                    Dim::PleRows => assert_eq!(findings(&sample, &tensors), []),
                    _ => one(&sample, &tensors, Problem::Shape, &name),
                }
                tensors[i].1[d] -= 2;
                one(&sample, &tensors, Problem::Shape, &name);
            }
            let mut tensors = whole.clone();
            tensors[i].1.push(2);
            one(&sample, &tensors, Problem::Shape, &name);
        }
    }
}

#[test]
fn tensors_without_a_place_are_named() {
    for sample in samples::all() {
        let whole = complete(&sample);
        for extra in
            ["extra.weight", "blk.0.extra.weight", "blk.99.attn_norm.weight", "blk.x.attn_norm.weight"]
        {
            let mut tensors = whole.clone();
            tensors.push((extra.into(), vec![3]));
            one(&sample, &tensors, Problem::UnknownTensor, extra);
        }
    }
}

#[test]
fn tensors_in_the_wrong_block_are_named() {
    let cases: [(Sample, &[&str]); 3] = [
        (
            samples::qwen4exp(),
            &[
                "blk.0.attn_q.weight",
                "blk.2.ssm_out.weight",
                "blk.4.ssm_a",
                "blk.0.ple_key.weight",
                "blk.3.nextn.enorm.weight",
            ],
        ),
        (
            samples::deepseek4(),
            &[
                "blk.0.attn_compressor_kv.weight",
                "blk.2.indexer.proj.weight",
                "blk.0.exp_probs_b.bias",
                "blk.1.ffn_gate_tid2eid.weight",
            ],
        ),
        (
            samples::glm_dsa(),
            &["blk.0.ffn_gate_exps.weight", "blk.1.ffn_gate.weight", "blk.0.exp_probs_b.bias"],
        ),
    ];
    for (sample, names) in cases {
        for name in names {
            let mut tensors = complete(&sample);
            assert!(!tensors.iter().any(|(n, _)| n == name), "{name}");
            tensors.push(((*name).into(), vec![3]));
            one(&sample, &tensors, Problem::UnknownTensor, name);
        }
    }
}

#[test]
fn each_missing_key_is_named() {
    for sample in samples::all() {
        let tensors = complete(&sample);
        for key in table(&sample).required_keys {
            let mut damaged = sample.clone();
            damaged.remove(key);
            let got = findings(&damaged, &tensors);
            let name = format!("{}.{key}", sample.arch);
            let at = |f: &&Finding| f.problem == Problem::MissingKey && f.name == name;
            assert_eq!(got.iter().filter(at).count(), 1, "{name}: {got:?}");
        }
    }
}

#[test]
fn basics_that_cannot_be_are_named() {
    for sample in samples::all() {
        let tensors = complete(&sample);
        for (key, value) in [
            ("attention.layer_norm_rms_epsilon", Value::Float(f64::NAN)),
            ("attention.layer_norm_rms_epsilon", Value::Float(-1.0)),
            ("rope.freq_base", Value::Float(0.0)),
            ("context_length", Value::Int(0)),
            ("rope.scaling.type", Value::Text("longrope")),
        ] {
            let mut damaged = sample.clone();
            damaged.set(key, value);
            one(&damaged, &tensors, Problem::Value, &format!("{}.{key}", sample.arch));
        }
    }
}

/// Renames, and gives the new tensor the shape.
fn merge(tensors: &mut Tensors, gone: &[&str], name: &str, dims: &[u64]) {
    let before = tensors.len();
    tensors.retain(|(n, _)| !gone.contains(&n.as_str()));
    assert_eq!(before - tensors.len(), gone.len());
    tensors.push((name.into(), dims.to_vec()));
}

#[test]
fn merged_forms_stand_for_their_parts() {
    let sample = samples::qwen4exp();
    let mut tensors = complete(&sample);
    let hc = ["blk.1.hc_ffn_down.weight", "blk.1.hc_ffn_inject.weight"];
    merge(&mut tensors, &hc, "blk.1.hc_ffn_down_inject.weight", &[192, 31]);
    let exps = ["blk.2.ffn_gate_exps.weight", "blk.2.ffn_up_exps.weight"];
    merge(&mut tensors, &exps, "blk.2.ffn_gate_up_exps.weight", &[64, 80, 12]);
    assert_eq!(findings(&sample, &tensors), []);
    // In another block it stands for nothing.
    tensors.retain(|(n, _)| n != "blk.0.ffn_up_exps.weight");
    one(&sample, &tensors, Problem::MissingTensor, "blk.0.ffn_up_exps.weight");

    let sample = samples::qwen3next();
    let mut tensors = complete(&sample);
    merge(
        &mut tensors,
        &["blk.0.attn_qkv.weight", "blk.0.attn_gate.weight"],
        "blk.0.ssm_in.weight",
        &[64, 384],
    );
    assert_eq!(findings(&sample, &tensors), []);
}

#[test]
fn scales_beside_weights_are_known() {
    let sample = samples::glm_dsa();
    let mut tensors = complete(&sample);
    for (name, len) in [
        ("blk.1.attn_k_b.scale", 1),
        ("blk.1.ffn_up_exps.scale", 12),
        ("blk.1.ffn_up_exps.input_scale", 12),
        ("output.input_scale", 1),
    ] {
        tensors.push((name.into(), vec![len]));
    }
    assert_eq!(findings(&sample, &tensors), []);
    tensors.push(("blk.0.ffn_up_exps.scale".into(), vec![12]));
    one(&sample, &tensors, Problem::UnknownTensor, "blk.0.ffn_up_exps.scale");
}

#[test]
fn announced_mtp_blocks_may_be_left_out_where_llama_cpp_says_so() {
    for mut sample in [samples::glm_dsa(), samples::deepseek4(), samples::qwen4exp()] {
        let tensors: Tensors =
            complete(&sample).into_iter().filter(|(n, _)| !n.starts_with("blk.4.")).collect();
        let got = findings(&sample, &tensors);
        match sample.arch {
            "glm-dsa" => assert_eq!(got, []),
            // What is announced is then part of the trunk.
            _ => assert!(got.iter().all(|f| f.name.starts_with("blk.4.")) && got.len() > 10, "{got:?}"),
        }
        sample.set("block_count", Value::Int(4)).remove("nextn_predict_layers");
        assert_eq!(findings(&sample, &tensors), [], "{}", sample.arch);
    }
    let mut sample = samples::deepseek4();
    let trunk: Tensors = complete(&sample).into_iter().filter(|(n, _)| !n.contains(".nextn.")).collect();
    assert_eq!(findings(&sample, &trunk), [], "five layers, none of which predicts further tokens");
    sample.set("block_count", Value::Int(6));
    assert!(!findings(&sample, &trunk).is_empty());
}

#[test]
fn what_is_unknown_is_not_asked_for() {
    let mut sample = samples::qwen4exp();
    let tensors = complete(&sample);
    sample.remove("ssm.state_size");
    let got = findings(&sample, &tensors);
    let named: Vec<_> = got.iter().map(|f| (f.problem, f.name.as_str())).collect();
    assert_eq!(named, [(Problem::MissingKey, "qwen4exp.ssm.state_size")]);
    // Without any key but the name, which blocks have what is unknown, and so is every size.
    sample.keys.retain(|name, _| name == "general.architecture");
    let tensors: Tensors = tensors.into_iter().filter(|(name, _)| !name.starts_with("per_layer")).collect();
    let none = findings(&sample, &tensors);
    assert!(none.iter().all(|f| f.problem == Problem::MissingKey), "{none:?}");
}

#[test]
fn hostile_counts_cost_nothing() {
    let mut sample = samples::qwen4exp();
    sample.set("block_count", Value::Int(u64::MAX)).set("expert_count", Value::Int(u64::MAX));
    let tensors: Tensors = Vec::new();
    let got = findings(&sample, &tensors);
    assert!(got.iter().any(|f| f.problem == Problem::Value && f.name == "qwen4exp.block_count"));
    let h = Hparams { blocks: Some(u64::MAX), embd: Some(u64::MAX), ..Hparams::read(&sample) };
    let model = Resolved::read(table(&sample), &h, &sample, |_| false);
    assert_eq!(model.value(Dim::TwoEmbd, 0), None);
    assert!(check(table(&sample), &h, &sample, std::iter::empty()).len() < 1 << 20);
}
