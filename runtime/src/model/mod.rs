//! A model: a container's weights on a device with the program that runs them.

mod builder;
mod graph;
pub mod program;
#[cfg(test)]
mod tests;
mod weights;

use crate::backend::{Executable, KeptBytes, KvType, RunOptions, Settings};
use crate::exchange::{Delays, Patience};
use crate::load::{
    self, Beside, Chosen, Left, LoadMode, LoadOptions, LoadReport, Places, Progress, Verify, Wish,
};
use crate::memory::{self, Need};
use crate::{Container, Device, Result, RuntimeError, Session, Together};
use gantry_formats::arch::{self, Architecture, Hparams, HparamsError, Resolved};
use gantry_formats::container::{Model as Packed, StoredTensor};
use gantry_formats::gguf::Header;
use gantry_formats::hash::Digest;
use gantry_formats::hotness::Reading;
use gantry_formats::placement::{CardSpec, Fill, Strategy};
use program::{ExpertCheck, Matrix, Program, StepKind};
use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

/// Context that is used where neither the caller nor the model asks for less.
const DEFAULT_CONTEXT: usize = 4096;

/// Tokens that are computed together by default. On two Zen 4 cores 64 to 128 were the fastest (a prompt of 512:
/// 1480 tokens/s, 1320 with batches of 512): the working memory of such a batch stays in the cache.
pub const DEFAULT_BATCH: usize = 128;
/// The same on cards, where there is memory: matrices are read once for all of them.
pub const DEFAULT_CARD_BATCH: usize = 512;

/// How a model is loaded, and what its sessions may use.
#[derive(Clone, Debug)]
pub struct ModelOptions {
    /// How bytes come into memory.
    pub load: LoadMode,
    /// How much of them is verified; `None`: every byte, by the device itself where it can.
    pub verify: Option<Verify>,
    /// Positions that a session has room for. `None`: the model's own context, at most 4096.
    pub context: Option<usize>,
    /// Whether that may be more than the model was made for.
    pub beyond_context: bool,
    /// Most tokens that are computed together. On the CPU results do not depend on it; on cards some sums of more than 32
    /// tokens have another order than those of fewer.
    pub batch: usize,
    /// As few as this, where memory is too short for `batch`; `None`: then the model is refused.
    pub least_batch: Option<usize>,
    /// How keys and values are kept.
    pub kv: KvType,
    /// Most bytes that may be used, where less than the machine has.
    pub memory_limit: Option<u64>,
    /// Tokens that a session can take back whatever the model keeps of them: as many as are verified at once when
    /// tokens are drafted.
    pub window: usize,
    /// Whether the use of experts is counted, see [`Model::routed`].
    pub record_routing: bool,
    /// What is checked where cards compute experts for another.
    pub check: ExpertCheck,
    /// How long a card waits for another.
    pub patience: Patience,
    /// Delays in what cards exchange, for tests.
    pub delays: Option<Arc<Delays>>,
    /// Who is told how far loading is.
    pub progress: Option<Progress>,
    /// The cards to load onto. `None`: those that the container was packed for. Others take blob by blob, and only
    /// what [`load`](Self::load) reads.
    pub cards: Option<Vec<CardSpec>>,
    /// How experts are spread over them; `None`: as they were packed for so many cards, else what suits the model.
    pub placement: Option<Strategy>,
    /// How many experts a card gets; `None`: as they were packed for several cards, else [`Fill::Share`].
    pub fill: Option<Fill>,
    /// What experts are spread by: token counts of this model, as they were read.
    pub hotness: Option<Reading>,
}

impl Default for ModelOptions {
    fn default() -> Self {
        Self {
            load: LoadMode::default(),
            verify: None,
            context: None,
            beyond_context: false,
            batch: DEFAULT_BATCH,
            least_batch: None,
            kv: KvType::default(),
            memory_limit: None,
            window: 0,
            record_routing: false,
            check: ExpertCheck::default(),
            patience: Patience::default(),
            delays: None,
            progress: None,
            cards: None,
            placement: None,
            fill: None,
            hotness: None,
        }
    }
}

