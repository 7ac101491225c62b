//! The forward pass against a slow f64 model of the same weights, and its promise of the same bits.
#![allow(missing_docs)]

mod oracle;
mod packing;

use gantry_formats::block::GgmlType;
use gantry_runtime::{Container, Device, KvType, Model, ModelOptions, Session};
use oracle::{Config, Scaling, nmse, tokens};
use packing::How;

fn load(model: &oracle::Model, how: &How, options: &ModelOptions, threads: usize) -> Model {
    let dir = tempfile::tempdir().unwrap();
    let path = packing::pack(dir.path(), &model.header, &model.tensors, how);
    let container = Container::open(&path).unwrap();
    Model::load(&container, &Device::cpu(Some(threads)).unwrap(), options).unwrap()
}

fn all_logits(session: &mut Session, tokens: &[u32]) -> Vec<f32> {
    let mut out = Vec::new();
    session.prefill_all(tokens, &mut |rows| out.extend_from_slice(rows)).unwrap();
    out
}

fn error_of(config: Config, how: &How, options: &ModelOptions) -> f64 {
    let model = oracle::Model::random(config, 7);
    let ids = tokens(40, model.config.vocab);
    let loaded = load(&model, how, options, 2);
    let got = all_logits(&mut loaded.session().unwrap(), &ids);
    nmse(&got, &model.logits(&ids))
}

fn assert_exact(name: &str, config: Config) {
    for fuse in [true, false] {
        let how = How { fuse, ..How::default() };
        let error = error_of(config.clone(), &how, &ModelOptions::default());
        assert!(error < 1e-11, "{name}, fused {fuse}: {error:e}");
    }
}

#[test]
fn plain_f32() {
    assert_exact("tied", Config::default());
    assert_exact("untied", Config { tied: false, ..Config::default() });
}

#[test]
fn head_shapes() {
    assert_exact("one head each", Config { heads: 4, kv: 4, ..Config::default() });
    assert_exact("one key head", Config { heads: 5, kv: 1, ..Config::default() });
    assert_exact("wide heads", Config { heads: 3, kv: 3, head: 40, ..Config::default() });
}

#[test]
fn biases() {
    assert_exact("biases", Config { biases: true, ..Config::default() });
}

#[test]
fn rotation_scaling() {
    assert_exact("linear", Config { scaling: Scaling::Linear(4.0), ..Config::default() });
    let yarn = Scaling::Yarn { factor: 8.0, original: 64, attn: 1.0 };
    assert_exact("yarn", Config { scaling: yarn, head: 32, ..Config::default() });
    let yarn = Scaling::Yarn { factor: 4.0, original: 32, attn: 0.75 };
    assert_exact("yarn with an attention factor", Config { scaling: yarn, head: 32, ..Config::default() });
    assert_exact("rope_freqs", Config { rope_freqs: true, ..Config::default() });
    assert_exact("another base", Config { base: 500_000.0, ..Config::default() });
}

/// 7 experts, of which a token uses 3.
fn experts() -> Config {
    Config { experts: 7, used: 3, ff: 64, layers: 2, ..Config::default() }
}

#[test]
fn routed_experts() {
    assert_exact("experts", experts());
    assert_exact("gates and ups in one tensor", Config { gate_up: true, ..experts() });
    assert_exact("bf16", Config { ty: GgmlType::BF16, ..experts() });
    for how in [
        How { banks: false, ..How::default() },
        How { cards: 3, ..How::default() },
        How { cards: 3, split_cards: true, fuse: false, ..How::default() },
    ] {
        let error = error_of(experts(), &how, &ModelOptions::default());
        assert!(error < 1e-11, "banks {}, {} cards: {error:e}", how.banks, how.cards);
    }
    for banks in [true, false] {
        let config = Config { ty: GgmlType::Q8_0, vocab: 64, ..experts() };
        let error = error_of(config, &How { banks, ..How::default() }, &ModelOptions::default());
        assert!(error < 1e-5, "q8_0, banks {banks}: {error:e}");
    }
}

#[test]
fn float_layouts_lose_nothing() {
    for ty in [GgmlType::F16, GgmlType::BF16] {
        assert_exact(ty.name(), Config { ty, ..Config::default() });
    }
}

#[test]
fn q8_0_split_rounds_activations_as_said() {
    let config = Config { ty: GgmlType::Q8_0, vocab: 64, ..Config::default() };
    for fuse in [true, false] {
        let how = How { fuse, ..How::default() };
        // A rounding that falls the other way moves a value by 1/127 of its block: rare, and the reason for 1e-5.
        let error = error_of(config.clone(), &how, &ModelOptions::default());
        assert!(error < 1e-5, "fused {fuse}: {error:e}");
    }
}

