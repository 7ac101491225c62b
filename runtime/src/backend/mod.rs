//! Devices: what runs a program.
//!
//! A backend registers kernels by (step, layout), says what memory a program takes, and turns a [`Program`] with
//! its arenas into something that runs. Nothing falls back to another device.

mod counters;
pub mod cpu;
#[cfg(feature = "cards")]
mod cuda;
#[cfg(feature = "cards")]
pub mod device;
#[cfg(feature = "cards")]
mod hip;
mod host;
#[cfg(feature = "cards")]
mod level_zero;
mod ngram;

use crate::exchange::{Delays, Patience};
use crate::load::{Hashed, Lift, Places, Verify, Weights};
use crate::model::program::{self, ExpertCheck, Kept, Program, Step, StepKind};
use crate::sample::{Deciding, Following};
use crate::{Result, RuntimeError};
#[cfg(feature = "cards")]
use device::CardName;
use gantry_formats::arch::NO_INT8_ENTRIES;
use gantry_formats::layout::Layout;
use std::any::Any;
use std::sync::Arc;
use std::time::Duration;

/// How keys and values are kept.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum KvType {
    /// As computed.
    #[default]
    F32,
    /// Rounded to half: half the memory, small differences.
    F16,
    /// As int8, with a scale for each row of a head: a quarter of the memory.
    Int8,
}

impl KvType {
    /// Bytes of `values` values in `rows` rows of heads.
    pub(crate) fn bytes(self, values: u64, rows: u64) -> u64 {
        match self {
            Self::F32 => values.saturating_mul(4),
            Self::F16 => values.saturating_mul(2),
            Self::Int8 => values.saturating_add(rows.saturating_mul(2)),
        }
    }
}

/// Refuses a type of keys and values that a program cannot keep.
///
/// # Errors
/// What it is.
pub(crate) fn check_kv(program: &Program, settings: &Settings) -> Result<()> {
    let compressed = |step: &Step| match step {
        Step::Compress { entries, .. } => {
            matches!(program.kept.get(entries.0), Some(Kept::Cache(shape)) if !shape.exact)
        }
        _ => false,
    };
    match settings.kv == KvType::Int8 && program.steps().any(compressed) {
        true => Err(no_int8_entries()),
        false => Ok(()),
    }
}

/// Entries that stand for many positions are not kept as int8.
pub(crate) fn no_int8_entries() -> RuntimeError {
    RuntimeError::Incompatible(NO_INT8_ENTRIES.into())
}

/// What a session may use.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// Positions of a sequence.
    pub context: usize,
    /// Most tokens in one run.
    pub batch: usize,
    /// How keys and values are kept.
    pub kv: KvType,
    /// Tokens that a sequence can take back, whatever its model keeps of it.
    pub window: usize,
}

/// Which tokens of a run get logits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wanted {
    /// None: a prompt that goes on.
    None,
    /// The last one.
    Last,
    /// Every one.
    All,
}

impl Wanted {
    /// Which of the `tokens` rows from `row` on these are.
    pub(crate) fn rows(self, row: usize, tokens: usize) -> std::ops::Range<usize> {
        let end = row + tokens;
        match self {
            Self::None => end..end,
            Self::Last => end - usize::from(tokens > 0)..end,
            Self::All => row..end,
        }
    }
}

/// How a program is run, beside what its sessions may use.
#[derive(Clone, Debug, Default)]
pub struct RunOptions {
    /// Whether the use of experts is counted.
    pub record_routing: bool,
    /// What is checked where cards compute experts for another.
    pub check: ExpertCheck,
    /// How long a card waits for another.
    pub patience: Patience,
    /// Delays in what cards exchange, for tests.
    pub delays: Option<Arc<Delays>>,
}

