//! Residual streams, Sinkhorn mixing and n-gram gates: against f64, and against each other bit for bit.

mod random;

use gantry_kernels::cpu::*;
use random::{Rng, assert_same, assert_written, poison};

/// Streams of one value, of lanes and a rest, and of more than a thread takes at a time.
const SHAPES: [Streams; 5] = [
    Streams { count: 1, len: 1 },
    Streams { count: 2, len: 33 },
    Streams { count: 3, len: 16 },
    Streams { count: 4, len: 1025 },
    Streams { count: 17, len: 20 },
];
const EPSILON: f64 = f32::EPSILON as f64;

fn sigmoid(x: f64) -> f64 {
    1.0 / (1.0 + (-x).exp())
}

#[track_caller]
fn assert_near(y: &[f32], exact: &[f64], bound: impl Fn(usize) -> f64, what: &str) {
    assert_eq!(y.len(), exact.len(), "{what}");
    assert_written(y);
    for (i, (&y, &exact)) in y.iter().zip(exact).enumerate() {
        let error = (f64::from(y) - exact).abs();
        assert!(error <= bound(i), "{what}: [{i}] {y} for {exact}, off by {error:e} of {:e}", bound(i));
    }
}

/// `f(isa, pool, first token, tokens)` gives the outputs of these tokens, several kinds of them. Those of a whole
/// batch by plain Rust on one thread are returned; every other way to compute them must give their bits.
fn every_way(
    tokens: usize,
    what: &str,
    f: impl Fn(Isa, &Pool, usize, usize) -> Vec<Vec<f32>>,
) -> Vec<Vec<f32>> {
    let truth = f(Isa::PORTABLE, &Pool::new(1), 0, tokens);
    for isa in Isa::available() {
        for threads in [1, 2, 3] {
            let pool = Pool::new(threads);
            for batch in [1, 2, tokens] {
                let mut all = vec![Vec::new(); truth.len()];
                for first in (0..tokens).step_by(batch) {
                    let part = f(isa, &pool, first, batch.min(tokens - first));
                    all.iter_mut().zip(part).for_each(|(all, part)| all.extend(part));
                }
                let what = format!("{what}: {} on {threads} threads, {batch} tokens at once", isa.name());
                all.iter().zip(&truth).for_each(|(y, truth)| assert_same(y, truth, &what));
            }
        }
    }
    truth
}

/// x + add · 2σ(inject/count), and the size of what was added.
fn written(s: Streams, x: &[f32], write: &StreamWrite<'_>) -> Vec<(f64, f64)> {
    let at = |i: usize| {
        let (token, stream, e) = (i / s.len / s.count, i / s.len % s.count, i % s.len);
        let factor = write.inject.map_or(1.0, |(inject, stride)| {
            2.0 * sigmoid(f64::from(inject[token * stride + stream]) / s.count as f64)
        });
        let term = f64::from(write.add[token * s.len + e]) * factor;
        (f64::from(x[i]) + term, f64::from(x[i]).abs() + term.abs())
    };
    (0..x.len()).map(at).collect()
}

#[test]
fn a_write_adds_to_each_stream_by_its_factor() {
    let mut rng = Rng(1);
    for s in SHAPES {
        for stride in [None, Some(s.count), Some(s.count + 3)] {
            let tokens = 5;
            let x = rng.units(tokens * s.width(), 4.0);
            let add = rng.units(tokens * s.len, 4.0);
            let logits = rng.units(tokens * stride.unwrap_or(0), 6.0 * s.count as f32);
            let inject = |first: usize| stride.map(|stride| (&logits[first * stride..], stride));
            let y = every_way(tokens, &format!("{s:?}"), |isa, pool, first, tokens| {
                let mut x = x[first * s.width()..][..tokens * s.width()].to_vec();
                stream_write(isa, pool, s, &mut x, &add[first * s.len..][..tokens * s.len], inject(first));
                vec![x]
            });
            let (exact, size): (Vec<_>, Vec<_>) =
                written(s, &x, &StreamWrite { add: &add, inject: inject(0) }).into_iter().unzip();
            // The factor: 6 roundings; the product and the sum.
            assert_near(&y[0], &exact, |i| 5.0 * EPSILON * size[i], &format!("{s:?}"));
        }
    }
}

