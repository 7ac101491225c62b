//! The choice of entries against a slow reference in f64.

mod random;

use gantry_kernels::cpu::*;
use random::Rng;

/// Queries and what goes with them, in rows wider than they need to be.
struct Case {
    shape: Selection,
    first: usize,
    tokens: usize,
    keys: Vec<f32>,
    q: Vec<f32>,
    stride: usize,
    weights: Option<(Vec<f32>, usize)>,
}

impl Case {
    /// Small integers where `exact`, so that every order of summing gives the same and many scores are equal.
    fn new(
        rng: &mut Rng,
        shape: Selection,
        first: usize,
        tokens: usize,
        weighted: bool,
        exact: bool,
    ) -> Case {
        let mut values = |n: usize| -> Vec<f32> {
            if exact { (0..n).map(|_| rng.below(5) as f32 - 2.0).collect() } else { rng.units(n, 1.0) }
        };
        let stride = shape.heads * shape.len + 3;
        let wstride = shape.heads + 2;
        Case {
            shape,
            first,
            tokens,
            keys: values((first + tokens) / shape.ratio * shape.len + 2 * shape.len),
            q: values((tokens - 1) * stride + shape.heads * shape.len),
            stride,
            weights: weighted.then(|| (values((tokens - 1) * wstride + shape.heads), wstride)),
        }
    }

    /// A part of the tokens.
    fn run(&self, isa: Isa, threads: usize, from: usize, tokens: usize) -> Vec<u32> {
        let mut ids = vec![7_777_777; tokens * self.shape.per_token()];
        let weights = self.weights.as_ref().map(|(w, stride)| (&w[from * stride..], *stride));
        let q = &self.q[from * self.stride..];
        let pool = Pool::new(threads);
        select(isa, &pool, &self.shape, &self.keys, self.first + from, q, self.stride, weights, &mut ids);
        ids
    }

    /// Scores of the entries that token t sees.
    fn scores(&self, t: usize) -> Vec<f64> {
        let Selection { heads, len, ratio, .. } = self.shape;
        let visible = (self.first + t + 1) / ratio;
        (0..visible)
            .map(|b| {
                let mut sum = 0f64;
                for h in 0..heads {
                    let mut dot = 0f64;
                    for d in 0..len {
                        let q = self.q[t * self.stride + h * len + d];
                        dot += f64::from(q) * f64::from(self.keys[b * len + d]);
                    }
                    let w = self.weights.as_ref().map_or(1.0, |(w, stride)| f64::from(w[t * stride + h]));
                    sum += w * if dot < 0.0 { 0.0 } else { dot };
                }
                if sum.is_nan() { f64::NEG_INFINITY } else { sum }
            })
            .collect()
    }

    /// A full stable sort, then the ids spelled out.
    fn reference(&self, t: usize) -> Vec<u32> {
        let Selection { top, ratio, expand, .. } = self.shape;
        let scores = self.scores(t);
        let mut order: Vec<usize> = (0..scores.len()).collect();
        order.sort_by(|&a, &b| scores[b].partial_cmp(&scores[a]).unwrap());
        order.truncate(top);
        order.sort_unstable();
        let mut ids: Vec<u32> = Vec::new();
        let p = self.first + t;
        if expand {
            for pos in 0..=p {
                let (block, complete) = (pos / ratio, (p + 1) / ratio);
                if block >= complete || order.contains(&block) {
                    ids.push(pos as u32);
                }
            }
        } else {
            ids.extend(order.iter().map(|&b| b as u32));
        }
        let per_token = if expand { top * ratio + ratio - 1 } else { top };
        assert!(ids.len() <= per_token);
        ids.resize(per_token, u32::MAX);
        ids
    }

    fn check(&self, what: &str) {
        let truth: Vec<u32> = (0..self.tokens).flat_map(|t| self.reference(t)).collect();
        for isa in Isa::available() {
            for threads in [1, 3] {
                let ids = self.run(isa, threads, 0, self.tokens);
                assert_eq!(ids, truth, "{what}: {} on {threads}, {:?}", isa.name(), self.shape);
            }
        }
    }
}

