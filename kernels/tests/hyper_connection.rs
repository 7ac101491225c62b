//! The read of a gated hyper-connection, composed of its kernels as a model composes it, from packed weights: each
//! layout against f64 over the very bytes that are read, and the layouts against each other.

mod random;

use gantry_formats::block::q8_0;
use gantry_kernels::cpu::*;
use half::{bf16, f16};
use random::{Rng, assert_same, assert_written, poison};

const EPS: f32 = 1e-6;

/// One matrix, rounded to each layout.
struct Weights {
    rows: usize,
    cols: usize,
    floats: Vec<f32>,
    bf16: Vec<u8>,
    quants: Vec<u8>,
    scales: Vec<u8>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Layout {
    Bf16,
    Q8,
}

impl Weights {
    fn random(rng: &mut Rng, rows: usize, cols: usize, size: f32) -> Self {
        let floats = rng.units(rows * cols, size);
        let bf16 = floats.iter().flat_map(|&w| bf16::from_f32(w).to_le_bytes()).collect();
        let blocks: Vec<_> = floats.as_chunks().0.iter().map(|x| q8_0::quantize_block(x).unwrap()).collect();
        let quants = blocks.iter().flat_map(|block| block.q.map(|q| q as u8)).collect();
        let scales = blocks.iter().flat_map(|block| block.d.to_le_bytes()).collect();
        Weights { rows, cols, floats, bf16, quants, scales }
    }

    fn view(&self, layout: Layout) -> MatrixView<'_> {
        match layout {
            Layout::Bf16 => MatrixView::bf16(self.rows, self.cols, &self.bf16),
            Layout::Q8 => MatrixView::q8_0_split(self.rows, self.cols, &self.quants, &self.scales),
        }
        .unwrap()
    }

    /// The weights that the bytes of a layout stand for.
    fn exact(&self, layout: Layout) -> Vec<f64> {
        let two = |bytes: &[u8], i: usize| [bytes[2 * i], bytes[2 * i + 1]];
        let at = |i: usize| match layout {
            Layout::Bf16 => bf16::from_le_bytes(two(&self.bf16, i)).to_f64(),
            Layout::Q8 => {
                f16::from_le_bytes(two(&self.scales, i / 32)).to_f64() * f64::from(self.quants[i] as i8)
            }
        };
        (0..self.floats.len()).map(at).collect()
    }
}

/// The weights of one read.
struct Site {
    s: Streams,
    gamma: Vec<f32>,
    down: Weights,
    up: Weights,
    inject: Weights,
}

impl Site {
    fn random(rng: &mut Rng, s: Streams, rank: usize) -> Self {
        let width = s.width();
        let near_one = |x: f32| 1.0 + x;
        Site {
            s,
            gamma: rng.units(width, 0.5).into_iter().map(near_one).collect(),
            // Such that logits, low-rank values and gates are of the order of one.
            down: Weights::random(rng, rank, width, 8.0 / (width as f32).sqrt()),
            up: Weights::random(rng, width, rank, 8.0 / (rank as f32).sqrt()),
            inject: Weights::random(rng, s.count, width, 8.0 / (width as f32).sqrt()),
        }
    }
}

/// Everything that a read computes, for some tokens.
#[derive(Clone, Default)]
struct Read {
    x: Vec<f32>,
    normed: Vec<f32>,
    inject: Vec<f32>,
    low: Vec<f32>,
    gates: Vec<f32>,
    mixed: Vec<f32>,
}

impl Read {
    fn parts(&self) -> [(&'static str, &Vec<f32>); 6] {
        let Read { x, normed, inject, low, gates, mixed } = self;
        [("x", x), ("normed", normed), ("inject", inject), ("low", low), ("gates", gates), ("mixed", mixed)]
    }
}

fn product(isa: Isa, pool: &Pool, w: &MatrixView<'_>, x: &[f32]) -> Vec<f32> {
    let mut y = poison(x.len() / w.cols() * w.rows());
    match w.activations() {
        ActivationKind::Q8 => {
            let mut rows = Q8Rows::new();
            rows.quantize(isa, pool, x, w.cols());
            gemm(isa, pool, w, Activations::Q8(&rows), &mut y);
        }
        _ => gemm(isa, pool, w, Activations::F32(x), &mut y),
    }
    assert_written(&y);
    y
}

/// The pending write of a batch: one stream a token, and logits of its factors.
struct Pending {
    add: Vec<f32>,
    inject: Option<(Vec<f32>, usize)>,
}

impl Pending {
    /// Of the tokens from `first` on.
    fn from(&self, s: Streams, first: usize, tokens: usize) -> StreamWrite<'_> {
        let inject = self.inject.as_ref().map(|(logits, stride)| (&logits[first * stride..], *stride));
        StreamWrite { add: &self.add[first * s.len..][..tokens * s.len], inject }
    }
}