/// A device family.
pub trait Backend: Send + Sync {
    /// What targets of containers begin with: `cpu`.
    fn family(&self) -> &'static str;
    /// The device, in words.
    fn describe(&self) -> String;
    /// What the first `count` of its cards are called: `cpu:0`.
    fn names(&self, count: usize) -> Vec<String> {
        (0..count).map(|card| format!("{}:{card}", self.family())).collect()
    }
    /// Threads of the host that it works with.
    fn threads(&self) -> usize;
    /// Whether it also runs what is packed for other families, as far as it has kernels for their layouts.
    fn runs_others(&self) -> bool {
        false
    }
    /// Whether card `card` takes what is packed for `target`, of its own family.
    fn takes_target(&self, _card: usize, _target: &str) -> bool {
        true
    }
    /// Whether there is a kernel.
    fn takes(&self, step: StepKind, layout: Layout) -> bool;
    /// Bytes of something that a sequence keeps.
    fn kept_bytes(&self, kept: &Kept, settings: &Settings) -> KeptBytes;
    /// Bytes of working memory of a session.
    fn scratch_bytes(&self, program: &Program, settings: &Settings) -> u64;
    /// Bytes that a session takes on each of some cards beside [`scratch_bytes`](Self::scratch_bytes), which counts for the
    /// first: for their steps, and for what they give each other.
    ///
    /// # Errors
    /// Where the program cannot be cut for them.
    fn exchange_bytes(&self, program: &Program, settings: &Settings, cards: usize) -> Result<Vec<u64>>;
    /// The strongest verification that it has.
    fn verify(&self) -> Verify {
        Verify::Full
    }
    /// Refuses a program that it does not run, whatever weights it reads, or settings that it has no room for.
    ///
    /// # Errors
    /// What it lacks.
    fn check(&self, _program: &Program, _settings: &Settings) -> Result<()> {
        Ok(())
    }
    /// Bytes that are free on each card; `None` where cards are in the host's memory.
    ///
    /// # Errors
    /// What the device says.
    fn free(&self) -> Result<Option<Vec<u64>>> {
        Ok(None)
    }
    /// What of its cards' memory is taken, and what was free when they were opened; nothing where cards are in the host's
    /// memory.
    ///
    /// # Errors
    /// What the device says.
    fn held(&self) -> Result<Vec<CardHeld>> {
        Ok(Vec::new())
    }
    /// Arenas on its cards, to be filled through `threads` threads; `None` where they are in the host's memory.
    ///
    /// # Errors
    /// Where a card has too little memory.
    fn lift(&self, _places: &Places) -> Result<Option<Box<dyn Lift>>> {
        Ok(None)
    }
    /// Joins program and weights.
    fn prepare(&self, program: Program, weights: Weights, run: &RunOptions) -> Result<Box<dyn Executable>>;
}

/// What of a card's memory is taken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CardHeld {
    /// The card, in words: `cuda:0`.
    pub card: String,
    /// By name: how many allocations, and bytes of all.
    pub held: Vec<(&'static str, usize, u64)>,
    /// Bytes that were free when the card was opened.
    pub before: u64,
    /// Bytes that are free now.
    pub free: u64,
}

/// Drivers take memory for what they do themselves, and keep it: so much less may be free without anything being held.
const DRIVERS_OWN: u64 = 64 << 20;

impl CardHeld {
    /// What was not given back, where nothing should be held any longer: a sentence for each thing.
    pub fn leaks(&self) -> Vec<String> {
        let Self { card, held, before, free } = self;
        let each = |(what, count, bytes): &(&str, usize, u64)| {
            let times = if *count > 1 { format!(" in {count} pieces") } else { String::new() };
            format!("{card} still holds {bytes} bytes for {what}{times}")
        };
        let mut all: Vec<String> = held.iter().map(each).collect();
        let less = before.saturating_sub(*free);
        if all.is_empty() && less > DRIVERS_OWN {
            all.push(format!(
                "{card} has {less} bytes less free than before; another program took them, or the driver keeps them"
            ));
        }
        all
    }
}

/// What a sequence keeps, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KeptBytes {
    /// With the whole context.
    pub whole: u64,
    /// With a shorter one at most: for each of its positions.
    pub position: u64,
    /// And beside that.
    pub fixed: u64,
}

