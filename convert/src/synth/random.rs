//! Random numbers by place: each is a function of a key and an index, from integer and IEEE basic operations alone,
//! so that it is the same on every machine and in any order.

const STEP: u64 = 0x9E37_79B9_7F4A_7C15;

/// The key of the tensor called `name`.
pub(super) fn key(seed: u64, name: &str) -> u64 {
    let mut hasher = blake3::Hasher::new();
    hasher.update(&seed.to_le_bytes()).update(name.as_bytes());
    let [a, b, c, d, e, f, g, h, ..] = *hasher.finalize().as_bytes();
    u64::from_le_bytes([a, b, c, d, e, f, g, h])
}

/// 64 random bits: SplitMix64, started at `key`, after `index + 1` steps.
pub(super) fn at(key: u64, index: u64) -> u64 {
    let mut z = key.wrapping_add(STEP.wrapping_mul(index.wrapping_add(1)));
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

/// Uniform in (0, 1), both ends left out.
pub(super) fn uniform(key: u64, index: u64) -> f64 {
    ((at(key, index) >> 11) as f64 + 0.5) / (1u64 << 53) as f64
}

/// Normal, mean 0 and standard deviation 1.
pub(super) fn normal(key: u64, index: u64) -> f64 {
    quantile(uniform(key, index))
}

/// The value that a normal variable stays below with probability `p`: P. J. Acklam's rational approximation, relative
/// error below 1.2e-9.
fn quantile(p: f64) -> f64 {
    const TAIL: f64 = 0.02425;
    const A: [f64; 6] = [
        -3.969683028665376e1,
        2.209460984245205e2,
        -2.759285104469687e2,
        1.383_577_518_672_69e2,
        -3.066479806614716e1,
        2.506628277459239,
    ];
    const B: [f64; 6] = [
        -5.447609879822406e1,
        1.615858368580409e2,
        -1.556989798598866e2,
        6.680131188771972e1,
        -1.328068155288572e1,
        1.0,
    ];
    const C: [f64; 6] = [
        -7.784894002430293e-3,
        -3.223964580411365e-1,
        -2.400758277161838,
        -2.549732539343734,
        4.374664141464968,
        2.938163982698783,
    ];
    const D: [f64; 5] =
        [7.784695709041462e-3, 3.224671290700398e-1, 2.445134137142996, 3.754408661907416, 1.0];
    let tail = |p: f64| {
        let q = (-2.0 * ln(p)).sqrt();
        polynomial(&C, q) / polynomial(&D, q)
    };
    if p < TAIL {
        tail(p)
    } else if p > 1.0 - TAIL {
        -tail(1.0 - p)
    } else {
        let q = p - 0.5;
        let r = q * q;
        polynomial(&A, r) * q / polynomial(&B, r)
    }
}

/// Highest power first.
fn polynomial(coefficients: &[f64], x: f64) -> f64 {
    coefficients.iter().fold(0.0, |sum, c| sum * x + c)
}

/// The natural logarithm of a normal positive number: of the mantissa in [√½, √2] by 2·artanh((m−1)/(m+1)).
fn ln(x: f64) -> f64 {
    let bits = x.to_bits();
    let mut exponent = ((bits >> 52) as i64 - 1023) as f64;
    let mut m = f64::from_bits(bits & ((1 << 52) - 1) | 1023 << 52);
    if m > std::f64::consts::SQRT_2 {
        m /= 2.0;
        exponent += 1.0;
    }
    let s = (m - 1.0) / (m + 1.0);
    let mut sum = 0.0;
    for k in (0..12u32).rev() {
        sum = sum * s * s + 1.0 / f64::from(2 * k + 1);
    }
    exponent * std::f64::consts::LN_2 + 2.0 * s * sum
}

/// The exponential of a number in [0, 1], by its series.
pub(super) fn exp(x: f64) -> f64 {
    (1..22u32).rev().fold(1.0, |sum, k| 1.0 + sum * x / f64::from(k))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn functions_are_what_they_are_called() {
        for i in 1..2000 {
            let x = f64::from(i) / 2000.0;
            assert!((ln(x) - x.ln()).abs() <= 4e-15 * x.ln().abs().max(1e-3), "{x}");
            assert!((exp(x) - x.exp()).abs() < 1e-14, "{x}");
        }
        assert!((ln(2f64.powi(-54)) + 54.0 * std::f64::consts::LN_2).abs() < 1e-13);
        // From tables of the normal distribution.
        for (p, x) in [(0.5, 0.0), (0.975, 1.959_963_985), (0.01, -2.326_347_874), (1e-6, -4.753_424_309)] {
            assert!((quantile(p) - x).abs() < 1e-8, "{p}: {}", quantile(p));
        }
    }

    #[test]
    fn values_are_normal_and_independent() {
        let key = key(1, "blk.0.attn_q.weight");
        let n = 1 << 20;
        let list: Vec<f64> = (0..n).map(|i| normal(key, i)).collect();
        let mean = |f: &dyn Fn(usize) -> f64| (0..n as usize).map(f).sum::<f64>() / n as f64;
        let moment = |k: i32| mean(&|i| list[i].powi(k));
        // Four standard errors of each.
        let close = |found: f64, want: f64, variance: f64| {
            assert!((found - want).abs() < 4.0 * (variance / n as f64).sqrt(), "{found}, expected {want}");
        };
        close(moment(1), 0.0, 1.0);
        close(moment(2), 1.0, 2.0);
        close(moment(3), 0.0, 15.0);
        close(moment(4), 3.0, 96.0);
        for lag in [1, 2, 64, 4096] {
            close(mean(&|i| list[i] * list[(i + lag) % n as usize]), 0.0, 1.0);
        }
        assert_ne!(super::key(1, "a"), super::key(2, "a"));
        assert_ne!(super::key(1, "a"), super::key(1, "b"));
    }
}
