//! Causal convolutions: against f64, split into batches, every implementation bit for bit.

mod random;

use gantry_kernels::cpu::{ConvShape, Isa, Pool, causal_conv};
use random::{Rng, assert_same, assert_written, poison};

fn shapes() -> Vec<ConvShape> {
    let mut shapes = Vec::new();
    for channels in [1, 5, 16, 37, 64, 85, 256, 300, 597] {
        for (taps, dilation) in [(4, 1), (4, 3), (1, 1), (2, 5), (3, 2)] {
            shapes.push(ConvShape { channels, taps, dilation });
        }
    }
    shapes
}

struct Case {
    shape: ConvShape,
    weight: Vec<f32>,
    tokens: usize,
    stride: usize,
    x: Vec<f32>,
    /// Before the first token.
    history: Vec<f32>,
}

impl Case {
    fn new(rng: &mut Rng, shape: ConvShape, tokens: usize) -> Case {
        let stride = shape.channels + 3;
        Case {
            shape,
            weight: rng.units(shape.taps * shape.channels, 1.0),
            tokens,
            stride,
            // The last row ends with its last channel.
            x: rng.units(tokens * stride - 3, 2.0),
            history: rng.units(shape.history() * shape.channels, 2.0),
        }
    }

    /// Outputs and the history afterwards, of batches of these sizes.
    fn run(&self, isa: Isa, pool: &Pool, batches: &[usize], silu: bool) -> (Vec<f32>, Vec<f32>) {
        let channels = self.shape.channels;
        let (mut history, mut y) = (self.history.clone(), poison(self.tokens * channels));
        let mut first = 0;
        for &tokens in batches {
            let x = &self.x[first * self.stride..];
            let y = &mut y[first * channels..][..tokens * channels];
            let history = &mut history;
            causal_conv(isa, pool, self.shape, &self.weight, tokens, x, self.stride, history, silu, y);
            first += tokens;
        }
        assert_eq!(first, self.tokens);
        assert_written(&y);
        (y, history)
    }

    /// Channel c at a time that may lie before the first token.
    fn input(&self, time: isize, c: usize) -> f32 {
        match usize::try_from(time) {
            Ok(t) => self.x[t * self.stride + c],
            Err(_) => {
                let row = self.shape.history() as isize + time;
                self.history[row as usize * self.shape.channels + c]
            }
        }
    }

    fn check(&self, y: &[f32], history: &[f32], silu: bool) {
        let ConvShape { channels, taps, dilation } = self.shape;
        for (i, &y) in y.iter().enumerate() {
            let (t, c) = (i / channels, i % channels);
            let (mut sum, mut size) = (0f64, 0f64);
            for tap in 0..taps {
                let x = self.input(t as isize - ((taps - 1 - tap) * dilation) as isize, c);
                let product = f64::from(self.weight[tap * channels + c]) * f64::from(x);
                (sum, size) = (sum + product, size + product.abs());
            }
            let exact = if silu { sum / (1.0 + (-sum).exp()) } else { sum };
            let error = (f64::from(y) - exact).abs();
            assert!(error <= 1e-6 * size + 1e-30, "{:?} [{t}][{c}]: {y} is not {exact}", self.shape);
        }
        for (i, &kept) in history.iter().enumerate() {
            let time = (self.tokens + i / channels) as isize - self.shape.history() as isize;
            assert_eq!(kept, self.input(time, i % channels), "{:?}, history [{i}]", self.shape);
        }
    }
}

#[test]
fn outputs_and_histories_match_f64_however_they_are_computed() {
    let mut rng = Rng(51);
    let pools = [Pool::new(1), Pool::new(3)];
    for shape in shapes() {
        for tokens in [1, 2, 13] {
            let case = Case::new(&mut rng, shape, tokens);
            let singly = vec![1; tokens];
            let uneven = [tokens / 3, 0, tokens - tokens / 3];
            for silu in [false, true] {
                let truth = case.run(Isa::PORTABLE, &pools[0], &[tokens], silu);
                case.check(&truth.0, &truth.1, silu);
                for isa in Isa::available() {
                    for pool in &pools {
                        for batches in [&[tokens][..], &singly, &uneven] {
                            let (y, history) = case.run(isa, pool, batches, silu);
                            let what = format!("{shape:?} {} {batches:?}", isa.name());
                            assert_same(&y, &truth.0, &what);
                            assert_same(&history, &truth.1, &what);
                        }
                    }
                }
            }
        }
    }
}

#[test]
fn lengths_that_do_not_agree_are_refused() {
    let shape = ConvShape { channels: 4, taps: 3, dilation: 2 };
    let run = |shape: ConvShape, x: usize, stride: usize, history: usize, y: usize| {
        std::panic::catch_unwind(|| {
            let (x, mut history, mut y) = (vec![0f32; x], vec![0f32; history], vec![0f32; y]);
            let (isa, pool) = (Isa::PORTABLE, Pool::new(1));
            causal_conv(isa, &pool, shape, &[0f32; 12], 2, &x, stride, &mut history, true, &mut y);
        })
    };
    assert!(run(shape, 8, 4, 16, 8).is_ok());
    assert!(run(shape, 7, 4, 16, 8).is_err());
    assert!(run(shape, 8, 3, 16, 8).is_err());
    assert!(run(shape, 8, usize::MAX, 16, 8).is_err());
    assert!(run(shape, 8, 4, 12, 8).is_err());
    assert!(run(shape, 8, 4, 16, 12).is_err());
    assert!(run(ConvShape { dilation: 0, ..shape }, 8, 4, 0, 8).is_err());
    assert!(run(ConvShape { taps: 0, ..shape }, 8, 4, 0, 8).is_err());
    assert!(run(ConvShape { taps: 4, ..shape }, 8, 4, 24, 8).is_err());
}
