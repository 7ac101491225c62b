//! A program on a card: its weights, and what kernels need beside them.

use super::driver::{Context, DeviceMemory, Stream};
use super::kernels::Kernels;
use super::registry;
use super::tables::{Placed, TableId, Tables};
use crate::backend::counters::Counters;
use crate::backend::host;
use crate::load::Weights;
use crate::model::program::{ExpertMatrices, Matrix, Program, Step, StepKind, VectorId};
use crate::{Result, RuntimeError};
use gantry_formats::block::iq3xxs_grid;
use gantry_formats::rotation;
use gantry_kernels::cpu::{Ngram, RopeTable};
use std::collections::BTreeMap;
use std::sync::{Arc, RwLock};

/// A program with its weights on a card.
pub(super) struct Loaded {
    pub(super) context: Arc<Context>,
    pub(super) kernels: Kernels,
    /// For what is done once, and what sequences do by themselves.
    pub(super) aside: Arc<Stream>,
    pub(super) program: Program,
    /// What stays in its file.
    pub(super) weights: Weights,
    pub(super) arena: DeviceMemory,
    /// Runs share it; who writes to the arena has it alone.
    pub(super) used: RwLock<()>,
    tables: Placed,
    /// By [`VectorId`].
    vectors: Vec<TableId>,
    codebook: TableId,
    /// Sign streams by width.
    signs: BTreeMap<usize, TableId>,
    /// Of each matrix of experts: where each expert's lies, and how many rows after the one before it begins there.
    experts: BTreeMap<Key, (TableId, usize)>,
    /// By rotation.
    pub(super) angles: Vec<RopeTable>,
    /// By hash.
    pub(super) ngrams: Vec<Ngram>,
    /// How often each expert of each layer was used, where that is recorded.
    pub(super) routed: Option<Counters>,
}

impl Loaded {
    pub(super) fn new(
        context: &Arc<Context>,
        program: Program,
        (weights, arena): (Weights, DeviceMemory),
        routed: Option<Counters>,
    ) -> Result<Self> {
        let (kernels, aside) = (Kernels::new(context)?, Stream::new(context)?);
        for (kind, matrix) in program.tensors().filter(|(kind, _)| *kind != StepKind::Rows) {
            check(&arena, kind, matrix)?;
        }
        let mut tables = Tables::default();
        let mut values = Vec::with_capacity(program.vectors.len());
        for vector in &program.vectors {
            values.push(read_vector(&arena, vector, &aside)?);
        }
        for step in program.steps() {
            // A tap's weights of all channels together, as the kernel takes them.
            if let Step::Conv { shape, weight: VectorId(id), .. } = step {
                values[*id] = host::transposed(&values[*id], shape.taps);
            }
        }
        let angles = program.rotations.iter().map(|r| host::rope_table(r, &values)).collect();
        let vectors = values.iter().map(|v| tables.floats(v.iter().copied())).collect();
        let codebook = tables.add(iq3xxs_grid().as_flattened().iter().copied());
        let mut signs = BTreeMap::new();
        let mut experts = BTreeMap::new();
        for step in program.steps() {
            match step {
                Step::Rotate { y, .. } => {
                    let width = program.buffers[y.0].width;
                    let blocks = rotation::blocks(width).map_err(|e| wrong("program", e.to_string()))?;
                    signs.entry(width).or_insert_with(|| tables.add(blocks.flat_map(rotation::signs)));
                }
                Step::Experts { products, .. } => {
                    for product in products {
                        let (starts, step) = starts(&product.weights, arena.address())?;
                        let key = key(&product.weights)?;
                        experts.entry(key).or_insert_with(|| (tables.longs(starts), step));
                    }
                }
                _ => {}
            }
        }
        let tables = Placed::new(&tables, context, &aside)?;
        let ngrams = program.ngrams.iter().map(host::ngram).collect();
        let (context, aside) = (Arc::clone(context), Arc::new(aside));
        Ok(Self {
            context,
            kernels,
            aside,
            program,
            weights,
            arena,
            used: RwLock::default(),
            tables,
            vectors,
            codebook,
            signs,
            experts,
            angles,
            ngrams,
            routed,
        })
    }

