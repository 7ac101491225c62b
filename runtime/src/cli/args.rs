//! What can be typed.

pub(crate) use super::bench_args::{Bench, Measure};
use super::device_name::DeviceName;
use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::{Args, Parser, Subcommand, ValueEnum};
use gantry_formats::placement::{CardSpec, Fill, Strategy, parse_cards};
use gantry_runtime::exchange::Patience;
use gantry_runtime::model::program::ExpertCheck;
use gantry_runtime::model::{DEFAULT_BATCH, DEFAULT_CARD_BATCH};
use gantry_runtime::sample::SamplerOptions;
use gantry_runtime::{KvType, LoadMode, ModelOptions, Verify};
use std::path::{Path, PathBuf};
use std::time::Duration;

const EXAMPLES: &str = "Examples:
  gantry-run model.gantry -p \"The capital of France is\" -n 32
  gantry-run model.gantry -p \"Name three rivers.\" --chat --seed 7
  gantry-run model.gantry -p - --greedy --json < prompt.txt
  gantry-run model.gantry -p \"Hi\" --cards 24GiB,16GiB --placement paired
  gantry-run model.gantry -p \"Hi\" --cards 4 --placement balanced --hotness hot.json
  gantry-run chat model.gantry";

/// Loads a verified Gantry container and writes text.
#[derive(Debug, Parser)]
#[command(name = "gantry-run", version, max_term_width = 100)]
#[command(after_help = EXAMPLES)]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Option<Command>,
    #[command(flatten)]
    pub(crate) generate: Generate,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Talks: the model's chat template, turn by turn; Ctrl-C stops an answer.
    Chat(Chat),
    /// Writes the logits of every position, little-endian f32.
    Logits(Logits),
    /// Shows a text as token ids.
    Tokenize(Tokenize),
    /// Measures how well the model predicts a text, as llama-perplexity does.
    Perplexity(Perplexity),
    /// Measures prompt and decode speed.
    Bench(Bench),
    /// Lists the devices that models can run on.
    #[command(after_help = "Examples:\n  gantry-run devices\n  gantry-run devices --json")]
    Devices {
        /// One JSON document.
        #[arg(long)]
        json: bool,
    },
    /// Tries a card: whether small models give the CPU's results on it, and how fast it reads.
    Selftest(Selftest),
    /// Writes a completion script for a shell.
    #[command(
        after_help = "Examples:\n  gantry-run completions bash > ~/.local/share/bash-completion/completions/gantry-run"
    )]
    Completions {
        /// The shell.
        shell: clap_complete::Shell,
    },
}

#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  gantry-run selftest --device hip:0\n  \
    gantry-run selftest --device level-zero:0 --json > selftest.json\n  \
    gantry-run selftest --device cuda:0,1 --only qwen4exp")]
pub(crate) struct Selftest {
    /// The card; more of them are tried together, too.
    #[arg(long)]
    pub(crate) device: DeviceName,
    /// Only models, types and recipes, or speed, with this in their names.
    #[arg(long, value_name = "TEXT")]
    pub(crate) only: Option<String>,
    /// One JSON document, for those who wrote this program.
    #[arg(long)]
    pub(crate) json: bool,
}

/// The default: write on from a prompt.
#[derive(Debug, Args)]
pub(crate) struct Generate {
    /// The container (its index file, where cards have files of their own).
    #[arg(value_name = "FILE", required = true)]
    pub(crate) model: Option<PathBuf>,
    /// What to write on from; `-` reads standard input.
    #[arg(short, long, value_name = "TEXT", required = true, allow_hyphen_values = true)]
    pub(crate) prompt: Option<String>,
    /// Most tokens to write; without it, until the model ends or the context is full.
    #[arg(short = 'n', long, value_name = "N")]
    pub(crate) tokens: Option<usize>,
    /// Puts the prompt into the model's chat template as a user's message.
    #[arg(long)]
    pub(crate) chat: bool,
    /// A system message before it.
    #[arg(long, value_name = "TEXT", requires = "chat", allow_hyphen_values = true)]
    pub(crate) system: Option<String>,
    /// Goes on where the model ends its text.
    #[arg(long)]
    pub(crate) ignore_eos: bool,
    /// One JSON document with text, tokens and timings instead of the text as it comes.
    #[arg(long)]
    pub(crate) json: bool,
    /// Goes on from the session in FILE, if it is there, and leaves what came of it there.
    #[arg(long, value_name = "FILE")]
    pub(crate) session: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) sampling: Sampling,
    #[command(flatten)]
    pub(crate) extras: Extras,
    #[command(flatten)]
    pub(crate) load: Load,
}

