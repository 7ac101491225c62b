//! A model's steps, each with other weights as often as caches must not know them.
//!
//! Weights are random: only vectors and tables of ids, which are small and say what is done, have a container's bytes.
//! All steps have their copies in the same region of the arena, which is filled anew for each.

use super::KernelOptions;
use super::described::{by_length, describe, matrices};
use crate::model::program::{
    Buffer, BufferId, Columns, ExpertMatrices, ExpertProduct, Format, Matrix, Program, Step, activations_for,
};
use crate::{Container, Result, RuntimeError};
use gantry_formats::block::GgmlType;
use gantry_formats::container::ContainerError;
use gantry_formats::layout::{Layout, Scales};
use gantry_formats::source::ReadAt;
use std::collections::BTreeMap;

/// Context and batch where nothing else is asked for.
pub(super) const CONTEXT: usize = 4096;
pub(super) const BATCH: usize = 512;

/// Copies that are read in turn: so many, and so many bytes together.
const COPIES: u64 = 8;
const COLD: u64 = 256 << 20;

/// More make a graph that takes longer to record than to measure.
const MOST_COPIES: u64 = 512;

/// Steps of one shape that read no weights, at most.
const MOST_ALIKE: usize = 64;

/// Beginnings in the arena are multiples of this.
const ALIGN: u64 = 256;

/// What is to be measured, before it has its copies.
pub(super) struct Work {
    pub(super) program: Program,
    pub(super) prototypes: Vec<Prototype>,
    /// Tokens of runs.
    pub(super) tokens: Vec<usize>,
    /// Positions of sequences, for steps to which they matter.
    pub(super) lengths: Vec<usize>,
}

/// One thing to be measured.
pub(super) struct Prototype {
    pub(super) what: String,
    pub(super) shape: String,
    pub(super) kind: Kind,
    pub(super) baseline: bool,
}

pub(super) enum Kind {
    /// Steps that are alike.
    Steps(Vec<Step>),
    /// The library's product of int8 with these rows and columns.
    Library { rows: usize, cols: usize },
}

impl Prototype {
    /// A product of one layout, for which `program` gets the buffers that it lacks.
    pub(super) fn product(
        program: &mut Program,
        layout: Layout,
        (rows, cols): (usize, usize),
        baseline: bool,
    ) -> Self {
        let mut buffer = |name, width, format| {
            let fits = |b: &Buffer| (b.rows, b.width, b.format) == (1, width, format);
            let found = program.buffers.iter().position(fits);
            BufferId(found.unwrap_or_else(|| {
                program.buffers.push(Buffer { name, rows: 1, width, format });
                program.buffers.len() - 1
            }))
        };
        let x = buffer("input", cols, activations_for(layout));
        let y = Columns { buffer: buffer("output", rows, Format::F32), start: 0, len: rows };
        let name = "measured".into();
        let weight = Matrix { name, card: 0, offset: 0, stored_rows: rows, rows: 0..rows, cols, layout };
        let step = Step::Gemm { weight, scale: None, bias: None, x, y };
        let (what, shape) = (layout.to_string(), format!("{rows} x {cols}"));
        Self { what, shape, kind: Kind::Steps(vec![step]), baseline }
    }

    /// The library's product.
    pub(super) fn library(rows: usize, cols: usize) -> Self {
        let (what, shape) = ("cuBLASLt int8".into(), format!("{rows} x {cols}"));
        Self { what, shape, kind: Kind::Library { rows, cols }, baseline: true }
    }
}

/// One thing to be measured, with its copies.
pub(super) struct Group {
    pub(super) prototype: Prototype,
    /// Bytes of one copy of its weights; 0 where it has none.
    pub(super) stride: u64,
    pub(super) copies: u64,
    /// Random bytes, counted from the region's first: where, how many, bits that are kept and set.
    pub(super) fills: Vec<(u64, u64, [u32; 2])>,
    pub(super) by_length: bool,
}

/// All of it, as one program.
pub(super) struct Stretched {
    pub(super) program: Program,
    pub(super) groups: Vec<Group>,
    pub(super) tokens: Vec<usize>,
    pub(super) lengths: Vec<usize>,
    /// What lies before the region: at which byte, and which bytes.
    pub(super) small: Vec<(u64, Vec<u8>)>,
    /// First byte of the region, and its length.
    pub(super) region: (u64, u64),
}

