//! Norms, copies and gates of pieces of rows: against f64, and every implementation bit for bit.

mod random;

use gantry_kernels::cpu::{Gate, Isa, Pieces, Pool, copy_pieces, gate_pieces, rms_norm, rms_norm_pieces};
use random::{Rng, assert_same};

/// A source and a destination with the same pieces.
fn layouts() -> Vec<(Pieces, Pieces)> {
    let mut layouts = Vec::new();
    for len in [1, 3, 15, 16, 17, 64, 128, 130] {
        for count in [1, 2, 5] {
            let dense = Pieces { row: count * len, start: 0, count, len, stride: len };
            let loose = Pieces { row: 7 + count * (len + 9), start: 5, count, len, stride: len + 9 };
            layouts.extend([(dense, loose), (loose, dense)]);
            // One piece, read `count` times.
            layouts.push((Pieces { row: len + 4, start: 2, count, len, stride: 0 }, loose));
        }
    }
    layouts
}

fn at(pieces: &Pieces, token: usize, piece: usize) -> usize {
    token * pieces.row + pieces.start + piece * pieces.stride
}

/// Each (token, piece, index within the piece).
fn places(tokens: usize, pieces: Pieces) -> impl Iterator<Item = (usize, usize, usize)> {
    let Pieces { count, len, .. } = pieces;
    (0..tokens * count * len).map(move |i| (i / (count * len), i / len % count, i % len))
}

/// What a piece holds must be `expected`, and everything between the pieces what it was.
fn check(
    y: &[f32],
    before: &[f32],
    tokens: usize,
    to: Pieces,
    expected: impl Fn(usize, usize, usize) -> f64,
) {
    let mut rest = before.to_vec();
    for (t, p, i) in places(tokens, to) {
        let (at, exact) = (at(&to, t, p) + i, expected(t, p, i));
        let error = (f64::from(y[at]) - exact).abs();
        assert!(error <= 1e-6 * exact.abs() + 1e-30, "{to:?} [{t}][{p}][{i}]: {} is not {exact}", y[at]);
        rest[at] = y[at];
    }
    assert_same(y, &rest, "between the pieces");
}

/// `run` on a copy of `before`, with every implementation and number of threads; what all of them give.
fn same(before: &[f32], run: impl Fn(Isa, &Pool, &mut [f32])) -> Vec<f32> {
    let mut truth = before.to_vec();
    run(Isa::PORTABLE, &Pool::new(1), &mut truth);
    for threads in [1, 3] {
        let pool = Pool::new(threads);
        for isa in Isa::available() {
            let mut y = before.to_vec();
            run(isa, &pool, &mut y);
            assert_same(&y, &truth, isa.name());
        }
    }
    truth
}

fn rms(x: &[f32], eps: f32) -> f64 {
    let mean = x.iter().map(|&x| f64::from(x).powi(2)).sum::<f64>() / x.len() as f64;
    (mean + f64::from(eps)).sqrt()
}

#[test]
fn norms_match_f64_in_place_and_not_and_agree_bit_for_bit() {
    let mut rng = Rng(41);
    for (from, to) in layouts() {
        let (len, eps) = (to.len, 1e-6);
        // Long pieces of many tokens go to several threads.
        for tokens in [1, if len < 64 { 4 } else { 50 }] {
            let x = rng.units(tokens * from.row, 3.0);
            let before = rng.units(tokens * to.row, 3.0);
            for weights in [0, len, to.count * len] {
                let w = rng.units(weights, 2.0);
                let weight = (weights > 0).then_some(&w[..]);
                let factor = |p: usize, i: usize| match weights {
                    0 => 1.0,
                    n if n == len => f64::from(w[i]),
                    _ => f64::from(w[p * len + i]),
                };
                let y = same(&before, |isa, pool, y| {
                    rms_norm_pieces(isa, pool, tokens, Some((&x, from)), weight, eps, y, to);
                });
                check(&y, &before, tokens, to, |t, p, i| {
                    let x = &x[at(&from, t, p)..][..len];
                    f64::from(x[i]) / rms(x, eps) * factor(p, i)
                });
                let y = same(&before, |isa, pool, y| {
                    rms_norm_pieces(isa, pool, tokens, None, weight, eps, y, to);
                });
                check(&y, &before, tokens, to, |t, p, i| {
                    let x = &before[at(&to, t, p)..][..len];
                    f64::from(x[i]) / rms(x, eps) * factor(p, i)
                });
            }
        }
    }
}