#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  gantry-run chat model.gantry\n  \
    gantry-run chat model.gantry --system \"Answer in one sentence.\" -n 200\n  \
    gantry-run chat model.gantry --session talk.session")]
pub(crate) struct Chat {
    /// The container.
    #[arg(value_name = "FILE")]
    pub(crate) model: PathBuf,
    /// A system message.
    #[arg(long, value_name = "TEXT", allow_hyphen_values = true)]
    pub(crate) system: Option<String>,
    /// Most tokens in one answer.
    #[arg(short = 'n', long, value_name = "N")]
    pub(crate) tokens: Option<usize>,
    /// Shows tokens and speed after each answer.
    #[arg(long)]
    pub(crate) stats: bool,
    /// Goes on with the conversation in FILE, if it is there, and keeps it there after each answer.
    #[arg(long, value_name = "FILE")]
    pub(crate) session: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) sampling: Sampling,
    #[command(flatten)]
    pub(crate) extras: Extras,
    #[command(flatten)]
    pub(crate) load: Load,
}

#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  gantry-run logits model.gantry -p \"Once upon a time\" --out logits.f32\n  \
    gantry-run logits model.gantry --tokens 1,2,3 --out logits.f32"
)]
pub(crate) struct Logits {
    /// The container.
    #[arg(value_name = "FILE")]
    pub(crate) model: PathBuf,
    /// Token ids, separated by commas.
    #[arg(long, value_name = "IDS", value_delimiter = ',', required_unless_present = "prompt")]
    pub(crate) tokens: Vec<u32>,
    /// A text instead of token ids.
    #[arg(short, long, value_name = "TEXT", conflicts_with = "tokens", allow_hyphen_values = true)]
    pub(crate) prompt: Option<String>,
    /// Where to write: positions × vocabulary, little-endian f32.
    #[arg(long, value_name = "LOGITS.f32")]
    pub(crate) out: PathBuf,
    /// Replace an existing output.
    #[arg(long)]
    pub(crate) force: bool,
    #[command(flatten)]
    pub(crate) load: Load,
}

#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  gantry-run tokenize model.gantry -p \"Hello, world\"\n  \
    gantry-run tokenize model.gantry -p - --json < prompt.txt")]
pub(crate) struct Tokenize {
    /// The container.
    #[arg(value_name = "FILE")]
    pub(crate) model: PathBuf,
    /// The text; `-` reads standard input.
    #[arg(short, long, value_name = "TEXT", allow_hyphen_values = true)]
    pub(crate) prompt: String,
    /// Adds no BOS or EOS.
    #[arg(long)]
    pub(crate) no_special: bool,
    /// Reads control tokens written in the text, such as `<|im_start|>`, as plain text.
    #[arg(long)]
    pub(crate) no_parse_special: bool,
    /// One JSON document.
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  gantry-run perplexity model.gantry --text wiki.test.raw\n  \
    gantry-run perplexity model.gantry --text wiki.test.raw --chunks 20 --json")]
pub(crate) struct Perplexity {
    /// The container.
    #[arg(value_name = "FILE")]
    pub(crate) model: PathBuf,
    /// A file with the text; `-` reads standard input.
    #[arg(long, value_name = "TEXTFILE")]
    pub(crate) text: PathBuf,
    /// Most chunks to score.
    #[arg(long, value_name = "N")]
    pub(crate) chunks: Option<std::num::NonZeroUsize>,
    /// Writes how often each expert was used.
    #[arg(long, value_name = "FILE")]
    pub(crate) record_hotness: Option<PathBuf>,
    /// One JSON document.
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) load: Load,
}

