//! What a tensor's values look like: range, mean, zeros, histogram, scales; and how far two tensors are apart.

use crate::output::json_float;
use gantry_formats::block::GgmlType;
use gantry_formats::block::finite::{ScaleField, scale_fields};
use serde::Serialize;
use serde_json::{Value, json};

/// Range and moments of a stream of values. What is not finite is counted and left out of them.
#[derive(Clone, Debug)]
pub(crate) struct Stats {
    /// Values seen.
    pub(crate) count: u64,
    /// Exact zeros.
    pub(crate) zeros: u64,
    /// NaN and infinities.
    pub(crate) non_finite: u64,
    /// Smallest finite value.
    pub(crate) min: f32,
    /// Largest finite value.
    pub(crate) max: f32,
    sum: f64,
    squares: f64,
}

impl Default for Stats {
    fn default() -> Self {
        let (min, max) = (f32::INFINITY, f32::NEG_INFINITY);
        Self { count: 0, zeros: 0, non_finite: 0, min, max, sum: 0.0, squares: 0.0 }
    }
}

impl Stats {
    /// Takes more values.
    pub(crate) fn add(&mut self, values: &[f32]) {
        self.count += values.len() as u64;
        for &x in values {
            if !x.is_finite() {
                self.non_finite += 1;
                continue;
            }
            self.zeros += u64::from(x == 0.0);
            self.min = self.min.min(x);
            self.max = self.max.max(x);
            self.sum += f64::from(x);
            self.squares += f64::from(x) * f64::from(x);
        }
    }

    /// Adds what another has seen.
    pub(crate) fn merge(&mut self, other: &Self) {
        self.count += other.count;
        self.zeros += other.zeros;
        self.non_finite += other.non_finite;
        self.min = self.min.min(other.min);
        self.max = self.max.max(other.max);
        self.sum += other.sum;
        self.squares += other.squares;
    }

    fn finite(&self) -> u64 {
        self.count - self.non_finite
    }

    /// Mean of the finite values; 0 where there is none.
    pub(crate) fn mean(&self) -> f64 {
        self.sum / self.finite().max(1) as f64
    }

    /// Root mean square of the finite values.
    pub(crate) fn rms(&self) -> f64 {
        (self.squares / self.finite().max(1) as f64).sqrt()
    }

    /// Smallest and largest, where there is a finite value.
    pub(crate) fn range(&self) -> Option<(f32, f32)> {
        (self.finite() > 0).then_some((self.min, self.max))
    }

    /// For programs.
    pub(crate) fn to_json(&self) -> Value {
        let end = |x: f32| self.range().map(|_| json_float(x.into()));
        json!({
            "count": self.count, "min": end(self.min), "max": end(self.max), "mean": json_float(self.mean()),
            "rms": json_float(self.rms()), "zeros": self.zeros, "non_finite": self.non_finite,
        })
    }
}

/// Counts of values in equal steps between two ends.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Histogram {
    /// Lower end of the first step.
    pub(crate) from: f32,
    /// Upper end of the last step.
    pub(crate) to: f32,
    /// Values per step.
    pub(crate) counts: Vec<u64>,
}

impl Histogram {
    /// No values yet.
    pub(crate) fn new((from, to): (f32, f32), steps: usize) -> Self {
        Self { from, to, counts: vec![0; steps.max(1)] }
    }

    /// Takes more values; those outside the ends, or not finite, are not counted.
    pub(crate) fn add(&mut self, values: &[f32]) {
        let (from, to) = (f64::from(self.from), f64::from(self.to));
        let steps = self.counts.len();
        let scale = if to > from { steps as f64 / (to - from) } else { 0.0 };
        for &x in values.iter().filter(|x| (self.from..=self.to).contains(*x)) {
            let step = ((f64::from(x) - from) * scale) as usize;
            self.counts[step.min(steps - 1)] += 1;
        }
    }

    /// A line per step: its lower end, a bar, a count.
    pub(crate) fn render(&self, width: usize) -> String {
        let most = self.counts.iter().copied().max().unwrap_or(0).max(1);
        let step = (f64::from(self.to) - f64::from(self.from)) / self.counts.len() as f64;
        let mut out = String::new();
        for (i, &count) in self.counts.iter().enumerate() {
            let filled = (count as f64 / most as f64 * width as f64).ceil() as usize;
            let from = f64::from(self.from) + i as f64 * step;
            let bar = "#".repeat(filled);
            out += &format!("  {from:>12.5}  {bar:width$}  {:>14}\n", crate::units::count(count));
        }
        out
    }
}

/// The scales, or minima, of a stream of blocks.
#[derive(Clone, Debug)]
pub(crate) struct Scales {
    field: ScaleField,
    /// Blocks seen.
    pub(crate) blocks: u64,
    /// Scales that are zero.
    pub(crate) zeros: u64,
    /// Scales below the normal range of f16.
    pub(crate) subnormal: u64,
    /// Negative scales.
    pub(crate) negative: u64,
    /// NaN and infinities.
    pub(crate) non_finite: u64,
    /// Smallest magnitude above zero.
    pub(crate) min: f32,
    /// Largest magnitude.
    pub(crate) max: f32,
}

