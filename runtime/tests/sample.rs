//! Sampling against distributions computed by hand, and against its own probabilities.

use gantry_runtime::sample::{Deciding, Following, SampleError, Sampler, SamplerOptions, greedy};

/// Everything off: the plain softmax.
fn open() -> SamplerOptions {
    SamplerOptions { temperature: 1.0, top_k: 0, top_p: 1.0, min_p: 0.0, ..SamplerOptions::default() }
}

/// Logits whose softmax is `probabilities`.
fn logits(probabilities: &[f32]) -> Vec<f32> {
    probabilities.iter().map(|probability| probability.ln()).collect()
}

fn expect(options: SamplerOptions, logits: &[f32], expected: &[(u32, f64)]) {
    let mut sampler = Sampler::new(options).unwrap();
    let found = sampler.candidates(logits).unwrap();
    assert_eq!(found.len(), expected.len(), "{found:?}");
    for (candidate, &(token, probability)) in found.iter().zip(expected) {
        assert_eq!(candidate.token, token, "{found:?}");
        assert!((candidate.probability - probability).abs() < 1e-6, "{found:?}, expected {expected:?}");
    }
}

const P: [f32; 5] = [0.1, 0.4, 0.2, 0.25, 0.05];

#[test]
fn softmax_by_token() {
    expect(open(), &logits(&P), &[(0, 0.1), (1, 0.4), (2, 0.2), (3, 0.25), (4, 0.05)]);
    // Large logits do not overflow, impossible tokens are no candidates.
    expect(open(), &[3e38, f32::NEG_INFINITY, 3e38], &[(0, 0.5), (2, 0.5)]);
}

#[test]
fn top_k() {
    let options = SamplerOptions { top_k: 2, ..open() };
    expect(options.clone(), &logits(&P), &[(1, 0.4 / 0.65), (3, 0.25 / 0.65)]);
    // Of equal tokens the lowest stay.
    expect(options, &[1.0, 1.0, 1.0, 1.0], &[(0, 0.5), (1, 0.5)]);
    expect(SamplerOptions { top_k: 9, ..open() }, &logits(&[0.5, 0.5]), &[(0, 0.5), (1, 0.5)]);
}

#[test]
fn top_p_keeps_the_token_that_reaches_it() {
    let run = |top_p, expected: &[(u32, f64)]| {
        expect(SamplerOptions { top_p, ..open() }, &logits(&P), expected);
    };
    run(0.6, &[(1, 0.4 / 0.65), (3, 0.25 / 0.65)]);
    run(0.7, &[(1, 0.4 / 0.85), (3, 0.25 / 0.85), (2, 0.2 / 0.85)]);
    run(0.0, &[(1, 1.0)]);
    // After top-k the probabilities are those among the kept: 0.4 of 0.65 reaches 0.6 alone.
    let both = SamplerOptions { top_k: 2, top_p: 0.6, ..open() };
    expect(both, &logits(&P), &[(1, 1.0)]);
}

#[test]
fn min_p_is_relative_to_the_best() {
    let run = |min_p, expected: &[(u32, f64)]| {
        expect(SamplerOptions { min_p, ..open() }, &logits(&P), expected);
    };
    run(0.45, &[(1, 0.4 / 0.85), (3, 0.25 / 0.85), (2, 0.2 / 0.85)]);
    run(1.0, &[(1, 1.0)]);
}

#[test]
fn temperature_comes_after_the_cuts() {
    // At temperature 0.5 probabilities are squared; top-p has cut before, by the plain ones.
    let options = SamplerOptions { temperature: 0.5, top_p: 0.6, ..open() };
    let (a, b) = (0.16, 0.0625);
    expect(options, &logits(&P), &[(1, a / (a + b)), (3, b / (a + b))]);
    let options = SamplerOptions { temperature: 2.0, ..open() };
    expect(options, &logits(&[0.64, 0.36]), &[(0, 0.8 / 1.4), (1, 0.6 / 1.4)]);
}

