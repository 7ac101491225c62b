//! The command line: what was typed, and what was meant by it.

mod cards;
mod convert;
mod plan;

pub(crate) use cards::CardArgs;
pub(crate) use convert::{ConvertArgs, convert};
pub(crate) use plan::{PlanArgs, plan};

use crate::encoding::EncodingArgs;
use crate::failure::Refusal;
use crate::plan::{Options, Override};
use crate::recipe::{BUILT_IN, Recipe};
use crate::runner;
use anyhow::{Context, Result};
use clap::Args;
use gantry_formats::container::Alignment;
use gantry_formats::exit::Exit;
use gantry_formats::gguf::Gguf;
use gantry_formats::hotness::RoutedModel;
use gantry_formats::message::did_you_mean;
use gantry_formats::target::{TARGETS, Target};
use std::io::Read;
use std::path::{Path, PathBuf};

/// Options that shape a container; `plan` and `convert` share them.
#[derive(Args, Debug)]
pub(crate) struct ShapeArgs {
    /// GGUF file; of a split set, any shard.
    #[arg(value_name = "MODEL.gguf", required = true)]
    input: Vec<PathBuf>,

    /// Which layout each kind of tensor gets: balanced, compact, w8a8, q8, lossless, or a TOML file.
    #[arg(long, default_value = "balanced", value_name = "NAME|FILE.toml")]
    recipe: String,

    /// Layout of the tensors whose name or role matches PATTERN (`*` and `?` are wild): keep, q8_0.split,
    /// i8.block32, i8.channel, e8, e8:rotated, or a layout's full name; LAYOUT+source stores the source's bytes too.
    #[arg(long = "set", value_name = "PATTERN=LAYOUT")]
    overrides: Vec<Override>,

    /// Device family and generation that the container is for: cpu, cuda:sm_90, hip:gfx942, level-zero:bmg, …; auto: this
    /// machine's first card, else its processor
    #[arg(long, default_value = "cpu")]
    target: String,

    #[command(flatten)]
    encoding: EncodingArgs,

    #[command(flatten)]
    cards: CardArgs,

    /// One file per card, beside the index file.
    #[arg(long)]
    split_cards: bool,

    /// Keep q, k, v and gate, up as matrices of their own.
    #[arg(long)]
    no_fuse: bool,

    /// Take a model that is incomplete or of an unknown architecture; it is marked as not runnable.
    #[arg(long)]
    allow_incomplete: bool,

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

    /// Files that are read beside the input.
    fn read_beside(&self) -> Vec<&Path> {
        let recipe = Some(Path::new(&self.recipe)).filter(|_| Recipe::built_in(&self.recipe).is_none());
        self.cards.hotness().chain(self.encoding.imatrix()).chain(recipe).collect()
    }

    /// What these arguments mean for `source`.
    fn options(&self, source: &Gguf) -> Result<Options> {
        let usage = |text: String| Refusal::new(Exit::Usage, text);
        let target = target(&self.target)?;
        let alignment =
            Alignment { segment: self.align_segment, blob: self.align_blob, tensor: self.align_tensor };
        if !alignment.is_valid() {
            return Err(usage("alignments are powers of two, 16 ≤ tensor ≤ blob ≤ segment".into()));
        }
        Ok(Options {
            recipe: recipe(&self.recipe)?,
            overrides: self.overrides.clone(),
            encoding: self.encoding.encoding()?,
            target,
            fuse: !self.no_fuse,
            cards: self.cards.options((1, None), || RoutedModel::of_gguf(source))?,
            split_cards: self.split_cards,
            alignment,
            allow_incomplete: self.allow_incomplete,
            context: self.cards.context(None),
        })
    }
}

/// The target called `name`; `auto`: that of this machine.
pub(crate) fn target(name: &str) -> Result<&'static Target> {
    let here = (name == "auto").then(runner::target_here).transpose()?;
    if let Some(here) = &here {
        eprintln!("target: {here}, as gantry-run devices finds it here");
    }
    let name = here.as_deref().unwrap_or(name);
    Target::find(name).ok_or_else(|| {
        let known: Vec<&str> = TARGETS.iter().map(|t| t.name).collect();
        let text = format!(
            "--target {name}: unknown to this program; known: {}{}",
            known.join(", "),
            did_you_mean(name, known.iter().copied())
        );
        Refusal::new(Exit::Incompatible, text)
    })
}

/// Longest recipe file that is read.
const MAX_RECIPE: u64 = 1 << 20;

/// The built-in recipe of this name, or the one in this file.
fn recipe(name: &str) -> Result<Recipe> {
    let usage = |text: String| Refusal::new(Exit::Usage, text);
    if let Some(recipe) = Recipe::built_in(name) {
        return Ok(recipe);
    }
    if !name.ends_with(".toml") {
        let known: Vec<&str> = BUILT_IN.iter().map(|(name, _)| *name).collect();
        let hint = did_you_mean(name, known.iter().copied());
        let text = format!("--recipe {name}: there is no such recipe; known are {}", known.join(", "));
        return Err(usage(text + ", and files that end in .toml" + &hint));
    }
    if !std::fs::metadata(name).with_context(|| format!("--recipe {name}"))?.is_file() {
        return Err(usage(format!("--recipe {name} is no regular file")));
    }
    let read = || -> std::io::Result<Vec<u8>> {
        let mut text = Vec::new();
        std::fs::File::open(name)?.take(MAX_RECIPE + 1).read_to_end(&mut text)?;
        Ok(text)
    };
    let text = read().with_context(|| format!("--recipe {name}"))?;
    let text = String::from_utf8(text).map_err(|_| usage(format!("--recipe {name} is no UTF-8 text")))?;
    if text.len() as u64 > MAX_RECIPE {
        return Err(usage(format!("--recipe {name}: a recipe has at most {MAX_RECIPE} bytes")));
    }
    // With its ending, so that it is not taken for a built-in one.
    let file = Path::new(name).file_name().map_or(name.into(), |s| s.to_string_lossy());
    Recipe::parse(&file, &text).map_err(|e| usage(format!("--recipe {name}: {e}")))
}

/// Length of the source's headers, which travel in the container.
fn header_bytes(source: &Gguf) -> u64 {
    source.shards().iter().map(|s| s.header().raw().len() as u64 + 64).sum()
}