fn read(
    (isa, pool): (Isa, &Pool),
    site: &Site,
    layout: Layout,
    write: Option<StreamWrite<'_>>,
    x: &[f32],
) -> Read {
    let s = site.s;
    let (mut x, mut normed) = (x.to_vec(), poison(x.len()));
    stream_norm(isa, pool, s, write, &mut x, &site.gamma, EPS, &mut normed);
    let inject = product(isa, pool, &site.inject.view(layout), &normed);
    let mut low = product(isa, pool, &site.down.view(layout), &normed);
    silu_scaled(isa, pool, &mut low, 1.0 / s.count as f32);
    let gates = product(isa, pool, &site.up.view(layout), &low);
    let mut mixed = poison(x.len() / s.count);
    stream_mix(isa, pool, s, &normed, &gates, &mut mixed);
    assert_written(&mixed);
    Read { x, normed, inject, low, gates, mixed }
}

fn sigmoid(x: f64) -> f64 {
    1.0 / (1.0 + (-x).exp())
}

/// The activations that a product of this layout is over, in f64: quantized where it quantizes them.
fn activations(layout: Layout, exact: &[f64], computed: &[f32], cols: usize) -> Vec<f64> {
    if layout == Layout::Bf16 {
        return exact.to_vec();
    }
    let mut rows = Q8Rows::new();
    rows.quantize(Isa::PORTABLE, &Pool::new(1), computed, cols);
    rows.quants().iter().enumerate().map(|(i, &q)| f64::from(q) * f64::from(rows.scales()[i / 32])).collect()
}

/// Σ_k w\[row\]\[k\]·x\[token\]\[k\].
fn product_f64(w: &[f64], x: &[f64], cols: usize) -> Vec<f64> {
    let row = |x: &[f64], w: &[f64]| w.iter().zip(x).map(|(w, x)| w * x).sum();
    x.chunks(cols).flat_map(|x| w.chunks(cols).map(move |w| row(x, w))).collect()
}

/// The read in f64, part by part as in [`Read::parts`]; `computed` gives what is quantized on the way.
fn oracle(
    site: &Site,
    layout: Layout,
    write: Option<StreamWrite<'_>>,
    x: &[f32],
    computed: &Read,
) -> [Vec<f64>; 6] {
    let Streams { count, len } = site.s;
    let width = count * len;
    let mut x: Vec<f64> = x.iter().copied().map(f64::from).collect();
    if let Some(StreamWrite { add, inject }) = write {
        for (i, x) in x.iter_mut().enumerate() {
            let (token, stream, e) = (i / width, i / len % count, i % len);
            let factor = inject.map_or(1.0, |(logits, stride)| {
                2.0 * sigmoid(f64::from(logits[token * stride + stream]) / count as f64)
            });
            *x += f64::from(add[token * len + e]) * factor;
        }
    }
    let mut normed = x.clone();
    for (i, stream) in normed.chunks_mut(len).enumerate() {
        let mean = stream.iter().map(|x| x * x).sum::<f64>() / len as f64;
        let gamma = &site.gamma[i % count * len..][..len];
        stream
            .iter_mut()
            .zip(gamma)
            .for_each(|(x, &g)| *x = *x / (mean + f64::from(EPS)).sqrt() * f64::from(g));
    }
    let seen = activations(layout, &normed, &computed.normed, width);
    let inject = product_f64(&site.inject.exact(layout), &seen, width);
    let low: Vec<f64> = product_f64(&site.down.exact(layout), &seen, width)
        .iter()
        .map(|z| z / count as f64)
        .map(|z| z * sigmoid(z))
        .collect();
    let rank = site.down.rows;
    let gates = product_f64(&site.up.exact(layout), &activations(layout, &low, &computed.low, rank), rank);
    let mut mixed = vec![0.0; x.len() / count];
    for (i, (x, gate)) in normed.iter().zip(&gates).enumerate() {
        mixed[i / width * len + i % len] += x * sigmoid(*gate) / count as f64;
    }
    [x, normed, inject, low, gates, mixed]
}

fn largest(values: &[f64]) -> f64 {
    values.iter().fold(0.0, |max, x| max.max(x.abs()))
}

#[track_caller]
fn assert_close(computed: &Read, exact: &[Vec<f64>; 6], what: &str) {
    for ((name, y), exact) in computed.parts().into_iter().zip(exact) {
        let bound = 1e-4 * largest(exact);
        assert_eq!(y.len(), exact.len());
        for (i, (&y, exact)) in y.iter().zip(exact).enumerate() {
            let error = (f64::from(y) - exact).abs();
            assert!(error <= bound, "{what}, {name}[{i}]: {y} for {exact}, off by {error:e} of {bound:e}");
        }
    }
}