/// How tokens are chosen.
#[derive(Debug, Args)]
#[command(next_help_heading = "Sampling")]
pub(crate) struct Sampling {
    /// Always the most probable token (temperature 0).
    #[arg(long, conflicts_with = "temp")]
    pub(crate) greedy: bool,
    /// Temperature: divides the logits [default: 0.8].
    #[arg(long, value_name = "T", allow_negative_numbers = true)]
    pub(crate) temp: Option<f32>,
    /// Keeps the K most probable tokens; 0 keeps all [default: 40].
    #[arg(long, value_name = "K")]
    pub(crate) top_k: Option<usize>,
    /// Keeps the fewest tokens with this much probability together [default: 0.95].
    #[arg(long, value_name = "P", allow_negative_numbers = true)]
    pub(crate) top_p: Option<f32>,
    /// Keeps tokens at least this fraction as probable as the first [default: 0.05].
    #[arg(long, value_name = "P", allow_negative_numbers = true)]
    pub(crate) min_p: Option<f32>,
    /// Weakens tokens that were seen lately; 1 does not [default: 1].
    #[arg(long, value_name = "F", allow_negative_numbers = true)]
    pub(crate) repeat_penalty: Option<f32>,
    /// How many tokens back the penalty looks [default: 64].
    #[arg(long, value_name = "N")]
    pub(crate) repeat_last_n: Option<usize>,
    /// Brings all logits to the host on cards too, where they are otherwise brought only as far as they decide; the
    /// text is the same.
    #[arg(long)]
    pub(crate) sample_on_host: bool,
    /// Seed of the draws; without one, every run draws anew.
    #[arg(long, value_name = "N")]
    pub(crate) seed: Option<u64>,
}

impl Sampling {
    /// What was meant.
    pub(crate) fn options(&self) -> SamplerOptions {
        let default = SamplerOptions::default();
        let now = || {
            let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
            // Programs that read `--json` often keep numbers as doubles, which are exact below 2^53.
            since.map_or(0, |t| t.as_nanos() as u64 & ((1 << 53) - 1))
        };
        SamplerOptions {
            temperature: if self.greedy { 0.0 } else { self.temp.unwrap_or(default.temperature) },
            top_k: self.top_k.unwrap_or(default.top_k),
            top_p: self.top_p.unwrap_or(default.top_p),
            min_p: self.min_p.unwrap_or(default.min_p),
            repeat_penalty: self.repeat_penalty.unwrap_or(default.repeat_penalty),
            repeat_last_n: self.repeat_last_n.unwrap_or(default.repeat_last_n),
            seed: self.seed.unwrap_or_else(now),
        }
    }
}

/// What a run may do beside writing.
#[derive(Clone, Debug, Args)]
pub(crate) struct Extras {
    /// Lets the model's own draft block (MTP) propose up to N tokens, 1 to 64 and on an NVIDIA card 1 to 31, which are
    /// verified together; the text stays the same. Not on several cards.
    #[arg(long, value_name = "N", help_heading = "Sampling")]
    pub(crate) spec: Option<std::num::NonZeroUsize>,
    /// Writes how often each expert was used; drafted tokens count too, whether or not they stay.
    #[arg(long, value_name = "FILE")]
    pub(crate) record_hotness: Option<PathBuf>,
}

