//! The kernels' words for the program's.

use crate::model::program::{self, Gating, KeyHeads, Routing};
use gantry_formats::arch;
use gantry_kernels::cpu as kernels;

pub(super) fn routing(r: &Routing) -> kernels::Routing {
    kernels::Routing {
        experts: r.experts,
        used: r.used,
        gating: match r.gating {
            Gating::Softmax => kernels::Gating::Softmax,
            Gating::Sigmoid => kernels::Gating::Sigmoid,
            Gating::SqrtSoftplus => kernels::Gating::SqrtSoftplus,
            Gating::SoftmaxWeight => kernels::Gating::SoftmaxWeight,
        },
        groups: r.groups,
        groups_used: r.groups_used,
        normalize: r.normalize,
        scale: r.scale,
    }
}

pub(super) fn conv(s: program::ConvShape) -> kernels::ConvShape {
    kernels::ConvShape { channels: s.channels, taps: s.taps, dilation: s.dilation }
}

pub(super) fn delta(s: program::DeltaShape) -> kernels::DeltaShape {
    kernels::DeltaShape {
        key_heads: s.key_heads,
        value_heads: s.value_heads,
        dim: s.dim,
        keys: match s.keys {
            KeyHeads::Tiled => kernels::KeyHeads::Tiled,
            KeyHeads::Grouped => kernels::KeyHeads::Grouped,
        },
        eps: s.eps,
    }
}

pub(super) fn gate(g: program::Gate) -> kernels::Gate {
    match g {
        program::Gate::Sigmoid => kernels::Gate::Sigmoid,
        program::Gate::Silu => kernels::Gate::Silu,
    }
}

pub(super) fn ngram(n: &program::Ngram) -> kernels::Ngram {
    kernels::Ngram {
        size: n.size,
        eos: n.eos,
        multipliers: n.multipliers.clone(),
        offsets: n.offsets.clone(),
        vocabs: n.vocabs.clone(),
    }
}

pub(super) fn selection(s: &program::Selection) -> kernels::Selection {
    kernels::Selection { heads: s.heads, len: s.len, top: s.top, ratio: s.ratio, expand: s.expand }
}

/// The angles of a rotation.
pub(super) fn table(rotation: &program::Rotation, vectors: &[Vec<f32>]) -> kernels::RopeTable {
    let scaling = match rotation.scaling {
        arch::RopeScaling::None => kernels::RopeScaling::None,
        arch::RopeScaling::Linear { factor } => {
            kernels::RopeScaling::Linear { freq_scale: (1.0 / factor) as f32 }
        }
        arch::RopeScaling::Yarn {
            factor,
            original_context,
            attn_factor,
            ext_factor,
            beta_fast,
            beta_slow,
        } => kernels::RopeScaling::Yarn {
            freq_scale: (1.0 / factor) as f32,
            original_context: u32::try_from(original_context).unwrap_or(u32::MAX),
            ext_factor: ext_factor as f32,
            attn_factor: attn_factor as f32,
            beta_fast: beta_fast as f32,
            beta_slow: beta_slow as f32,
        },
    };
    let divisors = rotation.divisors.map(|id| vectors[id.0].as_slice());
    kernels::RopeTable::new(rotation.len, rotation.base as f32, divisors, scaling)
}