/// How far a value may be from what it would be in exact arithmetic, and how far it is expected to be.
#[derive(Clone, Copy, Default)]
struct Off {
    /// No rounding goes further.
    most: f64,
    /// Standard deviation, the roundings taken as independent and uniform.
    deviation: f64,
}

/// What rounding does to one value of a block of 32 with this largest magnitude, by a scale and int8: at most half a
/// step of amax/127; `stored`: the scale itself is rounded to fp16, by 2^-11 of it at most, and the value with it.
fn q8_rounding(amax: f64, stored: bool) -> Off {
    let step = amax / 127.0;
    let most = step * if stored { 0.5 + 127.0 / 2048.0 } else { 0.5 };
    // Three roundings of f32 may tip a tie.
    Off { most: most * (1.0 + 1e-5), deviation: step / 12f64.sqrt() }
}

/// And by bf16, which keeps 8 bits: the step is 2^-7 of the power of two below.
fn bf16_rounding(w: f64) -> Off {
    let step = if w == 0.0 { 0.0 } else { w.abs().log2().floor().exp2() / 128.0 };
    Off { most: step / 2.0, deviation: step / 12f64.sqrt() }
}

fn block_max(x: &[f64], i: usize) -> f64 {
    largest(&x[i / 32 * 32..][..32])
}

/// The difference of the two layouts' products w·x: of Q8_0, with x off by `x_off` and then quantized per 32, and of
/// BF16, with x itself. Of each term |w_q·x_q − w_b·x| <= |w_q − w_b|·|x| + |w_q|·|x_q − x|.
fn product_off(w: &Weights, x: &[f64], x_off: &[Off]) -> Vec<Off> {
    let floats: Vec<f64> = w.floats.iter().copied().map(f64::from).collect();
    let mut out = Vec::new();
    for (x, x_off) in x.chunks(w.cols).zip(x_off.chunks(w.cols)) {
        let x_rounding: Vec<Off> = (0..w.cols)
            .map(|k| {
                // The values that are quantized may themselves be larger by what they are off.
                let more = x_off[k / 32 * 32..][..32].iter().fold(0f64, |more, off| more.max(off.most));
                q8_rounding(block_max(x, k) + more, false)
            })
            .collect();
        for row in 0..w.rows {
            let (mut most, mut variance) = (0.0, 0.0);
            for k in 0..w.cols {
                let i = row * w.cols + k;
                let (q8, bf16) = (q8_rounding(block_max(&floats, i), true), bf16_rounding(floats[i]));
                let read = floats[i].abs() + q8.most;
                most += (q8.most + bf16.most) * x[k].abs() + read * (x_rounding[k].most + x_off[k].most);
                variance += (q8.deviation.powi(2) + bf16.deviation.powi(2)) * x[k].powi(2)
                    + floats[i].powi(2) * (x_rounding[k].deviation.powi(2) + x_off[k].deviation.powi(2));
            }
            out.push(Off { most, deviation: variance.sqrt() });
        }
    }
    out
}

/// How far Q8_0's injection and mix may be from BF16's: roundings of weights and activations, carried through each
/// step by the steepest slope that it has (|silu'| <= 1.1, |σ'| <= 1/4), the deviation by the slope where it is.
fn layouts_off(site: &Site, read: &Read) -> [Vec<Off>; 2] {
    let Streams { count, len } = site.s;
    let width = count * len;
    let f64s = |x: &[f32]| x.iter().copied().map(f64::from).collect::<Vec<f64>>();
    let (normed, low, gates) = (f64s(&read.normed), f64s(&read.low), f64s(&read.gates));
    // Both layouts start from the same bits.
    let none = vec![Off::default(); normed.len()];
    let inject = product_off(&site.inject, &normed, &none);
    let z = product_f64(&site.down.exact(Layout::Bf16), &normed, width);
    let low_off: Vec<Off> = product_off(&site.down, &normed, &none)
        .iter()
        .zip(z)
        .map(|(off, z)| {
            let z = z / count as f64;
            let slope = sigmoid(z) * (1.0 + z * (1.0 - sigmoid(z)));
            Off { most: 1.1 * off.most / count as f64, deviation: slope.abs() * off.deviation / count as f64 }
        })
        .collect();
    let gates_off = product_off(&site.up, &low, &low_off);
    let mut mixed = vec![(0.0, 0.0); normed.len() / count];
    for (i, off) in gates_off.iter().enumerate() {
        let (x, gate) = (normed[i].abs() / count as f64, sigmoid(gates[i]));
        let (most, variance) = &mut mixed[i / width * len + i % len];
        // A gate lies between 0 and 1, whatever its logit.
        *most += x * (off.most / 4.0).min(1.0);
        *variance += (x * gate * (1.0 - gate) * off.deviation).powi(2);
    }
    let mixed = mixed.into_iter().map(|(most, variance)| Off { most, deviation: variance.sqrt() });
    [inject, mixed.collect()]
}

