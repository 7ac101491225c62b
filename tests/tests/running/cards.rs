//! Models on several cards say what they say on one, bit for bit.

use super::models::{Made, Random, bits, goes_on};
use gantry_formats::placement::{CardSpec, Strategy};
use gantry_runtime::exchange::Delays;
use gantry_runtime::model::program::ExpertCheck;
use gantry_runtime::{Model, ModelOptions, RuntimeError, Session, Speculation};
use gantry_tests::{run, run_ok};
use std::sync::Arc;
use std::time::Duration;

/// Every architecture with experts.
const PRESETS: [&str; 7] = [
    "llama-moe-tiny",
    "olmoe-tiny",
    "qwen3moe-tiny",
    "qwen3next-tiny",
    "qwen4exp-mtp-tiny",
    "deepseek4-tiny",
    "glm-dsa-tiny",
];

const STRATEGIES: [Strategy; 4] =
    [Strategy::Paired, Strategy::Balanced, Strategy::Replicate(3), Strategy::Layers];

fn options(cards: usize, placement: Strategy) -> ModelOptions {
    ModelOptions {
        cards: Some(vec![CardSpec { host: false, bytes: None }; cards]),
        placement: Some(placement),
        context: Some(48),
        batch: 8,
        window: 4,
        ..ModelOptions::default()
    }
}

/// Logits of everything that a model does: a prompt in batches, tokens one by one, sessions that go together, one that
/// is restored, and drafts where it makes some.
fn all_that(model: &Model) -> Vec<Vec<u32>> {
    let mut random = Random::new(3);
    let (prompt, more) = (random.tokens(21), random.tokens(5));
    let mut out = Vec::new();
    let mut session = model.session().expect("a session");
    session.prefill_all(&prompt, &mut |rows| out.push(bits(rows))).expect("logits");
    for &token in &more {
        out.push(bits(session.decode(token).expect("logits")));
    }
    let saved = session.save().unwrap();
    let mut sessions: Vec<Session> = (0..4).map(|_| model.session().expect("a session")).collect();
    sessions[3].restore(&saved).expect("a session of the same model");
    let tokens = [random.tokens(9), random.tokens(1), random.tokens(4), random.tokens(2)];
    for _ in 0..2 {
        let mut parts: Vec<_> = sessions.iter_mut().zip(tokens.iter().map(Vec::as_slice)).collect();
        model.together().unwrap().step(&mut parts).expect("a step");
        out.extend(sessions.iter().map(|s| bits(s.logits())));
    }
    if model.drafts() {
        let mut session = model.session().expect("a session");
        let mut drafts = Speculation::new(&mut session, 3).expect("drafts");
        session.prefill(&prompt).expect("logits");
        let mut token = Some(prompt[0]);
        for _ in 0..4 {
            let taken = token.unwrap_or(1);
            let mut left = 4;
            token = drafts
                .step(&mut session, taken, &mut |row| {
                    out.push(bits(row));
                    left -= 1;
                    Ok::<_, RuntimeError>((left > 0).then(|| gantry_tests::best(row) as u32))
                })
                .expect("a step");
        }
    }
    out
}

#[test]
fn any_strategy_on_any_cards_gives_the_bits_of_one_card() {
    for preset in PRESETS {
        let made = Made::new(preset, &[]);
        let one = all_that(&made.load(&options(1, Strategy::Paired)));
        for strategy in STRATEGIES {
            for cards in 2..=4 {
                let model = made.load(&options(cards, strategy));
                assert!(all_that(&model) == one, "{preset}, {strategy}, {cards} cards");
            }
            println!("{preset:<18} {strategy:<12} 2, 3 and 4 cards: the bits of one");
        }
        let checks = [ExpertCheck::Verify, ExpertCheck::Own];
        for check in checks {
            let model = made.load(&ModelOptions { check, ..options(3, Strategy::Paired) });
            assert!(all_that(&model) == one, "{preset}, {check:?}");
        }
    }
}

