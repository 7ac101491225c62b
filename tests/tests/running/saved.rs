//! A session that is saved goes on as if it had not been.

use super::models::{Made, Random, bits};
use gantry_runtime::sample::{Sampler, SamplerOptions};
use gantry_runtime::{KvType, ModelOptions, RuntimeError, Session, Speculation};

const PRESETS: [&str; 6] =
    ["llama-tiny", "qwen3next-tiny", "qwen4exp-mtp-tiny", "qwen4exp-tiny", "deepseek4-tiny", "glm-dsa-tiny"];

fn options(window: usize, kv: KvType, context: usize) -> ModelOptions {
    ModelOptions { context: Some(context), batch: 8, window, kv, ..ModelOptions::default() }
}

#[test]
fn a_restored_session_goes_on_bit_for_bit() {
    for preset in PRESETS {
        let made = Made::new(preset, &[]);
        for window in [0, 4] {
            for kv in [KvType::F32, KvType::F16, KvType::Int8] {
                // Compressed entries have no int8 form.
                if kv == KvType::Int8 && preset == "deepseek4-tiny" {
                    continue;
                }
                let model = made.load(&options(window, kv, 160));
                let mut random = Random::new(window as u64);
                // What a session that is restored into held before must not matter.
                let mut other = model.session().expect("a session");
                other.prefill(&random.tokens(50)).expect("logits");
                for position in [0, 1, 2, 3, 4, 7, 8, 17, 33, 90, 130] {
                    let what = format!("{preset}, window {window}, {kv:?}, position {position}");
                    let mut session = model.session().expect("a session");
                    session.prefill(&random.tokens(position)).expect("logits");
                    if position == 17 {
                        // Where it can be taken back, part of what is kept is beyond its end.
                        session.rewind(16);
                    }
                    let saved = session.save().unwrap();
                    other.restore(&saved).unwrap_or_else(|e| panic!("{what}: {e}"));
                    assert_eq!(other.position(), session.position(), "{what}");
                    assert!(other.logits().is_empty(), "{what}: logits of another text");
                    assert!(other.save().unwrap() == saved, "{what}: saved again");
                    for n in [1, 3, 9, 1, 1, 2] {
                        let tokens = random.tokens(n);
                        let want = bits(session.prefill(&tokens).expect("logits"));
                        let got = bits(other.prefill(&tokens).expect("logits"));
                        assert!(got == want, "{what}: {n} tokens to position {}", other.position());
                    }
                    // And back, as far as the one that was not saved can go.
                    let to = session.position() - 2;
                    let at = session.rewind(to);
                    assert!([at, 0].contains(&other.rewind(to)), "{what}");
                    if window > 0 {
                        assert_eq!(at, to, "{what}: the last run was of 2 tokens");
                    }
                }
            }
        }
    }
}

/// Saved with drafts, a session goes on with drafts, which are as good as they would have been.
#[test]
fn drafts_go_on_after_a_restore() {
    for preset in ["qwen4exp-mtp-tiny", "deepseek4-tiny"] {
        let made = Made::new(preset, &[]).foreseeable(0.01);
        let model = made.load(&options(Speculation::window(3), KvType::F32, 160));
        let prompt = Random::new(2).tokens(30);
        let write = |session: &mut Session, drafts: &mut Speculation, mut token: u32, steps: usize| {
            let greedy = SamplerOptions { temperature: 0.0, ..SamplerOptions::default() };
            let mut sampler = Sampler::new(greedy).expect("a sampler");
            let mut tokens = vec![token];
            for _ in 0..steps {
                let next = drafts.step(session, token, &mut |row| {
                    tokens.push(sampler.sample(row).expect("a token"));
                    Ok::<_, RuntimeError>(tokens.last().copied())
                });
                token = next.expect("a step").expect("a token");
            }
            (tokens, token)
        };
        let mut session = model.session().expect("a session");
        let mut drafts = Speculation::new(&mut session, 3).expect("drafts");
        session.prefill(&prompt).expect("logits");
        let (_, token) = write(&mut session, &mut drafts, 9, 5);
        let saved = session.save().unwrap();
        let before = drafts.counts();
        let want = write(&mut session, &mut drafts, token, 10);
        let accepted = drafts.counts().accepted - before.accepted;

        let mut other = model.session().expect("a session");
        let mut again = Speculation::new(&mut other, 3).expect("drafts");
        other.restore(&saved).unwrap_or_else(|e| panic!("{preset}: {e}"));
        assert_eq!(write(&mut other, &mut again, token, 10), want, "{preset}");
        assert_eq!(again.counts().accepted, accepted, "{preset}: other drafts");
        assert_eq!(bits(other.logits()), bits(session.logits()), "{preset}");

        // Where nothing kept the block up, drafts are bad at first and the text is the same.
        let mut without = model.session().expect("a session");
        without.prefill(&prompt).expect("logits");
        let saved = without.save().unwrap();
        let want = bits(without.decode(9).expect("logits"));
        let mut late = model.session().expect("a session");
        let mut drafts = Speculation::new(&mut late, 3).expect("drafts");
        late.restore(&saved).unwrap_or_else(|e| panic!("{preset}: {e}"));
        let mut first = Vec::new();
        let step = drafts.step(&mut late, 9, &mut |row| {
            first.push(bits(row));
            Ok::<_, RuntimeError>(None)
        });
        assert_eq!(step.expect("a step"), None);
        assert!(first == [want], "{preset}");
    }
}

