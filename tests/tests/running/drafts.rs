//! The text with drafts is the text without.

use super::models::{Made, Random, bits, goes_on};
use gantry_runtime::sample::{Sampler, SamplerOptions};
use gantry_runtime::speculate::Counts;
use gantry_runtime::{Model, ModelOptions, RuntimeError, Session, Speculation};

const DRAFTS: [usize; 4] = [1, 2, 3, 8];

fn greedy() -> SamplerOptions {
    SamplerOptions { temperature: 0.0, ..SamplerOptions::default() }
}

fn seeded(seed: u64) -> SamplerOptions {
    SamplerOptions { temperature: 0.9, repeat_penalty: 1.1, seed, ..SamplerOptions::default() }
}

/// Says what follows, and writes down what it was asked.
struct Writer {
    sampler: Sampler,
    /// Tokens after which the text ends.
    limit: usize,
    tokens: Vec<u32>,
    rows: Vec<Vec<u32>>,
}

impl Writer {
    fn new(options: &SamplerOptions, limit: usize) -> Self {
        let sampler = Sampler::new(options.clone()).expect("a sampler");
        Self { sampler, limit, tokens: Vec::new(), rows: Vec::new() }
    }

    fn next(&mut self, logits: &[f32]) -> Option<u32> {
        self.rows.push(bits(logits));
        if self.tokens.len() == self.limit {
            return None;
        }
        let token = self.sampler.sample(logits).expect("a token");
        self.sampler.accept(token);
        self.tokens.push(token);
        Some(token)
    }
}

fn plain(session: &mut Session, prompt: &[u32], writer: &mut Writer) {
    session.prefill(prompt).expect("logits");
    while let Some(token) = writer.next(session.logits()) {
        if session.left() == 0 {
            break;
        }
        session.decode(token).expect("logits");
    }
}

fn drafted(session: &mut Session, drafts: &mut Speculation, prompt: &[u32], writer: &mut Writer) {
    session.prefill(prompt).expect("logits");
    let mut token = writer.next(session.logits());
    while let Some(taken) = token.filter(|_| session.left() > 0) {
        let step = drafts.step(session, taken, &mut |row| Ok::<_, RuntimeError>(writer.next(row)));
        token = step.expect("a step");
    }
}

/// Options for drafts of `most`.
fn options(most: usize, context: usize, batch: usize) -> ModelOptions {
    let window = Speculation::window(most);
    ModelOptions { context: Some(context), batch, window, ..ModelOptions::default() }
}

/// Both texts of `limit` tokens, compared; what came of the drafts.
fn compare(model: &Model, most: usize, prompt: &[u32], sampling: &SamplerOptions, limit: usize) -> Counts {
    let what = format!("drafts of {most}, {limit} tokens, {sampling:?}");
    let mut want = Writer::new(sampling, limit);
    let mut before = model.session().expect("a session");
    plain(&mut before, prompt, &mut want);

    let mut got = Writer::new(sampling, limit);
    let mut session = model.session().expect("a session");
    let mut drafts = Speculation::new(&mut session, most).expect("drafts");
    drafted(&mut session, &mut drafts, prompt, &mut got);
    assert_eq!(got.tokens, want.tokens, "{what}: another text");
    assert!(got.rows == want.rows, "{what}: other bits");
    assert_eq!(session.position(), before.position(), "{what}: tokens taken");
    assert!(bits(session.logits()) == bits(before.logits()), "{what}: other logits are left");

    let counts = drafts.counts();
    assert_eq!(
        (counts.steps + counts.accepted) as usize,
        session.position() - prompt.len(),
        "{what}: {counts:?}"
    );
    assert!(
        counts.accepted <= counts.drafted && counts.drafted <= most as u64 * counts.steps,
        "{what}: {counts:?}"
    );
    if session.left() > 0 {
        // What was taken back left nothing behind.
        let all = [prompt, &want.tokens[..session.position() - prompt.len()]].concat();
        goes_on(&mut session, &all, &[want.tokens.last().copied().unwrap_or(5)], &what);
    }
    counts
}