#[test]
fn containers_packed_for_cards_give_the_bits_of_one_card() {
    let whole = ModelOptions { cards: None, placement: None, ..options(1, Strategy::Paired) };
    for preset in ["qwen4exp-mtp-tiny", "deepseek4-tiny"] {
        let made = Made::new(preset, &[]);
        for recipe in ["lossless", "balanced"] {
            made.pack_as(&["--recipe", recipe]);
            let one = all_that(&made.load(&whole));
            for strategy in STRATEGIES {
                let name = strategy.to_string();
                made.pack_as(&["--recipe", recipe, "--cards", "3", "--placement", &name]);
                assert!(all_that(&made.load(&whole)) == one, "{preset}, {recipe}, {strategy}");
                let fewer = options(2, Strategy::Paired);
                assert!(all_that(&made.load(&fewer)) == one, "{preset}, {recipe}, {strategy} on 2 cards");
            }
        }
    }
}

/// A thousand steps, with delays at every step of what cards exchange.
#[test]
fn a_thousand_delayed_steps_change_nothing() {
    for (preset, cards, strategy) in [
        ("llama-moe-tiny", 2, Strategy::Paired),
        ("qwen4exp-mtp-tiny", 3, Strategy::Replicate(2)),
        ("deepseek4-tiny", 4, Strategy::Balanced),
        ("qwen3moe-tiny", 4, Strategy::Layers),
    ] {
        let made = Made::new(preset, &[]);
        let delays = Arc::new(Delays::new(7, Duration::from_micros(300)));
        let delayed = ModelOptions { delays: Some(Arc::clone(&delays)), ..options(cards, strategy) };
        let models = [made.load(&options(1, Strategy::Paired)), made.load(&delayed)];
        let mut sessions = models.each_ref().map(|m| m.session().expect("a session"));
        let mut random = Random::new(cards as u64);
        for step in 0..1000 {
            let tokens = random.tokens(1);
            if sessions[0].left() == 0 {
                sessions.iter_mut().for_each(|s| {
                    s.rewind(0);
                });
            }
            let [one, many] = sessions.each_mut().map(|s| bits(s.decode(tokens[0]).expect("logits")));
            assert!(one == many, "{preset} on {cards} cards, {strategy}: step {step}");
        }
        println!("{preset:<18} {strategy:<12} {cards} cards: 1000 steps, {} delays", delays.taken());
        assert!(delays.taken() > 1000);
    }
}

/// A table that is read by row changes while the model runs: card 0 finds that in the middle of a step, when others wait
/// for it already.
#[test]
fn an_error_on_one_card_stops_all_and_leaves_them_usable() {
    let made = Made::new("qwen4exp-mtp-tiny", &[]);
    for strategy in [Strategy::Paired, Strategy::Layers] {
        let model = made.load(&options(3, strategy));
        let mut session = model.session().expect("a session");
        let tokens = Random::new(5).tokens(6);
        session.prefill(&tokens).expect("logits");
        let file = std::fs::File::options().append(true).open(made.container()).expect("the container");
        let before = file.metadata().expect("its length and time");
        file.set_len(before.len() + 1).expect("space");
        let start = std::time::Instant::now();
        let error = session.decode(7).expect_err("the file has changed").to_string();
        assert!(error.contains("changed"), "{strategy}: {error}");
        assert!(
            start.elapsed() < Duration::from_secs(60),
            "{strategy}: somebody waited for a card that failed"
        );
        assert_eq!(session.position(), 0, "{strategy}");
        file.set_len(before.len()).expect("space");
        file.set_modified(before.modified().expect("a time")).expect("a time");
        goes_on(&mut session, &[], &tokens, "after an error on card 0");
        goes_on(&mut session, &tokens, &[8, 9], "after an error on card 0");
    }
}

#[test]
fn the_command_line_checks_experts_and_says_the_same() {
    let made = Made::new("llama-moe-tiny", &[]);
    let path = made.container();
    let path = path.to_str().expect("UTF-8");
    let logits = |more: &[&str]| {
        let out = made.folder().join("logits.f32");
        let file = out.to_str().expect("UTF-8");
        let mut args = vec!["logits", path, "--tokens", "1,2,3,4,5", "--out", file, "--force"];
        args.extend(more);
        run_ok("gantry-run", &args);
        std::fs::read(out).expect("logits")
    };
    let one = logits(&[]);
    for check in ["--ep-verify", "--ep-self"] {
        assert!(logits(&["--cards", "3", check]) == one, "{check}");
    }
    let both =
        run("gantry-run", &["logits", path, "--tokens", "1", "--out", "x", "--ep-verify", "--ep-self"]);
    assert_eq!(both.status.code(), Some(2), "they exclude each other");
}
