//! What can be typed after `gantry-run bench`.

use super::args::Load;
use clap::{Args, ValueEnum};
use std::path::PathBuf;

#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  gantry-run bench model.gantry\n  \
    gantry-run bench model.gantry -p 512 -n 128 -r 3 --json\n  \
    gantry-run bench model.gantry --spec 3\n  \
    gantry-run bench model.gantry --cards 2 --placement layers\n  \
    gantry-run bench model.gantry --device cuda:0 --measure kernels --svg kernels.svg\n  \
    gantry-run bench --device cuda:0 --measure kernels --only \"i8 n=1\"")]
pub(crate) struct Bench {
    /// The container; --measure kernels does without.
    #[arg(value_name = "FILE", required_unless_present = "measure")]
    pub(crate) model: Option<PathBuf>,
    /// Tokens of the prompt.
    #[arg(short, long, value_name = "N", default_value_t = 128)]
    pub(crate) prompt: usize,
    /// Tokens to decode.
    #[arg(short = 'n', long, value_name = "N", default_value_t = 64)]
    pub(crate) tokens: usize,
    /// Decodes with drafts of up to N tokens by the model's own draft block (MTP), along the text that the model finds
    /// most probable.
    #[arg(long, value_name = "N")]
    pub(crate) spec: Option<std::num::NonZeroUsize>,
    /// Shows how long each part of the model takes; on cards each kernel, too.
    #[arg(long)]
    pub(crate) profile: bool,
    /// Passes; the median counts.
    #[arg(short, long, value_name = "N", default_value_t = 5)]
    pub(crate) repeat: usize,
    /// What is measured: the model's text, how fast it is loaded onto a card, or the card's kernels.
    #[arg(long, value_enum, default_value_t = Measure::Text)]
    pub(crate) measure: Measure,
    /// Of kernels only those whose layout or step, shape and tokens have all these words in them.
    #[arg(long, value_name = "WORDS")]
    pub(crate) only: Option<String>,
    /// Draws kernels by the share of the card's bandwidth that they reach.
    #[arg(long, value_name = "FILE.svg")]
    pub(crate) svg: Option<PathBuf>,
    /// One JSON document.
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) load: Load,
}

/// What `bench` measures.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Measure {
    /// Prompt and decode.
    Text,
    /// Loading, beside a loop that only reads and copies.
    Load,
    /// Every kernel of the model alone, beside what can be read at most; without FILE, products at usual shapes.
    Kernels,
}
