//! Whether a card computes what the CPU computes, and how fast it reads: for cards that nobody here has.

use super::SCHEMA;
use super::args::Selftest;
use super::device_name::DeviceName;
use super::failure::Refusal;
use super::signals::Signals;
use anyhow::Context;
use gantry_formats::exit::Exit;
use gantry_formats::placement::CardSpec;
use gantry_formats::target::TARGETS;
use gantry_runtime::backend::KvType;
use gantry_runtime::backend::device::{self, CardInfo, CardName, KernelBench, KernelOptions};
use gantry_runtime::{Container, Device, Model, ModelOptions};
use serde_json::{Value, json};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Models of random weights, one of each kind of step.
const MODELS: [&str; 10] = [
    "llama-tiny",
    "qwen2-tiny",
    "qwen3-tiny",
    "llama-moe-tiny",
    "qwen3moe-tiny",
    "olmoe-tiny",
    "qwen3next-tiny",
    "qwen4exp-tiny",
    "deepseek4-tiny",
    "glm-dsa-tiny",
];

/// Types of their weights, recipes, and the most that logits may differ from the CPU's, as the sum of squares of the differences
/// over that of the logits. Where activations are rounded to int8, one that lies at the edge goes either way by the order of a sum
/// before it, and experts may change with it.
const PACKED: [(&str, &str, f64); 5] = [
    ("F32", "lossless", 1e-9),
    ("BF16", "lossless", 1e-9),
    ("BF16", "balanced", 3e-2),
    ("BF16", "w8a8", 3e-2),
    ("BF16", "compact", 3e-2),
];

/// Tokens of a text, and of batches that it is computed in: their results have the same bits.
const TOKENS: usize = 48;
const BATCHES: [usize; 2] = [7, 1];

/// `gantry-run selftest`.
pub(crate) fn run(args: &Selftest, signals: &Signals) -> anyhow::Result<Exit> {
    let DeviceName::Cards(cards) = &args.device else {
        return Err(Refusal::error(
            Exit::Usage,
            "selftest tries cards: give --device cuda:0, hip:0 or level-zero:0",
        ));
    };
    device::check_family(cards)?;
    let first = *cards.first().context("a device without cards")?;
    let all = device::cards(first.family)?;
    let info = all.get(first.card).cloned();
    // The driver's own words where there is no such card.
    device::free(first)?;
    let info = info.with_context(|| format!("{first} went away"))?;
    let mut test = Test { info, cards, checks: Vec::new(), rates: Vec::new(), json: args.json };
    let wanted = |what: &str| args.only.as_deref().is_none_or(|only| what.contains(only));
    test.head()?;
    for (ty, recipe, bound) in PACKED {
        for model in MODELS {
            if let Some(exit) = signals.stopped() {
                return Ok(exit);
            }
            if wanted(&format!("{model} {ty} {recipe}")) {
                test.model(model, (ty, recipe), bound)?;
            }
        }
    }
    if wanted("speed") {
        test.speed()?;
    }
    test.end()
}

/// One thing that was tried.
struct Check {
    name: String,
    /// Differences to the CPU, in batches and token by token.
    nmse: Vec<f64>,
    bound: f64,
    /// What went wrong; nothing where all went well.
    wrong: Option<String>,
}

struct Test<'a> {
    info: CardInfo,
    cards: &'a [CardName],
    checks: Vec<Check>,
    /// Bytes per second, by name.
    rates: Vec<(String, f64)>,
    json: bool,
}

