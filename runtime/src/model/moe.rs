//! A feed-forward of routed experts.
//!
//! ```text
//! ids, w = route(W_router x)
//! y = Σ_i w_i · W_down[ids_i] (silu(W_gate[ids_i] x) · W_up[ids_i] x)
//! ```

use super::builder::Builder;
use super::program::{BufferId, Columns, Format, Gating, Routing, Step, VectorId};
use super::weights::Weights;
use super::{SIZES, number, wrong};
use crate::Result;
use gantry_formats::arch::{Hparams, Metadata};

/// The shape of a model's experts.
pub(super) struct Moe {
    routing: Routing,
    embd: usize,
    ff: usize,
}

impl Moe {
    /// Reads it from the hyperparameters; what the architecture's graph fixes is given.
    pub(super) fn read(
        h: &Hparams,
        meta: &dyn Metadata,
        embd: usize,
        gating: Gating,
        normalize: bool,
    ) -> Result<Self> {
        let key = |name: &str| meta.u64(&format!("{}.{name}", h.architecture)).filter(|&n| n > 0);
        let experts = number(h, Some(h.experts), "expert_count", MAX_EXPERTS)?;
        let groups = number(h, key("expert_group_count").or(Some(1)), "expert_group_count", experts)?;
        if experts % groups != 0 {
            let expected = format!("a divisor of the {experts} experts");
            return Err(wrong(h, "expert_group_count", groups.to_string(), expected));
        }
        let name = "expert_group_used_count";
        let groups_used = number(h, key(name).or(Some(groups as u64)), name, groups)?;
        let choice = experts / groups * groups_used;
        let used = number(h, Some(h.experts_used), "expert_used_count", choice)?;
        let ff = number(h, h.expert_ff, "expert_feed_forward_length", SIZES)?;
        let routing = Routing { experts, used, gating, groups, groups_used, normalize, scale: 1.0 };
        Ok(Self { routing, embd, ff })
    }

    /// The experts' answer to `x` in layer `layer`: a buffer of the width of `x`.
    pub(super) fn routed(
        &self,
        b: &mut Builder,
        weights: &Weights<'_>,
        layer: usize,
        x: BufferId,
        bias: Option<VectorId>,
    ) -> Result<BufferId> {
        let Self { routing, embd, ff } = *self;
        let Routing { experts, used, .. } = routing;
        let name = |base: &str| format!("blk.{layer}.{base}.weight");
        let logits = b.buffer("router logits", experts, Format::F32);
        b.gemm(weights.matrix(&name("ffn_gate_inp"), experts, embd)?, None, x, b.whole(logits));
        let ids = b.buffer("expert ids", used, Format::Ids);
        let shares = b.buffer("expert weights", used, Format::F32);
        b.push(Step::Route { routing, logits, bias, ids, weights: shares });

        let gate_up = b.rows("experts' gates and ups", used, 2 * ff, Format::F32);
        let fused = name("ffn_gate_up_exps");
        let products = if weights.has(&fused) {
            vec![(weights.experts(&fused, experts, 2 * ff, embd)?, x, b.whole(gate_up))]
        } else {
            let gate = weights.experts(&name("ffn_gate_exps"), experts, ff, embd)?;
            let up = weights.experts(&name("ffn_up_exps"), experts, ff, embd)?;
            match gate.fused(&up) {
                Some(both) => vec![(both, x, b.whole(gate_up))],
                None => {
                    let half = |start| Columns { buffer: gate_up, start, len: ff };
                    vec![(gate, x, half(0)), (up, x, half(ff))]
                }
            }
        };
        b.experts(ids, products);
        let hidden = b.rows("experts' feed-forward", used, ff, Format::F32);
        b.push(Step::SiluMul { x: gate_up, y: hidden });
        let down = weights.experts(&name("ffn_down_exps"), experts, embd, ff)?;
        let answers = b.rows("experts' answers", used, embd, Format::F32);
        b.experts(ids, vec![(down, hidden, b.whole(answers))]);
        let y = b.buffer("experts", embd, Format::F32);
        b.push(Step::Mix { x: answers, weights: shares, y });
        Ok(y)
    }
}

/// More experts in a layer than any model has: a hostile count must not cost memory before its tensors are found
/// to be absent.
const MAX_EXPERTS: usize = 1 << 16;
