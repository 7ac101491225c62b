//! What steps read and write, for those who move steps between cards.

use super::{
    Buffer, BufferId, Columns, ExpertProduct, KeptId, Matrix, Pieces, Pool, Program, Step, VectorId,
};
use gantry_formats::role::Role;
use std::ops::Range;

/// The values of a token that a step reads or writes in a buffer.
#[derive(Clone, Copy, Debug)]
pub enum Access {
    /// All.
    Whole(BufferId),
    /// These of every row.
    Columns(Columns),
    /// These of all.
    Pieces(Pieces),
}

impl Access {
    /// The buffer.
    pub fn buffer(&self) -> BufferId {
        match self {
            Self::Whole(buffer) => *buffer,
            Self::Columns(columns) => columns.buffer,
            Self::Pieces(pieces) => pieces.buffer,
        }
    }

    /// The values, as ranges of all that the buffer has for a token.
    pub fn ranges(&self, buffers: &[Buffer]) -> Vec<Range<usize>> {
        let Buffer { rows, width, .. } = buffers[self.buffer().0];
        match self {
            Self::Whole(_) => std::iter::once(0..rows * width).collect(),
            Self::Columns(c) => (0..rows).map(|r| r * width + c.start..r * width + c.start + c.len).collect(),
            Self::Pieces(p) => {
                let start = |i: usize| p.start + i * p.stride;
                (0..p.count).map(|i| start(i)..start(i) + p.len).collect()
            }
        }
    }
}

impl Program {
    /// The layer of each thing that a sequence keeps: that of the weights which the steps before it read.
    pub fn kept_layers(&self) -> Vec<u32> {
        let mut layers = vec![0; self.kept.len()];
        let mut layer = 0;
        for step in self.steps() {
            let source = step.source(self).and_then(|matrix| Role::of(&matrix.name, 2).layer);
            layer = source.unwrap_or(layer);
            step.kept().into_iter().for_each(|id| layers[id.0] = layer);
        }
        layers
    }
}

impl Step {
    /// The buffers that it changes.
    pub fn written(&self) -> Vec<BufferId> {
        self.writes().iter().map(Access::buffer).collect()
    }

    /// What it writes, whatever was there before.
    pub fn writes(&self) -> Vec<Access> {
        use Access::{Columns, Pieces, Whole};
        match self {
            Self::Embed { y, .. }
            | Self::Ngram { y, .. }
            | Self::LayerNorm { y, .. }
            | Self::Quantize { y, .. }
            | Self::Rotate { y, .. }
            | Self::Attention { y, .. }
            | Self::Conv { y, .. }
            | Self::DeltaNet { y, .. }
            | Self::SiluMul { y, .. }
            | Self::SiluScaled { x: y, .. }
            | Self::StreamWrite { x: y, .. }
            | Self::StreamMix { y, .. }
            | Self::SinkhornWrite { x: y, .. }
            | Self::SinkhornHead { y, .. }
            | Self::NgramGate { y, .. }
            | Self::Select { ids: y, .. }
            | Self::Mix { y, .. }
            | Self::Collect { y, .. }
            | Self::Add { y, .. } => vec![Whole(*y)],
            Self::RmsNorm { y, .. } | Self::Copy { y, .. } | Self::Gate { y, .. } => vec![Pieces(*y)],
            Self::Rope { x, .. } => vec![Pieces(*x)],
            Self::Gemm { y, .. } => vec![Columns(*y)],
            Self::StreamNorm { write, x, y, .. } => {
                let streams = write.map(|_| Whole(*x));
                streams.into_iter().chain([Whole(*y)]).collect()
            }
            Self::SinkhornRead { y, post, comb, .. } => [y, post, comb].map(|id| Whole(*id)).to_vec(),
            Self::Route { ids, weights, .. } => vec![Whole(*ids), Whole(*weights)],
            Self::Experts { products, .. } => products.iter().map(|p| Columns(p.y)).collect(),
            Self::Receive { buffers, .. } => buffers.iter().map(|id| Whole(*id)).collect(),
            Self::Begin(_)
            | Self::Store { .. }
            | Self::Compress { .. }
            | Self::Send { .. }
            | Self::Return { .. } => Vec::new(),
        }
    }