impl Test<'_> {
    fn say(&self, line: &str) -> anyhow::Result<()> {
        if !self.json {
            writeln!(std::io::stdout().lock(), "{line}")?;
        }
        Ok(())
    }

    fn head(&self) -> anyhow::Result<()> {
        let CardInfo { at, name, generation, processors, driver, .. } = &self.info;
        self.say(&format!("{at}, {name}, {generation}, {processors} multiprocessors, {driver}"))?;
        self.say(&format!("{:4}  {:38}{:>10}{:>10}  bits", "", "model, types, recipe", "batch", "decode"))
    }

    /// The target that containers for this card are packed for.
    fn target(&self) -> anyhow::Result<&'static str> {
        let taken = TARGETS.iter().rev().map(|t| t.name).find(|name| self.info.takes(name));
        taken.ok_or_else(|| {
            let CardInfo { at, name, generation, .. } = &self.info;
            Refusal::error(
                Exit::Incompatible,
                format!("{at} ({name}) is {generation}, for which nothing is packed"),
            )
        })
    }

    fn model(&mut self, model: &str, packed: (&str, &str), bound: f64) -> anyhow::Result<()> {
        let (ty, recipe) = packed;
        let name = format!("{model} {ty} {recipe}");
        let target = self.target()?;
        let check = match self.compare(model, packed, target) {
            Ok(Compared { nmse, differing }) => {
                let far = nmse.iter().any(|n| n.is_nan() || *n > bound);
                let far = far.then(|| format!("differs from the CPU by more than {bound:.0e}"));
                let wrong = far.or(differing.map(|what| format!("other bits {what}")));
                Check { name, nmse, bound, wrong }
            }
            Err(error) => Check { name, nmse: Vec::new(), bound, wrong: Some(format!("{error:#}")) },
        };
        let numbers: String = check.nmse.iter().map(|n| format!("{n:>10.1e}")).collect();
        match &check.wrong {
            None => self.say(&format!("ok    {:38}{numbers}  same", check.name))?,
            Some(wrong) => self.say(&format!("WRONG {:38}{numbers}  {wrong}", check.name))?,
        }
        self.checks.push(check);
        Ok(())
    }

    /// Packs a model and runs it here and there.
    fn compare(&self, model: &str, (ty, recipe): (&str, &str), target: &str) -> anyhow::Result<Compared> {
        let folder = tempfile::tempdir().context("no room for a model")?;
        let at = |name: &str| folder.path().join(name);
        let (source, packed) = (at("model.gguf"), at("model.gantry"));
        gantry(&["synth", model, "--type", ty, "-o"], &source)?;
        let source = source.to_string_lossy().into_owned();
        gantry(&["convert", &source, "--recipe", recipe, "--target", target, "-o"], &packed)?;
        let container = Container::open(&packed)?;
        let expected = logits(&container, &Device::cpu(None)?, 1, BATCHES[0])?;
        let card = Device::cards(&self.cards[..1], None)?;
        let mut compared = Compared { nmse: Vec::new(), differing: None };
        let mut first: Option<Vec<f32>> = None;
        for batch in BATCHES {
            let found = logits(&container, &card, 1, batch)?;
            compared.nmse.push(nmse(&found, &expected));
            compared.note(first.as_ref(), &found, || format!("in batches of {batch}"));
            first.get_or_insert(found);
        }
        if self.cards.len() > 1 {
            let together = Device::cards(self.cards, None)?;
            let found = logits(&container, &together, self.cards.len(), BATCHES[0])?;
            compared.note(first.as_ref(), &found, || format!("on {} cards", self.cards.len()));
        }
        Ok(compared)
    }

    /// What the card reads and copies, and its kernels for products.
    fn speed(&mut self) -> anyhow::Result<()> {
        let bench = KernelBench::open(self.info.at)?;
        let mut rates =
            vec![("read".to_string(), bench.roof().rate), ("copy to it".to_string(), bench.pinned())];
        for tokens in ["n=1", "n=8"] {
            let only = vec![tokens.to_string()];
            let options = KernelOptions { warm_up: 5, samples: 15, only, context: None, kv: KvType::F32 };
            bench.built_in(&options, &mut |case| {
                if let (Some(rate), false) = (case.rate(), case.baseline) {
                    rates.push((format!("{} {} n={}", case.what, case.shape, case.tokens), rate));
                }
            })?;
        }
        for (name, rate) in &rates {
            self.say(&format!("      {name:48}{:>10.1} GB/s", rate / 1e9))?;
        }
        self.rates = rates;
        Ok(())
    }

    fn end(&self) -> anyhow::Result<Exit> {
        let wrong = self.checks.iter().filter(|check| check.wrong.is_some()).count();
        match self.json {
            true => writeln!(std::io::stdout().lock(), "{}", self.document())?,
            false => {
                self.say(&format!("{} of {} went well", self.checks.len() - wrong, self.checks.len()))?
            }
        }
        Ok(if wrong > 0 { Exit::Integrity } else { Exit::Ok })
    }

    fn document(&self) -> Value {
        let CardInfo { at, name, generation, processors, shared, memory, driver } = &self.info;
        let check = |c: &Check| json!({ "name": c.name, "nmse": c.nmse, "bound": c.bound, "passed": c.wrong.is_none(), "wrong": c.wrong });
        let rate = |(name, rate): &(String, f64)| json!({ "name": name, "bytes_per_second": rate });
        json!({
            "schema": SCHEMA,
            "command": "selftest",
            "version": env!("CARGO_PKG_VERSION"),
            "device": at.to_string(),
            "cards": self.cards.len(),
            "description": name,
            "generation": generation.to_string(),
            "multiprocessors": processors,
            "shared_bytes": shared,
            "memory_bytes": memory,
            "driver": driver,
            "passed": self.checks.iter().all(|c| c.wrong.is_none()),
            "checks": self.checks.iter().map(check).collect::<Vec<_>>(),
            "rates": self.rates.iter().map(rate).collect::<Vec<_>>(),
        })
    }
}

