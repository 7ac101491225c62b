//! Gated delta nets: against f64, split into batches, every implementation bit for bit.

mod random;

use gantry_kernels::cpu::{DeltaInput, DeltaShape, Isa, KeyHeads, Pieces, Pool, delta_net};
use random::{Rng, assert_same, assert_written, poison};

struct Case {
    shape: DeltaShape,
    tokens: usize,
    qkv: Vec<f32>,
    /// Rows that hold beta and alpha of each key head in turn, with something between.
    ba: Vec<f32>,
    beta: Pieces,
    alpha: Pieces,
    decay: Vec<f32>,
    dt: Vec<f32>,
    state: Vec<f32>,
}

impl Case {
    fn new(rng: &mut Rng, shape: DeltaShape, tokens: usize) -> Case {
        let DeltaShape { key_heads, value_heads, dim, .. } = shape;
        let each = value_heads / key_heads;
        let row = key_heads * 2 * each + 3;
        let beta = Pieces { row, start: 1, count: key_heads, len: each, stride: 2 * each };
        let mut case = Case {
            shape,
            tokens,
            qkv: rng.units(tokens * (2 * key_heads + value_heads) * dim, 1.0),
            ba: rng.units(tokens * row, 4.0),
            beta,
            alpha: Pieces { start: 1 + each, ..beta },
            decay: rng.units(value_heads, 1.0).iter().map(|x| -x.abs()).collect(),
            dt: rng.units(value_heads, 1.0),
            state: rng.units(shape.state(), 1.0),
        };
        // Where ln(1 + e^x) is x, and where it is e^x.
        case.ba[case.alpha.start] = 50.0;
        case.decay[0] = -1e-3;
        if value_heads > 1 {
            let last = (tokens - 1) * row + case.alpha.start + (key_heads - 1) * 2 * each + each - 1;
            case.ba[last] = -30.0;
        }
        // A query without length, and a key so short that eps doubles its square.
        case.qkv[..dim].fill(0.0);
        case.qkv[key_heads * dim..][..dim].fill(shape.eps.sqrt() / (dim as f32).sqrt());
        case
    }

    /// Outputs and the state afterwards, of batches of these sizes.
    fn run(&self, isa: Isa, pool: &Pool, batches: &[usize]) -> (Vec<f32>, Vec<f32>) {
        let DeltaShape { key_heads, value_heads, dim, .. } = self.shape;
        let (row, out) = ((2 * key_heads + value_heads) * dim, value_heads * dim);
        let (mut state, mut y) = (self.state.clone(), poison(self.tokens * out));
        let mut first = 0;
        for &tokens in batches {
            let ba = &self.ba[first * self.beta.row..];
            let input = DeltaInput {
                qkv: &self.qkv[first * row..][..tokens * row],
                beta: (ba, self.beta),
                alpha: (ba, self.alpha),
                decay: &self.decay,
                dt: &self.dt,
            };
            delta_net(
                isa,
                pool,
                &self.shape,
                tokens,
                &input,
                &mut state,
                &mut y[first * out..][..tokens * out],
            );
            first += tokens;
        }
        assert_eq!(first, self.tokens);
        assert_written(&y);
        (y, state)
    }

    /// The place of S\[i\]\[j\] of a head.
    fn place(&self, head: usize, i: usize, j: usize) -> usize {
        let dim = self.shape.dim;
        let block = j / 32;
        let width = (dim - block * 32).min(32);
        head * dim * dim + block * 32 * dim + i * width + j % 32
    }

    /// The formula, word for word, in f64.
    fn reference(&self) -> (Vec<f64>, Vec<f64>) {
        let DeltaShape { key_heads, value_heads, dim, keys, eps } = self.shape;
        let eps = f64::from(eps);
        let row = (2 * key_heads + value_heads) * dim;
        let wide = |x: &[f32]| x.iter().map(|&x| f64::from(x)).collect::<Vec<_>>();
        let mut y = vec![0f64; self.tokens * value_heads * dim];
        let mut state = wide(&self.state);
        let each = value_heads / key_heads;
        for t in 0..self.tokens {
            let qkv = wide(&self.qkv[t * row..][..row]);
            let normed = |at: usize| {
                let x = &qkv[at * dim..][..dim];
                let squares: f64 = x.iter().map(|x| x * x).sum();
                let length = (squares + eps).sqrt();
                x.iter().map(|x| x / length).collect::<Vec<_>>()
            };
            for h in 0..value_heads {
                let hk = match keys {
                    KeyHeads::Tiled => h % key_heads,
                    KeyHeads::Grouped => h / each,
                };
                let (q, k) = (normed(hk), normed(key_heads + hk));
                let v = &qkv[(2 * key_heads + h) * dim..][..dim];
                let logit =
                    |p: Pieces| f64::from(self.ba[t * p.row + p.start + h / each * p.stride + h % each]);
                let beta = 1.0 / (1.0 + (-logit(self.beta)).exp());
                let x = logit(self.alpha) + f64::from(self.dt[h]);
                let softplus = if x > 20.0 { x } else { x.exp().ln_1p() };
                let g = f64::from(self.decay[h]) * softplus;
                for j in 0..dim {
                    let mut column: Vec<f64> =
                        (0..dim).map(|i| state[self.place(h, i, j)] * g.exp()).collect();
                    let d = beta * (v[j] - column.iter().zip(&k).map(|(s, k)| s * k).sum::<f64>());
                    column.iter_mut().zip(&k).for_each(|(s, k)| *s += k * d);
                    let out: f64 = column.iter().zip(&q).map(|(s, q)| s * q).sum();
                    y[(t * value_heads + h) * dim + j] = out / (dim as f64).sqrt();
                    (0..dim).for_each(|i| state[self.place(h, i, j)] = column[i]);
                }
            }
        }
        (y, state)
    }
}

