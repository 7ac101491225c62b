//! Products at shapes of large models, for who has no container at hand.

use super::KernelOptions;
use super::stretched::{Prototype, Stretched, Work};
use crate::Result;
use crate::backend::device::driver::CardInfo;
use crate::model::program::{Buffer, BufferId, Format, Program};
use gantry_formats::block::GgmlType;
use gantry_formats::layout::{Layout, Order, Scales};
use gantry_formats::target::{TARGETS, Target};

/// Rows and columns.
const SHAPES: [(usize, usize); 4] = [(16384, 8192), (8192, 8192), (4096, 4096), (2560, 4096)];

/// Tokens: of decoding, and of prompts.
const TOKENS: [usize; 7] = [1, 4, 8, 16, 32, 512, 2048];

/// Most tokens that are asked for.
pub(super) fn most(options: &KernelOptions) -> usize {
    TOKENS.into_iter().filter(|n| options.want_tokens(*n)).max().unwrap_or(1)
}

/// The newest target that a card takes.
fn target(card: &CardInfo) -> Option<&'static Target> {
    TARGETS.iter().filter(|t| card.takes(t.name)).max_by_key(|t| number(t.name))
}

fn number(name: &str) -> usize {
    name.rsplit('_').next().and_then(|n| n.parse().ok()).unwrap_or(0)
}

/// Layouts of packed weights on a card, and of those that are not packed.
fn layouts(card: &CardInfo) -> ([Option<Layout>; 5], Option<Layout>) {
    let order = |scales| target(card).map_or(Order::NMajor, |t| t.order("", scales));
    let i8 = |scales| Layout::i8(order(scales), scales);
    let packed = [
        i8(Scales::Block32),
        i8(Scales::Channel),
        Some(Layout::q8_0_split()),
        Some(Layout::e8_planar(false)),
        Some(Layout::Raw(GgmlType::BF16)),
    ];
    (packed, Layout::i8(Order::NMajor, Scales::Channel))
}

/// A program without steps.
fn nothing() -> Program {
    let buffer = Buffer { name: "nothing", rows: 1, width: 1, format: Format::F32 };
    Program {
        vocab: 1,
        context: None,
        vectors: Vec::new(),
        rotations: Vec::new(),
        ngrams: Vec::new(),
        buffers: vec![buffer],
        body: Vec::new(),
        head: Vec::new(),
        residual: BufferId(0),
        chosen: BufferId(0),
        logits: BufferId(0),
        kept: Vec::new(),
        draft: None,
    }
}

/// All of them, shape after shape, each with what it is compared with.
pub(super) fn products(card: &CardInfo, how: (u64, &KernelOptions)) -> Result<Stretched> {
    let mut program = nothing();
    let mut prototypes = Vec::new();
    let (packed, plain) = layouts(card);
    for (rows, cols) in SHAPES {
        let shape = format!("{rows} x {cols}");
        let wanted = |layout: &Layout| TOKENS.iter().any(|n| how.1.want(&layout.to_string(), &shape, *n));
        for layout in packed.into_iter().flatten().filter(wanted) {
            // Values in the order of their rows are what one has without packing.
            let baseline = matches!(layout, Layout::Raw(_));
            prototypes.push(Prototype::product(&mut program, layout, (rows, cols), baseline));
        }
        prototypes.extend(
            plain.filter(wanted).map(|layout| Prototype::product(&mut program, layout, (rows, cols), true)),
        );
        prototypes.push(Prototype::library(rows, cols));
    }
    let work = Work { program, prototypes, tokens: TOKENS.to_vec(), lengths: Vec::new() };
    Stretched::new(work, Vec::new(), how)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn orders_are_those_of_the_cards_own_target() {
        for (generation, name) in
            [(80, "cuda:sm_80"), (90, "cuda:sm_90"), (103, "cuda:sm_100"), (120, "cuda:sm_120")]
        {
            assert_eq!(target(&CardInfo::sm(generation)).map(|t| t.name), Some(name));
        }
        let (packed, plain) = layouts(&CardInfo::sm(90));
        let names: Vec<String> = packed.into_iter().chain([plain]).flatten().map(|l| l.to_string()).collect();
        let expected = [
            "i8.frag.nv_a32:block32",
            "i8.frag.nv_a64:channel",
            "q8_0.split",
            "e8.planar",
            "raw.bf16",
            "i8.nmajor:channel",
        ];
        assert_eq!(names, expected);
    }
}
