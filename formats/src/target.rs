//! Targets: device families and generations, and which layouts their kernels take.
//!
//! This file is the table from (target, role, scales) to the order of int8 weights; everything else that a recipe
//! may ask for looks the same on every target. `gantry` asks here when it plans, so that a layout without a kernel is
//! told before hours of work and not at run time; a test of the runtime holds its registered kernels against this.

use crate::arch::{Architecture, Hparams};
use crate::block::GgmlType;
use crate::layout::{Layout, Order, Scales};

/// A device family and generation.
#[derive(Debug)]
pub struct Target {
    /// As `--target` and the manifest name it: `cuda:sm_90`.
    pub name: &'static str,
    /// What it is, for people.
    pub about: &'static str,
    /// Order of weights with one scale per channel.
    channel: Order,
    /// Order of weights with one scale per 32.
    block32: Order,
    /// Roles whose kernels read another order.
    roles: &'static [(&'static [&'static str], Order)],
}

/// The published gfx928 kernels: the fused projection stages row-major weights `[K, N]` through shared memory, the
/// output projection loads fragment slots into registers, the feed-forward reads whole rows.
const GFX928: &[(&[&str], Order)] = &[
    (&["attn_q", "attn_k", "attn_v", "attn_qkv"], Order::KMajor),
    (&["attn_output"], Order::Slot8),
    (
        &[
            "ffn_gate",
            "ffn_up",
            "ffn_down",
            "ffn_gate_up",
            "ffn_gate_shexp",
            "ffn_up_shexp",
            "ffn_down_shexp",
            "ffn_gate_exps",
            "ffn_up_exps",
            "ffn_gate_up_exps",
            "ffn_down_exps",
        ],
        Order::NMajor,
    ),
];

const fn target(name: &'static str, about: &'static str, channel: Order, block32: Order) -> Target {
    Target { name, about, channel, block32, roles: &[] }
}

/// Every target that this program packs for.
pub static TARGETS: [Target; 16] = [
    target("cpu", "this program's own CPU kernels", Order::Vnni16, Order::Vnni16),
    target("cuda:sm_80", "NVIDIA A100", Order::NvA64, Order::NvA32),
    target("cuda:sm_86", "NVIDIA RTX 30, A40", Order::NvA64, Order::NvA32),
    target("cuda:sm_89", "NVIDIA RTX 40, L40", Order::NvA64, Order::NvA32),
    target("cuda:sm_90", "NVIDIA H100, H200", Order::NvA64, Order::NvA32),
    target("cuda:sm_100", "NVIDIA B200", Order::NvA64, Order::NvA32),
    target("cuda:sm_120", "NVIDIA RTX 50", Order::NvA64, Order::NvA32),
    Target { roles: GFX928, ..target("hip:gfx928", "Hygon K100", Order::Slot8, Order::Slot8) },
    target("hip:gfx90a", "AMD MI200", Order::Slot8, Order::Slot8),
    target("hip:gfx942", "AMD MI300", Order::Ck16, Order::Slot16),
    target("hip:gfx950", "AMD MI350", Order::Ck16, Order::Slot16),
    target("hip:gfx1100", "AMD RX 7900", Order::Rdna3, Order::Rdna3),
    target("hip:gfx1201", "AMD RX 9070", Order::Rdna4, Order::Rdna4),
    target("level-zero:dg2", "Intel Arc A", Order::Vnni8, Order::Vnni8),
    target("level-zero:bmg", "Intel Arc B", Order::Vnni16, Order::Vnni16),
    target("level-zero:pvc", "Intel Max", Order::Vnni16, Order::Vnni16),
];

impl Target {
    /// The target called `name`.
    pub fn find(name: &str) -> Option<&'static Self> {
        TARGETS.iter().find(|t| t.name == name)
    }

