//! Taking back: what follows is what a new session gives.

use super::models::{Made, Random, alone, bits};
use gantry_runtime::ModelOptions;

const PRESETS: [&str; 6] =
    ["llama-tiny", "qwen3next-tiny", "qwen4exp-tiny", "qwen4exp-mtp-tiny", "deepseek4-tiny", "glm-dsa-tiny"];

/// Architectures whose state has no way back of its own.
fn recurrent(preset: &str) -> bool {
    preset.starts_with("qwen3next") || preset.starts_with("qwen4exp")
}

fn options(window: usize, batch: usize) -> ModelOptions {
    ModelOptions { context: Some(96), batch, window, ..ModelOptions::default() }
}

#[test]
fn any_way_there_and_back_is_a_new_session() {
    for preset in PRESETS {
        let made = Made::new(preset, &[]);
        for (window, batch) in [(0, 5), (4, 5), (4, 1), (4, 64)] {
            let model = made.load(&options(window, batch));
            let mut random = Random::new(window as u64 + 10 * batch as u64);
            for round in 0..6 {
                let mut session = model.session().expect("a session");
                let mut all: Vec<u32> = Vec::new();
                let mut way = Vec::new();
                for _ in 0..12 {
                    let back = random.below(3) == 0;
                    if back {
                        // Often to just before the end, sometimes anywhere, sometimes beyond.
                        let to = match random.below(4) {
                            0 => random.below(all.len() + 3),
                            _ => all.len().saturating_sub(random.below(6)),
                        };
                        let at = session.rewind(to);
                        way.push(format!("back to {to}: {at}"));
                        let what =
                            format!("{preset}, window {window}, batch {batch}, round {round}: {way:?}");
                        let to = to.min(all.len());
                        assert!(at == to || at == 0, "{what}");
                        if !recurrent(preset) && preset != "deepseek4-tiny" {
                            assert_eq!(at, to, "{what}: all is kept there");
                        }
                        if recurrent(preset) && window == 0 && to < all.len() {
                            assert_eq!(at, 0, "{what}: nothing can be taken back there");
                        }
                        all.truncate(at);
                        assert_eq!((session.position(), session.left()), (at, 96 - at), "{what}");
                    } else {
                        let most = (96 - all.len()).min(14);
                        let n = if random.below(2) == 0 { 1 } else { 1 + random.below(14) };
                        let tokens = random.tokens(n.min(most));
                        way.push(format!("{} tokens", tokens.len()));
                        let got = bits(session.prefill(&tokens).expect("logits"));
                        all.extend(&tokens);
                        if !tokens.is_empty() {
                            let what = format!("{preset}, window {window}, batch {batch}, round {round}");
                            assert!(got == alone(&model, &all), "{what}: other bits after {way:?}");
                        }
                    }
                }
            }
        }
    }
}

/// Tokens that were taken in one run of at most the window can be taken back, all or some, again and again.
#[test]
fn a_window_can_always_be_taken_back() {
    for preset in PRESETS {
        let made = Made::new(preset, &[]);
        let model = made.load(&options(4, 64));
        let mut random = Random::new(77);
        let mut session = model.session().expect("a session");
        let mut all = random.tokens(21);
        session.prefill(&all).expect("logits");
        for round in 0..12 {
            let n = 1 + random.below(4);
            let tokens = random.tokens(n);
            session.prefill(&tokens).expect("logits");
            let kept = random.below(tokens.len() + 1);
            let to = all.len() + kept;
            assert_eq!(session.rewind(to), to, "{preset}, round {round}: {kept} of {} stay", tokens.len());
            all.extend(&tokens[..kept]);
            let next = random.tokens(1);
            let got = bits(session.decode(next[0]).expect("logits"));
            all.extend(&next);
            assert!(got == alone(&model, &all), "{preset}, round {round}");
        }
    }
}