impl Scales {
    /// One for each field of `ty`.
    pub(crate) fn of(ty: GgmlType) -> Vec<Self> {
        let new = |field: &ScaleField| Self {
            field: *field,
            blocks: 0,
            zeros: 0,
            subnormal: 0,
            negative: 0,
            non_finite: 0,
            min: f32::INFINITY,
            max: 0.0,
        };
        scale_fields(ty).iter().map(new).collect()
    }

    /// `scale` or `minimum`.
    pub(crate) fn name(&self) -> &'static str {
        self.field.name
    }

    /// Takes whole blocks of `ty`.
    pub(crate) fn add(&mut self, ty: GgmlType, bytes: &[u8]) {
        for block in bytes.chunks_exact(ty.block_bytes() as usize) {
            let x = self.field.read(block);
            self.blocks += 1;
            if !x.is_finite() {
                self.non_finite += 1;
            } else if x == 0.0 {
                self.zeros += 1;
            } else {
                self.negative += u64::from(x < 0.0);
                self.subnormal += u64::from(x.abs() < 6.103_515_6e-5);
                self.min = self.min.min(x.abs());
                self.max = self.max.max(x.abs());
            }
        }
    }

    /// For programs.
    pub(crate) fn to_json(&self) -> Value {
        let min = self.min.is_finite().then(|| json_float(self.min.into()));
        json!({
            "field": self.name(), "blocks": self.blocks, "min": min, "max": json_float(self.max.into()),
            "zeros": self.zeros, "subnormal": self.subnormal, "negative": self.negative,
            "non_finite": self.non_finite,
        })
    }
}

/// How far two streams of values are apart.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Difference {
    /// Values compared.
    pub(crate) count: u64,
    /// Values that differ; two NaN do not.
    pub(crate) differing: u64,
    /// Largest |a − b|; infinite where one is not finite and the other is.
    pub(crate) max: f64,
    squares: f64,
}

impl Difference {
    /// Compares value by value.
    pub(crate) fn add(&mut self, a: &[f32], b: &[f32]) {
        self.count += a.len().min(b.len()) as u64;
        for (&x, &y) in a.iter().zip(b) {
            if x == y || x.is_nan() && y.is_nan() {
                continue;
            }
            self.differing += 1;
            let d = (f64::from(x) - f64::from(y)).abs();
            let d = if d.is_nan() { f64::INFINITY } else { d };
            self.max = self.max.max(d);
            self.squares += d * d;
        }
    }

    /// Counts values that are known to be the same.
    pub(crate) fn same(&mut self, count: u64) {
        self.count += count;
    }

    /// Adds what another has seen.
    pub(crate) fn merge(&mut self, other: &Self) {
        self.count += other.count;
        self.differing += other.differing;
        self.max = self.max.max(other.max);
        self.squares += other.squares;
    }

    /// Root mean square of the difference, over all values.
    pub(crate) fn rms(&self) -> f64 {
        (self.squares / self.count.max(1) as f64).sqrt()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stats_leave_out_what_is_no_number() {
        let mut stats = Stats::default();
        stats.add(&[1.0, -2.0, 0.0, f32::NAN, f32::INFINITY, -0.0]);
        assert_eq!((stats.count, stats.zeros, stats.non_finite), (6, 2, 2));
        assert_eq!(stats.range(), Some((-2.0, 1.0)));
        assert_eq!((stats.mean(), stats.rms()), (-0.25, (5.0f64 / 4.0).sqrt()));
        assert_eq!(Stats::default().range(), None);
    }

    #[test]
    fn a_histogram_counts_both_ends() {
        let mut histogram = Histogram::new((-1.0, 1.0), 4);
        histogram.add(&[-1.0, -0.5, 0.0, 0.99, 1.0, f32::NAN, 2.0]);
        assert_eq!(histogram.counts, [1, 1, 1, 2]);
        let mut flat = Histogram::new((3.0, 3.0), 2);
        flat.add(&[3.0, 3.0]);
        assert_eq!(flat.counts, [2, 0]);
    }

    #[test]
    fn scales_of_q8_0() {
        let mut scales = Scales::of(GgmlType::Q8_0);
        let mut bytes = [0u8; 34 * 4];
        bytes[..2].copy_from_slice(&0x3c00u16.to_le_bytes());
        bytes[34..36].copy_from_slice(&0x8001u16.to_le_bytes());
        bytes[68..70].copy_from_slice(&0x7c00u16.to_le_bytes());
        scales[0].add(GgmlType::Q8_0, &bytes);
        let s = &scales[0];
        assert_eq!((s.blocks, s.zeros, s.subnormal, s.negative, s.non_finite), (4, 1, 1, 1, 1));
        assert_eq!((s.min, s.max), (2f32.powi(-24), 1.0));
    }

    #[test]
    fn differences() {
        let mut d = Difference::default();
        d.add(&[1.0, 0.0, f32::NAN, 2.0], &[1.0, -0.0, f32::NAN, 4.0]);
        assert_eq!((d.count, d.differing, d.max, d.rms()), (4, 1, 2.0, 1.0));
        d.add(&[f32::NAN], &[0.0]);
        assert_eq!(d.max, f64::INFINITY);
    }
}