/// A program with its weights.
pub trait Executable: Send + Sync {
    /// A new, empty sequence.
    fn sequence(&self, settings: &Settings) -> Result<Box<dyn Sequence>>;
    /// New working memory: one run at a time uses it.
    fn workspace(&self, settings: &Settings) -> Result<Box<dyn Workspace>>;
    /// How often each expert of each layer was used since the model was loaded, `[layer][expert]`, where that is
    /// recorded.
    fn routed(&self) -> Option<Vec<Vec<u64>>>;
    /// Writes `bytes` to byte `at` of a card's arena once no run uses it, and gives the hashes that the card finds there
    /// then.
    ///
    /// # Errors
    /// Where the device does not do that, and what it says.
    fn replace(&self, _card: usize, _at: u64, _bytes: &[u8], _hashed: &[Hashed]) -> Result<Vec<[u8; 32]>> {
        let what =
            "weights in the host's memory are not brought again while they are used; load the model anew";
        Err(RuntimeError::Setting(what.into()))
    }
}

/// What a device keeps of one sequence of tokens.
pub trait Sequence: Any + Send {
    /// All tokens so far.
    fn tokens(&self) -> &[u32];
    /// How many tokens so far.
    fn position(&self) -> usize {
        self.tokens().len()
    }
    /// Forgets what came after `position`, or all of it where that cannot be taken back alone. Gives the position
    /// that it is at now.
    fn rewind(&mut self, position: usize) -> usize;
    /// Appends all that it keeps to `out`.
    ///
    /// # Errors
    /// What the device says.
    fn save(&self, out: &mut Vec<u8>) -> Result<()>;
    /// Takes what [`save`](Self::save) wrote; nothing changes where that is not possible.
    fn restore(&mut self, saved: &[u8]) -> Result<()>;
}

/// What one sequence has to do in a run.
pub struct Part<'a> {
    /// The sequence.
    pub sequence: &'a mut dyn Sequence,
    /// The tokens that follow.
    pub tokens: &'a [u32],
    /// Which of them get logits.
    pub wanted: Wanted,
    /// Whether the block that drafts keeps up with them.
    pub drafting: bool,
}

/// How long a kernel took, all launches together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KernelTime {
    /// Its name.
    pub kernel: &'static str,
    /// Launches.
    pub calls: u64,
    /// Their time on the device, without what lies between them.
    pub time: Duration,
}

impl KernelTime {
    /// The kernel that does nothing.
    pub const LOOKING: &str = "gantry_wait";
}