    /// What it reads, in place too.
    pub fn reads(&self) -> Vec<Access> {
        use Access::{Columns, Pieces, Whole};
        match self {
            Self::Begin(_)
            | Self::Embed { .. }
            | Self::Ngram { .. }
            | Self::Compress { .. }
            | Self::Receive { .. } => Vec::new(),
            Self::RmsNorm { x, .. } | Self::Copy { x, .. } | Self::Rope { x, .. } => vec![Pieces(*x)],
            Self::LayerNorm { x, .. }
            | Self::Quantize { x, .. }
            | Self::Rotate { x, .. }
            | Self::Gemm { x, .. }
            | Self::SiluMul { x, .. }
            | Self::SiluScaled { x, .. } => vec![Whole(*x)],
            Self::Store { keys, values, .. } => values.iter().chain([keys]).map(|c| Columns(*c)).collect(),
            Self::Attention { chosen, entries, q, .. } => {
                let ids = [*chosen, entries.and_then(|e| e.chosen)].into_iter().flatten();
                ids.map(|c| Whole(c.ids)).chain([Columns(*q)]).collect()
            }
            Self::Select { q, weights, .. } => weights.iter().chain([q]).map(|c| Columns(*c)).collect(),
            Self::Conv { x, .. } => vec![Columns(*x)],
            Self::DeltaNet { qkv, alpha, beta, .. } => vec![Whole(*qkv), Pieces(*alpha), Pieces(*beta)],
            Self::Gate { gate, y, .. } => vec![Pieces(*gate), Pieces(*y)],
            Self::StreamNorm { write, x, .. } => {
                let waits = write.iter().flat_map(|w| [Whole(w.add), Whole(w.inject)]);
                waits.chain([Whole(*x)]).collect()
            }
            Self::StreamWrite { write, x } => vec![Whole(write.add), Whole(write.inject), Whole(*x)],
            Self::StreamMix { x, gates, .. } => vec![Whole(*x), Whole(*gates)],
            Self::SinkhornRead { x, mixes, .. } | Self::SinkhornHead { x, mixes, .. } => {
                vec![Whole(*x), Whole(*mixes)]
            }
            Self::SinkhornWrite { x, add, post, comb } => [x, add, post, comb].map(|id| Whole(*id)).to_vec(),
            Self::NgramGate { key, query, value, .. } => [key, query, value].map(|id| Whole(*id)).to_vec(),
            Self::Route { logits, .. } => vec![Whole(*logits)],
            Self::Experts { ids, products, .. } => {
                ids.iter().copied().chain(products.iter().map(|p| p.x)).map(Whole).collect()
            }
            Self::Send { buffers, .. } => buffers.iter().map(|id| Whole(*id)).collect(),
            Self::Return { ids, y, .. } | Self::Collect { ids, y, .. } => vec![Whole(*ids), Whole(*y)],
            Self::Mix { x, weights, .. } => vec![Whole(*x), Whole(*weights)],
            Self::Add { x, y } => vec![Whole(*x), Whole(*y)],
        }
    }

    /// What sequences keep that it reads or writes.
    pub fn kept(&self) -> Vec<KeptId> {
        match self {
            Self::Store { cache, .. } => vec![*cache],
            Self::Attention { cache, entries, .. } => {
                [*cache].into_iter().chain(entries.map(|e| e.cache)).collect()
            }
            Self::Compress { pool, rows, entries, .. } => {
                let scores = match pool {
                    Pool::Softmax { scores, .. } => Some(*scores),
                    Pool::Mean => None,
                };
                [*rows, *entries].into_iter().chain(scores).collect()
            }
            Self::Select { keys, .. } => vec![*keys],
            Self::Conv { history, .. } => vec![*history],
            Self::DeltaNet { state, .. } => vec![*state],
            _ => Vec::new(),
        }
    }

    /// Some matrix or vector of the model that this step reads, all of which lie on its card; `None` where it reads
    /// none, or from several cards.
    pub fn source<'p>(&'p self, program: &'p Program) -> Option<&'p Matrix> {
        let vector = |id: &VectorId| &program.vectors[id.0];
        match self {
            Self::Embed { table, .. } | Self::Ngram { table, .. } => Some(table),
            Self::Gemm { weight, .. } => Some(weight),
            Self::Experts { products, .. } => only_holder(products),
            Self::RmsNorm { weight, .. } => weight.as_ref().map(vector),
            Self::LayerNorm { weight, .. } => Some(vector(weight)),
            Self::Attention { sinks, .. } => sinks.as_ref().map(vector),
            Self::Compress { norm, .. } => Some(vector(norm)),
            Self::Conv { weight, .. } => Some(vector(weight)),
            Self::DeltaNet { decay, .. } => Some(vector(decay)),
            Self::StreamNorm { gamma, .. } => Some(vector(gamma)),
            Self::SinkhornRead { scale, .. } | Self::SinkhornHead { scale, .. } => Some(vector(scale)),
            Self::Route { bias, given, .. } => given.as_ref().or_else(|| bias.as_ref().map(vector)),
            _ => None,
        }
    }
}

/// A matrix of `products`, where one card holds all their experts.
fn only_holder(products: &[ExpertProduct]) -> Option<&Matrix> {
    let mut matrices = products.iter().flat_map(|p| p.weights.iter());
    let first = matrices.next()?;
    matrices.all(|m| m.card == first.card).then_some(first)
}