#[test]
fn repeat_penalty() {
    let options = SamplerOptions { repeat_penalty: 2.0, repeat_last_n: 2, ..open() };
    let mut sampler = Sampler::new(SamplerOptions { temperature: 0.0, ..options.clone() }).unwrap();
    let logits = [3.0, 2.0, -1.0, 1.0];
    assert_eq!(sampler.sample(&logits), Ok(0));
    sampler.accept(0);
    // 3 / 2 is below 2.
    assert_eq!(sampler.sample(&logits), Ok(1));
    sampler.accept(1);
    sampler.accept(1);
    // Twice in the window counts once (2 / 2), and 0 has left it.
    assert_eq!(sampler.sample(&logits), Ok(0));
    sampler.accept(99);
    assert_eq!(sampler.sample(&logits), Ok(0));
    sampler.reset();
    assert_eq!(sampler.sample(&logits), Ok(0));

    // A negative logit is multiplied: −1 → −2.
    let mut sampler = Sampler::new(options).unwrap();
    sampler.accept(2);
    let found = sampler.candidates(&[0.0, 0.0, -1.0]).unwrap();
    let expected = (-2.0_f64).exp() / (2.0 + (-2.0_f64).exp());
    assert!((found[2].probability - expected).abs() < 1e-12, "{found:?}");
}

#[test]
fn greedy_takes_the_lowest_of_equals() {
    assert_eq!(greedy(&[1.0, 5.0, 5.0, -2.0]), Ok(1));
    assert_eq!(greedy(&[f32::NEG_INFINITY, -1e30]), Ok(1));
    let mut sampler = Sampler::new(SamplerOptions::greedy()).unwrap();
    assert_eq!(sampler.sample(&[0.0, -0.0]), Ok(0));
}

#[test]
fn broken_logits_are_errors() {
    for options in [SamplerOptions::greedy(), SamplerOptions::default(), open()] {
        let mut sampler = Sampler::new(options).unwrap();
        assert_eq!(sampler.sample(&[]), Err(SampleError::Empty));
        let nan = sampler.sample(&[0.0, f32::NAN, 1.0]);
        assert!(matches!(nan, Err(SampleError::NotANumber { token: 1, found }) if found.is_nan()), "{nan:?}");
        let infinite = sampler.sample(&[f32::INFINITY]);
        assert_eq!(infinite, Err(SampleError::NotANumber { token: 0, found: f32::INFINITY }));
        assert_eq!(sampler.sample(&[f32::NEG_INFINITY; 3]), Err(SampleError::NothingPossible));
    }
}

#[test]
fn settings_are_checked() {
    let wrong = |options: SamplerOptions, name: &str| {
        let error = Sampler::new(options).unwrap_err().to_string();
        assert!(error.starts_with(name), "{error}");
    };
    wrong(SamplerOptions { temperature: -0.1, ..open() }, "temperature is -0.1");
    wrong(SamplerOptions { temperature: f32::NAN, ..open() }, "temperature is NaN");
    wrong(SamplerOptions { top_p: 1.5, ..open() }, "top_p is 1.5");
    wrong(SamplerOptions { min_p: -1.0, ..open() }, "min_p is -1");
    wrong(SamplerOptions { repeat_penalty: 0.0, ..open() }, "repeat_penalty is 0");
}

#[test]
fn draws_follow_the_distribution() {
    const DRAWS: usize = 200_000;
    let mut sampler = Sampler::new(SamplerOptions { seed: 42, ..open() }).unwrap();
    let logits = logits(&P);
    let mut counts = [0_u32; 5];
    for _ in 0..DRAWS {
        counts[sampler.sample(&logits).unwrap() as usize] += 1;
    }
    let chi_square: f64 = counts
        .iter()
        .zip(P)
        .map(|(&count, probability)| {
            let expected = DRAWS as f64 * f64::from(probability);
            (f64::from(count) - expected).powi(2) / expected
        })
        .sum();
    // 4 degrees of freedom: above 18.5 one time in a thousand.
    assert!(chi_square < 18.5, "{counts:?}: {chi_square}");
}

