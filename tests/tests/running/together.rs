//! Sessions that go on in one step get what they get alone.

use super::models::{Made, Random, alone, bits, goes_on};
use gantry_runtime::{MAX_TOGETHER, Model, ModelOptions, RuntimeError, Session, Speculation};

const PRESETS: [&str; 5] =
    ["llama-tiny", "qwen4exp-tiny", "deepseek4-tiny", "glm-dsa-tiny", "qwen3next-tiny"];

fn sessions(model: &Model, count: usize) -> Vec<Session> {
    (0..count).map(|_| model.session().expect("a session")).collect()
}

/// Each session takes its own tokens in one step; all are compared with sessions alone.
fn step(model: &Model, sessions: &mut [Session], all: &mut [Vec<u32>], tokens: &[Vec<u32>], what: &str) {
    let mut parts: Vec<(&mut Session, &[u32])> =
        sessions.iter_mut().zip(tokens).map(|(s, t)| (s, t.as_slice())).collect();
    model.together().unwrap().step(&mut parts).expect("a step");
    for (i, session) in sessions.iter().enumerate() {
        all[i].extend(&tokens[i]);
        assert_eq!(session.position(), all[i].len(), "{what}: session {i}");
        if !all[i].is_empty() {
            assert!(
                bits(session.logits()) == alone(model, &all[i]),
                "{what}: session {i} of {}",
                sessions.len()
            );
        }
    }
}

#[test]
fn some_prefill_while_others_decode() {
    for preset in PRESETS {
        let made = Made::new(preset, &[]);
        for (count, batch, window) in [(5, 16, 0), (5, 3, 4), (MAX_TOGETHER, 64, 0), (MAX_TOGETHER, 2, 0)] {
            let options = ModelOptions { context: Some(80), batch, window, ..ModelOptions::default() };
            let model = made.load(&options);
            let mut random = Random::new(count as u64 + batch as u64);
            let (mut sessions, mut all) = (sessions(&model, count), vec![Vec::new(); count]);
            for round in 0..3 {
                let mut tokens = Vec::new();
                for i in 0..count {
                    // One long prompt now and then, some that wait, the rest decode.
                    let n = match (i + round) % 5 {
                        0 if i % 3 == 0 => 1 + random.below(20),
                        1 if i % 2 == 0 => 0,
                        _ => 1,
                    };
                    tokens.push(random.tokens(n));
                }
                let what = format!("{preset}, batch {batch}, window {window}, round {round}");
                step(&model, &mut sessions, &mut all, &tokens, &what);
            }
        }
    }
}

/// One session is left with much to do when the others are done: its share is not more than a batch.
#[test]
fn a_long_prompt_among_many_goes_in_batches() {
    for preset in PRESETS {
        let made = Made::new(preset, &[]);
        for batch in [1, 4] {
            let options = ModelOptions { context: Some(80), batch, ..ModelOptions::default() };
            let model = made.load(&options);
            let mut random = Random::new(9);
            let count = MAX_TOGETHER;
            let (mut sessions, mut all) = (sessions(&model, count), vec![Vec::new(); count]);
            let tokens: Vec<_> =
                (0..count).map(|i| random.tokens(if i == 30 { 70 } else { i % 2 })).collect();
            step(&model, &mut sessions, &mut all, &tokens, &format!("{preset}, batch {batch}"));
        }
    }
}

#[test]
fn what_cannot_go_together_is_refused_before_anything_is_computed() {
    let made = Made::new("llama-tiny", &[]);
    let options = ModelOptions { context: Some(8), ..ModelOptions::default() };
    let (model, twin) = (made.load(&options), made.load(&options));
    let refused = |sessions: &mut [Session], tokens: &[&[u32]]| {
        let mut parts: Vec<(&mut Session, &[u32])> =
            sessions.iter_mut().zip(tokens).map(|(s, t)| (s, *t)).collect();
        let error = model.together().unwrap().step(&mut parts).expect_err("refused");
        assert!(sessions.iter().all(|s| s.position() == 0), "something was computed: {error}");
        error
    };
    let many = refused(&mut sessions(&model, 33), &[&[5][..]; 33]);
    assert!(matches!(&many, RuntimeError::Setting(s) if s.contains("33") && s.contains("32")), "{many}");
    // Loaded twice is another model: its weights lie elsewhere.
    let mut mixed = sessions(&model, 2);
    mixed.extend(sessions(&twin, 1));
    let foreign = refused(&mut mixed, &[&[5][..]; 3]);
    assert!(matches!(&foreign, RuntimeError::Setting(s) if s.contains("another model")), "{foreign}");
    let long = refused(&mut sessions(&model, 2), &[&[5], &[5; 9]]);
    assert!(matches!(long, RuntimeError::ContextFull { used: 0, wanted: 9, context: 8 }), "{long}");
    let unknown = refused(&mut sessions(&model, 2), &[&[5], &[512]]);
    assert!(matches!(unknown, RuntimeError::Token { token: 512, vocab: 512 }), "{unknown}");
    model.together().unwrap().step(&mut []).expect("nothing to do");
}

/// A session with drafts may take a step with others in between.
#[test]
fn a_session_that_drafts_goes_with_others() {
    for preset in ["qwen4exp-mtp-tiny", "deepseek4-tiny"] {
        let made = Made::new(preset, &[]).foreseeable(0.01);
        let window = Speculation::window(3);
        let model = made.load(&ModelOptions { context: Some(120), window, ..ModelOptions::default() });
        let mut random = Random::new(14);
        let mut sessions = sessions(&model, 2);
        let mut drafts = Speculation::new(&mut sessions[0], 3).expect("drafts");
        let mut all = vec![Vec::new(); 2];
        for (round, n) in [9, 1, 2, 1, 30, 1].into_iter().enumerate() {
            let tokens = [random.tokens(n), random.tokens(4)];
            let what = format!("{preset}, round {round}");
            step(&model, &mut sessions, &mut all, &tokens, &what);
            let token = random.tokens(1)[0];
            let mut taken = vec![token];
            let next = drafts.step(&mut sessions[0], token, &mut |row| {
                taken.push(gantry_tests::best(row) as u32);
                Ok::<_, RuntimeError>(taken.last().copied())
            });
            assert_eq!(next.expect("a step"), taken.pop(), "{what}");
            all[0].extend(&taken);
            assert_eq!(sessions[0].position(), all[0].len(), "{what}");
        }
        let counts = drafts.counts();
        assert!(2 * counts.accepted > counts.drafted, "{preset}: the block kept up: {counts:?}");
        goes_on(&mut sessions[0], &all[0], &[7], preset);
    }
}