#[test]
fn exact_scores_choose_what_a_sort_chooses() {
    let mut rng = Rng(1);
    for (heads, len, top, ratio) in
        [(1, 1, 1, 1), (4, 16, 3, 4), (3, 37, 8, 1), (2, 128, 20, 3), (5, 15, 17, 2), (1, 64, 64, 1)]
    {
        for expand in [false, true] {
            for weighted in [false, true] {
                let shape = Selection { heads, len, top, ratio, expand };
                for (first, tokens) in [(0, 1), (0, 150), (333, 1), (top * ratio, 9), (97, 6)] {
                    let case = Case::new(&mut rng, shape, first, tokens, weighted, true);
                    case.check(&format!("{first}+{tokens} weighted {weighted}"));
                }
            }
        }
    }
}

#[test]
fn rounded_scores_choose_the_best_and_the_same_everywhere() {
    let mut rng = Rng(2);
    for (heads, len, top, ratio) in [(4, 128, 16, 4), (7, 50, 30, 1), (2, 24, 5, 2)] {
        let shape = Selection { heads, len, top, ratio, expand: false };
        let tokens = 11;
        let case = Case::new(&mut rng, shape, 400, tokens, true, false);
        let ids = case.run(Isa::PORTABLE, 1, 0, tokens);
        for t in 0..tokens {
            let ids = &ids[t * top..][..top];
            assert!(ids.is_sorted_by(|a, b| a < b), "{ids:?}");
            let scores = case.scores(t);
            let chosen = |b: usize| ids.contains(&(b as u32));
            let worst = ids.iter().map(|&b| scores[b as usize]).fold(f64::INFINITY, f64::min);
            for (b, &score) in scores.iter().enumerate().filter(|(b, _)| !chosen(*b)) {
                assert!(score <= worst + 1e-4, "{shape:?}: {b} with {score} left out for {worst}");
            }
        }
        for isa in Isa::available() {
            for threads in [1, 2, 3] {
                for split in [1, 2, 5, tokens] {
                    let mut parts = Vec::new();
                    for from in (0..tokens).step_by(split) {
                        parts.extend(case.run(isa, threads, from, split.min(tokens - from)));
                    }
                    assert_eq!(parts, ids, "{} on {threads}, {split} at a time, {shape:?}", isa.name());
                }
            }
        }
    }
}

#[test]
fn of_equal_scores_the_lowest_entries_win() {
    let shape = Selection { heads: 2, len: 3, top: 5, ratio: 1, expand: false };
    let mut case = Case::new(&mut Rng(3), shape, 99, 1, false, true);
    case.q.fill(0.0);
    case.check("all 0");
    assert_eq!(case.run(Isa::PORTABLE, 1, 0, 1), [0, 1, 2, 3, 4]);
    // Entries 40 and 70 are better; the rest is +0, or −0 through a negative weight, which is the same.
    case.q.fill(1.0);
    for (b, key) in case.keys.chunks_mut(3).enumerate() {
        key.fill(if b == 40 || b == 70 { 1.0 } else { -1.0 });
    }
    assert_eq!(case.run(Isa::PORTABLE, 1, 0, 1), [0, 1, 2, 40, 70]);
    case.check("two above");
    case.weights = Some((vec![-0.0, -1.0], 2));
    assert_eq!(case.run(Isa::PORTABLE, 1, 0, 1), [0, 1, 2, 3, 4]);
    case.check("negative weights");
}

#[test]
fn a_nan_counts_as_minus_infinity() {
    let shape = Selection { heads: 1, len: 20, top: 6, ratio: 1, expand: false };
    let mut case = Case::new(&mut Rng(4), shape, 49, 1, false, true);
    for b in (0..50).filter(|b| b % 10 != 3) {
        case.keys[b * 20 + b % 20] = f32::NAN;
    }
    case.check("five that are none");
    let ids = case.run(Isa::PORTABLE, 1, 0, 1);
    assert_eq!(ids, [0, 3, 13, 23, 33, 43]);
    case.keys.fill(f32::NAN);
    case.check("nothing else");
    // ∞ · 0 is a NaN, and −∞ ties with it.
    case.keys.fill(1.0);
    case.q.fill(1.0);
    case.keys[20] = f32::INFINITY;
    case.weights = Some((vec![0.0], 1));
    case.check("infinite key, weight 0");
    assert_eq!(case.run(Isa::PORTABLE, 1, 0, 1), [0, 2, 3, 4, 5, 6]);
}