/// A loaded model. Cloning it copies a pointer.
#[derive(Clone)]
pub struct Model(Arc<Inner>);

struct Inner {
    /// Of the container.
    root: Digest,
    vocab: usize,
    trained_context: Option<usize>,
    drafts: bool,
    settings: Settings,
    executable: Box<dyn Executable>,
    /// Whether everything lies where it was packed for.
    as_packed: bool,
    report: LoadReport,
    need: Vec<Need>,
    notes: Vec<String>,
    device: Device,
}

impl Model {
    /// Checks that `container` can run on `device` and fits, then loads and verifies its weights.
    ///
    /// Everything that can be refused without the weights is refused before one of them is read: an incomplete
    /// model, a target whose containers the device does not run, an unknown architecture, a layout without a kernel,
    /// too little memory, or cards with too little room.
    ///
    /// # Errors
    /// [`RuntimeError`] says which.
    pub fn load(container: &Container, device: &Device, options: &ModelOptions) -> Result<Self> {
        let least = options.least_batch.unwrap_or(options.batch);
        let mut fewer = options.clone();
        loop {
            match Self::load_as(container, device, &fewer, options.batch) {
                Err(RuntimeError::Memory(_) | RuntimeError::Cards(_)) if fewer.batch / 2 >= least.max(1) => {
                    fewer.batch /= 2;
                }
                done => return done,
            }
        }
    }

    /// With just these options; batches of `wished` were asked for.
    fn load_as(
        container: &Container,
        device: &Device,
        options: &ModelOptions,
        wished: usize,
    ) -> Result<Self> {
        check_complete(&container.manifest().model)?;
        let mut notes = check_targets(container, device)?;
        let resolved = resolved(container)?;
        let settings = settings(&resolved.hparams, options)?;
        let build = |places: &Places| graph::build((container, places), &resolved, settings.context);
        let packed = Places::as_packed(container);
        let mut program = build(&packed)?;
        check_kernels(&program, device)?;
        crate::backend::check_kv(&program, &settings)?;
        device.backend().check(&program, &settings)?;

        let mut beside = beside(container, &program, device, &settings);
        let wish = Wish {
            cards: options.cards.as_deref(),
            strategy: options.placement,
            fill: options.fill,
            hotness: options.hotness.as_ref(),
        };
        if let Some(trial) = load::trial(container, wish, &beside)? {
            let cards = trial.cards.len();
            beside.exchange = device.backend().exchange_bytes(&build(&trial)?, &settings, cards)?;
        }
        let Chosen { places, notes: moved } =
            load::choose(container, wish, &beside, &|count| device.backend().names(count))?;
        let as_packed = places.are_as_packed(container);
        if !as_packed {
            program = build(&places)?;
        }
        notes.extend(moved);
        if settings.batch < wished.min(settings.context) {
            notes.push(format!("memory is short: at most {} tokens are computed together", settings.batch));
        }
        let left = left(&program);
        let mut need = load::needs(container, &places, &beside);
        if options.check != ExpertCheck::Off && !places.share_experts() {
            notes.push("no layer has experts on several cards, so that there is nothing to check".into());
        }
        match device.backend().free()? {
            None => {
                let free = memory::free(options.memory_limit);
                memory::check(&need, free, settings.context, beside.position())
                    .map_err(RuntimeError::Memory)?;
            }
            Some(cards) => {
                // A card's arena is one allocation: what stays in its file has its place there all the same.
                need.iter_mut().zip(&places.cards).for_each(|(need, card)| need.weights = card.bytes);
                let names = device.backend().names(need.len());
                for ((need, bytes), name) in need.iter().zip(cards).zip(names) {
                    let (limit, per) = (options.memory_limit, beside.position());
                    memory::check_card(need, (name, bytes), limit, settings.context, per)
                        .map_err(RuntimeError::Memory)?;
                }
            }
        }

        let how = LoadOptions {
            mode: options.load,
            verify: options.verify.unwrap_or_else(|| device.backend().verify()),
            threads: device.threads(),
            progress: options.progress.clone(),
            left,
        };
        let (weights, report) = match device.backend().lift(&places)? {
            None => load::load(container, &places, &how)?,
            Some(cards) => load::lift(container, &places, &how, cards)?,
        };
        let (vocab, trained_context, drafts) = (program.vocab, program.context, program.draft.is_some());
        let run = RunOptions {
            record_routing: options.record_routing,
            check: options.check,
            patience: options.patience,
            delays: options.delays.clone(),
        };
        let executable = device.backend().prepare(program, weights, &run)?;
        let device = device.clone();
        Ok(Self(Arc::new(Inner {
            root: container.header().root,
            vocab,
            trained_context,
            drafts,
            settings,
            executable,
            as_packed,
            report,
            need,
            notes,
            device,
        })))
    }