impl Stretched {
    /// Gives each step that is asked for its copies, together at most `budget` bytes.
    pub(super) fn new(
        work: Work,
        small: Vec<(u64, Vec<u8>)>,
        (budget, options): (u64, &KernelOptions),
    ) -> Result<Self> {
        let Work { mut program, mut prototypes, tokens, lengths } = work;
        prototypes.retain(|p| tokens.iter().any(|n| options.want(&p.what, &p.shape, *n)));
        let end = small.iter().map(|(at, bytes)| at + bytes.len() as u64).max().unwrap_or(0);
        let start = end.next_multiple_of(ALIGN);
        let groups = prototypes.into_iter().map(|p| Group::new(p, &program, start, budget));
        let groups = groups.collect::<Result<Vec<_>>>()?;
        let longest = groups.iter().map(|g| g.stride.saturating_mul(g.copies)).max().unwrap_or(0);
        program.body.clear();
        program.head.clear();
        program.draft = None;
        for group in &groups {
            if let Kind::Steps(steps) = &group.prototype.kind {
                program.body.extend(steps.iter().cloned());
            }
        }
        Ok(Self { program, groups, tokens, lengths, small, region: (start, longest.max(1)) })
    }

    /// Every step of a model, once for each shape, and what its products are compared with.
    pub(super) fn of_model(
        container: &Container,
        mut program: Program,
        how: (u64, &KernelOptions),
    ) -> Result<Self> {
        let small = bring_small(container, &mut program)?;
        let context = program.context.unwrap_or(CONTEXT);
        let mut prototypes: Vec<Prototype> = Vec::new();
        let mut products = Vec::new();
        let steps: Vec<Step> = program.body.iter().chain(&program.head).cloned().collect();
        for step in steps {
            let Some((what, shape)) = describe(&step, &program) else { continue };
            if let Step::Gemm { weight, .. } = &step {
                products.push((weight.rows.len(), weight.cols));
            }
            let known = prototypes.iter_mut().find(|p| (&p.what, &p.shape) == (&what, &shape));
            match known.map(|p| &mut p.kind) {
                Some(Kind::Steps(steps)) if matrices(&step).is_empty() && steps.len() < MOST_ALIKE => {
                    steps.push(step);
                }
                Some(_) => {}
                None => {
                    prototypes.push(Prototype {
                        what,
                        shape,
                        kind: Kind::Steps(vec![step]),
                        baseline: false,
                    });
                }
            }
        }
        products.sort_unstable();
        products.dedup();
        let rows = |n: usize| n.is_multiple_of(16);
        for (rows, cols) in products.into_iter().rev().filter(|(r, c)| rows(*r) && rows(*c)) {
            let shape = (rows, cols);
            let bf16 = Layout::Raw(GgmlType::BF16);
            let known = prototypes
                .iter()
                .any(|p| p.what == bf16.to_string() && p.shape == format!("{rows} x {cols}"));
            if !known {
                prototypes.push(Prototype::product(&mut program, bf16, shape, true));
            }
            prototypes.push(Prototype::library(rows, cols));
        }
        let lengths = [512, 4096, 32_768].into_iter().filter(|n| *n <= context).collect();
        Self::new(Work { program, prototypes, tokens: vec![1, 8, 32, BATCH], lengths }, small, how)
    }
}

/// Gives vectors and tables of ids their container's bytes, and places of their own.
fn bring_small(container: &Container, program: &mut Program) -> Result<Vec<(u64, Vec<u8>)>> {
    let source = container.card(0)?;
    let mut small: Vec<(u64, Vec<u8>)> = Vec::new();
    let mut places: BTreeMap<usize, usize> = BTreeMap::new();
    let mut end = 0u64;
    let mut bring = |matrix: &mut Matrix| -> Result<()> {
        if let Some(place) = places.get(&matrix.offset) {
            matrix.offset = *place;
            return Ok(());
        }
        let bytes = stored(matrix)?;
        let mut read = vec![0; bytes as usize];
        let done = source.file.read_exact_at(source.offset + matrix.offset as u64, &mut read);
        done.map_err(|source| ContainerError::Io { path: container.path().into(), source })?;
        places.insert(matrix.offset, end as usize);
        matrix.offset = end as usize;
        small.push((end, read));
        end = (end + bytes).next_multiple_of(ALIGN);
        Ok(())
    };
    program.vectors.iter_mut().try_for_each(&mut bring)?;
    for step in program.body.iter_mut().chain(&mut program.head) {
        if let Step::Route { given: Some(table), .. } = step {
            bring(table)?;
        }
    }
    Ok(small)
}