#[test]
fn a_half_cache_costs_little() {
    let options = ModelOptions { kv: KvType::F16, ..ModelOptions::default() };
    let error = error_of(Config::default(), &How::default(), &options);
    assert!((1e-12..1e-6).contains(&error), "{error:e}");
}

#[test]
fn several_cards_and_their_own_files_change_nothing() {
    let how = How { cards: 3, ..How::default() };
    assert!(error_of(Config::default(), &how, &ModelOptions::default()) < 1e-11);
    let how = How { cards: 3, split_cards: true, ..How::default() };
    assert!(error_of(Config::default(), &how, &ModelOptions::default()) < 1e-11);
}

#[test]
fn the_bits_are_the_same_for_any_batch_and_any_threads() {
    let dense = [GgmlType::F32, GgmlType::Q8_0, GgmlType::BF16].map(|ty| (ty, Config::default()));
    let sparse = [GgmlType::F32, GgmlType::Q8_0].map(|ty| (ty, experts()));
    for (ty, config) in dense.into_iter().chain(sparse) {
        let model = oracle::Model::random(Config { ty, vocab: 64, tied: false, ..config }, 3);
        let ids = tokens(61, model.config.vocab);
        let mut first: Option<Vec<u32>> = None;
        for threads in [1, 2, 3, 5] {
            for batch in [1, 3, 16, 61] {
                let options = ModelOptions { batch, context: Some(61), ..ModelOptions::default() };
                let loaded = load(&model, &How::default(), &options, threads);
                let mut session = loaded.session().unwrap();
                let bits: Vec<u32> = all_logits(&mut session, &ids).iter().map(|v| v.to_bits()).collect();
                let first = first.get_or_insert_with(|| bits.clone());
                assert!(*first == bits, "{ty}, {threads} threads, batches of {batch}");
            }
        }
        let loaded = load(&model, &How::default(), &ModelOptions::default(), 2);
        let mut session = loaded.session().unwrap();
        let last = session.prefill(&ids[..50]).unwrap().to_vec();
        let width = model.config.vocab;
        let row = |i: usize| &first.as_ref().unwrap()[i * width..(i + 1) * width];
        assert!(last.iter().map(|v| v.to_bits()).eq(row(49).iter().copied()), "{ty}: prefill");
        for (i, &id) in ids.iter().enumerate().skip(50) {
            let logits = session.decode(id).unwrap();
            assert!(logits.iter().map(|v| v.to_bits()).eq(row(i).iter().copied()), "{ty}: decode {i}");
        }
        session.rewind(20);
        session.prefill(&ids[20..33]).unwrap();
        let logits = session.logits();
        assert!(logits.iter().map(|v| v.to_bits()).eq(row(32).iter().copied()), "{ty}: after a rewind");
    }
}

#[test]
fn a_full_context_and_an_unknown_token_are_errors_that_change_nothing() {
    let model = oracle::Model::random(Config::default(), 1);
    let options = ModelOptions { context: Some(8), ..ModelOptions::default() };
    let loaded = load(&model, &How::default(), &options, 1);
    let mut session = loaded.session().unwrap();
    assert!(session.logits().is_empty());
    assert!(session.prefill(&[1, 2, 50]).unwrap_err().to_string().contains("token 50"));
    let error = session.prefill(&[1; 9]).unwrap_err().to_string();
    assert!(error.contains("0 of 8") && error.contains("9 more"), "{error}");
    assert_eq!(session.position(), 0);
    session.prefill(&[1; 8]).unwrap();
    assert!(session.decode(1).unwrap_err().to_string().contains("context is full"));
    assert_eq!(session.left(), 0);
}

#[test]
fn sessions_of_one_model_do_not_disturb_each_other() {
    let model = oracle::Model::random(Config::default(), 5);
    let loaded = load(&model, &How::default(), &ModelOptions::default(), 2);
    let ids = tokens(12, model.config.vocab);
    let alone = all_logits(&mut loaded.session().unwrap(), &ids);
    let (mut a, mut b) = (loaded.session().unwrap(), loaded.session().unwrap());
    let mut both = Vec::new();
    for &id in &ids {
        both.extend_from_slice(a.decode(id).unwrap());
        b.decode(3).unwrap();
    }
    assert_eq!(alone, both);
}