    /// Size of the vocabulary: the width of a row of logits.
    pub fn vocab(&self) -> usize {
        self.0.vocab
    }

    /// Whether the model has an embedding for every one of `tokens`: a tokenizer may know more.
    ///
    /// # Errors
    /// [`RuntimeError::Token`] with the first that it has not.
    pub fn check_tokens(&self, tokens: &[u32]) -> Result<()> {
        let vocab = self.vocab();
        match tokens.iter().find(|&&token| token as usize >= vocab) {
            Some(&token) => Err(RuntimeError::Token { token, vocab }),
            None => Ok(()),
        }
    }

    /// Positions that a session has room for.
    pub fn context(&self) -> usize {
        self.0.settings.context
    }

    /// Positions that the model was trained for, where it says.
    pub fn trained_context(&self) -> Option<usize> {
        self.0.trained_context
    }

    /// Whether it has a block that drafts tokens.
    pub fn drafts(&self) -> bool {
        self.0.drafts
    }

    /// How often each expert of each layer was used by all sessions, `[layer][expert]`, where
    /// [`ModelOptions::record_routing`] asked for it; a layer without experts has none.
    pub fn routed(&self) -> Option<Vec<Vec<u64>>> {
        self.0.executable.routed()
    }

    /// What loading did.
    pub fn load_report(&self) -> &LoadReport {
        &self.0.report
    }

    /// Brings a tensor or an expert, called as the container's blobs are, from its file to its place once more, between two
    /// runs of its sessions, and lets the device hash what arrived; gives its bytes. What was made of small vectors when the
    /// model was loaded stays as it is.
    ///
    /// # Errors
    /// [`RuntimeError::Setting`] for another container, an unknown name, or a device whose weights are in the host's memory;
    /// [`RuntimeError::Damage`] where bytes are not those that were written: the model must not be used then.
    pub fn reload(&self, container: &Container, name: &str) -> Result<u64> {
        if container.header().root != self.0.root {
            return Err(RuntimeError::Setting("the model was loaded from another container".into()));
        }
        if !self.0.as_packed {
            let what = "only what lies as it was packed is brought again; load the model without --cards";
            return Err(RuntimeError::Setting(what.into()));
        }
        let executable = &self.0.executable;
        load::again(container, name, &|card, at, bytes, hashed| executable.replace(card, at, bytes, hashed))
    }

    /// The memory that was predicted, by card.
    pub fn need(&self) -> &[Need] {
        &self.0.need
    }

    /// What is worth telling of how it runs here, for people.
    pub fn notes(&self) -> &[String] {
        &self.0.notes
    }

    /// The device it runs on.
    pub fn device(&self) -> &Device {
        &self.0.device
    }

    /// A new session, with an empty cache of the model's context.
    ///
    /// # Errors
    /// [`RuntimeError::Allocation`] where the system gives no memory for the cache.
    pub fn session(&self) -> Result<Session> {
        Session::new(self)
    }

