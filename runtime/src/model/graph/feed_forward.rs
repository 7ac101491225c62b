//! A dense feed-forward: of a layer, or the expert that all tokens share.

use super::Graph;
use crate::Result;
use crate::model::program::{BufferId, Clamp, Format, Step};

impl Graph<'_> {
    /// W_down (silu(W_gate x) · W_up x) with this layer's matrices of these names, `ff` values wide inside.
    pub(super) fn feed_forward(
        &mut self,
        [gate, up, down]: [&str; 3],
        ff: usize,
        x: BufferId,
        clamp: Option<Clamp>,
    ) -> Result<BufferId> {
        let gate_up = self.b.buffer("gates and ups", 2 * ff, Format::F32);
        self.projections(x, [gate, up], [ff; 2], gate_up)?;
        let y = self.b.buffer("feed-forward", ff, Format::F32);
        self.b.push(Step::SiluMul { x: gate_up, clamp, y });
        self.project(down, self.embd, y, "dense answer")
    }
}