#[test]
fn a_larger_context_restores_and_a_too_small_one_does_not() {
    for preset in PRESETS {
        let made = Made::new(preset, &[]);
        let tokens = Random::new(1).tokens(60);
        let mut session = made.load(&options(0, KvType::F32, 64)).session().expect("a session");
        session.prefill(&tokens).expect("logits");
        let saved = session.save().unwrap();
        let want = bits(session.decode(9).expect("logits"));
        for context in [61, 64, 65, 300] {
            let model = made.load(&options(0, KvType::F32, context));
            let mut other = model.session().expect("a session");
            other.restore(&saved).unwrap_or_else(|e| panic!("{preset}, context {context}: {e}"));
            assert!(bits(other.decode(9).expect("logits")) == want, "{preset}, context {context}");
        }
        let exact = made.load(&options(0, KvType::F32, 60));
        let mut full = exact.session().expect("a session");
        full.restore(&saved).unwrap_or_else(|e| panic!("{preset}: {e}"));
        assert!(matches!(full.decode(9), Err(RuntimeError::ContextFull { .. })), "{preset}");
        let small = made.load(&options(0, KvType::F32, 59));
        let mut small = small.session().expect("a session");
        let error = small.restore(&saved).expect_err("refused").to_string();
        assert!(error.contains("longer than the context"), "{preset}: {error}");
        assert_eq!(small.position(), 0);
    }
}

#[test]
fn another_type_of_keys_is_refused() {
    for preset in PRESETS {
        let made = Made::new(preset, &[]);
        let saved = |kv| {
            let mut session = made.load(&options(0, kv, 64)).session().expect("a session");
            session.prefill(&[5, 6, 7]).expect("logits");
            session.save().unwrap()
        };
        let (full, half) = (saved(KvType::F32), saved(KvType::F16));
        let mut session = made.load(&options(0, KvType::F16, 64)).session().expect("a session");
        assert!(session.restore(&full).is_err(), "{preset}");
        assert_eq!(session.position(), 0);
        session.restore(&half).unwrap_or_else(|e| panic!("{preset}: {e}"));
    }
}

/// int8 is another type than the others, and refused where a model keeps what has no such form.
#[test]
fn int8_keys_are_a_type_of_their_own() {
    for preset in PRESETS {
        let made = Made::new(preset, &[]);
        if preset == "deepseek4-tiny" {
            let Err(error) = made.try_load(&options(0, KvType::Int8, 64)) else { panic!("not refused") };
            let error = error.to_string();
            assert!(error.contains("--kv int8") && error.contains("compressed entries"), "{error}");
            continue;
        }
        let run = |kv| {
            let mut session = made.load(&options(0, kv, 64)).session().expect("a session");
            let logits = session.prefill(&[5, 6, 7, 5, 9, 2]).expect("logits").to_vec();
            (logits, session.save().unwrap())
        };
        let ((exact, _), (half, _), (coarse, saved)) =
            (run(KvType::F32), run(KvType::F16), run(KvType::Int8));
        let far = |of: &[f32]| of.iter().zip(&exact).map(|(a, b)| f64::from(a - b).powi(2)).sum::<f64>();
        let all: f64 = exact.iter().map(|x| f64::from(*x).powi(2)).sum();
        // What is kept is rounded more than as f16, and no more than to 8 bits.
        assert!(far(&coarse) > far(&half) && far(&coarse) < 1e-2 * all, "{preset}: {:e}", far(&coarse) / all);
        let mut session = made.load(&options(0, KvType::F16, 64)).session().expect("a session");
        assert!(session.restore(&saved).is_err(), "{preset}");
    }
}

/// What layers select from is kept only where a context is longer than what they select: the way there is refused.
#[test]
fn a_context_that_selects_otherwise_is_refused() {
    for (preset, short) in [("glm-dsa-tiny", 8), ("qwen4exp-tiny", 8), ("deepseek4-tiny", 8)] {
        let made = Made::new(preset, &[]);
        let mut session = made.load(&options(0, KvType::F32, short)).session().expect("a session");
        session.prefill(&[5, 6, 7]).expect("logits");
        let mut longer = made.load(&options(0, KvType::F32, 64)).session().expect("a session");
        let error = longer.restore(&session.save().unwrap()).expect_err("refused").to_string();
        assert!(error.contains("another context"), "{preset}: {error}");
        assert_eq!(longer.position(), 0);
    }
}