    /// `cpu`, `cuda`, `hip` or `level-zero`.
    pub fn family(&self) -> &'static str {
        self.name.split(':').next().unwrap_or(self.name)
    }

    /// The order in which this target's kernel for `role` reads int8 weights scaled so.
    pub fn order(&self, role: &str, scales: Scales) -> Order {
        let own = self.roles.iter().find(|(roles, _)| roles.contains(&role)).map(|(_, order)| *order);
        own.filter(|order| order.takes(scales)).unwrap_or(match scales {
            Scales::Channel => self.channel,
            Scales::Block32 => self.block32,
        })
    }

    /// Whether kernels of this target multiply by matrices in `layout`, or are meant to. Those of the CPU read floats,
    /// GGUF blocks and every packed layout, so that any container runs there; other devices read their own orders,
    /// splits, planar E8 and floats.
    pub fn takes(&self, layout: Layout) -> bool {
        match layout {
            Layout::Raw(ty) => matches!(ty, GgmlType::F32 | GgmlType::F16 | GgmlType::BF16),
            Layout::Q8_0Split { .. } | Layout::E8Planar { .. } => true,
            Layout::Block(_) | Layout::E8Block98 { .. } => self.family() == "cpu",
            Layout::I8 { order, scales, .. } => {
                let own = |o: Order| o == order && o.takes(scales);
                self.family() == "cpu"
                    || own(self.channel)
                    || own(self.block32)
                    || self.roles.iter().any(|(_, order)| own(*order))
            }
        }
    }
}

/// Why the runtime cannot run a complete model of this architecture with these layouts on the CPU, one reason a line;
/// empty where it can.
pub fn obstacles<'a>(
    arch: Option<&Architecture>,
    hparams: &Hparams,
    layouts: impl Iterator<Item = &'a Layout>,
) -> Vec<String> {
    let mut out = Vec::new();
    if let Some(arch) = arch.filter(|a| if hparams.experts > 0 { !a.runs_experts } else { !a.runs_dense }) {
        let form = if hparams.experts > 0 { "with experts" } else { "dense" };
        out.push(format!("gantry-run does not run {} in the form {form} yet", arch.name));
    }
    let cpu = &TARGETS[0];
    // Tables of numbers, of a token's experts, are looked up and never multiplied by.
    let is_table = |l: &Layout| matches!(l, Layout::Raw(GgmlType::I32));
    let missing = layouts.filter(|l| !cpu.takes(**l) && !is_table(l));
    let missing: Vec<String> = missing.map(Layout::to_string).collect();
    if !missing.is_empty() {
        out.push(format!("gantry-run has no kernel for {}", missing.join(", ")));
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_target_takes_the_orders_that_it_gives() {
        let roles = ["attn_qkv", "attn_output", "ffn_gate_up", "ffn_down_exps", "output"];
        for target in &TARGETS {
            assert_eq!(Target::find(target.name).map(|t| t.name), Some(target.name));
            for (role, scales) in roles.iter().flat_map(|r| [(r, Scales::Channel), (r, Scales::Block32)]) {
                let layout = Layout::i8(target.order(role, scales), scales);
                assert!(layout.is_some_and(|l| target.takes(l)), "{} {role} {scales}", target.name);
            }
        }
    }

    #[test]
    fn parts_that_are_stored_as_one_matrix_have_one_order() {
        for target in &TARGETS {
            for scales in [Scales::Channel, Scales::Block32] {
                let order = |role| target.order(role, scales);
                assert!(order("attn_q") == order("attn_k") && order("attn_k") == order("attn_v"));
                assert_eq!(order("ffn_gate"), order("ffn_up"));
            }
        }
    }

    #[test]
    fn tables_of_numbers_are_no_obstacle() {
        let raw = [GgmlType::F32, GgmlType::I32].map(Layout::Raw);
        assert_eq!(obstacles(crate::arch::find("deepseek4"), &Hparams::default(), raw.iter()).len(), 1);
        let hparams = Hparams { experts: 4, ..Hparams::default() };
        assert_eq!(obstacles(crate::arch::find("deepseek4"), &hparams, raw.iter()), [""; 0]);
        let odd = Layout::Raw(GgmlType::I64);
        assert_eq!(obstacles(None, &hparams, [odd].iter()), ["gantry-run has no kernel for raw.i64"]);
    }

    #[test]
    fn the_published_choices_for_gfx928() {
        let target = Target::find("hip:gfx928").unwrap();
        assert_eq!(target.order("attn_k", Scales::Block32), Order::KMajor);
        assert_eq!(target.order("attn_output", Scales::Channel), Order::Slot8);
        assert_eq!(target.order("ffn_down_exps", Scales::Channel), Order::NMajor);
        assert_eq!(target.order("output", Scales::Channel), Order::Slot8);
    }
}
