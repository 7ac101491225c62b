//! Case after case: filled, launched once, recorded, replayed.

use super::described::{bytes, operations};
use super::ids::{Ids, distinct};
use super::replay::{self, timing};
use super::roof::noise;
use super::stretched::{Group, Kind, Stretched, is_cold};
use super::{KernelCase, KernelOptions, Timing};
use crate::Result;
use crate::backend::Settings;
use crate::backend::cuda::CublasLt;
use crate::backend::device::batch::{Batch, Span};
use crate::backend::device::buffers::Buffers;
use crate::backend::device::driver::{Context, DeviceMemory, Graph, Staged, Stream};
use crate::backend::device::gather::Gathered;
use crate::backend::device::loaded::Loaded;
use crate::backend::device::sequence::CardSequence;
use crate::backend::device::steps::{Around, Runner};
use crate::backend::device::watch::Watch;
use crate::backend::device::workspace::{most_tokens, partials};
use crate::load::Weights;
use crate::model::program::{BufferId, Format, Step};
use gantry_kernels::cpu::Pool;
use std::sync::Arc;

/// Microseconds of a launch from which on each has a graph of its own: replaying all copies would take too long, and
/// what a graph costs does not matter.
const LONG: f64 = 500.0;

/// Launches of a graph at least, of steps that read no weights.
const ALIKE: usize = 32;

/// Floats between 1/2 and 1, of either sign.
const ACTIVATIONS: [u32; 2] = [0x807f_ffff, 0x3f00_0000];

/// Small numbers, whether they are read as f32 or as fp16.
const KEPT: [u32; 2] = [0x83ff_83ff, 0x2c00_2c00];

/// Everything on the card.
pub(super) struct Cases<'a> {
    // First to go: its stream is waited for then.
    runner: Runner,
    /// Made-up ids on their way.
    staged: Staged,
    sequence: Option<CardSequence>,
    batch: Batch,
    loaded: Loaded,
    groups: Vec<Group>,
    tokens: Vec<usize>,
    lengths: Vec<usize>,
    ids: Ids,
    /// Where the copies are.
    region: u64,
    settings: Settings,
    options: &'a KernelOptions,
}

impl<'a> Cases<'a> {
    pub(super) fn new(
        (context, settings): (&Arc<Context>, Settings),
        stretched: Stretched,
        options: &'a KernelOptions,
    ) -> Result<Self> {
        let Stretched { program, groups, tokens, lengths, small, region } = stretched;
        let stream = Arc::new(Stream::new(context)?);
        let most = most_tokens(&settings);
        let arena = DeviceMemory::new(context, region.0 + region.1, "weights to measure with")?;
        small.iter().try_for_each(|(at, bytes)| arena.write(*at, bytes, &stream))?;
        let region = arena.address() + region.0;
        let buffers = Buffers::new(context, &program.buffers, most)?;
        let partials = partials(&program, &settings, most, context.info().at.family);
        let partial = DeviceMemory::new(context, partials, "partial results")?;
        let ids = Ids::of(&program);
        let weights = (Arc::new(Weights::none()), Arc::new(vec![arena]), false);
        let loaded = Loaded::new(0, program, weights, (None, Arc::new(Pool::new(1))))?;
        let batch = Batch::new(&loaded)?;
        let kept = !loaded.program.kept.is_empty();
        let sequence =
            kept.then(|| CardSequence::new(context, &loaded.aside, &loaded.program, &settings, |_| true));
        let sequence = sequence.transpose()?;
        let staged = Staged::new(context, "ids of experts")?;
        let gathered = Gathered::new(&loaded, most)?;
        let runner = Runner { stream, buffers, partial, gathered, exchange: None, watch: Watch::default() };
        let cases = Self {
            runner,
            staged,
            sequence,
            batch,
            loaded,
            groups,
            tokens,
            lengths,
            ids,
            region,
            settings,
            options,
        };
        cases.fill_buffers(most)?;
        Ok(cases)
    }

    fn noise(&self, at: u64, bytes: u64, seed: u32, [keep, set]: [u32; 2]) -> Result<()> {
        noise((&self.loaded.kernels, &self.runner.stream), at, bytes, [seed, keep, set])
    }