/// Working memory that runs programs.
pub trait Workspace: Send {
    /// Takes the tokens of every part to its sequence, all in one batch. `sink` gets the number of a part and rows
    /// of its logits, in order, several at a time.
    fn run(&mut self, parts: &mut [Part<'_>], sink: &mut dyn FnMut(usize, &[f32])) -> Result<()>;
    /// [`run`](Self::run) for a part whose last token's logits are wanted, to know what follows it. A device that can
    /// chooses those that decide by itself and brings no others; the rest bring all.
    fn run_deciding(&mut self, part: Part<'_>, _deciding: Deciding, following: &mut Following) -> Result<()> {
        following.clear();
        self.run(&mut [part], &mut |_, rows| following.logits.extend_from_slice(rows))
    }
    /// Measures from now on how long each part of the model takes.
    fn measure(&mut self);
    /// What was measured.
    fn measured(&self) -> Vec<(program::Part, Duration)>;
    /// Measures from now on how long each kernel takes, on devices where that can be seen; parts are not measured then.
    fn measure_kernels(&mut self) {}
    /// What was measured of kernels, the longest first; nothing on devices whose steps are no launches. Where looking at a
    /// launch costs time, [`KernelTime::LOOKING`] is among them: a kernel that does nothing.
    fn measured_kernels(&self) -> Vec<KernelTime> {
        Vec::new()
    }
    /// What probably follows `token`, which follows the sequence: by the block that drafts, from the trunk's streams of
    /// the last token for the first of a draft (`step` 0), else from its own of the step before. Some token, where it
    /// cannot say.
    fn draft(&mut self, sequence: &mut dyn Sequence, token: u32, step: usize) -> Result<u32>;
    /// Forgets what came after the first `kept` tokens of the last run, of which the sequence was the only part, and
    /// lets the block that drafts catch up with those.
    fn accept(&mut self, sequence: &mut dyn Sequence, tokens: &[u32], kept: usize) -> Result<()>;
}

/// A device to run models on. Cloning it copies a pointer.
#[derive(Clone)]
pub struct Device(Arc<dyn Backend>);

impl Device {
    /// The host's processor with `threads` threads; `None`: as many as it has.
    ///
    /// # Errors
    /// Where `GANTRY_SIMD` names an instruction set that is unknown or absent, or the threads are 0 or more than
    /// [`cpu::MAX_THREADS`].
    pub fn cpu(threads: Option<usize>) -> Result<Self> {
        Ok(Self(Arc::new(Self::processor(threads)?)))
    }

    fn processor(threads: Option<usize>) -> Result<cpu::Cpu> {
        let threads = match threads {
            Some(n) if n == 0 || n > cpu::MAX_THREADS => {
                return Err(RuntimeError::Setting(format!("{n} threads: give 1 to {}", cpu::MAX_THREADS)));
            }
            Some(n) => n,
            None => std::thread::available_parallelism().map_or(1, |n| n.get().min(cpu::MAX_THREADS)),
        };
        cpu::Cpu::new(threads)
    }

    /// Cards of one family. `threads` of the host read files.
    ///
    /// # Errors
    /// Where there is no driver, no such card, or one that these kernels do not run on.
    #[cfg(feature = "cards")]
    pub fn cards(cards: &[CardName], threads: Option<usize>) -> Result<Self> {
        let threads = Self::cpu(threads)?.threads();
        Ok(Self(Arc::new(device::Cards::new(cards, threads, None)?)))
    }

    /// Cards of one family, and after them one in the host's memory, which computes experts through `threads` threads for
    /// those.
    ///
    /// # Errors
    /// As [`cpu`](Self::cpu) and [`cards`](Self::cards).
    #[cfg(feature = "cards")]
    pub fn cards_and_host(cards: &[CardName], threads: Option<usize>) -> Result<Self> {
        let host = Self::processor(threads)?;
        Ok(Self(Arc::new(device::Cards::new(cards, host.threads(), Some(host))?)))
    }

    /// Bytes that are free on each card; `None` where all are in the host's memory.
    ///
    /// # Errors
    /// What the device says.
    pub fn free(&self) -> Result<Option<Vec<u64>>> {
        self.0.free()
    }

    /// The device, in words.
    pub fn describe(&self) -> String {
        self.0.describe()
    }

    /// Threads of the host that it works with.
    pub fn threads(&self) -> usize {
        self.0.threads()
    }

    /// What of its cards' memory is taken; nothing where cards are in the host's memory.
    ///
    /// # Errors
    /// What the device says.
    pub fn held(&self) -> Result<Vec<CardHeld>> {
        self.0.held()
    }

    pub(crate) fn backend(&self) -> &dyn Backend {
        &*self.0
    }
}

impl std::fmt::Debug for Device {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Device({})", self.describe())
    }
}

#[cfg(test)]
mod tests {
    use super::CardHeld;

    #[test]
    fn what_is_left_is_named() {
        let of = |held, free| CardHeld { card: "cuda:1".into(), held, before: 10 << 30, free };
        assert!(of(Vec::new(), (10 << 30) - (2 << 20)).leaks().is_empty());
        assert!(of(Vec::new(), 11 << 30).leaks().is_empty());
        let less = of(Vec::new(), 9 << 30).leaks();
        assert!(less.len() == 1 && less[0].starts_with("cuda:1 has 1073741824 bytes less free"), "{less:?}");
        let held = of(vec![("tables", 1, 10), ("what a sequence keeps", 2, 99)], 9 << 30).leaks();
        let expected = [
            "cuda:1 still holds 10 bytes for tables",
            "cuda:1 still holds 99 bytes for what a sequence keeps in 2 pieces",
        ];
        assert_eq!(held, expected);
    }
}