fn stored(matrix: &Matrix) -> Result<u64> {
    let bytes = matrix.layout.bytes(matrix.stored_rows as u64, matrix.cols as u64);
    bytes.ok_or_else(|| RuntimeError::Tensor {
        tensor: matrix.name.to_string(),
        what: format!("{} x {} values in {} have no size", matrix.stored_rows, matrix.cols, matrix.layout),
    })
}

impl Group {
    fn new(prototype: Prototype, program: &Program, region: u64, budget: u64) -> Result<Self> {
        let (mut stride, mut fills, mut touched) = (0u64, Vec::new(), 0);
        let mut places = BTreeMap::new();
        let mut length = false;
        match &prototype.kind {
            Kind::Library { rows, cols } => {
                stride = ((rows * cols) as u64).next_multiple_of(ALIGN);
                fills.push((0, stride, [u32::MAX, 0]));
                touched = stride;
            }
            Kind::Steps(steps) => {
                for matrix in steps.iter().take(1).flat_map(matrices) {
                    let planes = matrix.layout.planes(matrix.stored_rows as u64, matrix.cols as u64);
                    for (i, plane) in planes.iter().flatten().enumerate() {
                        fills.push((stride + plane.offset, plane.bytes, bits(matrix.layout, i)));
                    }
                    places.insert(matrix.offset, stride);
                    stride = (stride + stored(matrix)?).next_multiple_of(ALIGN);
                }
                if let Some(step) = steps.first() {
                    touched = touched_by(step, program);
                    length = by_length(step);
                }
            }
        }
        let wanted = COPIES.max(COLD.div_ceil(touched.max(1))).min(MOST_COPIES);
        let copies = match (stride, &prototype.kind) {
            (0, Kind::Steps(steps)) => steps.len() as u64,
            // Rows of a table: the tokens differ.
            (_, Kind::Steps(steps)) if matches!(steps.first(), Some(Step::Embed { .. })) => 1,
            _ => wanted.min(budget / stride.max(1)).max(1),
        };
        let kind = match prototype.kind {
            Kind::Steps(steps) if stride > 0 => {
                let first = steps.into_iter().next();
                let copy = |turn: u64| {
                    let place =
                        |m: &Matrix| places.get(&m.offset).map(|at| (region + turn * stride + at) as usize);
                    first.as_ref().and_then(|step| moved(step, &place))
                };
                Kind::Steps((0..copies).filter_map(copy).collect())
            }
            kind => kind,
        };
        Ok(Self { prototype: Prototype { kind, ..prototype }, stride, copies, fills, by_length: length })
    }
}

/// Bytes of weights that one token reads.
fn touched_by(step: &Step, program: &Program) -> u64 {
    let rows = |m: &Matrix| m.layout.bytes(m.rows.len() as u64, m.cols as u64).unwrap_or(0);
    match step {
        Step::Experts { ids, products, .. } => {
            let experts = products.iter().map(|p| p.weights.experts()).min().unwrap_or(0);
            let used = ids.map_or(experts, |ids| program.buffers[ids.0].width) as u64;
            products.iter().filter_map(|p| p.weights.copy(0, 0)).map(|m| rows(m).saturating_mul(used)).sum()
        }
        _ => matrices(step).into_iter().map(rows).sum(),
    }
}

/// Whether so many copies are so many bytes that caches do not matter.
pub(super) fn is_cold(copies: u64, bytes: u64) -> bool {
    copies >= COPIES && copies.saturating_mul(bytes) >= COLD
}

/// The step with its matrices elsewhere.
fn moved(step: &Step, place: &dyn Fn(&Matrix) -> Option<usize>) -> Option<Step> {
    let of = |m: &Matrix| Some(Matrix { offset: place(m)?, ..m.clone() });
    Some(match step {
        Step::Gemm { weight, scale, bias, x, y } => {
            Step::Gemm { weight: of(weight)?, scale: *scale, bias: *bias, x: *x, y: *y }
        }
        Step::Embed { table, y } => Step::Embed { table: of(table)?, y: *y },
        Step::Experts { only, ids, products } => {
            let product = |p: &ExpertProduct| {
                let copy = |expert| of(p.weights.copy(expert, 0)?).map(|m| vec![m]);
                let weights = (0..p.weights.experts()).map(copy).collect::<Option<Vec<_>>>()?;
                Some(ExpertProduct { weights: ExpertMatrices::new(weights)?, ..p.clone() })
            };
            let products = products.iter().map(product).collect::<Option<Vec<_>>>()?;
            Step::Experts { only: *only, ids: *ids, products }
        }
        step => step.clone(),
    })
}