    /// Where a matrix begins.
    pub(super) fn matrix(&self, matrix: &Matrix) -> u64 {
        self.arena.address() + matrix.offset as u64
    }

    /// Where a vector is; 0 for none.
    pub(super) fn vector(&self, id: Option<VectorId>) -> u64 {
        id.map_or(0, |id| self.tables.at(self.vectors[id.0]))
    }

    /// The codebook of E8.
    pub(super) fn codebook(&self) -> u64 {
        self.tables.at(self.codebook)
    }

    /// The signs that rows of `width` are rotated with.
    pub(super) fn signs(&self, width: usize) -> u64 {
        self.signs.get(&width).map_or(0, |id| self.tables.at(*id))
    }

    /// Where each expert's matrix begins, and how many rows after the one before it its own are.
    pub(super) fn experts(&self, weights: &ExpertMatrices) -> Result<(u64, usize)> {
        let table = self.experts.get(&key(weights)?);
        table
            .map(|(id, step)| (self.tables.at(*id), *step))
            .ok_or_else(|| wrong("program", "experts that were not there".into()))
    }
}

/// What is wrong with a tensor.
pub(super) fn wrong(tensor: &str, what: String) -> RuntimeError {
    RuntimeError::Tensor { tensor: tensor.into(), what }
}

/// Matrices of experts by the first one's name, first byte and rows.
type Key = (Arc<str>, usize, usize, usize);

fn key(weights: &ExpertMatrices) -> Result<Key> {
    let first = weights.copy(0, 0).ok_or_else(|| wrong("program", "a layer without experts".into()))?;
    Ok((Arc::clone(&first.name), first.offset, first.rows.start, first.rows.end))
}

/// Addresses of what the experts' matrices are stored in. Each has one of its own, or all are one, in which each begins as
/// many rows after the one before: the second number.
fn starts(weights: &ExpertMatrices, arena: u64) -> Result<(Vec<u64>, usize)> {
    let all: Option<Vec<_>> = (0..weights.experts()).map(|expert| weights.copy(expert, 0)).collect();
    let all = all.filter(|all| !all.is_empty());
    let all = all.ok_or_else(|| wrong("program", "experts without a matrix".into()))?;
    let step = all.get(1).map_or(0, |second| second.rows.start.saturating_sub(all[0].rows.start));
    let alike = |(expert, m): (usize, &&Matrix)| {
        m.rows.start == all[0].rows.start + expert * step && m.stored_rows == all[0].stored_rows
    };
    if let Some((expert, matrix)) = all.iter().enumerate().find(|(e, m)| !alike((*e, m))) {
        return Err(wrong(&matrix.name, format!("expert {expert} is not stored like the others")));
    }
    Ok((all.iter().map(|m| arena + m.offset as u64).collect(), step))
}

/// Refuses a matrix that does not lie within its arena, or that no kernel reads.
fn check(arena: &DeviceMemory, kind: StepKind, matrix: &Matrix) -> Result<()> {
    let bytes = matrix.layout.bytes(matrix.stored_rows as u64, matrix.cols as u64);
    let end = bytes.and_then(|b| (matrix.offset as u64).checked_add(b));
    if !registry::takes(kind, matrix.layout) {
        return Err(wrong(&matrix.name, format!("no {kind} kernel for layout {}", matrix.layout)));
    }
    match end.is_some_and(|end| end <= arena.bytes()) && matrix.rows.end <= matrix.stored_rows {
        true => Ok(()),
        false => Err(wrong(&matrix.name, "it lies outside its arena".into())),
    }
}

/// A vector's values.
fn read_vector(arena: &DeviceMemory, vector: &Matrix, stream: &Stream) -> Result<Vec<f32>> {
    let bytes = vector.layout.bytes(vector.stored_rows as u64, vector.cols as u64).unwrap_or(0);
    let mut stored = vec![0; bytes as usize];
    arena.read(vector.offset as u64, &mut stored, stream)?;
    host::vector(vector, &stored)
}