    /// Random activations for `most` tokens, and random keys and values.
    fn fill_buffers(&self, most: usize) -> Result<()> {
        for (i, buffer) in self.loaded.program.buffers.iter().enumerate() {
            let id = BufferId(i);
            let (rows, values) = ((buffer.rows * most) as u64, (buffer.rows * buffer.width * most) as u64);
            let (at, scales) = (self.runner.buffers.at(id), self.runner.buffers.scales(id));
            match buffer.format {
                Format::F32 => self.noise(at, values * 4, i as u32, ACTIVATIONS)?,
                Format::Q8 => {
                    self.noise(at, values, i as u32, [u32::MAX, 0])?;
                    self.noise(scales, values / 32 * 4, i as u32, ACTIVATIONS)?;
                }
                Format::I8 => {
                    self.noise(at, values, i as u32, [u32::MAX, 0])?;
                    self.noise(scales, rows * 4, i as u32, ACTIVATIONS)?;
                }
                Format::Ids => {}
            }
        }
        if let Some(sequence) = &self.sequence {
            let memory = sequence.memory();
            self.noise(memory.address(), memory.bytes(), 7, KEPT)?;
        }
        Ok(self.runner.stream.synchronize()?)
    }

    /// Measures all of them.
    pub(super) fn run(mut self, library: Option<&CublasLt>, each: &mut dyn FnMut(KernelCase)) -> Result<()> {
        let groups = std::mem::take(&mut self.groups);
        for group in &groups {
            let wanted = self.wanted(group);
            if wanted.is_empty() {
                continue;
            }
            for turn in 0..if group.stride > 0 { group.copies } else { 0 } {
                for (i, (at, bytes, how)) in group.fills.iter().enumerate() {
                    let seed = (turn as u32).wrapping_mul(977).wrapping_add(i as u32);
                    self.noise(self.region + turn * group.stride + at, *bytes, seed, *how)?;
                }
            }
            for (n, length) in wanted {
                match &group.prototype.kind {
                    Kind::Steps(steps) => {
                        if let Some(case) = self.steps(group, steps, n, length)? {
                            each(case);
                        }
                    }
                    Kind::Library { rows, cols } => {
                        if let Some(library) = library {
                            each(self.library(library, group, (*rows, *cols), n)?);
                        }
                    }
                }
            }
        }
        Ok(())
    }

    /// Tokens and positions at which a group is to be measured.
    fn wanted(&self, group: &Group) -> Vec<(usize, usize)> {
        let (what, shape) = (&group.prototype.what, &group.prototype.shape);
        let fits = |n: usize| self.options.want(what, shape, n);
        let most = self.settings.batch.max(1);
        let tokens = self.tokens.iter().copied().filter(|n| *n <= most && fits(*n));
        let context = self.settings.context;
        let usual = |n: usize| if self.sequence.is_some() { n.max(context.min(512)) } else { n };
        let mut all = Vec::new();
        for n in tokens {
            match group.by_length && !self.lengths.is_empty() {
                true => {
                    let lengths = self.lengths.iter().filter(|l| **l >= n && **l <= context);
                    all.extend(lengths.map(|length| (n, *length)));
                }
                false => all.push((n, usual(n))),
            }
        }
        all
    }

    /// Tells the card of `n` tokens, the last of them at position `length` - 1; gives how many different experts there
    /// are in each buffer of ids.
    fn set(&mut self, n: usize, length: usize) -> Result<Vec<(BufferId, usize)>> {
        let Some(sequence) = &mut self.sequence else { return Ok(Vec::new()) };
        let vocab = self.loaded.program.vocab.max(1);
        let tokens: Vec<u32> = (0..n).map(|i| (i * 7919 % vocab) as u32).collect();
        let spans = vec![Span { row: 0, tokens: n, start: length - n }];
        self.batch.set(&self.loaded, &tokens, spans, &[sequence], &self.runner.stream)?;
        let mut counts = Vec::new();
        for (id, ids) in self.ids.made_up(&self.loaded.program, n, length) {
            let bytes: Vec<u8> = ids.iter().flat_map(|id| id.to_le_bytes()).collect();
            let runner = &mut self.runner;
            runner.buffers.write(id, &bytes, (&mut self.staged, &runner.stream))?;
            counts.push((id, distinct(&ids)));
        }
        Ok(counts)
    }