#[test]
fn a_norm_is_that_of_each_stream_after_the_write() {
    let mut rng = Rng(2);
    for s in SHAPES {
        for kind in 0..3 {
            let tokens = 5;
            let size = [1.0, 1e-4, 1e12][rng.below(3)];
            let x = rng.units(tokens * s.width(), size);
            let gamma = rng.units(s.width(), 2.0);
            let (add, eps) = (rng.units(tokens * s.len, 2.0), 1e-6);
            let logits = rng.units(tokens * s.count, 20.0);
            let inject = |first: usize| (kind == 2).then(|| (&logits[first * s.count..], s.count));
            let y = every_way(tokens, &format!("{s:?}"), |isa, pool, first, tokens| {
                let mut x = x[first * s.width()..][..tokens * s.width()].to_vec();
                let mut normed = poison(x.len());
                let add = &add[first * s.len..][..tokens * s.len];
                let write = (kind > 0).then_some(StreamWrite { add, inject: inject(first) });
                stream_norm(isa, pool, s, write, &mut x, &gamma, eps, &mut normed);
                vec![x, normed]
            });
            // One pass over x gives what two give.
            let (isa, pool) = (Isa::PORTABLE, Pool::new(1));
            let mut alone = x.clone();
            if kind > 0 {
                stream_write(isa, &pool, s, &mut alone, &add, inject(0));
            }
            assert_same(&y[0], &alone, "the streams");
            let mut normed = poison(x.len());
            for (i, x) in alone.chunks(s.len).enumerate() {
                let gamma = &gamma[i % s.count * s.len..][..s.len];
                rms_norm(isa, &pool, x, gamma, eps, &mut normed[i * s.len..][..s.len]);
            }
            assert_same(&y[1], &normed, "the norms");
            let exact: Vec<f64> = (0..x.len())
                .map(|i| {
                    let stream = &alone[i / s.len * s.len..][..s.len];
                    let mean = stream.iter().map(|&x| f64::from(x).powi(2)).sum::<f64>() / s.len as f64;
                    f64::from(alone[i]) / (mean + f64::from(eps)).sqrt() * f64::from(gamma[i % s.width()])
                })
                .collect();
            assert_near(&y[1], &exact, |i| 2.0 * EPSILON * exact[i].abs() + 1e-44, &format!("{s:?}"));
        }
    }
}

#[test]
fn a_mix_is_the_mean_of_gated_streams() {
    let mut rng = Rng(3);
    for s in SHAPES {
        let tokens = 5;
        let normed = rng.units(tokens * s.width(), 3.0);
        let mut gates = rng.units(tokens * s.width(), 12.0);
        gates[0] = -200.0;
        *gates.last_mut().unwrap() = 200.0;
        let y = every_way(tokens, &format!("{s:?}"), |isa, pool, first, tokens| {
            let [normed, gates] = [&normed, &gates].map(|x| &x[first * s.width()..][..tokens * s.width()]);
            let mut y = poison(tokens * s.len);
            stream_mix(isa, pool, s, normed, gates, &mut y);
            vec![y]
        });
        let terms = |i: usize| {
            let (token, e) = (i / s.len, i % s.len);
            let normed = &normed;
            let gates = &gates;
            (0..s.count).map(move |h| {
                let at = token * s.width() + h * s.len + e;
                f64::from(normed[at]) * sigmoid(f64::from(gates[at])) / s.count as f64
            })
        };
        let exact: Vec<f64> = (0..tokens * s.len).map(|i| terms(i).sum()).collect();
        let bound = |i: usize| (s.count + 4) as f64 * EPSILON * terms(i).map(f64::abs).sum::<f64>() + 1e-37;
        assert_near(&y[0], &exact, bound, &format!("{s:?}"));
    }
}

#[test]
fn silu_scaled_is_silu_of_the_product() {
    let mut rng = Rng(4);
    for n in [0, 1, 15, 16, 17, 320, 9000] {
        for scale in [0.25, 1.0 / 3.0] {
            let mut x = rng.units(n, 60.0);
            if let Some(x) = x.last_mut() {
                *x = -400.0;
            }
            let y = every_way(1, "silu", |isa, pool, _, _| {
                let mut x = x.clone();
                silu_scaled(isa, pool, &mut x, scale);
                vec![x]
            });
            let exact: Vec<f64> = x.iter().map(|&x| f64::from(x * scale)).map(|x| x * sigmoid(x)).collect();
            assert_near(&y[0], &exact, |i| 4.0 * EPSILON * exact[i].abs() + 1e-36, &format!("{n}"));
        }
    }
}