    /// A step for several sessions at once.
    ///
    /// # Errors
    /// Where the device has no memory for its work.
    pub fn together(&self) -> Result<Together> {
        Together::new(self)
    }

    /// The root of the container that it was loaded from.
    pub(crate) fn root(&self) -> &Digest {
        &self.0.root
    }

    /// Whether both are the same loaded model.
    pub(crate) fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    pub(crate) fn settings(&self) -> &Settings {
        &self.0.settings
    }

    pub(crate) fn executable(&self) -> &dyn Executable {
        &*self.0.executable
    }
}

impl std::fmt::Debug for Model {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Model").field("vocab", &self.0.vocab).field("settings", &self.0.settings).finish()
    }
}

/// What [`Model::load`] would run, for sequences of at most `positions` tokens, whatever device has kernels for it.
///
/// # Errors
/// As there, for what an index says.
pub fn plan(container: &Container, positions: usize) -> Result<Program> {
    check_complete(&container.manifest().model)?;
    let places = Places::as_packed(container);
    graph::build((container, &places), &resolved(container)?, positions.max(1))
}

/// The architecture of a container and what its metadata says of it.
fn resolved(container: &Container) -> Result<Resolved> {
    let manifest = container.manifest();
    let hparams = Hparams::read(header(container));
    let arch = architecture(&hparams, &manifest.model)?;
    let names: HashSet<&str> = manifest.source_tensors.iter().map(|t| t.name.as_str()).collect();
    Ok(Resolved::read(arch, &hparams, header(container), |name| names.contains(name)))
}

fn check_complete(model: &Packed) -> Result<()> {
    if model.complete {
        return Ok(());
    }
    let why = model.incomplete.join("; ");
    Err(RuntimeError::Incompatible(format!(
        "this container is marked as not runnable: {}",
        if why.is_empty() { "the model is incomplete" } else { &why }
    )))
}

/// The source's GGUF header: the first shard holds the metadata.
pub fn header(container: &Container) -> &Header {
    // Opening refuses a container of no shard.
    &container.gguf_headers()[0]
}

fn architecture(hparams: &Hparams, packed: &Packed) -> Result<&'static Architecture> {
    let name = if hparams.architecture.is_empty() { &packed.architecture } else { &hparams.architecture };
    let arch = arch::supported(name, packed.arch_version)?;
    let form = if hparams.experts > 0 { "with experts" } else { "dense" };
    let runs = |a: &Architecture| if hparams.experts > 0 { a.runs_experts } else { a.runs_dense };
    if runs(arch) {
        return Ok(arch);
    }
    let others: Vec<_> = arch::ARCHITECTURES.iter().filter(|a| runs(a)).map(|a| a.name).collect();
    Err(RuntimeError::Incompatible(format!(
        "this program does not run {name} in the form {form}; so it runs {}",
        others.join(", ")
    )))
}

/// Sizes of matrices and buffers: up to this.
const SIZES: usize = (1 << 31) - 1;

/// The hyperparameter `name`, which must be there and between 1 and `most`.
fn number(h: &Hparams, value: Option<u64>, name: &str, most: usize) -> Result<usize> {
    let value = h.need(value, name)?;
    let fits = usize::try_from(value).ok().filter(|n| (1..=most).contains(n));
    fits.ok_or_else(|| wrong(h, name, value.to_string(), format!("between 1 and {most}")))
}

fn wrong(h: &Hparams, name: &str, found: String, expected: String) -> RuntimeError {
    HparamsError::Value { key: format!("{}.{name}", h.architecture), found, expected }.into()
}

