//! Random matrices in every layout that the device has a product for, as the kernels and as the CPU take them.

use gantry_formats::block::{GgmlType, iq3xxs_grid};
use gantry_formats::layout::{Layout, Order, Scales};
use gantry_kernels::cpu::{ActivationKind, Activations, I8Rows, Isa, MatrixView, Pool, Q8Rows};
use half::{bf16, f16};

use crate::launch::{Arg, read};
use crate::random::Rng;

/// A stored matrix.
pub(crate) struct Stored {
    pub(crate) layout: Layout,
    pub(crate) rows: usize,
    pub(crate) cols: usize,
    pub(crate) bytes: Vec<u8>,
    codebook: Vec<u32>,
}

/// Every layout with a product on the device.
pub(crate) fn layouts() -> Vec<Layout> {
    let floats = [GgmlType::F32, GgmlType::F16, GgmlType::BF16].map(Layout::Raw);
    let blocks = [GgmlType::Q8_0, GgmlType::Q4_0].map(Layout::Block);
    let int8 = Layout::all().filter(|layout| matches!(layout, Layout::I8 { .. }));
    let e8 = [Layout::e8_planar(false), Layout::E8Block98 { rotated: false }];
    floats.into_iter().chain(blocks).chain([Layout::q8_0_split()]).chain(int8).chain(e8).collect()
}

impl Stored {
    /// Random weights with a scale of about 0.01; padding holds garbage.
    pub(crate) fn random(rng: &mut Rng, layout: Layout, rows: usize, cols: usize) -> Self {
        let bytes = layout.bytes(rows as u64, cols as u64).expect("a shape that tiles") as usize;
        let mut all: Vec<u8> = (0..bytes).map(|_| rng.next() as u8).collect();
        // Scales, and where a layout has none the values, are numbers.
        let half = |rng: &mut Rng| f16::from_f32(rng.unit() * 0.02).to_le_bytes();
        let planes = layout.planes(rows as u64, cols as u64).expect("planes");
        let last = planes.last().expect("a plane");
        let last = last.offset as usize..(last.offset + last.bytes) as usize;
        match layout {
            Layout::Raw(GgmlType::F32) | Layout::I8 { scales: Scales::Channel, .. } => {
                all[last].chunks_exact_mut(4).for_each(|b| b.copy_from_slice(&rng.unit().to_le_bytes()));
            }
            Layout::Raw(GgmlType::BF16) => all[last]
                .chunks_exact_mut(2)
                .for_each(|b| b.copy_from_slice(&bf16::from_f32(rng.unit()).to_le_bytes())),
            Layout::Block(GgmlType::Q8_0) => {
                all.chunks_exact_mut(34).for_each(|b| b[..2].copy_from_slice(&half(rng)));
            }
            Layout::Block(GgmlType::Q4_0) => {
                all.chunks_exact_mut(18).for_each(|b| b[..2].copy_from_slice(&half(rng)));
            }
            Layout::E8Block98 { .. } => {
                all.chunks_exact_mut(98).for_each(|b| b[96..].copy_from_slice(&half(rng)));
            }
            _ => all[last].chunks_exact_mut(2).for_each(|b| b.copy_from_slice(&half(rng))),
        }
        let codebook = iq3xxs_grid().iter().map(|entry| u32::from_le_bytes(*entry)).collect();
        Stored { layout, rows, cols, bytes: all, codebook }
    }

