//! Hyper-connections of `qwen4exp`: a residual of several streams, read and written through gates of low rank.
//!
//! ```text
//! read:   n = per-stream N(X) · gamma;  low = silu(W_down n / H);  m = mean over streams of n · σ(W_up low)
//!         j = W_inject n
//! write:  X[h] += answer · 2σ(j[h] / H)          it waits for the next read, which goes over X anyway
//! ```

use super::Graph;
use crate::Result;
use crate::model::program::{BufferId, Format, Part, Step, StreamWrite};

/// The streams, and what waits to be written into them.
pub(super) struct Streams {
    pub(super) x: BufferId,
    pub(super) count: usize,
    pub(super) rank: usize,
    waits: Option<StreamWrite>,
}

/// What a read gives: its value, and a logit for the write of each stream where the site has them.
pub(super) struct Read {
    pub(super) m: BufferId,
    inject: BufferId,
}

impl Streams {
    pub(super) fn new(x: BufferId, count: usize, rank: usize) -> Self {
        Self { x, count, rank, waits: None }
    }

    /// The read at the site `site` of the current layer: `hc_attn`, `hc_ffn`.
    pub(super) fn read(&mut self, g: &mut Graph<'_>, site: &str) -> Result<Read> {
        let full = g.name(site);
        let (n, m) = self.mix(g, &full)?;
        let inject = g.b.buffer("write gates", self.count, Format::F32);
        let weight = g.w.matrix(&format!("{full}_inject.weight"), self.count, g.b.values(n))?;
        g.b.gemm(weight, n, g.b.whole(inject));
        Ok(Read { m, inject })
    }

    /// The normalised streams and what is read of them, by the weights that begin with `full`.
    pub(super) fn mix(&mut self, g: &mut Graph<'_>, full: &str) -> Result<(BufferId, BufferId)> {
        g.b.begin(Part::HyperConnections);
        let wide = self.count * g.embd;
        let n = g.b.buffer("normalised streams", wide, Format::F32);
        let gamma = g.w.vector(&format!("{full}_norm.weight"), wide)?;
        g.b.push(Step::StreamNorm { write: self.waits.take(), x: self.x, gamma, eps: g.eps, y: n });
        let low = g.b.buffer("low-rank gates", self.rank, Format::F32);
        let down = g.w.matrix(&format!("{full}_down.weight"), self.rank, wide)?;
        g.b.gemm(down, n, g.b.whole(low));
        g.b.push(Step::SiluScaled { x: low, scale: 1.0 / self.count as f32 });
        let gates = g.b.buffer("stream gates", wide, Format::F32);
        let up = g.w.matrix(&format!("{full}_up.weight"), wide, self.rank)?;
        g.b.gemm(up, low, g.b.whole(gates));
        let m = g.b.rows("read", 1, g.embd, Format::F32);
        g.b.push(Step::StreamMix { x: n, gates, y: m });
        Ok((n, m))
    }

    /// Writes the answer to a read; it waits for the next one.
    pub(super) fn write(&mut self, read: &Read, add: BufferId) {
        self.waits = Some(StreamWrite { add, inject: read.inject });
    }

    /// Writes what waits.
    pub(super) fn settle(&mut self, g: &mut Graph<'_>) {
        if let Some(write) = self.waits.take() {
            g.b.begin(Part::HyperConnections);
            g.b.push(Step::StreamWrite { write, x: self.x });
        }
    }
}