/// The text of a model whose drafts are random.
fn hopeless(preset: &'static str) {
    let made = Made::new(preset, &[]);
    let prompt = Random::new(3).tokens(13);
    for most in DRAFTS {
        let model = made.load(&options(most, 200, 5));
        for sampling in [greedy(), seeded(11)] {
            let counts = compare(&model, most, &prompt, &sampling, 30);
            assert!(counts.drafted >= 29 * most as u64 / 2, "{preset}: {counts:?}");
        }
    }
}

#[test]
fn wrong_drafts_change_nothing_of_qwen4exp() {
    hopeless("qwen4exp-mtp-tiny");
}

#[test]
fn wrong_drafts_change_nothing_of_deepseek4() {
    hopeless("deepseek4-tiny");
}

/// The text of a model whose drafts are right much of the time, and of one where they are now and then.
fn hopeful(preset: &'static str) {
    let prompt = Random::new(4).tokens(11);
    for (share, least, highest) in [(0.01, 0.5, 1.0), (0.3, 0.02, 0.98)] {
        let made = Made::new(preset, &[]).foreseeable(share);
        for most in DRAFTS {
            let model = made.load(&options(most, 200, 128));
            for sampling in [greedy(), seeded(2)] {
                let counts = compare(&model, most, &prompt, &sampling, 60);
                let rate = counts.accepted as f64 / counts.drafted as f64;
                println!("{preset}, layers × {share}, drafts of {most}: {counts:?}, {:.0} %", 100.0 * rate);
                let greedy = sampling.temperature == 0.0;
                // A long draft is wrong behind its first wrong token.
                if greedy && (share < 0.1 || most == 1) {
                    assert!(
                        (least..=highest).contains(&rate),
                        "{preset}, {share}, drafts of {most}: {counts:?}"
                    );
                }
            }
        }
    }
}

#[test]
fn right_drafts_are_taken_by_qwen4exp() {
    hopeful("qwen4exp-mtp-tiny");
}

#[test]
fn right_drafts_are_taken_by_deepseek4() {
    hopeful("deepseek4-tiny");
}

/// Drafts that are right only where the block goes on from the streams of the very last token: after prompts in any
/// batches, after windows that stay in part, after going back.
#[test]
fn the_block_goes_on_from_the_last_token() {
    for preset in ["qwen4exp-mtp-tiny", "deepseek4-tiny"] {
        let made = Made::new(preset, &[]).counting();
        for (most, batch) in [(1, 1), (2, 3), (3, 128), (8, 128), (8, 5)] {
            let what = format!("{preset}, drafts of {most}, batches of {batch}");
            let model = made.load(&options(most, 200, batch));
            let mut session = model.session().expect("a session");
            let mut drafts = Speculation::new(&mut session, most).expect("drafts");
            session.prefill(&[40, 9, 17, 3, 3, 60, 21, 30, 11, 12, 5]).expect("logits");
            for round in 0..6u32 {
                let mut token = gantry_tests::best(session.logits()) as u32;
                for _ in 0..2 {
                    let step = drafts.step(&mut session, token, &mut |row| {
                        Ok::<_, RuntimeError>(Some(gantry_tests::best(row) as u32))
                    });
                    let next = step.expect("a step").expect("a token");
                    assert_eq!(next, (token + most as u32 + 1) % 64, "{what}: a window of {most} drafts");
                    token = next;
                }
                let counts = drafts.counts();
                assert_eq!(counts.accepted, counts.drafted, "{what}, round {round}: {counts:?}");
                // Someone else goes on: some tokens, more than a batch of them now and then.
                session.prefill(&Random::new(round.into()).tokens(1 + 3 * round as usize)).expect("logits");
                session.prefill(&[(7 * round + 2) % 64]).expect("logits");
            }
        }
        // A choice that ends a window early leaves the block at the token that stays.
        let model = made.load(&options(8, 200, 128));
        let mut session = model.session().expect("a session");
        let mut drafts = Speculation::new(&mut session, 8).expect("drafts");
        session.prefill(&[9]).expect("logits");
        for cut in [3, 1, 8, 2] {
            let before = drafts.counts();
            let mut seen = 0;
            let token = gantry_tests::best(session.logits()) as u32;
            let step = drafts.step(&mut session, token, &mut |row| {
                seen += 1;
                // Another token than was drafted.
                let next = gantry_tests::best(row) as u32 + if seen == cut { 20 } else { 0 };
                Ok::<_, RuntimeError>(Some(next % 64))
            });
            step.expect("a step");
            assert_eq!(
                drafts.counts().accepted - before.accepted,
                cut - 1,
                "{preset}, {cut}: {:?}",
                drafts.counts()
            );
        }
    }
}

