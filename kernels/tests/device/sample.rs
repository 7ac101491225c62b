//! The choice of a token, beside the rules of the host's sampler: by logit in the total order, equal ones by token;
//! nothing that is -infinity; a NaN or +infinity is told. All exact.

use crate::launch::{Arg, groups, launch, read, write};
use crate::random::Rng;

/// Logits of a group.
const OF: usize = 1024;

/// What the kernel calls a logit that is no number.
const BROKEN: u64 = u64::MAX;

/// Random logits of a kind: with many equal ones, zeros of both signs, some that are -infinity, some or all alike.
fn logits(rng: &mut Rng, vocab: usize, kind: usize) -> Vec<f32> {
    let mut logits = rng.units(vocab, 8.0);
    match kind % 8 {
        1 => logits.iter_mut().for_each(|x| *x = x.round()),
        2 => logits.iter_mut().for_each(|x| *x = if *x > 0.0 { 0.0 } else { -0.0 }),
        3 => logits.iter_mut().for_each(|x| *x = if *x > 6.0 { *x } else { f32::NEG_INFINITY }),
        4 => logits.fill(-3.25),
        5 => logits.iter_mut().for_each(|x| *x = f32::from_bits(rng.next() as u32 & 0x807f_ffff)),
        6 => logits.iter_mut().for_each(|x| *x = x.signum() * f32::MAX),
        _ => {}
    }
    logits
}

/// Tokens and logits by the rules, at most `most`.
fn expected(logits: &[f32], most: usize) -> Vec<(u32, u32)> {
    let possible = logits.iter().enumerate().filter(|(_, x)| **x > f32::NEG_INFINITY);
    let mut all: Vec<(u32, f32)> = possible.map(|(token, x)| (token as u32, *x)).collect();
    all.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
    all.into_iter().take(most).map(|(token, x)| (token, x.to_bits())).collect()
}

/// The token and the bits of the logit that a key stands for.
fn decoded(key: u64) -> (u32, u32) {
    let order = (key >> 32) as u32;
    let bits = if order >> 31 == 1 { order & 0x7fff_ffff } else { !order };
    (u32::MAX - key as u32, bits)
}

/// Runs a kernel that keeps `most` of every `of` until one group is left; `None` where there is no device.
fn rounds(kernel: &str, (of, most): (usize, usize), more: &[usize], logits: &[f32]) -> Option<Vec<u64>> {
    let mut count = logits.len();
    let mut keys: Vec<u64> = Vec::new();
    loop {
        let n = groups(count, of);
        let mut best = vec![0x1234_5678u64; n * most];
        let [first, second] = match keys.is_empty() {
            true => [read(logits), Arg::Null],
            false => [Arg::Null, read(&keys)],
        };
        let mut args = vec![first, second, write(&mut best), Arg::U32(count as u32)];
        args.extend(more.iter().map(|n| Arg::U32(*n as u32)));
        if !launch(kernel, [n, 1, 1], &mut args) {
            return None;
        }
        drop(args);
        (keys, count) = (best, n * most);
        if n == 1 {
            return Some(keys);
        }
    }
}

fn top(logits: &[f32], most: usize) -> Option<Vec<u64>> {
    rounds("gantry_top_k", (OF, most), &[most], logits)
}

fn highest(logits: &[f32]) -> Option<u64> {
    rounds("gantry_argmax", (4096, 1), &[], logits).map(|keys| keys[0])
}

#[test]
fn the_highest_logits_come_in_order() {
    let mut rng = Rng(11);
    for case in 0..1000 {
        let vocab = match case % 10 {
            0 => 1,
            1 => 1 + rng.below(5),
            2 => OF * 2 + rng.below(3) - 1,
            3 => 20_000 + rng.below(5000),
            _ => 1 + rng.below(3000),
        };
        let most = [1, 2, 40, 100, 256][rng.below(5)];
        let logits = logits(&mut rng, vocab, case);
        let Some(keys) = top(&logits, most) else { return };
        let found: Vec<(u32, u32)> = keys.iter().take_while(|k| **k != 0).map(|k| decoded(*k)).collect();
        assert_eq!(found, expected(&logits, most), "case {case}: {most} of {vocab}");
        assert!(keys[found.len()..].iter().all(|k| *k == 0), "case {case}");
    }
}

#[test]
fn a_logit_that_is_no_number_is_told() {
    let mut rng = Rng(12);
    for vocab in [1, 2, OF, OF + 1, 70_000] {
        for wrong in [f32::NAN, -f32::NAN, f32::INFINITY] {
            let mut logits = rng.units(vocab, 3.0);
            logits[rng.below(vocab)] = wrong;
            let Some(keys) = top(&logits, 40) else { return };
            assert_eq!(keys[0], BROKEN, "{wrong} among {vocab}");
        }
        let Some(keys) = top(&vec![f32::NEG_INFINITY; vocab], 40) else { return };
        assert!(keys.iter().all(|k| *k == 0), "nothing is possible among {vocab}");
    }
}

#[test]
fn the_highest_logit_is_the_first_of_equals_of_any_kind() {
    let mut rng = Rng(13);
    for case in 0..1000 {
        let vocab = match case % 10 {
            0 => 1,
            1 => 150_000 + rng.below(3),
            _ => 1 + rng.below(9000),
        };
        let mut logits = logits(&mut rng, vocab, case);
        let broken = case % 50 == 49;
        if broken {
            logits[rng.below(vocab)] = [f32::NAN, f32::INFINITY][rng.below(2)];
        }
        let mut most = f32::NEG_INFINITY;
        let mut expected = u32::MAX;
        for (token, x) in logits.iter().enumerate() {
            // Zeros of both signs are equal here.
            if *x > most {
                (most, expected) = (*x, token as u32);
            }
        }
        let Some(key) = highest(&logits) else { return };
        match (broken, expected) {
            (true, _) => assert_eq!(key, BROKEN, "case {case} of {vocab}"),
            (false, u32::MAX) => assert_eq!(key, 0, "case {case} of {vocab}"),
            (false, token) => assert_eq!(decoded(key).0, token, "case {case} of {vocab}"),
        }
    }
}