    fn steps(
        &mut self,
        group: &Group,
        steps: &[Step],
        n: usize,
        length: usize,
    ) -> Result<Option<KernelCase>> {
        let Some(first) = steps.first() else { return Ok(None) };
        let counts = self.set(n, length)?;
        let experts = match first {
            Step::Experts { ids: Some(ids), .. } => {
                counts.iter().find(|(id, _)| id == ids).map_or(1, |(_, count)| *count)
            }
            Step::Experts { products, .. } => products.iter().map(|p| p.weights.experts()).min().unwrap_or(1),
            _ => 0,
        };
        // Not recorded, so that what is wrong with a launch is told here.
        self.runner.watch.names();
        let launched = self.give(std::slice::from_ref(first), n);
        let kernels = self.runner.watch.take_names();
        launched?;
        self.runner.stream.synchronize()?;
        if kernels.is_empty() {
            return Ok(None);
        }
        // Where nothing has to differ, several in a graph: a launch of one costs more than a small kernel.
        let launches = if group.stride == 0 { steps.len().max(ALIKE) } else { steps.len() };
        let time = self.replay(launches, |cases, turn| {
            let turn = turn % steps.len();
            cases.give(&steps[turn..turn + 1], n)
        })?;
        let program = &self.loaded.program;
        let bytes = bytes((first, program), &self.settings, (n, length), experts);
        Ok(Some(KernelCase {
            what: group.prototype.what.clone(),
            shape: group.prototype.shape.clone(),
            kernels,
            tokens: n,
            length: group.by_length.then_some(length),
            bytes,
            operations: operations(first, program, n),
            copies: steps.len(),
            cold: is_cold(steps.len() as u64, bytes),
            baseline: group.prototype.baseline,
            time: Ok(time),
        }))
    }

    fn give(&mut self, steps: &[Step], n: usize) -> Result<()> {
        let sequences: Vec<&mut CardSequence> = self.sequence.as_mut().into_iter().collect();
        let around = Around { loaded: &self.loaded, batch: &self.batch, sequences: &sequences };
        steps.iter().try_for_each(|step| self.runner.step(&around, step, n))
    }

    /// Records `launches` launches in one graph, or where each takes long in a graph each, and replays them.
    fn replay(
        &mut self,
        launches: usize,
        mut give: impl FnMut(&mut Self, usize) -> Result<()>,
    ) -> Result<Timing> {
        let stream = Arc::clone(&self.runner.stream);
        let whole = Graph::record(&stream, || (0..launches).try_for_each(|turn| give(self, turn)))?;
        let mut graphs = [whole];
        let pilot = replay::run(&stream, &mut graphs, (1, 1))?;
        let (warm_up, samples) = (self.options.warm_up, self.options.samples.max(1));
        if timing(pilot, launches).median < LONG || launches == 1 {
            return Ok(timing(replay::run(&stream, &mut graphs, (warm_up, samples))?, launches));
        }
        let alone = (0..launches).map(|turn| Graph::record(&stream, || give(self, turn)));
        let mut graphs = alone.collect::<Result<Vec<_>>>()?;
        Ok(timing(replay::run(&stream, &mut graphs, (warm_up, samples))?, 1))
    }

    /// The fastest of the ways that the library has.
    #[allow(unsafe_code, reason = "launches of a library")]
    fn library(
        &mut self,
        library: &CublasLt,
        group: &Group,
        (rows, cols): (usize, usize),
        n: usize,
    ) -> Result<KernelCase> {
        let context = Arc::clone(&self.loaded.context);
        let x = DeviceMemory::new(&context, (n * cols) as u64, "measuring")?;
        let y = DeviceMemory::new(&context, (n * rows * 4) as u64, "measuring")?;
        self.noise(x.address(), x.bytes(), 1, [u32::MAX, 0])?;
        let (region, stride, copies) = (self.region, group.stride, group.copies as usize);
        let mut time: std::result::Result<Timing, String> = Err("it has no way".into());
        match library.product(rows, cols, n) {
            Err(why) => time = Err(why),
            Ok(product) => {
                for way in 0..product.ways() {
                    let mut refused = None;
                    let done = self.replay(copies, |cases, turn| {
                        let at = [region + turn as u64 * stride, x.address(), y.address()];
                        // SAFETY: a copy of the weights, and as many bytes for the rest, which live until the stream
                        // was waited for; one stream uses the library.
                        let given = unsafe { product.give(&cases.runner.stream, way, at) };
                        refused = given.err().or(refused.take());
                        Ok(())
                    });
                    // A way that cannot be recorded is none.
                    match (done, refused) {
                        (Ok(found), None) if time.as_ref().is_ok_and(|t| t.median <= found.median) => {}
                        (Ok(found), None) => time = Ok(found),
                        (Err(error), None) => return Err(error),
                        (_, Some(why)) if time.is_err() => time = Err(why),
                        (_, Some(_)) => {}
                    }
                }
            }
        }
        self.runner.stream.synchronize()?;
        let bytes = (rows * cols) as u64;
        Ok(KernelCase {
            what: group.prototype.what.clone(),
            shape: group.prototype.shape.clone(),
            kernels: vec!["cublasLtMatmul"],
            tokens: n,
            length: None,
            bytes,
            operations: 2 * bytes * n as u64,
            copies,
            cold: is_cold(group.copies, bytes),
            baseline: true,
            time,
        })
    }
}
