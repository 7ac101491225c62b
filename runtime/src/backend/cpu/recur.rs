//! Steps of recurrent layers, and of n-gram tables: what depends on the tokens before in another way than attention.

use super::Loaded;
use super::sequence::State;
use super::workspace::{Batch, Walker};
use crate::backend::host::bad;
use crate::model::program::{BufferId, Matrix, Pieces, Step};
use crate::{Result, RuntimeError};
use gantry_kernels::cpu::{self as kernels, DeltaInput};

impl Walker {
    /// Runs a convolution or a delta net.
    pub(super) fn recur(&mut self, loaded: &Loaded, step: &Step, batch: &mut Batch<'_, '_>) -> Result<()> {
        let (isa, pool) = (loaded.isa, &*loaded.pool);
        let values = |id: BufferId| loaded.program.values(id);
        let n = batch.tokens.len();
        let each = batch.spans.iter().zip(batch.sequences.iter_mut());
        match step {
            Step::Conv { history, weight, x, silu, y, .. } => {
                let (width, stride) = (values(*y), values(x.buffer));
                let mut out = self.buffers.take(*y, n * width);
                let from = self.buffers.f32(x.buffer);
                let weight = &loaded.vectors[weight.0];
                for (span, sequence) in each {
                    let State::Conv(state) = sequence.state_mut(*history)? else { continue };
                    let x = (&from[span.row * stride + x.start..], stride);
                    let y = &mut out[span.row * width..][..span.tokens * width];
                    state.run(isa, pool, weight, span.start, span.tokens, x, *silu, y);
                }
                self.buffers.give(*y, out);
            }
            Step::DeltaNet { state, decay, dt, qkv, alpha, beta, y, .. } => {
                let (width, wide) = (values(*y), values(*qkv));
                let mut out = self.buffers.take(*y, n * width);
                let from = self.buffers.f32(*qkv);
                let rates = |p: &Pieces, row: usize| {
                    let all = values(p.buffer);
                    let pieces = kernels::Pieces {
                        row: all,
                        start: p.start,
                        count: p.count,
                        len: p.len,
                        stride: p.stride,
                    };
                    (&self.buffers.f32(p.buffer)[row * all..], pieces)
                };
                for (span, sequence) in each {
                    let State::Delta(kept) = sequence.state_mut(*state)? else { continue };
                    let input = DeltaInput {
                        qkv: &from[span.row * wide..][..span.tokens * wide],
                        beta: rates(beta, span.row),
                        alpha: rates(alpha, span.row),
                        decay: &loaded.vectors[decay.0],
                        dt: &loaded.vectors[dt.0],
                    };
                    let y = &mut out[span.row * width..][..span.tokens * width];
                    kept.run(isa, pool, span.start, span.tokens, &input, y);
                }
                self.buffers.give(*y, out);
            }
            _ => {}
        }
        Ok(())
    }

    /// The rows of a table that the tokens hash to.
    pub(super) fn ngram(
        &mut self,
        loaded: &Loaded,
        table: &Matrix,
        hash: usize,
        y: BufferId,
        batch: &Batch<'_, '_>,
    ) -> Result<()> {
        loaded.weights.check_unchanged(table.card)?;
        let missing = || bad(table, "no hashes are known for it".into());
        let ngrams = loaded.ngrams.get(&hash).ok_or_else(missing)?;
        let width = loaded.program.values(y);
        let mut out = self.buffers.take(y, batch.tokens.len() * width);
        for (span, sequence) in batch.spans.iter().zip(batch.sequences.iter()) {
            let out = &mut out[span.row * width..][..span.tokens * width];
            ngrams.all_values((&loaded.weights, &loaded.pool), sequence.tokens, span.start, out)?;
        }
        self.buffers.give(y, out);
        Ok(())
    }
}

impl Loaded {
    /// The experts that a table gives for each token.
    pub(super) fn given(
        &self,
        table: &Matrix,
        tokens: &[u32],
        experts: usize,
        ids: &mut [u32],
    ) -> Result<()> {
        let bad = |what: String| RuntimeError::Tensor { tensor: table.name.to_string(), what };
        let bytes = self.weights.arenas().get(table.card).map(|a| a.bytes()).unwrap_or_default();
        for (&token, ids) in tokens.iter().zip(ids.chunks_exact_mut(table.cols)) {
            let row = table.rows.start + token as usize;
            let at = table.offset + row * table.cols * 4;
            let row =
                bytes.get(at..at + table.cols * 4).ok_or_else(|| bad("it lies outside its arena".into()))?;
            for (id, bytes) in ids.iter_mut().zip(row.as_chunks::<4>().0) {
                *id = u32::from_le_bytes(*bytes);
                if *id as usize >= experts {
                    return Err(bad(format!(
                        "expert {id} of token {token} does not exist, there are {experts}"
                    )));
                }
            }
        }
        Ok(())
    }
}