/// The difference of two results within what no rounding exceeds (after two products in a row that is about as large
/// as the values) and within six deviations; and its mean square, which averages many roundings, within half as much
/// again of the expected.
#[track_caller]
fn assert_rounding(q8: &[f32], bf16: &[f32], off: &[Off], what: &str) {
    let (mut squares, mut expected) = (0.0, 0.0);
    let scale = largest(&bf16.iter().copied().map(f64::from).collect::<Vec<_>>());
    for (i, ((&q8, &bf16), off)) in q8.iter().zip(bf16).zip(off).enumerate() {
        let difference = f64::from(q8) - f64::from(bf16);
        // 1e-5: the sums in f32.
        let bound = off.most.min(6.0 * off.deviation) + 1e-5 * scale;
        assert!(difference.abs() <= bound, "{what}[{i}]: {q8} and {bf16}, {difference:e} of {bound:e}");
        squares += difference.powi(2);
        expected += off.deviation.powi(2);
    }
    let ratio = (squares / expected).sqrt();
    assert!(
        ratio > 0.1,
        "{what}: the layouts are not the same weights, yet {ratio} of the expected difference"
    );
    assert!(ratio < if q8.len() < 64 { 3.0 } else { 1.5 }, "{what}: {ratio} times the expected difference");
}

/// Every part of the promise for one batch.
fn check(rng: &mut Rng, site: &Site, tokens: usize, pending: bool, injected: bool) {
    let s = site.s;
    let what = format!("{s:?} x {tokens}, pending {pending}, injected {injected}");
    let x = rng.units(tokens * s.width(), 3.0);
    let stride = s.count + rng.below(3);
    let write = Pending {
        add: rng.units(tokens * s.len, 2.0),
        inject: injected.then(|| (rng.units(tokens * stride, 4.0 * s.count as f32), stride)),
    };
    let write_of = |first: usize, tokens: usize| pending.then(|| write.from(s, first, tokens));
    let one = (Isa::PORTABLE, &Pool::new(1));
    let truths = [Layout::Bf16, Layout::Q8].map(|layout| {
        let truth = read(one, site, layout, write_of(0, tokens), &x);
        let exact = oracle(site, layout, write_of(0, tokens), &x, &truth);
        assert_close(&truth, &exact, &format!("{layout:?} {what}"));
        for isa in Isa::available() {
            let pool = Pool::new(1 + rng.below(3));
            for batch in [1, 1 + rng.below(tokens), tokens] {
                let mut all = Read::default();
                for first in (0..tokens).step_by(batch) {
                    let n = batch.min(tokens - first);
                    let x = &x[first * s.width()..][..n * s.width()];
                    let part = read((isa, &pool), site, layout, write_of(first, n), x);
                    all.x.extend(part.x);
                    all.normed.extend(part.normed);
                    all.inject.extend(part.inject);
                    all.low.extend(part.low);
                    all.gates.extend(part.gates);
                    all.mixed.extend(part.mixed);
                }
                for ((name, y), (_, truth)) in all.parts().into_iter().zip(truth.parts()) {
                    assert_same(y, truth, &format!("{name}, {layout:?} {what}, {} in {batch}s", isa.name()));
                }
            }
        }
        truth
    });
    let [bf16, q8] = &truths;
    assert_same(&bf16.x, &q8.x, "the streams that are written back");
    assert_same(&bf16.normed, &q8.normed, "what both layouts are multiplied with");
    let [inject, mixed] = layouts_off(site, bf16);
    assert_rounding(&q8.inject, &bf16.inject, &inject, &format!("inject, {what}"));
    assert_rounding(&q8.mixed, &bf16.mixed, &mixed, &format!("mixed, {what}"));
}

#[test]
fn reads_of_every_batch_and_pending_write() {
    let mut rng = Rng(1);
    for (s, rank) in [(Streams { count: 4, len: 80 }, 64), (Streams { count: 3, len: 64 }, 32)] {
        let site = Site::random(&mut rng, s, rank);
        for tokens in 1..=8 {
            for (pending, injected) in [(false, false), (true, false), (true, true)] {
                check(&mut rng, &site, tokens, pending, injected);
            }
        }
    }
}

#[test]
fn a_read_of_a_real_width() {
    let mut rng = Rng(2);
    let site = Site::random(&mut rng, Streams { count: 4, len: 2560 }, 320);
    check(&mut rng, &site, 2, true, true);
}