/// Refuses what is packed for devices whose containers this one does not run; gives what is worth telling of the
/// others.
fn check_targets(container: &Container, device: &Device) -> Result<Vec<String>> {
    let manifest = container.manifest();
    let family = device.backend().family();
    let mut targets = manifest.cards.iter().map(|c| &c.target).chain([&manifest.target]);
    let newer = manifest.cards.iter().enumerate().find(|(card, of)| {
        of.target.split(':').next() == Some(family) && !device.backend().takes_target(*card, &of.target)
    });
    let refused = |target: &str| {
        RuntimeError::Incompatible(format!(
            "this container is packed for {target}, this is {}; gantry replan --target packs it for here (`gantry-run \
             devices` lists what fits)",
            device.describe()
        ))
    };
    if let Some((_, card)) = newer {
        return Err(refused(&card.target));
    }
    let foreign = targets.find(|t| t.split(':').next() != Some(family));
    match foreign {
        None => Ok(Vec::new()),
        Some(target) if device.backend().runs_others() => Ok(vec![format!(
            "packed for {target}; the CPU reads it in that order, slower; gantry replan --target cpu"
        )]),
        Some(target) => Err(refused(target)),
    }
}

fn check_kernels(program: &Program, device: &Device) -> Result<()> {
    for (kind, matrix) in program.tensors() {
        if !device.backend().takes(kind, matrix.layout) {
            return Err(RuntimeError::Incompatible(format!(
                "{}: {} has no {kind} kernel for layout {}; convert with another layout for it (--set)",
                matrix.name,
                device.backend().family(),
                matrix.layout
            )));
        }
    }
    Ok(())
}

fn settings(h: &Hparams, options: &ModelOptions) -> Result<Settings> {
    let trained = h.context_length.and_then(|n| usize::try_from(n).ok());
    let context = options.context.unwrap_or(trained.unwrap_or(DEFAULT_CONTEXT).min(DEFAULT_CONTEXT));
    if context == 0 || options.batch == 0 || context >= 1 << 31 {
        return Err(RuntimeError::Setting(format!(
            "a context of {context} with batches of {}: both must be between 1 and 2^31",
            options.batch
        )));
    }
    if let Some(trained) = trained.filter(|&n| n > 0 && context > n && !options.beyond_context) {
        return Err(RuntimeError::Setting(format!(
            "a context of {context} is longer than the {trained} positions the model was made for; give up to \
             {trained}, or --beyond-context to try it all the same"
        )));
    }
    let (batch, window) = (options.batch.min(context), options.window.min(context));
    Ok(Settings { context, batch, kv: options.kv, window })
}

/// Tables that are read by row and stay in their file.
fn left(program: &Program) -> Vec<Left> {
    let tables = program.tensors().filter(|(kind, _)| *kind == StepKind::Rows);
    let range = |m: &Matrix| {
        let bytes = m.layout.bytes(m.stored_rows as u64, m.cols as u64).unwrap_or(0);
        m.offset as u64..(m.offset as u64).saturating_add(bytes)
    };
    tables.map(|(_, m)| Left { card: m.card, range: range(m) }).collect()
}

/// What lies on cards beside what is loaded, of a program at the places that its container was packed with.
fn beside(container: &Container, program: &Program, device: &Device, settings: &Settings) -> Beside {
    let manifest = container.manifest();
    let holds = |t: &StoredTensor, left: &Left| {
        let end = t.offset.saturating_add(t.bytes);
        t.card as usize == left.card && t.offset <= left.range.start && left.range.end <= end
    };
    let tensor = |left: &Left| manifest.tensors.iter().position(|t| holds(t, left));
    let mut kept: BTreeMap<u32, KeptBytes> = BTreeMap::new();
    for (own, layer) in program.kept.iter().zip(program.kept_layers()) {
        let bytes = device.backend().kept_bytes(own, settings);
        let sum = kept.entry(layer).or_default();
        sum.whole = sum.whole.saturating_add(bytes.whole);
        sum.position = sum.position.saturating_add(bytes.position);
        sum.fixed = sum.fixed.saturating_add(bytes.fixed);
    }
    Beside {
        context: settings.context,
        kept,
        scratch: device.backend().scratch_bytes(program, settings),
        exchange: Vec::new(),
        left: left(program).iter().filter_map(tensor).collect(),
    }
}
