//! A feed-forward of routed experts.
//!
//! ```text
//! ids, w = route(W_router x)
//! y = Σ_i w_i · W_down[ids_i] (silu(W_gate[ids_i] x) · W_up[ids_i] x)
//! ```

use super::Graph;
use crate::Result;
use crate::model::program::{
    BufferId, Clamp, Columns, Format, Gating, Matrix, Part, Routing, Step, VectorId,
};
use crate::model::{SIZES, number};
use gantry_formats::arch::Experts;

/// What an architecture fixes of its routing.
pub(super) struct Rule {
    pub(super) gating: Gating,
    pub(super) normalize: bool,
    pub(super) scale: f32,
}

/// The shape of a model's experts.
pub(super) struct Moe {
    routing: Routing,
    ff: usize,
}

impl Moe {
    /// Reads it from the hyperparameters.
    pub(super) fn read(g: &Graph<'_>, rule: Rule) -> Result<Self> {
        let Rule { gating, normalize, scale } = rule;
        let h = g.h;
        let experts = number(h, Some(h.experts), "expert_count", MAX_EXPERTS)?;
        let Experts { groups, groups_used, .. } = Experts::read(h, g.meta)?;
        let choice = experts / groups * groups_used;
        let used = number(h, Some(h.experts_used), "expert_used_count", choice)?;
        let ff = number(h, h.expert_ff, "expert_feed_forward_length", SIZES)?;
        let routing = Routing { experts, used, gating, groups, groups_used, normalize, scale };
        Ok(Self { routing, ff })
    }

    /// Experts of a layer.
    pub(super) fn experts(&self) -> usize {
        self.routing.experts
    }

    /// Experts that a token uses.
    pub(super) fn used(&self) -> usize {
        self.routing.used
    }

    /// The experts' answer to `x` in the current layer.
    pub(super) fn routed(
        &self,
        g: &mut Graph<'_>,
        x: BufferId,
        bias: Option<VectorId>,
        given: Option<Matrix>,
        clamp: Option<Clamp>,
    ) -> Result<BufferId> {
        g.b.begin(Part::Experts);
        let Self { routing, ff } = *self;
        let (embd, layer) = (g.embd, g.layer);
        let Routing { experts, used, .. } = routing;
        let name = |base: &str| format!("blk.{layer}.{base}.weight");
        let [up_scale, gate_scale, both_scale, down_scale] =
            ["ffn_up_exps", "ffn_gate_exps", "ffn_gate_up_exps", "ffn_down_exps"]
                .map(|n| g.scale(n, experts));
        let (up_scale, gate_scale) = (up_scale?, gate_scale?);
        let logits = g.product("ffn_gate_inp.weight", experts, x, "router logits")?;
        let b = &mut g.b;
        let ids = b.buffer("expert ids", used, Format::Ids);
        let weights = b.buffer("expert weights", used, Format::F32);
        b.push(Step::Route { routing, layer, logits, bias, given, ids, weights });

        let gate_up = b.rows("experts' gates and ups", used, 2 * ff, Format::F32);
        let fused = name("ffn_gate_up_exps");
        let products = if g.w.has(&fused) {
            vec![(g.w.experts(&fused, experts, 2 * ff, embd)?, both_scale?, x, b.whole(gate_up))]
        } else {
            let gate = g.w.experts(&name("ffn_gate_exps"), experts, ff, embd)?;
            let up = g.w.experts(&name("ffn_up_exps"), experts, ff, embd)?;
            let plain = up_scale.is_none() && gate_scale.is_none();
            match gate.fused(&up).filter(|_| plain) {
                Some(both) => vec![(both, None, x, b.whole(gate_up))],
                None => {
                    let half = |start| Columns { buffer: gate_up, start, len: ff };
                    vec![(gate, gate_scale, x, half(0)), (up, up_scale, x, half(ff))]
                }
            }
        };
        b.experts(Some(ids), products);
        let hidden = b.rows("experts' feed-forward", used, ff, Format::F32);
        b.push(Step::SiluMul { x: gate_up, clamp, y: hidden });
        let down = g.w.experts(&name("ffn_down_exps"), experts, embd, ff)?;
        let answers = b.rows("experts' answers", used, embd, Format::F32);
        b.experts(Some(ids), vec![(down, down_scale?, hidden, b.whole(answers))]);
        let y = b.buffer("experts", embd, Format::F32);
        b.push(Step::Mix { x: answers, weights, y });
        Ok(y)
    }
}

/// More experts in a layer than any model has: a hostile count must not cost memory before its tensors are found
/// to be absent.
const MAX_EXPERTS: usize = 1 << 16;