#[test]
fn what_fits_is_listed_unscored_and_tails_follow() {
    for ratio in 1..=5 {
        let shape = Selection { heads: 1, len: 2, top: 3, ratio, expand: true };
        for tail in 0..ratio {
            for blocks in 0..=3 {
                let Some(p) = (blocks * ratio + tail).checked_sub(1) else { continue };
                let mut case = Case::new(&mut Rng(5), shape, p, 1, false, true);
                case.keys.fill(f32::NAN);
                let mut all: Vec<u32> = (0..=p as u32).collect();
                all.resize(4 * ratio - 1, u32::MAX);
                assert_eq!(case.run(Isa::PORTABLE, 1, 0, 1), all, "{blocks} blocks of {ratio} and {tail}");
                case.check("all fit");
            }
            // Block 1 of five is the worst, 3 the next: both go.
            let mut case = Case::new(&mut Rng(6), shape, 5 * ratio + tail - 1, 1, false, true);
            case.q = vec![1.0, 0.0];
            for (key, score) in case.keys.chunks_mut(2).zip([5.0, 1.0, 4.0, 2.0, 3.0, 9.0, 9.0]) {
                key.copy_from_slice(&[score, 100.0]);
            }
            let mut ids: Vec<u32> =
                (0..(5 * ratio + tail) as u32).filter(|&p| ![1, 3].contains(&(p as usize / ratio))).collect();
            ids.resize(4 * ratio - 1, u32::MAX);
            assert_eq!(case.run(Isa::PORTABLE, 1, 0, 1), ids, "five blocks of {ratio} and {tail}");
            case.check("five blocks");
        }
    }
}

#[test]
fn more_scores_than_are_held_at_once() {
    // 1.2 million entries: each token is scored alone.
    let shape = Selection { heads: 1, len: 1, top: 4, ratio: 1, expand: false };
    let first = 1_200_000;
    let mut case = Case::new(&mut Rng(7), shape, first, 3, false, true);
    case.keys.fill(0.0);
    for (b, score) in [(17, 3.0), (600_000, 2.0), (first + 1, 5.0), (first + 2, 4.0)] {
        case.keys[b] = score;
    }
    (case.stride, case.q) = (1, vec![1.0; 3]);
    let last = first as u32;
    let truth = [0, 1, 17, 600_000, 0, 17, 600_000, last + 1, 17, 600_000, last + 1, last + 2];
    for isa in Isa::available() {
        assert_eq!(case.run(isa, 2, 0, 3), truth, "{}", isa.name());
    }
}

#[test]
fn no_tokens_are_no_work_and_bad_lengths_are_refused() {
    let shape = Selection { heads: 2, len: 4, top: 2, ratio: 1, expand: false };
    let pool = Pool::new(1);
    select(Isa::PORTABLE, &pool, &shape, &[], 0, &[], 8, None, &mut []);
    let refused = |keys: usize, q: usize, weights: usize, first: usize| {
        let (keys, q, w) = (vec![0.0; keys], vec![0.0; q], vec![0.0; weights]);
        let call = || {
            let mut ids = [0; 4];
            select(Isa::PORTABLE, &pool, &shape, &keys, first, &q, 8, Some((&w, 2)), &mut ids);
        };
        std::panic::catch_unwind(std::panic::AssertUnwindSafe(call)).is_err()
    };
    assert!(!refused(40, 16, 4, 8));
    assert!(refused(39, 16, 4, 8) && refused(40, 15, 4, 8) && refused(40, 16, 3, 8));
    assert!(refused(40, 16, 4, u32::MAX as usize) && refused(40, 16, 4, usize::MAX));
}

#[test]
#[ignore = "a measurement: run it with --release --nocapture"]
fn rate_of_one_token_over_100_000_entries() {
    // One head of 16 values leaves mostly the choice itself.
    for (heads, len, top) in [(64, 128, 512), (4, 128, 512), (32, 128, 2048), (1, 16, 512), (1, 16, 2048)] {
        let shape = Selection { heads, len, top, ratio: 1, expand: false };
        let case = Case::new(&mut Rng(8), shape, 99_999, 1, true, false);
        for isa in Isa::available() {
            let pool = Pool::new(2);
            let mut ids = vec![0; top];
            let (w, wstride) = case.weights.as_ref().unwrap();
            let mut best = f64::INFINITY;
            for _ in 0..8 {
                let start = std::time::Instant::now();
                let weights = Some((&w[..], *wstride));
                select(isa, &pool, &shape, &case.keys, 99_999, &case.q, case.stride, weights, &mut ids);
                best = best.min(start.elapsed().as_secs_f64());
            }
            println!("{} {heads} heads of {len}, top {top}: {:.2} ms", isa.name(), best * 1e3);
        }
    }
}
