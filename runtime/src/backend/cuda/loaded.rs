//! A program on a card: its weights, and what kernels need beside them.

use super::driver::{Context, DeviceMemory, Stream};
use super::kernels::Kernels;
use super::registry;
use super::tables::{Placed, TableId, Tables};
use crate::backend::host;
use crate::load::Weights;
use crate::model::program::{ExpertMatrices, Matrix, Program, Step, StepKind, VectorId};
use crate::{Result, RuntimeError};
use gantry_formats::block::iq3xxs_grid;
use gantry_formats::rotation;
use gantry_kernels::cpu::{Ngram, RopeTable};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

/// A program with its weights on a card.
pub(super) struct Loaded {
    pub(super) context: Arc<Context>,
    pub(super) kernels: Kernels,
    /// For what sequences do by themselves.
    pub(super) aside: Arc<Stream>,
    pub(super) program: Program,
    /// What stays in its file.
    pub(super) weights: Weights,
    arena: DeviceMemory,
    tables: Placed,
    /// By [`VectorId`].
    vectors: Vec<TableId>,
    codebook: TableId,
    /// Sign streams by width.
    signs: BTreeMap<usize, TableId>,
    /// Of each matrix of experts, by its name and first row: where each expert's lies.
    experts: BTreeMap<(Arc<str>, usize), TableId>,
    /// By rotation.
    pub(super) angles: Vec<RopeTable>,
    /// By hash.
    pub(super) ngrams: Vec<Ngram>,
    /// How often each expert of each layer was used, where that is recorded.
    pub(super) routed: Option<Vec<Vec<AtomicU64>>>,
}

impl Loaded {
    pub(super) fn new(
        context: &Arc<Context>,
        program: Program,
        (weights, arena): (Weights, DeviceMemory),
        routed: Option<Vec<Vec<AtomicU64>>>,
    ) -> Result<Self> {
        let kernels = Kernels::new(context)?;
        for (kind, matrix) in program.tensors().filter(|(kind, _)| *kind != StepKind::Rows) {
            check(&arena, kind, matrix)?;
        }
        let mut tables = Tables::default();
        let mut values = Vec::with_capacity(program.vectors.len());
        for vector in &program.vectors {
            values.push(read_vector(&arena, vector, &kernels.stream)?);
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
                        let starts = starts(&product.weights, arena.address())?;
                        experts.entry(key(&product.weights)?).or_insert_with(|| tables.longs(starts));
                    }
                }
                _ => {}
            }
        }
        let tables = Placed::new(&tables, context, &kernels.stream)?;
        let ngrams = program.ngrams.iter().map(host::ngram).collect();
        let (context, aside) = (Arc::clone(context), Arc::new(Stream::new(context)?));
        Ok(Self {
            context,
            kernels,
            aside,
            program,
            weights,
            arena,
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

    /// Where each expert's matrix begins.
    pub(super) fn experts(&self, weights: &ExpertMatrices) -> Result<u64> {
        let table = self.experts.get(&key(weights)?);
        table
            .map(|id| self.tables.at(*id))
            .ok_or_else(|| wrong("program", "experts that were not there".into()))
    }
}

/// What is wrong with a tensor.
pub(super) fn wrong(tensor: &str, what: String) -> RuntimeError {
    RuntimeError::Tensor { tensor: tensor.into(), what }
}

fn key(weights: &ExpertMatrices) -> Result<(Arc<str>, usize)> {
    let first = weights.iter().next().ok_or_else(|| wrong("program", "a layer without experts".into()))?;
    Ok((Arc::clone(&first.name), first.offset))
}

/// Addresses of the experts' matrices, which all begin with the same row of what is stored.
fn starts(weights: &ExpertMatrices, arena: u64) -> Result<Vec<u64>> {
    let all = (0..weights.experts()).map(|expert| {
        let first = weights.copy(0, 0);
        let matrix = weights.copy(expert, 0);
        let alike = matrix.zip(first).filter(|(m, f)| m.rows == f.rows && m.stored_rows == f.stored_rows);
        let (matrix, _) =
            alike.ok_or_else(|| wrong("program", format!("expert {expert} is not like the others")))?;
        Ok(arena + matrix.offset as u64)
    });
    all.collect()
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
