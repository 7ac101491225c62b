//! The n-gram embedding (PLE) of `qwen4exp`.
//!
//! ```text
//! e = the rows of per_layer_token_embd that the last tokens hash to, side by side
//! key = N(W_key e);  query = N(X);  gv[h] = σ(±√|s|) · W_value e,  s = key[h]·query[h] / √E
//! X += gv + silu(conv(N(gv)))                  N of each stream, gamma over all; taps `ngram_size` apart
//! ```

use super::Graph;
use super::hyper::Streams;
use crate::model::program::{BufferId, ConvShape, Format, Kept, Ngram, Part, Step};
use crate::{Result, RuntimeError};
use gantry_formats::arch::Ple;

impl Graph<'_> {
    /// Adds it to the streams.
    pub(super) fn ngram(&mut self, ple: &Ple, streams: &mut Streams) -> Result<()> {
        streams.settle(self);
        self.b.begin(Part::Ngram);
        let (embd, count, x) = (self.embd, streams.count, streams.x);
        let wide = count * embd;
        let hash = self.b.ngram(Ngram {
            size: ple.ngram,
            eos: ple.eos,
            multipliers: ple.multipliers.clone(),
            offsets: ple.offsets.clone(),
            vocabs: ple.vocabs.clone(),
        });
        let (rows, _) = self.w.shape("per_layer_token_embd.weight")?;
        if (rows as u64) < ple.rows() {
            let what = format!("it has {rows} rows, its hashes reach {}", ple.rows());
            return Err(RuntimeError::Tensor { tensor: "per_layer_token_embd.weight".into(), what });
        }
        let table = self.w.matrix("per_layer_token_embd.weight", rows, ple.dim)?;
        let e = self.b.buffer("n-gram rows", ple.heads * ple.dim, Format::F32);
        self.b.push(Step::Ngram { table, hash, y: e });
        let key = self.product_rows("ple_key.weight", (count, embd), e, "n-gram keys")?;
        let value = self.product("ple_value.weight", embd, e, "n-gram value")?;
        let weight = self.vector("ple_norm_key.weight", wide)?;
        self.b.norm_in_place(self.b.pieces(key), Some(weight), self.eps);
        let query = self.b.rows("n-gram queries", count, embd, Format::F32);
        let weight = Some(self.vector("ple_norm_query.weight", wide)?);
        let (from, to) = (self.b.pieces(x), self.b.pieces(query));
        self.b.push(Step::RmsNorm { x: from, weight, eps: self.eps, y: to });
        let gv = self.b.rows("n-gram answer", count, embd, Format::F32);
        self.b.push(Step::NgramGate { key, query, value, y: gv });
        // The query is done with: its buffer is the norm's.
        let weight = Some(self.vector("ple_norm_conv.weight", wide)?);
        let from = self.b.pieces(gv);
        self.b.push(Step::RmsNorm { x: from, weight, eps: self.eps, y: to });
        let shape = ConvShape { channels: wide, taps: ple.conv, dilation: ple.ngram };
        let history = self.b.keep(Kept::Conv(shape));
        let weight = self.vector("ple_conv1d.weight", ple.conv * wide)?;
        let all = super::Columns { buffer: query, start: 0, len: wide };
        self.b.push(Step::Conv { shape, history, weight, x: all, silu: true, y: key });
        self.b.push(Step::Add { x: gv, y: x });
        self.b.push(Step::Add { x: key, y: x });
        Ok(())
    }

    /// [`product`](Graph::product) into several rows of a buffer.
    fn product_rows(
        &mut self,
        base: &str,
        (count, width): (usize, usize),
        x: BufferId,
        called: &'static str,
    ) -> Result<BufferId> {
        let weight = self.matrix(base, count * width, self.b.values(x))?;
        let y = self.b.rows(called, count, width, Format::F32);
        let all = super::Columns { buffer: y, start: 0, len: count * width };
        self.b.gemm(weight, x, all);
        Ok(y)
    }
}
