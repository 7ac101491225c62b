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
    /// Decodes with drafts of up to N tokens, 1 to 64 and on an NVIDIA card 1 to 31, by the model's own draft block (MTP), along the text that the model finds
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
    /// What was typed of all these, by clap's names.
    #[arg(skip)]
    pub(crate) given: Vec<String>,
}

impl Bench {
    /// An option that was typed and means nothing for what is measured, as it is typed.
    pub(crate) fn meaningless(&self) -> Option<String> {
        const ALWAYS: [&str; 4] = ["model", "measure", "repeat", "json"];
        const LOAD: [&str; 4] = ["device", "threads", "mode", "verify"];
        const KERNELS: [&str; 5] = ["device", "context", "kv", "only", "svg"];
        let means = |id: &str| match self.measure {
            Measure::Text => !["only", "svg"].contains(&id),
            Measure::Load => ALWAYS.contains(&id) || LOAD.contains(&id),
            Measure::Kernels => ALWAYS.contains(&id) || KERNELS.contains(&id),
        };
        // Groups of options have names too, and are typed by nobody.
        let command = Self::augment_args(clap::Command::new("bench"));
        let typed =
            command.get_arguments().filter(|arg| self.given.iter().any(|id| arg.get_id() == id.as_str()));
        typed
            .filter(|arg| !means(arg.get_id().as_str()))
            .find_map(|arg| Some(format!("--{}", arg.get_long()?)))
    }
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