fn assert_near(y: &[f32], exact: &[f64], what: &str) {
    assert_eq!(y.len(), exact.len());
    for (i, (&y, &exact)) in y.iter().zip(exact).enumerate() {
        let error = (f64::from(y) - exact).abs();
        assert!(error <= 3e-6 * (1.0 + exact.abs()), "{what} [{i}]: {y} is not {exact}");
    }
}

fn shape(key_heads: usize, value_heads: usize, dim: usize) -> DeltaShape {
    DeltaShape { key_heads, value_heads, dim, keys: KeyHeads::Tiled, eps: 1e-6 }
}

fn check(rng: &mut Rng, shape: DeltaShape, tokens: usize, pools: &[Pool]) {
    let case = Case::new(rng, shape, tokens);
    let truth = case.run(Isa::PORTABLE, &pools[0], &[tokens]);
    let exact = case.reference();
    assert_near(&truth.0, &exact.0, &format!("{shape:?}, outputs"));
    assert_near(&truth.1, &exact.1, &format!("{shape:?}, state"));
    let singly = vec![1; tokens];
    let uneven = [tokens / 3, 0, tokens - tokens / 3];
    for isa in Isa::available() {
        for pool in pools {
            for batches in [&[tokens][..], &singly, &uneven] {
                let (y, state) = case.run(isa, pool, batches);
                let what = format!("{shape:?} {} {batches:?}", isa.name());
                assert_same(&y, &truth.0, &what);
                assert_same(&state, &truth.1, &what);
            }
        }
    }
}

#[test]
fn outputs_and_states_match_f64_however_they_are_computed() {
    let mut rng = Rng(61);
    let pools = [Pool::new(1), Pool::new(3)];
    for dim in [1, 7, 16, 24, 32, 40, 48, 64, 75] {
        for (key_heads, value_heads) in [(1, 1), (2, 2), (2, 6), (3, 6)] {
            for keys in [KeyHeads::Tiled, KeyHeads::Grouped] {
                let shape = DeltaShape { keys, ..shape(key_heads, value_heads, dim) };
                check(&mut rng, shape, 1 + dim % 9, &pools);
            }
        }
    }
}

#[test]
fn a_head_of_a_real_model_through_a_batch() {
    let pools = [Pool::new(1), Pool::new(2)];
    check(&mut Rng(62), shape(1, 3, 128), 40, &pools);
}

#[test]
fn lengths_that_do_not_agree_are_refused() {
    let run = |shape: DeltaShape, state: usize, qkv: usize, y: usize, beta: Pieces, decay: usize| {
        std::panic::catch_unwind(|| {
            let (mut state, mut y, qkv, decay) =
                (vec![0f32; state], vec![0f32; y], vec![0f32; qkv], vec![0f32; decay]);
            let gates = (&[0f32; 8][..], beta);
            let input = DeltaInput { qkv: &qkv, beta: gates, alpha: gates, decay: &decay, dt: &[0.0; 4] };
            delta_net(Isa::PORTABLE, &Pool::new(1), &shape, 2, &input, &mut state, &mut y);
        })
    };
    let s = shape(2, 4, 8);
    let four = Pieces { row: 4, start: 0, count: 1, len: 4, stride: 4 };
    assert!(run(s, 256, 128, 64, four, 4).is_ok());
    assert!(run(s, 255, 128, 64, four, 4).is_err());
    assert!(run(s, 256, 64, 64, four, 4).is_err());
    assert!(run(s, 256, 128, 32, four, 4).is_err());
    assert!(run(s, 256, 128, 64, four, 3).is_err());
    assert!(run(s, 256, 128, 64, Pieces { len: 3, ..four }, 4).is_err());
    assert!(run(s, 256, 128, 64, Pieces { row: 5, ..four }, 4).is_err());
    assert!(run(DeltaShape { key_heads: 3, ..s }, 256, 160, 64, four, 4).is_err());
    assert!(run(DeltaShape { key_heads: 0, ..s }, 256, 64, 64, four, 4).is_err());
    assert!(run(DeltaShape { dim: usize::MAX, ..s }, 256, 128, 64, four, 4).is_err());
}
