//! Devices: what runs a program.
//!
//! A backend registers kernels by (step, layout), says what memory a program takes, and turns a [`Program`] with
//! its arenas into something that runs. Nothing falls back to another device.

pub mod cpu;

use crate::load::Arena;
use crate::model::program::{Program, StepKind};
use crate::{Result, RuntimeError};
use gantry_formats::layout::Layout;
use std::sync::Arc;

/// How keys and values are kept.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum KvType {
    /// As computed.
    #[default]
    F32,
    /// Rounded to half: half the memory, small differences.
    F16,
}

/// What a session may use.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// Positions in the cache.
    pub context: usize,
    /// Most tokens in one run.
    pub batch: usize,
    /// How keys and values are kept.
    pub kv: KvType,
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

/// A device family.
pub trait Backend: Send + Sync {
    /// What targets of containers begin with: `cpu`.
    fn family(&self) -> &'static str;
    /// The device, in words.
    fn describe(&self) -> String;
    /// Threads of the host that it works with.
    fn threads(&self) -> usize;
    /// Whether it also runs what is packed for other families, as far as it has kernels for their layouts.
    fn runs_others(&self) -> bool {
        false
    }
    /// Whether there is a kernel.
    fn takes(&self, step: StepKind, layout: Layout) -> bool;
    /// Refuses what no single layout tells: shapes that its kernels do not take.
    fn check(&self, program: &Program) -> Result<()>;
    /// Bytes of the cache per position.
    fn cache_bytes(&self, program: &Program, kv: KvType) -> u64;
    /// Bytes of working memory of a session.
    fn scratch_bytes(&self, program: &Program, settings: &Settings) -> u64;
    /// Joins program and weights.
    fn prepare(&self, program: Program, arenas: Vec<Arena>) -> Result<Box<dyn Executable>>;
}

/// A program with its weights.
pub trait Executable: Send + Sync {
    /// A new state: an empty cache and working memory.
    fn start(&self, settings: &Settings) -> Result<Box<dyn State>>;
}

/// One session's state on a device.
pub trait State: Send {
    /// Runs `tokens`, the first at position `start`; everything before it is in the cache. `sink` gets rows of
    /// logits in order, several at a time.
    fn run(
        &mut self,
        tokens: &[u32],
        start: usize,
        wanted: Wanted,
        sink: &mut dyn FnMut(&[f32]),
    ) -> Result<()>;
    /// The last row of logits that was computed; empty before there is one.
    fn logits(&self) -> &[f32];
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
        let threads = match threads {
            Some(n) if n == 0 || n > cpu::MAX_THREADS => {
                return Err(RuntimeError::Setting(format!("{n} threads: give 1 to {}", cpu::MAX_THREADS)));
            }
            Some(n) => n,
            None => std::thread::available_parallelism().map_or(1, |n| n.get().min(cpu::MAX_THREADS)),
        };
        Ok(Self(Arc::new(cpu::Cpu::new(threads)?)))
    }

    /// The device, in words.
    pub fn describe(&self) -> String {
        self.0.describe()
    }

    /// Threads of the host that it works with.
    pub fn threads(&self) -> usize {
        self.0.threads()
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