    /// The end of the names of its kernels.
    pub(crate) fn name(&self) -> &'static str {
        match self.layout {
            Layout::Raw(GgmlType::F32) => "f32",
            Layout::Raw(GgmlType::F16) => "f16",
            Layout::Raw(GgmlType::BF16) => "bf16",
            Layout::Block(GgmlType::Q8_0) => "q8_0",
            Layout::Block(GgmlType::Q4_0) => "q4_0",
            Layout::Q8_0Split { .. } => "q8_0_split",
            Layout::I8 { scales: Scales::Block32, .. } => "i8_block32",
            Layout::I8 { scales: Scales::Channel, .. } => "i8_channel",
            Layout::E8Planar { .. } => "e8_planar",
            Layout::E8Block98 { .. } => "e8_block98",
            other => panic!("no kernel for {other}"),
        }
    }

    /// As the CPU reads the matrix that starts at byte `at` of `bytes`.
    pub(crate) fn view_in<'a>(&self, bytes: &'a [u8], at: usize) -> MatrixView<'a> {
        let (rows, cols) = (self.rows, self.cols);
        let planes = self.layout.planes(rows as u64, cols as u64).expect("planes");
        let plane = |i: usize| &bytes[at + planes[i].offset as usize..][..planes[i].bytes as usize];
        match self.layout {
            Layout::Raw(GgmlType::F32) => MatrixView::f32(rows, cols, plane(0)),
            Layout::Raw(GgmlType::F16) => MatrixView::f16(rows, cols, plane(0)),
            Layout::Raw(GgmlType::BF16) => MatrixView::bf16(rows, cols, plane(0)),
            Layout::Block(ty) => MatrixView::block(ty, rows, cols, plane(0)),
            Layout::Q8_0Split { .. } => MatrixView::q8_0_split(rows, cols, plane(0), plane(1)),
            Layout::I8 { order, scales, .. } => MatrixView::i8(order, scales, rows, cols, plane(0), plane(1)),
            Layout::E8Planar { .. } => MatrixView::e8_planar(rows, cols, plane(0), plane(1), plane(2)),
            Layout::E8Block98 { .. } => MatrixView::e8_block98(rows, cols, plane(0)),
            other => panic!("no view of {other}"),
        }
        .expect("a matrix of its layout")
    }

    pub(crate) fn view(&self) -> MatrixView<'_> {
        self.view_in(&self.bytes, 0)
    }

    /// The codebook, where a kernel takes one.
    pub(crate) fn codebook(&self) -> Option<Arg<'_>> {
        self.layout.is_e8().then(|| read(&self.codebook))
    }

    /// Where its further planes are.
    pub(crate) fn planes(&self) -> Vec<Arg<'static>> {
        let planes = self.layout.planes(self.rows as u64, self.cols as u64).expect("planes");
        planes.iter().skip(1).map(|plane| Arg::U64(plane.offset)).collect()
    }

    /// Rows as an int8 order needs them, and the order.
    pub(crate) fn int8(&self) -> Option<(Arg<'static>, Arg<'static>)> {
        let Layout::I8 { order, .. } = self.layout else { return None };
        let at = Order::ALL.iter().position(|o| *o == order).expect("an order");
        Some((Arg::U64(self.rows as u64), Arg::U32(at as u32)))
    }
}

/// Activations in the kind that a matrix takes, as the kernels take them.
pub(crate) struct Input {
    kind: ActivationKind,
    floats: Vec<f32>,
    q8: Q8Rows,
    i8: I8Rows,
    packed: Vec<i8>,
}

impl Input {
    pub(crate) fn new(kind: ActivationKind, x: &[f32], cols: usize) -> Self {
        let (mut q8, mut i8) = (Q8Rows::new(), I8Rows::new());
        let pool = Pool::new(1);
        let mut packed = Vec::new();
        match kind {
            ActivationKind::F32 => {}
            ActivationKind::Q8 => q8.quantize(Isa::PORTABLE, &pool, x, cols),
            ActivationKind::I8 => {
                i8.quantize(Isa::PORTABLE, &pool, x, cols);
                packed = (0..i8.rows()).flat_map(|row| i8.quants(row).to_vec()).collect();
            }
        }
        Input { kind, floats: x.to_vec(), q8, i8, packed }
    }

    pub(crate) fn cpu(&self) -> Activations<'_> {
        match self.kind {
            ActivationKind::F32 => Activations::F32(&self.floats),
            ActivationKind::Q8 => Activations::Q8(&self.q8),
            ActivationKind::I8 => Activations::I8(&self.i8),
        }
    }

    /// Quants and scales per 32.
    pub(crate) fn q8(&self) -> (&[i8], &[f32]) {
        (self.q8.quants(), self.q8.scales())
    }

    pub(crate) fn args(&self) -> Vec<Arg<'_>> {
        match self.kind {
            ActivationKind::F32 => vec![read(&self.floats)],
            ActivationKind::Q8 => vec![read(self.q8.quants()), read(self.q8.scales())],
            ActivationKind::I8 => vec![read(&self.packed), read(self.i8.scales())],
        }
    }
}

/// Σ |w|·|x| of an output: what its error is measured against.
pub(crate) fn size(w: &MatrixView<'_>, row: usize, x: &[f32]) -> f32 {
    let mut weights = vec![0f32; w.cols()];
    w.dequantize_row(row, &mut weights);
    weights.iter().zip(x).map(|(w, x)| f64::from(w.abs()) * f64::from(x.abs())).sum::<f64>() as f32
}
