//! exp, silu, norms, softmax, add: every implementation against f64, and against each other bit for bit.

mod random;

use gantry_kernels::cpu::{Isa, Pool, add, exp_in_place, layer_norm, rms_norm, silu_mul, softmax};
use random::{Rng, assert_same, assert_written, poison};

/// Lengths around the 16 lanes, and the widths of real models.
fn lengths() -> impl Iterator<Item = usize> {
    (1..=70).chain([576, 1536, 2049])
}

/// |y - truth| in units of the last place of a float near `truth`.
fn ulps(y: f32, truth: f64) -> f64 {
    let near = (truth.abs() as f32).max(f32::MIN_POSITIVE);
    let unit = f64::from(f32::from_bits(near.to_bits() + 1)) - f64::from(near);
    (f64::from(y) - truth).abs() / unit
}

fn check_exp(inputs: &[f32]) -> f64 {
    let mut truth = inputs.to_vec();
    exp_in_place(Isa::PORTABLE, &mut truth);
    for isa in random::others() {
        let mut y = inputs.to_vec();
        exp_in_place(isa, &mut y);
        assert_same(&y, &truth, isa.name());
    }
    let mut worst = 0f64;
    for (&x, &y) in inputs.iter().zip(&truth) {
        let exact = f64::from(x).exp();
        if x.is_nan() {
            assert!(y.is_nan());
        } else if exact > f64::from(f32::MAX) {
            assert!(y == f32::INFINITY || ulps(y, f64::from(f32::MAX)) <= 1.0, "exp({x:e}) = {y:e}");
        } else {
            worst = worst.max(ulps(y, exact));
        }
    }
    worst
}

#[test]
fn exp_is_within_a_unit_in_the_last_place() {
    let special = [
        0.0,
        -0.0,
        1.0,
        -1.0,
        f32::INFINITY,
        f32::NEG_INFINITY,
        f32::NAN,
        f32::MAX,
        f32::MIN,
        f32::MIN_POSITIVE,
        1e-45,
        88.72283,
        88.72284,
        89.0,
        -87.33655,
        -103.97,
        -103.98,
        -104.1,
    ];
    assert!(check_exp(&special) <= 1.0);
    let mut y = special;
    exp_in_place(Isa::PORTABLE, &mut y);
    assert_eq!(y[..2], [1.0, 1.0]);
    assert_eq!(y[4..6], [f32::INFINITY, 0.0]);
    assert_eq!([y[7], y[8]], [f32::INFINITY, 0.0]);
    let sample: Vec<f32> = (0..u32::MAX / 1021).map(|i| f32::from_bits(i * 1021)).collect();
    let worst = check_exp(&sample);
    assert!(worst <= 1.0, "{worst} ulp");
}

#[test]
#[ignore = "every float: minutes"]
fn exp_of_every_float() {
    let mut worst = 0f64;
    for high in 0..=0xffffu32 {
        let inputs: Vec<f32> = (0..=0xffff).map(|low| f32::from_bits(high << 16 | low)).collect();
        worst = worst.max(check_exp(&inputs));
    }
    println!("worst: {worst} ulp");
    assert!(worst <= 1.0, "{worst} ulp");
}

#[test]
fn silu_mul_matches_f64_and_agrees_bit_for_bit() {
    let mut rng = Rng(11);
    let cases = lengths().flat_map(|n| [(n, 1, None), (n, 3, None), (n, 2, Some(7.5f32))]);
    for (n, tokens, limit) in cases {
        {
            let mut x = rng.units(tokens * 2 * n, 20.0);
            x[0] = [0.0, -0.0, 200.0, -200.0, 1e-40][n % 5];
            let mut truth = poison(tokens * n);
            silu_mul(Isa::PORTABLE, &Pool::new(1), &x, n, limit, &mut truth);
            assert_written(&truth);
            for (i, &y) in truth.iter().enumerate() {
                let (g, u) = (x[i / n * 2 * n + i % n], x[i / n * 2 * n + n + i % n]);
                let (g, u) = limit.map_or((g, u), |l| (g.min(l), u.clamp(-l, l)));
                let exact = f64::from(g) / (1.0 + (-f64::from(g)).exp()) * f64::from(u);
                let error = (f64::from(y) - exact).abs();
                assert!(error <= 5.0 * f64::from(f32::EPSILON) * exact.abs() + 1e-37, "{g} {u}: {y} {exact}");
            }
            for isa in random::others() {
                let mut y = poison(tokens * n);
                silu_mul(isa, &Pool::new(2), &x, n, limit, &mut y);
                assert_same(&y, &truth, isa.name());
            }
        }
    }
}

