//! Routing against a slow reference in f64, and sums of experts.

mod random;

use gantry_kernels::cpu::*;
use random::{Rng, assert_same, poison};

/// Probabilities of one token in f64.
fn probabilities(gating: Gating, logits: &[f32]) -> Vec<f64> {
    let x = logits.iter().map(|&x| f64::from(x));
    match gating {
        Gating::Softmax => softmax64(&x.collect::<Vec<_>>()),
        Gating::Sigmoid => x.map(|x| 1.0 / (1.0 + (-x).exp())).collect(),
        Gating::SqrtSoftplus => x.map(|x| (x.max(0.0) + (-x.abs()).exp().ln_1p()).sqrt()).collect(),
        Gating::SoftmaxWeight => x.collect(),
    }
}

fn softmax64(x: &[f64]) -> Vec<f64> {
    let max = x.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let sum: f64 = x.iter().map(|x| (x - max).exp()).sum();
    x.iter().map(|x| (x - max).exp() / sum).collect()
}

/// Scores with those of other groups at -∞.
fn scores(r: &Routing, p: &[f64], bias: Option<&[f32]>) -> Vec<f64> {
    let mut scores: Vec<f64> =
        p.iter().enumerate().map(|(i, p)| p + bias.map_or(0.0, |b| f64::from(b[i]))).collect();
    if r.groups > 1 {
        let size = r.experts / r.groups;
        let mut order: Vec<usize> = (0..r.groups).collect();
        let top2: Vec<f64> = scores
            .chunks(size)
            .map(|s| {
                let mut s = s.to_vec();
                s.sort_by(|a, b| b.total_cmp(a));
                s.iter().take(2).sum()
            })
            .collect();
        order.sort_by(|&a, &b| top2[b].total_cmp(&top2[a]));
        for &group in &order[r.groups_used..] {
            scores[group * size..][..size].fill(f64::NEG_INFINITY);
        }
    }
    scores
}

fn finish(r: &Routing, mut w: Vec<f64>) -> Vec<f64> {
    if r.gating == Gating::SoftmaxWeight {
        w = softmax64(&w);
    }
    if r.normalize {
        let sum = w.iter().sum::<f64>().max(6.103515625e-5);
        w.iter_mut().for_each(|w| *w /= sum);
    }
    if r.scale != 0.0 {
        w.iter_mut().for_each(|w| *w *= f64::from(r.scale));
    }
    w
}

fn routings() -> Vec<Routing> {
    let mut out = Vec::new();
    for gating in [Gating::Softmax, Gating::Sigmoid, Gating::SqrtSoftplus, Gating::SoftmaxWeight] {
        for (experts, used, groups, groups_used) in
            [(8, 2, 1, 1), (512, 10, 1, 1), (64, 6, 8, 3), (37, 37, 1, 0), (256, 8, 8, 4), (5, 2, 5, 2)]
        {
            for (normalize, scale) in [(false, 0.0), (true, 1.0), (true, 2.5)] {
                out.push(Routing { experts, used, gating, groups, groups_used, normalize, scale });
            }
        }
    }
    out
}

#[test]
fn routes_agree_with_f64_and_bit_for_bit() {
    let mut rng = Rng(1);
    for r in routings() {
        for biased in [false, true] {
            let tokens = 1 + rng.below(40);
            let logits = rng.units(tokens * r.experts, 5.0);
            let bias = biased.then(|| rng.units(r.experts, 0.3));
            let run = |isa: Isa, threads: usize| {
                let mut ids = vec![u32::MAX; tokens * r.used];
                let mut weights = poison(tokens * r.used);
                route(isa, &Pool::new(threads), &r, &logits, bias.as_deref(), &mut ids, &mut weights);
                (ids, weights)
            };
            let (ids, weights) = run(Isa::PORTABLE, 1);
            for token in 0..tokens {
                let logits = &logits[token * r.experts..][..r.experts];
                let (ids, weights) = (&ids[token * r.used..][..r.used], &weights[token * r.used..][..r.used]);
                let p = probabilities(r.gating, logits);
                let scores = scores(&r, &p, bias.as_deref());
                let mut sorted = scores.clone();
                sorted.sort_by(|a, b| b.total_cmp(a));
                let mut unique = ids.to_vec();
                unique.sort_unstable();
                unique.dedup();
                assert_eq!(unique.len(), r.used, "an expert twice: {ids:?}");
                for (&id, best) in ids.iter().zip(sorted) {
                    let score = scores[id as usize];
                    assert!((score - best).abs() < 1e-6, "{r:?}: expert {id} has {score}, not {best}");
                }
                let truth = finish(&r, ids.iter().map(|&id| p[id as usize]).collect());
                for (w, truth) in weights.iter().zip(truth) {
                    assert!(
                        (f64::from(*w) - truth).abs() <= 2e-6 * truth.abs() + 1e-30,
                        "{r:?}: {w} for {truth}"
                    );
                }
            }
            for isa in Isa::available() {
                let (other_ids, other) = run(isa, 3);
                assert_eq!(other_ids, ids, "{} {r:?}", isa.name());
                assert_same(&other, &weights, &format!("{} {r:?}", isa.name()));
                let mut given = poison(tokens * r.used);
                route_given(isa, &Pool::new(2), &r, &logits, &ids, &mut given);
                assert_same(&given, &weights, &format!("{} {r:?}, given", isa.name()));
            }
        }
    }
}