/// Logits of Sinkhorn hyper-connections, and what f64 makes of them: pre, post, comb of one token.
fn sinkhorn_oracle(s: &Sinkhorn, mix: &[f32], scale: &[f32], base: &[f32]) -> [Vec<f64>; 3] {
    let (count, eps) = (s.streams.count, f64::from(s.eps));
    let logit = |i: usize, k: usize| f64::from(mix[i]) * f64::from(scale[k]) + f64::from(base[i]);
    let pre = (0..count).map(|h| sigmoid(logit(h, 0)) + eps).collect();
    let post = (0..count).map(|h| 2.0 * sigmoid(logit(count + h, 1))).collect();
    // c[source][target]
    let mut c: Vec<Vec<f64>> = (0..count)
        .map(|from| (0..count).map(|to| logit(2 * count + to + count * from, 2)).collect())
        .collect();
    for row in &mut c {
        let max = row.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let sum: f64 = row.iter().map(|l| (l - max).exp()).sum();
        row.iter_mut().for_each(|l| *l = (*l - max).exp() / sum + eps);
    }
    let targets = |c: &mut Vec<Vec<f64>>| {
        for to in 0..count {
            let sum: f64 = c.iter().map(|row| row[to]).sum::<f64>() + eps;
            c.iter_mut().for_each(|row| row[to] /= sum);
        }
    };
    targets(&mut c);
    for _ in 1..s.iterations {
        for row in &mut c {
            let sum: f64 = row.iter().sum::<f64>() + eps;
            row.iter_mut().for_each(|c| *c /= sum);
        }
        targets(&mut c);
    }
    [pre, post, c.concat()]
}

#[test]
fn sinkhorn_reads_and_writes_match_f64() {
    let mut rng = Rng(5);
    for streams in SHAPES {
        for (iterations, eps) in [(1, 1e-6), (2, 1e-2), (20, 1e-6)] {
            let (Streams { count, len }, tokens) = (streams, 5);
            let s = Sinkhorn { streams, eps, iterations };
            let width = count * (count + 2);
            assert_eq!(s.mixes(), width);
            let x = rng.units(tokens * streams.width(), 3.0);
            let add = rng.units(tokens * len, 3.0);
            let mixes = rng.units(tokens * width, 4.0);
            let (scale, base) = (rng.units(3, 1.0), rng.units(width, 1.0));
            let out = every_way(tokens, &format!("{s:?}"), |isa, pool, first, tokens| {
                let mut x = x[first * streams.width()..][..tokens * streams.width()].to_vec();
                let mixes = &mixes[first * width..][..tokens * width];
                let mut y = poison(tokens * len);
                let (mut post, mut comb) = (poison(tokens * count), poison(tokens * count * count));
                sinkhorn_read(isa, pool, &s, &x, mixes, &scale, &base, &mut y, &mut post, &mut comb);
                let add = &add[first * len..][..tokens * len];
                sinkhorn_write(isa, pool, streams, &mut x, add, &post, &comb);
                vec![y, post, comb, x]
            });
            let mut exact = [const { Vec::new() }; 4];
            let mut sizes = [const { Vec::new() }; 2];
            for token in 0..tokens {
                let mix = &mixes[token * width..][..width];
                let [pre, post, comb] = sinkhorn_oracle(&s, mix, &scale, &base);
                let x = |h: usize, e: usize| f64::from(x[(token * count + h) * len + e]);
                for e in 0..len {
                    exact[0].push((0..count).map(|h| pre[h] * x(h, e)).sum());
                    sizes[0].push((0..count).map(|h| (pre[h] * x(h, e)).abs()).sum::<f64>());
                }
                for to in 0..count {
                    for e in 0..len {
                        let add = f64::from(add[token * len + e]) * post[to];
                        let term = |from: usize| comb[to + count * from] * x(from, e);
                        exact[3].push(add + (0..count).map(term).sum::<f64>());
                        sizes[1].push(add.abs() + (0..count).map(|from| term(from).abs()).sum::<f64>());
                    }
                }
                exact[1].extend(post);
                exact[2].extend(comb);
            }
            // A logit below 5 is off by 5 roundings of 5·2^-24 at most, and so, relatively, is what follows of it;
            // each division by sums of such entries may double that.
            let far = 64.0 * EPSILON;
            assert_near(&out[0], &exact[0], |i| (far + count as f64 * EPSILON) * sizes[0][i], "read");
            assert_near(&out[1], &exact[1], |i| far * exact[1][i], "post");
            assert_near(&out[2], &exact[2], |i| far * exact[2][i], "comb");
            assert_near(&out[3], &exact[3], |i| (far + count as f64 * EPSILON) * sizes[1][i], "write");
        }
    }
}