#[test]
fn a_text_ends_anywhere_in_a_window() {
    let prompt = Random::new(5).tokens(9);
    for preset in ["qwen4exp-mtp-tiny", "deepseek4-tiny"] {
        let made = Made::new(preset, &[]).foreseeable(0.01);
        let model = made.load(&options(8, 200, 128));
        for limit in 0..24 {
            compare(&model, 8, &prompt, &greedy(), limit);
        }
    }
}

#[test]
fn a_full_context_ends_a_text() {
    let prompt = Random::new(6).tokens(7);
    for preset in ["qwen4exp-mtp-tiny", "deepseek4-tiny"] {
        for share in [0.01, 1.0] {
            let made = Made::new(preset, &[]).foreseeable(share);
            for context in 7..22 {
                let model = made.load(&options(8, context, 128));
                compare(&model, 8, &prompt, &greedy(), 100);
            }
        }
    }
}

#[test]
fn windows_are_longer_than_batches() {
    let prompt = Random::new(7).tokens(40);
    for preset in ["qwen4exp-mtp-tiny", "deepseek4-tiny"] {
        let made = Made::new(preset, &[]).foreseeable(0.01);
        let whole = compare(&made.load(&options(8, 200, 128)), 8, &prompt, &greedy(), 50);
        for batch in [1, 3] {
            let counts = compare(&made.load(&options(8, 200, batch)), 8, &prompt, &greedy(), 50);
            assert_eq!(counts, whole, "{preset}, batches of {batch}: other drafts");
        }
    }
}

/// A choice that fails leaves the session where the text was: nothing that was only proposed stays.
#[test]
fn a_failed_choice_leaves_no_draft() {
    let prompt = Random::new(8).tokens(9);
    for preset in ["qwen4exp-mtp-tiny", "deepseek4-tiny"] {
        let made = Made::new(preset, &[]).foreseeable(0.01);
        let model = made.load(&options(8, 200, 128));
        let mut session = model.session().expect("a session");
        let mut drafts = Speculation::new(&mut session, 8).expect("drafts");
        let mut writer = Writer::new(&greedy(), 100);
        session.prefill(&prompt).expect("logits");
        let mut token = writer.next(session.logits());
        let mut left = 12;
        while let Some(taken) = token {
            let step = drafts.step(&mut session, taken, &mut |row| {
                left -= 1;
                if left == 0 { Err(RuntimeError::Setting("enough".into())) } else { Ok(writer.next(row)) }
            });
            token = step.unwrap_or(None);
        }
        assert_eq!(left, 0, "{preset}");
        let taken = session.position() - prompt.len();
        assert_eq!(taken, writer.tokens.len(), "{preset}: all that were chosen, and no other");
        let all = [&prompt, &writer.tokens[..taken]].concat();
        goes_on(&mut session, &all, &[17, 18], preset);
    }
}

#[test]
fn what_cannot_draft_is_refused() {
    let made = Made::new("qwen4exp-mtp-tiny", &[]);
    let model = made.load(&options(3, 100, 16));
    let mut session = model.session().expect("a session");
    for (most, why) in [(0, "give 1 to 64"), (65, "give 1 to 64"), (4, "a window of 5, not 4")] {
        let error = Speculation::new(&mut session, most).expect_err("refused").to_string();
        assert!(error.contains(why), "{error}");
    }
    session.prefill(&[5]).expect("logits");
    let error = Speculation::new(&mut session, 3).expect_err("refused").to_string();
    assert!(error.contains("has begun"), "{error}");
    let other = Made::new("qwen4exp-tiny", &[]).load(&options(3, 100, 16));
    let error =
        Speculation::new(&mut other.session().expect("a session"), 3).expect_err("refused").to_string();
    assert!(error.contains("no block that drafts"), "{error}");
}