#[test]
fn a_seed_gives_the_same_tokens_everywhere() {
    let draw = |seed| {
        let mut sampler = Sampler::new(SamplerOptions { seed, ..open() }).unwrap();
        (0..24).map(|_| sampler.sample(&[0.0; 10]).unwrap()).collect::<Vec<_>>()
    };
    // SplitMix64 of 7 in Python: int((next() >> 11) / 2**53 * 10).
    assert_eq!(draw(7), [3, 0, 9, 5, 4, 2, 4, 3, 1, 4, 1, 9, 9, 8, 8, 5, 8, 3, 6, 7, 6, 1, 3, 4]);
    assert_ne!(draw(7), draw(8));
}

/// What a device that follows the rules of [`Deciding`] brings.
fn brought(logits: &[f32], deciding: Deciding) -> Following {
    let mut following = Following::default();
    let possible = logits.iter().enumerate().filter(|(_, x)| **x > f32::NEG_INFINITY);
    let mut all: Vec<(u32, f32)> = possible.map(|(token, x)| (token as u32, *x)).collect();
    match deciding {
        Deciding::All => following.logits = logits.to_vec(),
        Deciding::Highest => following.best = vec![(greedy(logits).unwrap(), f32::NAN)],
        Deciding::Best(most) => {
            all.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
            all.truncate(most);
            following.best = all;
        }
    }
    following
}

#[test]
fn the_logits_that_decide_are_enough() {
    let mut state = 1u64;
    let mut below = |n: u64| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) % n
    };
    let mut chosen = [0, 0, 0];
    for case in 0..1000 {
        let vocab = [1, 2, 50, 700][below(4) as usize];
        let mut logits: Vec<f32> = (0..vocab).map(|_| below(20_000) as f32 / 1000.0 - 10.0).collect();
        match case % 5 {
            // Equal ones, zeros of both signs, tokens that are impossible.
            1 => logits.iter_mut().for_each(|x| *x = x.round()),
            2 => logits.iter_mut().for_each(|x| *x = if *x > 0.0 { 0.0 } else { -0.0 }),
            3 => logits.iter_mut().skip(1).for_each(|x| *x = if *x > 8.0 { *x } else { f32::NEG_INFINITY }),
            _ => {}
        }
        let options = SamplerOptions {
            temperature: [0.0, 0.3, 1.0, 1.9][below(4) as usize],
            top_k: [0, 1, 2, 40, 1000][below(5) as usize],
            top_p: [0.3, 0.95, 1.0][below(3) as usize],
            min_p: [0.0, 0.05, 1.0][below(3) as usize],
            seed: case,
            ..SamplerOptions::default()
        };
        let (mut from_all, mut from_best) =
            (Sampler::new(options.clone()).unwrap(), Sampler::new(options).unwrap());
        let deciding = from_best.deciding();
        chosen[match deciding {
            Deciding::Highest => 0,
            Deciding::Best(_) => 1,
            Deciding::All => 2,
        }] += 1;
        // Several draws, so that the generators stay together too.
        for _ in 0..4 {
            let expected = from_all.sample(&logits).unwrap();
            assert_eq!(from_best.choose(&brought(&logits, deciding)), Ok(expected), "case {case}");
        }
    }
    assert!(chosen.iter().all(|n| *n > 50), "{chosen:?}");
}

#[test]
fn a_penalty_may_change_which_is_the_highest() {
    let options = SamplerOptions { repeat_penalty: 1.1, ..SamplerOptions::greedy() };
    assert_eq!(Sampler::new(options.clone()).unwrap().deciding(), Deciding::All);
    let without = SamplerOptions { repeat_last_n: 0, ..options };
    assert_eq!(Sampler::new(without).unwrap().deciding(), Deciding::Highest);
    let nothing = Sampler::new(SamplerOptions::default()).unwrap().choose(&Following::default());
    assert_eq!(nothing, Err(SampleError::Empty));
}
