//! The kernels' words for the program's.

use crate::model::program::{self, Gating, KeyHeads, Routing};
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

pub(super) fn selection(s: &program::Selection) -> kernels::Selection {
    kernels::Selection { heads: s.heads, len: s.len, top: s.top, ratio: s.ratio, expand: s.expand }
}
