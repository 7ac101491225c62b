//! Int8 layouts beside `q8_0.split`: `cargo bench -p gantry-kernels --bench int8`, on `GANTRY_BENCH_THREADS` threads
//! (2 unless set), with AVX2 and AVX-512, or with what `GANTRY_SIMD` names.
//!
//! Decoding is bound by memory, and a shared machine is never quiet for long. So the layouts take turns within one
//! run, matrix by matrix, over copies that together exceed the last-level cache; of each copy the fastest round
//! counts, and the times of the copies are added.

use std::hint::black_box;
use std::time::Instant;

use gantry_formats::layout::{Order, Scales};
use gantry_kernels::cpu::*;

/// More than the last-level cache.
const COLD: usize = 96 << 20;
const ROUNDS: usize = 12;

/// One matrix in each layout, its bytes arbitrary.
struct Matrix {
    rows: usize,
    cols: usize,
    quants: Vec<u8>,
    halves: Vec<u8>,
    floats: Vec<u8>,
}

impl Matrix {
    fn new(rows: usize, cols: usize, seed: usize) -> Self {
        let quants = (0..rows * cols).map(|i| ((i + seed).wrapping_mul(2_654_435_761) >> 13) as u8).collect();
        let halves = (0..rows * cols / 32).flat_map(|_| 0x1800u16.to_le_bytes()).collect();
        let floats = (0..rows).flat_map(|_| 0.002f32.to_le_bytes()).collect();
        Matrix { rows, cols, quants, halves, floats }
    }

    fn view(&self, form: Form) -> MatrixView<'_> {
        let (rows, cols) = (self.rows, self.cols);
        match form {
            Form::Split => MatrixView::q8_0_split(rows, cols, &self.quants, &self.halves),
            Form::Int8(order, Scales::Block32) => {
                MatrixView::i8(order, Scales::Block32, rows, cols, &self.quants, &self.halves)
            }
            Form::Int8(order, Scales::Channel) => {
                MatrixView::i8(order, Scales::Channel, rows, cols, &self.quants, &self.floats)
            }
        }
        .expect("lengths agree")
    }
}

#[derive(Clone, Copy)]
enum Form {
    Split,
    Int8(Order, Scales),
}

impl Form {
    fn name(self) -> String {
        match self {
            Form::Split => "q8_0.split".into(),
            Form::Int8(order, scales) => format!("{order}:{scales}"),
        }
    }
}

/// Seconds of one pass over the matrices in each form.
fn seconds(isa: Isa, pool: &Pool, matrices: &[Matrix], forms: &[Form], tokens: usize) -> Vec<f64> {
    let (rows, cols) = (matrices[0].rows, matrices[0].cols);
    let x: Vec<f32> = (0..tokens * cols).map(|i| ((i * 37 % 101) as f32 - 50.0) / 50.0).collect();
    let (mut q8, mut i8s) = (Q8Rows::new(), I8Rows::new());
    q8.quantize(isa, pool, &x, cols);
    i8s.quantize(isa, pool, &x, cols);
    let mut y = vec![0f32; tokens * rows];
    let mut best = vec![vec![f64::INFINITY; matrices.len()]; forms.len()];
    for _ in 0..ROUNDS {
        for step in 0..matrices.len() {
            for (i, form) in forms.iter().enumerate() {
                // Far from where the other forms are, so that none finds what another has read.
                let copy = (step + i * matrices.len() / forms.len()) % matrices.len();
                let w = matrices[copy].view(*form);
                let x = match w.activations() {
                    ActivationKind::I8 => Activations::I8(&i8s),
                    _ => Activations::Q8(&q8),
                };
                let start = Instant::now();
                gemm(isa, pool, &w, x, &mut y);
                best[i][copy] = best[i][copy].min(start.elapsed().as_secs_f64());
                black_box(&y);
            }
        }
    }
    best.iter().map(|best| best.iter().sum()).collect()
}

fn report(isa: Isa, threads: usize, shape: (usize, usize), forms: &[Form], tokens: usize) {
    let (rows, cols) = shape;
    let copies = if tokens == 1 { COLD.div_ceil(rows * cols) } else { 1 };
    let matrices: Vec<Matrix> = (0..copies).map(|i| Matrix::new(rows, cols, i)).collect();
    let pool = Pool::new(threads);
    let times = seconds(isa, &pool, &matrices, forms, tokens);
    for (form, time) in forms.iter().zip(&times) {
        let scales = if matches!(form, Form::Int8(_, Scales::Channel)) { rows * 4 } else { rows * cols / 16 };
        let (rate, unit) = match tokens {
            1 => ((copies * (rows * cols + scales)) as f64 / time / 1e9, "GB/s"),
            _ => (2e-9 * (copies * rows * cols * tokens) as f64 / time, "GOPS"),
        };
        let what = format!("{} {threads}t {cols}->{rows} x {tokens}", isa.name());
        println!("{what:28} {:26} {rate:8.2} {unit}  {:5.2}x q8_0.split", form.name(), times[0] / time);
    }
}

fn main() {
    let threads = std::env::var("GANTRY_BENCH_THREADS").ok().and_then(|t| t.parse().ok()).unwrap_or(2);
    let native =
        [Form::Split, Form::Int8(Order::Vnni16, Scales::Block32), Form::Int8(Order::Vnni16, Scales::Channel)];
    let loaded = [
        Form::Split,
        Form::Int8(Order::NvA32, Scales::Block32),
        Form::Int8(Order::NMajor, Scales::Block32),
        Form::Int8(Order::KMajor, Scales::Block32),
    ];
    let isas = match std::env::var(SIMD_VAR) {
        Ok(name) => vec![Isa::from_name(&name).expect("an instruction set of this processor")],
        Err(_) => Isa::available().into_iter().filter(|isa| *isa != Isa::PORTABLE).collect(),
    };
    for isa in isas {
        for threads in [1, threads] {
            for shape in [(3072, 576), (576, 1536), (8192, 2560), (640, 10240)] {
                report(isa, threads, shape, &native, 1);
            }
            report(isa, threads, (3072, 1024), &native, 128);
        }
        report(isa, threads, (8192, 2560), &loaded, 1);
        report(isa, threads, (3072, 1024), &loaded, 128);
    }
}