/// What came of a model.
struct Compared {
    nmse: Vec<f64>,
    /// Where bits are others than those of the first run on the card.
    differing: Option<String>,
}

impl Compared {
    fn note(&mut self, first: Option<&Vec<f32>>, found: &[f32], what: impl Fn() -> String) {
        let same = |first: &Vec<f32>| {
            first.len() == found.len() && first.iter().zip(found).all(|(a, b)| a.to_bits() == b.to_bits())
        };
        if first.is_some_and(|first| !same(first)) {
            self.differing.get_or_insert(what());
        }
    }
}

/// Runs `gantry`, which lies beside this program, and lets it write `out`.
fn gantry(args: &[&str], out: &Path) -> anyhow::Result<()> {
    let own = std::env::current_exe().context("where is this program?")?;
    let path: PathBuf = own.with_file_name("gantry");
    if !path.exists() {
        let text =
            format!("{} is missing, which makes the models: cargo build --release --bins", path.display());
        return Err(Refusal::error(Exit::Other, text));
    }
    let done = Command::new(&path).args(args).arg(out).output();
    let done = done.with_context(|| format!("cannot start {}", path.display()))?;
    match done.status.success() {
        true => Ok(()),
        false => anyhow::bail!("gantry {}: {}", args.join(" "), String::from_utf8_lossy(&done.stderr).trim()),
    }
}

/// Logits of all positions of a text that depends on nothing but the vocabulary.
fn logits(container: &Container, device: &Device, cards: usize, batch: usize) -> anyhow::Result<Vec<f32>> {
    let several = (cards > 1).then(|| vec![CardSpec { host: false, bytes: None }; cards]);
    let options = ModelOptions { batch, cards: several, context: Some(TOKENS), ..ModelOptions::default() };
    let model = Model::load(container, device, &options)?;
    let mut session = model.session()?;
    let mut logits = Vec::new();
    for batch in tokens(model.vocab()).chunks(batch) {
        session.prefill_all(batch, &mut |rows| logits.extend_from_slice(rows))?;
    }
    Ok(logits)
}

/// Numerical Recipes' linear congruential generator, its high bits.
fn tokens(vocab: usize) -> Vec<u32> {
    let mut state = 12_345u32;
    let next = |_| {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 8) % vocab.max(1) as u32
    };
    (0..TOKENS).map(next).collect()
}

fn nmse(found: &[f32], expected: &[f32]) -> f64 {
    let square = |x: f64| x * x;
    let both = found.iter().zip(expected).map(|(a, b)| (f64::from(*a), f64::from(*b)));
    let (differences, all) = both.fold((0.0, 0.0), |(d, s), (a, b)| (d + square(a - b), s + square(b)));
    if found.len() == expected.len() { differences / all } else { f64::NAN }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn differences_are_relative_squares() {
        assert_eq!(nmse(&[1.0, 2.0], &[1.0, 2.0]), 0.0);
        assert_eq!(nmse(&[1.0, 4.0], &[1.0, 2.0]), 4.0 / 5.0);
        assert!(nmse(&[1.0], &[1.0, 2.0]).is_nan());
        assert!(nmse(&[f32::NAN], &[1.0]).is_nan());
    }

    #[test]
    fn texts_stay_within_vocabularies() {
        let text = tokens(120);
        assert_eq!(text.len(), TOKENS);
        assert!(
            text.iter().all(|t| *t < 120)
                && text.iter().collect::<std::collections::BTreeSet<_>>().len() > 20
        );
    }

    #[test]
    fn other_bits_are_noted_once() {
        let mut compared = Compared { nmse: Vec::new(), differing: None };
        let first = vec![0.0, 1.0];
        compared.note(None, &first, || "never".into());
        compared.note(Some(&first), &first.clone(), || "never".into());
        assert_eq!(compared.differing, None);
        compared.note(Some(&first), &[-0.0, 1.0], || "first".into());
        compared.note(Some(&first), &[0.0], || "second".into());
        assert_eq!(compared.differing.as_deref(), Some("first"));
    }
}
