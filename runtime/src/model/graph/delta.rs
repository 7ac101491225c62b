//! The gated delta net of `qwen3next` and `qwen4exp`.
//!
//! ```text
//! q, k, v = silu(conv(W_qkv m));  z = W_gate m;  β = σ(W_β m);  g = a · softplus(W_α m + dt)
//! for each value head, with the key head it reads, q and k of Euclidean norm 1:
//!   S = e^g S;  S += k (β (v − Sᵀk))ᵀ;  o = Sᵀq / √dim
//! answer = W_out (N(o) · act(z))              act: qwen4exp σ, qwen3next silu
//! ```

use super::Graph;
use crate::model::program::{
    BufferId, ConvShape, DeltaShape, Format, Gate, Kept, KeyHeads, Part, Pieces, Step,
};
use crate::{Result, RuntimeError};
use gantry_formats::arch::Ssm;

/// What all layers with a delta net share.
pub(super) struct DeltaNet {
    shape: DeltaShape,
    conv: ConvShape,
    act: Gate,
}

impl DeltaNet {
    pub(super) fn new(g: &Graph<'_>, ssm: &Ssm) -> Self {
        let next = g.arch.name == "qwen3next";
        let &Ssm { conv, dim, key_heads, value_heads, .. } = ssm;
        let keys = if next { KeyHeads::Grouped } else { KeyHeads::Tiled };
        let shape = DeltaShape { key_heads, value_heads, dim, keys, eps: g.eps };
        let channels = (2 * key_heads + value_heads) * dim;
        let conv = ConvShape { channels, taps: conv, dilation: 1 };
        Self { shape, conv, act: if next { Gate::Silu } else { Gate::Sigmoid } }
    }

    /// The answer of the current layer to `m`.
    pub(super) fn answer(&self, g: &mut Graph<'_>, m: BufferId) -> Result<BufferId> {
        g.b.begin(Part::DeltaNet);
        let DeltaShape { key_heads, value_heads, dim, .. } = self.shape;
        let channels = self.conv.channels;
        let values = value_heads * dim;
        if !g.w.has(&g.name("attn_qkv.weight")) && g.w.has(&g.name("ssm_in.weight")) {
            return Err(RuntimeError::Incompatible(format!(
                "{}: the old fused form of attn_qkv and attn_gate does not run here; convert the model again from \
                 its source with a newer converter",
                g.name("ssm_in.weight")
            )));
        }
        let mixed = g.b.buffer("queries, keys, values and gates", channels + values, Format::F32);
        let [qkv, z] = g.projections(m, ["attn_qkv", "attn_gate"], [channels, values], mixed)?;
        let rates = g.b.buffer("write strengths and decays", 2 * value_heads, Format::F32);
        let rate = |start, count, len, stride| Pieces { buffer: rates, start, count, len, stride };
        let joint = g.name("ssm_ba.weight");
        let (beta, alpha) = if g.w.has(&joint) {
            let weight = g.w.matrix(&joint, 2 * value_heads, g.embd)?;
            g.b.gemm(weight, m, g.b.whole(rates));
            let each = value_heads / key_heads;
            (rate(0, key_heads, each, 2 * each), rate(each, key_heads, each, 2 * each))
        } else {
            g.projections(m, ["ssm_beta", "ssm_alpha"], [value_heads; 2], rates)?;
            (rate(0, 1, value_heads, value_heads), rate(value_heads, 1, value_heads, value_heads))
        };
        let weight = g.vector("ssm_conv1d.weight", self.conv.taps * channels)?;
        let history = g.b.keep(Kept::Conv(self.conv));
        let y = g.b.buffer("convolved", channels, Format::F32);
        g.b.push(Step::Conv { shape: self.conv, history, weight, x: qkv, silu: true, y });
        let (decay, dt) = (g.vector("ssm_a", value_heads)?, g.vector("ssm_dt.bias", value_heads)?);
        let state = g.b.keep(Kept::Delta(self.shape));
        let o = g.b.buffer("delta net", values, Format::F32);
        g.b.push(Step::DeltaNet { shape: self.shape, state, decay, dt, qkv: y, alpha, beta, y: o });
        let heads = Pieces { buffer: o, start: 0, count: value_heads, len: dim, stride: dim };
        let weight = g.vector("ssm_norm.weight", dim)?;
        g.b.norm_in_place(heads, Some(weight), g.eps);
        g.b.push(Step::Gate {
            act: self.act,
            gate: Pieces { buffer: z.buffer, start: z.start, ..heads },
            y: heads,
        });
        g.product("ssm_out.weight", g.embd, o, "projection")
    }
}