#[test]
fn a_matrix_of_sinkhorns_brings_the_sums_to_one() {
    let s = Sinkhorn { streams: Streams { count: 4, len: 1 }, eps: 1e-6, iterations: 20 };
    let mut rng = Rng(6);
    let (mixes, base) = (rng.units(24, 3.0), [0f32; 24]);
    let (mut y, mut post, mut comb) = ([0.0], [0.0; 4], [0.0; 16]);
    let (isa, pool) = (Isa::PORTABLE, Pool::new(1));
    sinkhorn_read(isa, &pool, &s, &[1.0; 4], &mixes, &[1.0; 3], &base, &mut y, &mut post, &mut comb);
    for i in 0..4 {
        let to: f32 = (0..4).map(|from| comb[from * 4 + i]).sum();
        let from: f32 = comb[i * 4..][..4].iter().sum();
        // Targets came last, sources 20 steps on.
        assert!((to - 1.0).abs() < 1e-5 && (from - 1.0).abs() < 1e-2, "{to} {from}");
    }
}

#[test]
fn the_head_of_sinkhorn_models_reads_by_sigmoids() {
    let mut rng = Rng(7);
    for streams in SHAPES {
        let (Streams { count, len }, tokens) = (streams, 5);
        let s = Sinkhorn { streams, eps: 1e-3, iterations: 1 };
        let x = rng.units(tokens * streams.width(), 3.0);
        let mixes = rng.units(tokens * count, 4.0);
        let (scale, base) = (rng.units(1, 1.0), rng.units(count, 1.0));
        let y = every_way(tokens, &format!("{s:?}"), |isa, pool, first, tokens| {
            let x = &x[first * streams.width()..][..tokens * streams.width()];
            let mut y = poison(tokens * len);
            sinkhorn_head(isa, pool, &s, x, &mixes[first * count..][..tokens * count], &scale, &base, &mut y);
            vec![y]
        });
        let terms = |i: usize| {
            let (token, e, x, mixes, base, scale) =
                (i / len, i % len, &x, &mixes, &base, f64::from(scale[0]));
            (0..count).map(move |h| {
                let logit = f64::from(mixes[token * count + h]) * scale + f64::from(base[h]);
                (sigmoid(logit) + 1e-3) * f64::from(x[(token * count + h) * len + e])
            })
        };
        let exact: Vec<f64> = (0..tokens * len).map(|i| terms(i).sum()).collect();
        let bound = |i: usize| (24 + count) as f64 * EPSILON * terms(i).map(f64::abs).sum::<f64>();
        assert_near(&y[0], &exact, bound, &format!("{s:?}"));
    }
}

#[test]
fn an_ngram_gate_takes_the_signed_root_of_the_product() {
    let mut rng = Rng(8);
    for s in SHAPES {
        let tokens = 5;
        let [mut key, query] = [0; 2].map(|_| rng.units(tokens * s.width(), 2.0));
        // No product, and one below the least that a root is taken of.
        key[..s.len].fill(0.0);
        key[tokens * s.width() - s.len..].fill(-1e-9);
        let value = rng.units(tokens * s.len, 3.0);
        let y = every_way(tokens, &format!("{s:?}"), |isa, pool, first, tokens| {
            let [key, query] = [&key, &query].map(|x| &x[first * s.width()..][..tokens * s.width()]);
            let mut y = poison(tokens * s.width());
            ngram_gate(isa, pool, s, key, query, &value[first * s.len..][..tokens * s.len], &mut y);
            vec![y]
        });
        let exact: Vec<(f64, f64)> = (0..y[0].len())
            .map(|i| {
                let row = i / s.len * s.len;
                let products = (row..row + s.len).map(|i| f64::from(key[i]) * f64::from(query[i]));
                let (dot, size) = products.fold((0.0, 0.0), |(dot, size), p| (dot + p, size + f64::abs(p)));
                let d = dot / (s.len as f64).sqrt();
                let logit = if d == 0.0 { 0.0 } else { d.signum() * d.abs().max(1e-6).sqrt() };
                let value = f64::from(value[i / s.width() * s.len + i % s.len]);
                // The products' roundings, through a root and a σ that is at most a quarter as steep.
                let off =
                    size / (s.len as f64).sqrt() * EPSILON / 2.0 / (2.0 * d.abs().max(1e-6).sqrt()) / 4.0;
                (value * sigmoid(logit), (off + (4.0 + logit.abs()) * EPSILON) * value.abs())
            })
            .collect();
        assert!(y[0][..s.len].iter().zip(&value).all(|(y, value)| *y == value / 2.0), "σ(0) is a half");
        let (exact, bound): (Vec<_>, Vec<_>) = exact.into_iter().unzip();
        assert_near(&y[0], &exact, |i| bound[i], &format!("{s:?}"));
    }
    for isa in Isa::available() {
        let s = Streams { count: 1, len: 2 };
        let mut y = poison(2);
        ngram_gate(isa, &Pool::new(1), s, &[f32::NAN, 1.0], &[1.0, 1.0], &[1.0, 1.0], &mut y);
        assert!(y.iter().all(|y| y.is_nan()), "a NaN is not swallowed");
    }
}
