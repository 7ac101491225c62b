//! The command line: what was typed, and what was meant by it.

mod convert;
mod plan;

pub(crate) use convert::{ConvertArgs, convert};
pub(crate) use plan::{PlanArgs, plan};

use crate::failure::Refusal;
use crate::plan::{Options, Override};
use crate::recipe::{BUILT_IN, Recipe};
use anyhow::Result;
use clap::Args;
use gantry_formats::container::Alignment;
use gantry_formats::exit::Exit;
use gantry_formats::target::TARGETS;
use std::path::{Path, PathBuf};

/// Options that shape a container; `plan` and `convert` share them.
#[derive(Args, Debug)]
pub(crate) struct ShapeArgs {
    /// GGUF file; of a split set, any shard.
    #[arg(value_name = "MODEL.gguf", required = true)]
    input: Vec<PathBuf>,

    /// Which layout each kind of tensor gets: `q8` (all weights as Q8_0, split) or `lossless`.
    #[arg(long, default_value = "q8", value_name = "NAME")]
    recipe: String,

    /// Layout of the tensors whose name or role matches PATTERN (`*` and `?` are wild): q8_0.split, or keep.
    #[arg(long = "set", value_name = "PATTERN=LAYOUT")]
    overrides: Vec<Override>,

    /// Device family that the container is for.
    #[arg(long, default_value = "cpu")]
    target: String,

    /// Number of cards that share the model, in runs of whole layers.
    #[arg(long, default_value_t = 1, value_name = "N")]
    cards: usize,

    /// How layers are given to cards.
    #[arg(long, default_value = "layers", value_parser = ["layers"])]
    placement: String,

    /// One file per card, beside the index file.
    #[arg(long)]
    split_cards: bool,

    /// Keep q, k, v and gate, up as matrices of their own.
    #[arg(long)]
    no_fuse: bool,

    /// Take a model that is incomplete or of an unknown architecture; it is marked as not runnable.
    #[arg(long)]
    allow_incomplete: bool,

    /// Context length for the KV cache estimate.
    #[arg(long, value_name = "N")]
    context: Option<u64>,

    #[arg(long, hide = true, default_value_t = Alignment::default().segment)]
    align_segment: u32,
    #[arg(long, hide = true, default_value_t = Alignment::default().blob)]
    align_blob: u32,
    #[arg(long, hide = true, default_value_t = Alignment::default().tensor)]
    align_tensor: u32,
}

impl ShapeArgs {
    /// The one input.
    fn input(&self) -> Result<&Path> {
        match self.input.as_slice() {
            [one] => Ok(one),
            many => {
                let text = format!(
                    "{} inputs: give one file (the shards of a set are found from any of them), and the output with -o",
                    many.len()
                );
                Err(Refusal::new(Exit::Usage, text))
            }
        }
    }

    /// What these arguments mean.
    fn options(&self) -> Result<Options> {
        let usage = |text: String| Refusal::new(Exit::Usage, text);
        let recipe = Recipe::built_in(&self.recipe).ok_or_else(|| {
            usage(format!(
                "--recipe {}: there is no such recipe; known are {}",
                self.recipe,
                BUILT_IN.join(", ")
            ))
        })?;
        if !TARGETS.contains(&self.target.as_str()) {
            let text =
                format!("--target {}: unknown to this program; known: {}", self.target, TARGETS.join(", "));
            return Err(Refusal::new(Exit::Incompatible, text));
        }
        let alignment =
            Alignment { segment: self.align_segment, blob: self.align_blob, tensor: self.align_tensor };
        if !alignment.is_valid() {
            return Err(usage("alignments are powers of two, 16 ≤ tensor ≤ blob ≤ segment".into()));
        }
        Ok(Options {
            recipe,
            overrides: self.overrides.clone(),
            target: self.target.clone(),
            fuse: !self.no_fuse,
            cards: self.cards,
            split_cards: self.split_cards,
            alignment,
            allow_incomplete: self.allow_incomplete,
            context: self.context,
        })
    }
}

/// Length of the source's headers, which travel in the container.
fn header_bytes(source: &gantry_formats::gguf::Gguf) -> u64 {
    source.shards().iter().map(|s| s.header().raw().len() as u64 + 64).sum()
}