fn route_one(r: &Routing, logits: &[f32], bias: Option<&[f32]>) -> (Vec<u32>, Vec<f32>) {
    let (mut ids, mut weights) = (vec![0; r.used], vec![0.0; r.used]);
    route(Isa::PORTABLE, &Pool::new(1), r, logits, bias, &mut ids, &mut weights);
    (ids, weights)
}

const PLAIN: Routing = Routing {
    experts: 8,
    used: 3,
    gating: Gating::SoftmaxWeight,
    groups: 1,
    groups_used: 1,
    normalize: false,
    scale: 0.0,
};

#[test]
fn of_equal_experts_and_groups_the_lowest_come_first() {
    assert_eq!(route_one(&PLAIN, &[1.0; 8], None).0, [0, 1, 2]);
    assert_eq!(route_one(&PLAIN, &[0.0, 2.0, 1.0, 2.0, 1.0, 1.0, 2.0, 0.0], None).0, [1, 3, 6]);
    let grouped = Routing { groups: 4, groups_used: 2, used: 4, ..PLAIN };
    assert_eq!(route_one(&grouped, &[1.0, 1.0, 0.0, 2.0, 2.0, 0.0, 1.0, 0.9], None).0, [3, 0, 1, 2]);
}

#[test]
fn a_bias_moves_the_choice_and_not_the_weights() {
    let r = Routing { gating: Gating::Sigmoid, used: 2, ..PLAIN };
    let bias = [0.0, 0.0, 5.0, 0.0, 0.0, 0.0, 0.0, 4.0];
    assert_eq!(route_one(&r, &[0.0; 8], Some(&bias)), (vec![2, 7], vec![0.5, 0.5]));
}

#[test]
fn a_small_sum_is_bounded_and_nan_is_last() {
    let r = Routing { gating: Gating::Sigmoid, used: 2, normalize: true, ..PLAIN };
    let (_, weights) = route_one(&r, &[-30.0; 8], None);
    let truth = (-30f64).exp() / 6.103515625e-5;
    assert!(weights.iter().all(|&w| (f64::from(w) / truth - 1.0).abs() < 1e-6), "{weights:?}");
    let mut logits = [-1.0; 8];
    logits[0] = f32::NAN;
    let r = Routing { gating: Gating::Sigmoid, used: 8, ..PLAIN };
    let (ids, weights) = route_one(&r, &logits, None);
    assert_eq!(ids, [1, 2, 3, 4, 5, 6, 7, 0]);
    assert!(weights[7].is_nan());
    let r = Routing { gating: Gating::SqrtSoftplus, ..r };
    assert!(route_one(&r, &logits, None).1[7].is_nan());
    let (_, large) = route_one(&r, &[100.0, -100.0, 0.0, 3e38, -3e38, 20.0, -20.0, 1e-30], None);
    assert!(large.iter().all(|w| w.is_finite() && *w >= 0.0), "{large:?}");
}

#[test]
#[should_panic(expected = "from 1 of 4 groups")]
fn more_experts_than_the_groups_hold_are_refused() {
    route_one(&Routing { groups: 4, groups_used: 1, ..PLAIN }, &[0.0; 8], None);
}

#[test]
#[should_panic(expected = "an id of 8 experts")]
fn an_id_that_is_no_expert_is_refused() {
    route_given(Isa::PORTABLE, &Pool::new(1), &PLAIN, &[0.0; 8], &[0, 8, 1], &mut [0.0; 3]);
}

#[test]
fn experts_are_summed_slot_by_slot() {
    let mut rng = Rng(2);
    for (tokens, used, n) in [(1, 10, 640), (7, 1, 5), (33, 3, 100)] {
        let x = rng.units(tokens * used * n, 1.0);
        let weights = rng.units(tokens * used, 1.0);
        let term = |slot: usize, column: usize| weights[slot] * x[slot * n + column];
        let truth = (0..tokens * n).map(|i| {
            let (first, column) = (i / n * used, i % n);
            (1..used).fold(term(first, column), |sum, slot| sum + term(first + slot, column))
        });
        let truth: Vec<f32> = truth.collect();
        for isa in Isa::available() {
            let mut y = poison(tokens * n);
            let outputs = ExpertOutputs { x: &x, weights: &weights, used, n };
            weighted_sum(isa, &Pool::new(2), &outputs, &mut y);
            assert_same(&y, &truth, isa.name());
        }
    }
}