/// How the model is loaded.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Loading")]
pub(crate) struct Load {
    /// Positions that there is room for [default: the model's own, at most 4096].
    #[arg(short, long, value_name = "N")]
    pub(crate) context: Option<usize>,
    /// Allows a context longer than the model was made for.
    #[arg(long)]
    pub(crate) beyond_context: bool,
    /// The device: cpu, or NVIDIA cards as cuda:0 or cuda:0,1; cuda:0,cpu or cuda:0,cpu:64GiB keeps the experts that
    /// they have no room for in the host's memory.
    #[arg(long, value_name = "DEVICE", default_value = "cpu")]
    pub(crate) device: DeviceName,
    /// Threads [default: all processors].
    #[arg(short, long, value_name = "N")]
    pub(crate) threads: Option<usize>,
    /// Most tokens computed together [default: 512 on cards alone, or as many as there is memory for, else 128].
    #[arg(long, value_name = "N")]
    pub(crate) batch: Option<usize>,
    /// How keys and values are kept [default: f16 on cards, else f32].
    #[arg(long, value_enum)]
    pub(crate) kv: Option<Kv>,
    /// How weights come into memory.
    #[arg(long = "load", value_name = "MODE", value_enum, default_value_t = Mode::Read)]
    pub(crate) mode: Mode,
    /// How much of the container is verified while it is loaded [default: device on cards, else full].
    #[arg(long, value_enum)]
    pub(crate) verify: Option<Level>,
    /// On cards: brings this tensor or expert (as `gantry verify` names them) once more when all is loaded, and verifies
    /// it there.
    #[arg(long, value_name = "NAME")]
    pub(crate) reload: Vec<String>,
    /// On cards: tells what their memory is taken for.
    #[arg(short, long)]
    pub(crate) verbose: bool,
    /// Most memory to use, e.g. 2GiB, where less than is free.
    #[arg(long, value_name = "BYTES", value_parser = bytes)]
    pub(crate) memory_limit: Option<u64>,
    /// Loads onto N cards, or onto one for each budget of LIST, e.g. 24GiB,16GiB, whatever the container was packed for:
    /// CPUs, cpu:0, cpu:1, …, or as many cards as --device names.
    #[arg(long, value_name = "N|LIST", value_parser = cards)]
    pub(crate) cards: Option<Cards>,
    /// How experts are spread over cards: paired, layers, balanced or replicate:N, with N extra copies in each layer
    /// [default: as packed for so many cards, else paired; layers without experts].
    #[arg(long, value_name = "STRATEGY")]
    pub(crate) placement: Option<Strategy>,
    /// How many experts a card gets: share, as its memory is to the others', or first, the first card as full as it gets
    /// [default: as packed for several cards, else share].
    #[arg(long, value_name = "HOW", value_parser = PossibleValuesParser::new(["share", "first"]).try_map(|s| s.parse::<Fill>()))]
    pub(crate) fill: Option<Fill>,
    /// Spreads them by these token counts: a --record-hotness file, llama-imatrix's, or SGLang's CSV; several are
    /// summed.
    #[arg(long, value_name = "FILE")]
    pub(crate) hotness: Vec<PathBuf>,
    /// Computes all experts on the card that routes too, and compares every word that other cards give.
    #[arg(long)]
    pub(crate) ep_verify: bool,
    /// Computes all experts on the card that routes, and none on others.
    #[arg(long, conflicts_with = "ep_verify")]
    pub(crate) ep_self: bool,
    /// Longest time that a card waits for another before the run ends with an error.
    #[arg(long, default_value_t = 600.0, value_name = "SECONDS", value_parser = seconds)]
    pub(crate) card_timeout: f64,
}

fn seconds(text: &str) -> Result<f64, String> {
    let seconds: f64 = text.parse().map_err(|_| format!("{text:?} is no number"))?;
    match seconds.is_finite() && (0.001..=86_400.0).contains(&seconds) {
        true => Ok(seconds),
        false => Err(format!("{text}: expected 0.001 to 86400 seconds")),
    }
}

/// Cards as they were given.
#[derive(Clone, Debug)]
pub(crate) struct Cards(pub(crate) Vec<CardSpec>);