#[test]
fn layer_norm_matches_f64_and_agrees_bit_for_bit() {
    let mut rng = Rng(15);
    for n in lengths() {
        // Rows around 0, far from it (where a variance as a difference of squares would be lost), and constant.
        for (tokens, shift, size, eps) in
            [(1, 0.0, 1.0, 1e-5), (3, 1e4, 1.0, 1e-6), (33, -3.0, 1e-12, 1e-12), (2, 7.3, 0.0, 1e-6)]
        {
            let x: Vec<f32> = rng.units(tokens * n, size).into_iter().map(|x| x + shift).collect();
            let (weight, bias) = (rng.units(n, 2.0), rng.units(n, 1.0));
            let mut truth = poison(tokens * n);
            layer_norm(Isa::PORTABLE, &Pool::new(1), &x, &weight, &bias, eps, &mut truth);
            assert_written(&truth);
            for (x, y) in x.chunks(n).zip(truth.chunks(n)) {
                let mean = x.iter().map(|&x| f64::from(x)).sum::<f64>() / n as f64;
                let variance = x.iter().map(|&x| (f64::from(x) - mean).powi(2)).sum::<f64>() / n as f64;
                let scale = 1.0 / (variance + f64::from(eps)).sqrt();
                for (((&x, &w), &b), &y) in x.iter().zip(&weight).zip(&bias).zip(y) {
                    let exact = (f64::from(x) - mean) * scale * f64::from(w) + f64::from(b);
                    let error = (f64::from(y) - exact).abs();
                    let largest = (f64::from(x) - mean).abs() * scale * f64::from(w.abs()) + 1.0;
                    assert!(error <= 4.0 * f64::from(f32::EPSILON) * largest, "{n} {shift}: {y} for {exact}");
                }
            }
            for isa in random::others() {
                for threads in [1, 3] {
                    let mut y = poison(tokens * n);
                    layer_norm(isa, &Pool::new(threads), &x, &weight, &bias, eps, &mut y);
                    assert_same(&y, &truth, isa.name());
                }
            }
            let mut alone = poison(tokens * n);
            for (x, y) in x.chunks(n).zip(alone.chunks_mut(n)) {
                layer_norm(Isa::PORTABLE, &Pool::new(1), x, &weight, &bias, eps, y);
            }
            assert_same(&alone, &truth, "a token alone");
        }
    }
    let mut y = poison(3);
    layer_norm(Isa::PORTABLE, &Pool::new(1), &[1.0, f32::NAN, 2.0], &[1.0; 3], &[0.0; 3], 1e-5, &mut y);
    assert!(y.iter().all(|y| y.is_nan()), "{y:?}");
}

#[test]
fn rms_norm_matches_f64_and_agrees_bit_for_bit() {
    let mut rng = Rng(12);
    for n in lengths() {
        for (tokens, size, eps) in [(1, 1.0, 1e-5), (3, 1e18, 1e-6), (33, 1e-20, 1e-6), (2, 0.0, 1e-5)] {
            let x = rng.units(tokens * n, size);
            let weight = rng.units(n, 2.0);
            let mut truth = poison(tokens * n);
            rms_norm(Isa::PORTABLE, &Pool::new(1), &x, &weight, eps, &mut truth);
            assert_written(&truth);
            for (x, y) in x.chunks(n).zip(truth.chunks(n)) {
                let mean = x.iter().map(|&x| f64::from(x).powi(2)).sum::<f64>() / n as f64;
                let scale = 1.0 / (mean + f64::from(eps)).sqrt();
                for ((&x, &w), &y) in x.iter().zip(&weight).zip(y) {
                    let exact = f64::from(x) * scale * f64::from(w);
                    let error = (f64::from(y) - exact).abs();
                    assert!(error <= 2.0 * f64::from(f32::EPSILON) * exact.abs() + 1e-44, "{y} for {exact}");
                }
            }
            for isa in random::others() {
                for threads in [1, 3] {
                    let mut y = poison(tokens * n);
                    rms_norm(isa, &Pool::new(threads), &x, &weight, eps, &mut y);
                    assert_same(&y, &truth, isa.name());
                }
            }
        }
    }
}

#[test]
fn softmax_matches_f64_and_agrees_bit_for_bit() {
    let mut rng = Rng(13);
    for n in lengths() {
        for size in [1.0, 50.0, 1e4] {
            let mut x = rng.units(3 * n, size);
            if n > 2 {
                x[1] = f32::NEG_INFINITY;
            }
            let mut truth = x.clone();
            softmax(Isa::PORTABLE, &mut truth, n);
            for (x, y) in x.chunks(n).zip(truth.chunks(n)) {
                let max = x.iter().copied().fold(f32::NEG_INFINITY, f32::max);
                // The difference is rounded as in f32: it is part of the definition.
                let e: Vec<f64> = x.iter().map(|&x| f64::from(x - max).exp()).collect();
                let sum: f64 = e.iter().sum();
                for (e, &y) in e.iter().zip(y) {
                    let error = (f64::from(y) - e / sum).abs();
                    assert!(
                        error <= 5.0 * f64::from(f32::EPSILON) * (e / sum) + 1e-43,
                        "{y} for {}",
                        e / sum
                    );
                }
            }
            for isa in random::others() {
                let mut y = x.clone();
                softmax(isa, &mut y, n);
                assert_same(&y, &truth, &format!("{} {n}", isa.name()));
            }
        }
    }
    for isa in Isa::available() {
        let mut rows = [f32::NEG_INFINITY, f32::NEG_INFINITY, f32::NAN, 1.0, 0.0, -0.0];
        softmax(isa, &mut rows, 2);
        assert!(rows[..4].iter().all(|y| y.is_nan()), "{rows:?}");
        assert_eq!(rows[4..], [0.5, 0.5]);
    }
}

#[test]
fn add_is_one_addition() {
    let mut rng = Rng(14);
    for n in lengths() {
        let (x, y) = (rng.units(n, 1.0), rng.units(n, 1e3));
        let truth: Vec<f32> = x.iter().zip(&y).map(|(x, y)| x + y).collect();
        for isa in Isa::available() {
            let mut sum = x.clone();
            add(isa, &mut sum, &y);
            assert_same(&sum, &truth, isa.name());
        }
    }
}
