//! What blocks that draft tokens (MTP) have in common.
//!
//! ```text
//! X[s] = W_eh [N(embd[t]; enorm), N(h[s]; hnorm)]        t the next token, h the streams of the token before
//! ```

use super::Graph;
use crate::Result;
use crate::model::builder::Affine;
use crate::model::program::{BufferId, ExpertMatrices, Format, Part, Pieces, Step};

impl Graph<'_> {
    /// The input of the current block: where it finds the streams of the token before, and its own. With `wide`
    /// weights of the norm, each stream has its own.
    pub(super) fn draft_inputs(
        &mut self,
        table: &str,
        count: usize,
        wide: bool,
    ) -> Result<(BufferId, BufferId)> {
        let embd = self.embd;
        self.b.begin(Part::Embedding);
        let token = self.b.buffer("draft token", embd, Format::F32);
        let table = self.w.matrix(table, self.vocab, embd)?;
        self.b.push(Step::Embed { table, y: token });
        let weight = self.vector("nextn.enorm.weight", embd)?;
        self.b.norm_in_place(self.b.piece(token), Some(weight), self.eps);
        let hidden = self.b.rows("draft hidden", count, embd, Format::F32);
        let inputs = self.b.rows("draft inputs", count, 2 * embd, Format::F32);
        let half = |start, count| Pieces { buffer: inputs, start, count, len: embd, stride: 2 * embd };
        let x = Pieces { count, stride: 0, ..self.b.piece(token) };
        self.b.push(Step::Copy { x, y: half(0, count) });
        let weight = Some(self.vector("nextn.hnorm.weight", if wide { count * embd } else { embd })?);
        let x = self.b.pieces(hidden);
        self.b.push(Step::RmsNorm { x, weight, eps: self.eps, y: half(embd, count) });
        let weight = self.matrix("nextn.eh_proj.weight", embd, 2 * embd)?;
        let residual = self.b.rows("draft residual", count, embd, Format::F32);
        let all = ExpertMatrices::repeated(weight, count);
        self.b.experts(None, vec![(all, None, inputs, self.b.whole(residual))]);
        Ok((hidden, residual))
    }

    /// Logits from `x` through the matrix called `output`; none: the trunk's.
    pub(super) fn logits_by(&mut self, output: Option<String>, x: BufferId) -> Result<BufferId> {
        // A tied output is an alias in the manifest; a hand-made container may leave even that out.
        let trunk = if self.w.has("output.weight") { "output.weight" } else { "token_embd.weight" };
        let own = output.is_some();
        let output = self.w.matrix(output.as_deref().unwrap_or(trunk), self.vocab, self.embd)?;
        let y = self.b.buffer("logits", self.vocab, Format::F32);
        let by = match own {
            true => Affine::default(),
            // llama.cpp reads both beside an output matrix of its own.
            false => Affine {
                scale: self.w.optional("output.scale", 1)?,
                bias: self.w.optional("output.bias", self.vocab)?,
            },
        };
        self.b.begin(Part::Head);
        self.b.affine(output, by, x, self.b.whole(y));
        Ok(y)
    }
}