fn cards(text: &str) -> Result<Cards, String> {
    // What is said before it may be long.
    parse_cards(text).map(Cards).map_err(|error| format!("\n  {error}"))
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Kv {
    /// As computed.
    F32,
    /// Half the memory, small differences.
    F16,
    /// A quarter of the memory of keys and values: a scale for each row of a head. Not with compressed attention (deepseek4).
    Int8,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Mode {
    /// Read into memory, verified there.
    Read,
    /// Map the file, for instant restarts; only for files that nobody changes meanwhile.
    Map,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Level {
    /// Every byte.
    Full,
    /// Every byte, by the card in its own memory.
    Device,
    /// Header, manifest, tables and padding; not the weights.
    Index,
    /// Only what opening verifies.
    None,
}

impl Load {
    /// How much is to be verified, where that was said.
    pub(crate) fn verify(&self) -> Option<Verify> {
        Some(match self.verify? {
            Level::Full => Verify::Full,
            Level::Device => Verify::Device,
            Level::Index => Verify::Index,
            Level::None => Verify::None,
        })
    }

    /// Files that are read beside the container.
    pub(crate) fn inputs(&self) -> impl Iterator<Item = &Path> {
        self.hotness.iter().map(PathBuf::as_path)
    }

    /// Most tokens computed together, where there is memory.
    pub(crate) fn batch(&self) -> usize {
        self.batch.unwrap_or(match self.device {
            DeviceName::Cards(_) => DEFAULT_CARD_BATCH,
            // Beside the host, room of the card is for experts.
            DeviceName::Cpu | DeviceName::Beside(..) => DEFAULT_BATCH,
        })
    }

    /// What was meant.
    pub(crate) fn options(&self) -> ModelOptions {
        let kv = match self.device {
            DeviceName::Cpu => Kv::F32,
            DeviceName::Cards(_) | DeviceName::Beside(..) => Kv::F16,
        };
        ModelOptions {
            load: match self.mode {
                Mode::Read => LoadMode::Read,
                Mode::Map => LoadMode::Map,
            },
            verify: self.verify(),
            context: self.context,
            beyond_context: self.beyond_context,
            batch: self.batch(),
            least_batch: self.batch.is_none().then_some(DEFAULT_BATCH),
            kv: match self.kv.unwrap_or(kv) {
                Kv::F32 => KvType::F32,
                Kv::F16 => KvType::F16,
                Kv::Int8 => KvType::Int8,
            },
            memory_limit: self.memory_limit,
            cards: self.cards.as_ref().map(|cards| cards.0.clone()),
            placement: self.placement,
            fill: self.fill,
            check: match (self.ep_verify, self.ep_self) {
                (true, _) => ExpertCheck::Verify,
                (false, true) => ExpertCheck::Own,
                (false, false) => ExpertCheck::Off,
            },
            patience: Patience { bound: Duration::from_secs_f64(self.card_timeout) },
            progress: Some(super::waiting::progress()),
            ..ModelOptions::default()
        }
    }
}

/// A number of bytes with an optional unit: `4096`, `512MiB`, `2GB`.
fn bytes(text: &str) -> Result<u64, String> {
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let factor: u64 = match unit.trim().to_ascii_lowercase().as_str() {
        "" | "b" => 1,
        "kb" => 1000,
        "mb" => 1_000_000,
        "gb" => 1_000_000_000,
        "k" | "kib" => 1 << 10,
        "m" | "mib" => 1 << 20,
        "g" | "gib" => 1 << 30,
        "t" | "tib" => 1 << 40,
        _ => return Err(format!("{unit:?} is no unit: B, kB, MB, GB, KiB, MiB, GiB or TiB")),
    };
    let number: u64 = number.parse().map_err(|_| format!("{text:?} does not begin with a number"))?;
    number.checked_mul(factor).ok_or_else(|| format!("{text:?} is too large"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_is_sound() {
        Cli::command().debug_assert();
    }

    #[test]
    fn byte_counts_have_units() {
        assert_eq!(bytes("4096"), Ok(4096));
        assert_eq!(bytes("2GiB"), Ok(2 << 30));
        assert_eq!(bytes("3 MB"), Ok(3_000_000));
        assert!(bytes("12 parsecs").is_err());
        assert!(bytes("99999999999GiB").is_err());
        assert!(bytes("GiB").is_err());
    }
}