/// Random bits that are kept and bits that are set, in plane `plane` of a layout: scales and floats stay numbers of
/// usual size.
fn bits(layout: Layout, plane: usize) -> [u32; 2] {
    const F32: [u32; 2] = [0x807f_ffff, 0x3c00_0000];
    const HALVES: [u32; 2] = [0x83ff_83ff, 0x2000_2000];
    match layout {
        Layout::Raw(GgmlType::F32) => F32,
        Layout::Raw(GgmlType::BF16) => [0x807f_807f, 0x3c00_3c00],
        Layout::Raw(_) => HALVES,
        // The scales lie among the quants, at even bytes: no 16 bits are an infinity.
        Layout::Block(_) | Layout::E8Block98 { .. } => [0xbfff_bfff, 0],
        Layout::I8 { scales: Scales::Channel, .. } if plane == 1 => F32,
        Layout::I8 { .. } | Layout::Q8_0Split { .. } if plane == 1 => HALVES,
        Layout::E8Planar { .. } if plane == 2 => HALVES,
        _ => [u32::MAX, 0],
    }
}

#[cfg(test)]
mod tests {
    use super::super::built_in;
    use super::*;
    use crate::backend::device::CardInfo;

    fn card() -> CardInfo {
        CardInfo::sm(90)
    }

    fn options(only: &[&str]) -> KernelOptions {
        let only = only.iter().map(ToString::to_string).collect();
        KernelOptions { warm_up: 1, samples: 1, only, context: None, kv: Default::default() }
    }

    #[test]
    fn only_what_is_asked_for_is_measured() {
        let groups = |only: &[&str]| {
            let stretched = built_in::products(&card(), (16 << 30, &options(only))).unwrap();
            stretched
                .groups
                .iter()
                .map(|g| format!("{} {}", g.prototype.what, g.prototype.shape))
                .collect::<Vec<_>>()
        };
        assert_eq!(groups(&["e8", "2560"]), ["e8.planar 2560 x 4096"]);
        assert_eq!(groups(&["i8.", "n=1"]).len(), 4 * 3);
        assert!(groups(&["n=3"]).is_empty() && groups(&["nothing"]).is_empty());
        assert!(options(&["n=1"]).want("a", "b", 1) && !options(&["n=1"]).want("a", "b", 16));
    }

    #[test]
    fn copies_lie_side_by_side_and_are_cold() {
        let stretched = built_in::products(&card(), (16 << 30, &options(&[]))).unwrap();
        assert!(stretched.groups.len() >= 4 * 7);
        let (start, bytes) = stretched.region;
        for group in &stretched.groups {
            assert!(is_cold(group.copies, group.stride), "{}", group.prototype.what);
            let Kind::Steps(steps) = &group.prototype.kind else { continue };
            assert_eq!(steps.len() as u64, group.copies);
            let mut end = start as usize;
            for step in steps {
                let [matrix] = matrices(step)[..] else { panic!("one matrix") };
                assert!(matrix.offset >= end && matrix.offset.is_multiple_of(256));
                end = matrix.offset + stored(matrix).unwrap() as usize;
            }
            assert!(end as u64 <= start + bytes);
            let filled: u64 = group.fills.iter().map(|(_, n, _)| n).sum();
            assert!(
                group.stride - filled < 3 * ALIGN,
                "{}: {filled} of {}",
                group.prototype.what,
                group.stride
            );
        }
    }

    #[test]
    fn less_memory_is_fewer_copies_and_is_told() {
        let stretched = built_in::products(&card(), (300 << 20, &options(&[]))).unwrap();
        let large = &stretched.groups[0];
        assert_eq!((large.prototype.shape.as_str(), large.copies), ("16384 x 8192", 2));
        assert!(!is_cold(large.copies, large.stride));
    }

    #[test]
    fn random_floats_are_numbers() {
        for seed in [0u32, u32::MAX, 0x1234_5678, 0xdead_beef] {
            let word = |layout, plane| {
                let [keep, set] = bits(layout, plane);
                (seed & keep) | set
            };
            let x = f32::from_bits(word(Layout::Raw(GgmlType::F32), 0));
            assert!(x.is_finite() && x.abs() < 0.1, "{x}");
            let x = f32::from_bits(word(Layout::Raw(GgmlType::BF16), 0) << 16);
            assert!(x.is_finite() && x.abs() < 0.1, "{x}");
            let half = (word(Layout::q8_0_split(), 1) & 0x7fff) as u16;
            assert!(half >> 10 < 31, "{half:x}");
            let block = (word(Layout::Block(GgmlType::Q8_0), 0) & 0x7fff) as u16;
            assert!(block >> 10 < 31, "{block:x}");
        }
    }
}