#[test]
fn a_norm_of_one_piece_is_the_norm_of_a_row() {
    let mut rng = Rng(42);
    let (tokens, n) = (3, 577);
    let (x, weight) = (rng.units(tokens * n, 4.0), rng.units(n, 2.0));
    let (mut rows, mut pieces) = (vec![0f32; tokens * n], x.clone());
    let (isa, pool) = (Isa::PORTABLE, Pool::new(1));
    rms_norm(isa, &pool, &x, &weight, 1e-5, &mut rows);
    let one = Pieces { row: n, start: 0, count: 1, len: n, stride: n };
    rms_norm_pieces(isa, &pool, tokens, None, Some(&weight), 1e-5, &mut pieces, one);
    assert_same(&pieces, &rows, "one piece");
}

#[test]
fn copies_move_the_pieces_and_nothing_else() {
    let mut rng = Rng(43);
    for (from, to) in layouts() {
        let tokens = if to.len < 64 { 3 } else { 50 };
        let x = rng.units(tokens * from.row, 3.0);
        let before = rng.units(tokens * to.row, 3.0);
        let y = same(&before, |isa, pool, y| copy_pieces(isa, pool, tokens, &x, from, y, to));
        check(&y, &before, tokens, to, |t, p, i| f64::from(x[at(&from, t, p) + i]));
    }
}

#[test]
fn gates_of_values_pieces_and_tokens_match_f64() {
    let mut rng = Rng(44);
    for (from, to) in layouts() {
        let tokens = if to.len < 64 { 3 } else { 50 };
        let by_piece = Pieces { len: 1, ..from };
        let by_token = Pieces { len: 1, count: 1, ..from };
        for from in [from, by_piece, by_token] {
            let mut g = rng.units(tokens * from.row, 20.0);
            g[from.start] = [0.0, -0.0, 80.0, -80.0][to.len % 4];
            let before = rng.units(tokens * to.row, 3.0);
            for act in [Gate::Sigmoid, Gate::Silu] {
                let y = same(&before, |isa, pool, y| gate_pieces(isa, pool, tokens, act, &g, from, y, to));
                check(&y, &before, tokens, to, |t, p, i| {
                    let (p_g, i_g) = (p.min(from.count - 1), i.min(from.len - 1));
                    let g = f64::from(g[at(&from, t, p_g) + i_g]);
                    let sigmoid = 1.0 / (1.0 + (-g).exp());
                    let factor = if act == Gate::Silu { g * sigmoid } else { sigmoid };
                    f64::from(before[at(&to, t, p) + i]) * factor
                });
            }
        }
    }
}

#[test]
fn the_last_row_may_end_with_its_last_piece() {
    let half = Pieces { row: 8, start: 0, count: 1, len: 3, stride: 3 };
    let x: Vec<f32> = (0..11).map(|i| i as f32).collect();
    let mut y = vec![0f32; 6];
    let to = Pieces { row: 3, ..half };
    copy_pieces(Isa::PORTABLE, &Pool::new(1), 2, &x, half, &mut y, to);
    assert_eq!(y, [0.0, 1.0, 2.0, 8.0, 9.0, 10.0]);
}

#[test]
fn pieces_outside_of_a_row_or_on_each_other_are_refused() {
    let fine = Pieces { row: 8, start: 0, count: 2, len: 4, stride: 4 };
    let copy = |from: Pieces, to: Pieces| {
        let mut y = [0f32; 16];
        std::panic::catch_unwind(move || {
            copy_pieces(Isa::PORTABLE, &Pool::new(1), 2, &[0f32; 16], from, &mut y, to);
        })
    };
    assert!(copy(fine, fine).is_ok());
    for bad in [
        Pieces { start: 1, ..fine },
        Pieces { row: 9, ..fine },
        Pieces { stride: usize::MAX, ..fine },
        Pieces { row: usize::MAX, ..fine },
        Pieces { len: 5, ..fine },
        Pieces { count: 0, ..fine },
    ] {
        assert!(copy(bad, fine).is_err() && copy(fine, bad).is_err(), "{bad:?}");
    }
    assert!(copy(fine, Pieces { stride: 3, ..fine }).is_err());
    assert!(copy(fine, Pieces { count: 1, ..fine }).is_err());
}
