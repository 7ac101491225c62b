//! Cards: devices with memory of their own. What is here is the same for all families of them ([`Family`]), whose drivers are
//! behind `driver`.
//!
//! The container's segment goes into one allocation per card as it is, is hashed there, and read there by
//! the kernels of `kernels/device` and `kernels/cuda`. N-gram tables stay in their file; the host gathers the rows that a run
//! takes.

mod attend;
mod bare;
mod batch;
mod beside;
mod buffers;
mod cards;
mod choose;
mod drafts;
pub(super) mod driver;
mod exchange;
mod experts;
mod fused;
mod gather;
mod kernels;
mod layer;
mod lift;
mod limits;
mod loaded;
mod look_back;
mod measure;
mod parts;
mod peers;
mod plan;
mod products;
mod registry;
mod replace;
mod sequence;
mod shares;
mod steps;
mod streams;
mod tables;
mod undo;
mod watch;
mod ways;
mod workspace;

pub use bare::{hash_rate, pinned_copy, read_and_copy};
pub use driver::{CardError, CardInfo, CardName, DeviceMemory, Family, Generation, Said, cards};
pub use limits::{check_cards, check_family, check_window};
pub use measure::{KernelBench, KernelCase, KernelOptions, Roof, Timing};

use super::counters::Counters;
use super::cpu::{Cpu, HostLoaded, check_beside};
use super::{Backend, CardHeld, Executable, KeptBytes, RunOptions, Sequence, Settings, Workspace};
use crate::load::{self, Hashed, Lift, LoadOptions, LoadReport, Places, Verify, Weights};
use crate::model::program::{CardPrograms, ExpertCheck, Kept, Program, StepKind};
use crate::{Container, Result, RuntimeError};
use cards::CardsWorkspace;
use driver::Context;
use gantry_formats::layout::Layout;
use gantry_kernels::cpu::Pool;
use lift::CardLift;
use loaded::Loaded;
use sequence::CardSequence;
use shares::CardsSequence;
use std::sync::Arc;
use workspace::CardWorkspace;

/// Some cards.
pub(super) struct Cards {
    family: Family,
    cards: Vec<Arc<Context>>,
    /// Bytes that were free on each when it was opened.
    before: Vec<u64>,
    threads: usize,
    /// What computes experts in the host's memory, on a card after all others.
    host: Option<Cpu>,
}

impl Cards {
    pub(super) fn new(cards: &[CardName], threads: usize, host: Option<Cpu>) -> Result<Self> {
        let family = limits::check_family(cards)?;
        let cards = cards.iter().map(|card| Context::open(*card)).collect::<Result<Vec<_>, CardError>>()?;
        for (i, card) in cards.iter().enumerate() {
            let mut others = cards.iter().enumerate().filter(|(other, _)| *other != i);
            others.try_for_each(|(_, other)| card.reach(other))?;
        }
        let before = cards.iter().map(|card| Ok(card.memory()?.0)).collect::<Result<_, CardError>>()?;
        Ok(Self { family, cards, before, threads, host })
    }

    /// All of them, the host's too.
    fn count(&self) -> usize {
        self.cards.len() + usize::from(self.host.is_some())
    }
}

impl Backend for Cards {
    fn family(&self) -> &'static str {
        self.family.name()
    }

    fn describe(&self) -> String {
        let of = |c: &Arc<Context>| format!("{}, {}", c.info().at, c.info().name);
        let host = self.host.iter().map(|host| host.describe());
        self.cards.iter().map(of).chain(host).collect::<Vec<_>>().join("; ")
    }

    fn names(&self, count: usize) -> Vec<String> {
        let cards = self.cards.iter().map(|card| card.info().at.to_string());
        let host = self.host.iter().map(|_| "cpu".to_string());
        let more = (self.count()..count).map(|card| format!("card {card}"));
        cards.chain(host).chain(more).take(count).collect()
    }

    fn threads(&self) -> usize {
        self.threads
    }

    fn takes(&self, step: StepKind, layout: Layout) -> bool {
        registry::takes(step, layout)
    }

    fn takes_target(&self, card: usize, target: &str) -> bool {
        self.cards.get(card).is_none_or(|c| c.info().takes(target))
    }

    fn verify(&self) -> Verify {
        Verify::Device
    }

    fn check(&self, program: &Program, settings: &Settings) -> Result<()> {
        limits::check(program, settings, self.count())
    }

    fn kept_bytes(&self, kept: &Kept, settings: &Settings) -> KeptBytes {
        sequence::kept_bytes(kept, settings)
    }

    fn scratch_bytes(&self, program: &Program, settings: &Settings) -> u64 {
        workspace::scratch_bytes(program, settings, self.family)
    }

    fn exchange_bytes(&self, program: &Program, settings: &Settings, cards: usize) -> Result<Vec<u64>> {
        let cut = CardPrograms::new(program, cards, ExpertCheck::Off)?;
        let host = self.host.is_some().then_some(self.cards.len());
        let own = cut.lists().filter(|(card, _)| Some(*card) == host);
        own.flat_map(|(card, steps)| steps.iter().map(move |step| (card, step)))
            .try_for_each(|(card, step)| check_beside(card, step))?;
        let mut bytes = ways::bytes(program, &cut, workspace::most_tokens(settings));
        // All buffers of the program are on every card; the first card's are counted with the program.
        let scratch = workspace::scratch_bytes(program, settings, self.family);
        bytes.iter_mut().skip(1).for_each(|own| *own = own.saturating_add(scratch));
        Ok(bytes)
    }

    fn free(&self) -> Result<Option<Vec<u64>>> {
        let mut free = self.cards.iter().map(|c| Ok(c.memory()?.0)).collect::<Result<Vec<_>, CardError>>()?;
        free.extend(self.host.iter().map(|_| crate::memory::free(None).bytes));
        Ok(Some(free))
    }

    fn held(&self) -> Result<Vec<CardHeld>> {
        let each = self.cards.iter().zip(&self.before).map(|(card, before)| {
            let held = card.held().into_iter().map(|(what, (count, bytes))| (what, count, bytes)).collect();
            let name = card.info().at.to_string();
            Ok(CardHeld { card: name, held, before: *before, free: card.memory()?.0 })
        });
        Ok(each.collect::<Result<_, CardError>>()?)
    }

    fn lift(&self, places: &Places) -> Result<Option<Box<dyn Lift>>> {
        limits::check_places(places, self.cards.len(), self.host.is_some())?;
        let contexts = self.cards.iter().cloned().map(Some).chain([None]);
        let sizes = contexts.zip(places.cards.iter().map(|c| c.bytes));
        Ok(Some(Box::new(CardLift::new(&sizes.collect::<Vec<_>>(), self.threads)?)))
    }

    fn prepare(
        &self,
        program: Program,
        mut weights: Weights,
        run: &RunOptions,
    ) -> Result<Box<dyn Executable>> {
        let arenas = Arc::new(arenas(&mut weights));
        if arenas.is_empty() {
            return Err(RuntimeError::Placement("weights that were not brought to a card".into()));
        }
        let routed = run.record_routing.then(|| Arc::new(Counters::new(&program)));
        // Rows of n-gram tables are read through several threads.
        let threads = if program.ngrams.is_empty() { 1 } else { self.threads };
        let pool = Arc::new(Pool::new(threads));
        let weights = Arc::new(weights);
        let loaded = |card: usize| {
            let weights = (Arc::clone(&weights), Arc::clone(&arenas), self.host.is_some());
            Loaded::new(card, program.clone(), weights, (routed.clone(), Arc::clone(&pool))).map(Arc::new)
        };
        let cards = (0..arenas.len()).map(loaded).collect::<Result<Vec<_>>>()?;
        let programs = match self.count() {
            1 => None,
            count => Some(Arc::new(CardPrograms::new(&program, count, run.check)?)),
        };
        let host = match (&self.host, &programs) {
            (Some(host), Some(programs)) => Some(beside::loaded(host, &cards, programs, &weights, run)?),
            _ => None,
        };
        Ok(Box::new(Prepared { cards, host, programs, run: run.clone() }))
    }
}

/// The arenas that weights were brought to.
fn arenas(weights: &mut Weights) -> Vec<DeviceMemory> {
    let lifted = weights.take_lifted().and_then(|lifted| lifted.into_any().downcast::<CardLift>().ok());
    lifted.map_or_else(Vec::new, |lift| lift.into_arenas())
}

/// A program on cards.
struct Prepared {
    cards: Vec<Arc<Loaded>>,
    /// The card after them, in the host's memory.
    host: Option<HostLoaded>,
    /// Where there are several, the lists of each.
    programs: Option<Arc<CardPrograms>>,
    run: RunOptions,
}

impl Executable for Prepared {
    fn sequence(&self, settings: &Settings) -> Result<Box<dyn Sequence>> {
        if let Some(programs) = &self.programs {
            return Ok(Box::new(CardsSequence::new(&self.cards, programs, settings)?));
        }
        let Loaded { context, aside, program, .. } = &*self.cards[0];
        Ok(Box::new(CardSequence::new(context, aside, program, settings, |_| true)?))
    }

    fn workspace(&self, settings: &Settings) -> Result<Box<dyn Workspace>> {
        if let Some(programs) = &self.programs {
            let cards = (&self.cards[..], self.host.as_ref());
            return Ok(Box::new(CardsWorkspace::new(cards, programs, settings, &self.run)?));
        }
        Ok(Box::new(CardWorkspace::new(&self.cards[0], settings)?))
    }

    fn routed(&self) -> Option<Vec<Vec<u64>>> {
        self.cards[0].routed.as_ref().map(|counters| counters.counts())
    }

    fn replace(&self, card: usize, at: u64, bytes: &[u8], hashed: &[Hashed]) -> Result<Vec<[u8; 32]>> {
        let loaded =
            self.cards.get(card).ok_or_else(|| loaded::wrong("arena", format!("there is no card {card}")))?;
        loaded.replace(at, bytes, hashed)
    }
}

/// Brings a container to `cards`, one for each that it was packed for; gives their arenas.
///
/// # Errors
/// As [`load::load`], and what the driver says. A container that is packed for another generation than a card's is refused
/// before a weight is read.
pub fn lift(
    container: &Container,
    cards: &[CardName],
    options: &LoadOptions,
) -> Result<(Vec<DeviceMemory>, LoadReport)> {
    let contexts = cards.iter().map(|card| Context::open(*card)).collect::<Result<Vec<_>, CardError>>()?;
    let packed = &container.manifest().cards;
    if packed.len() != cards.len() {
        return Err(RuntimeError::Setting(format!(
            "this container is packed for {}, not for {}; gantry replan --cards {} packs it for those",
            limits::count_text(packed.len()),
            limits::count_text(cards.len()),
            cards.len()
        )));
    }
    for (context, card) in contexts.iter().zip(packed) {
        check_target(context.info(), &card.target)?;
    }
    let places = Places::as_packed(container);
    let sizes = contexts.into_iter().map(Some).zip(places.cards.iter().map(|c| c.bytes));
    let sizes: Vec<(Option<Arc<Context>>, u64)> = sizes.collect();
    let lift = Box::new(CardLift::new(&sizes, options.threads)?);
    let (mut weights, report) = load::lift(container, &places, options, lift)?;
    Ok((arenas(&mut weights), report))
}

/// Bytes that are free on a card.
///
/// # Errors
/// Where there is no such card, or it cannot be opened.
pub fn free(card: CardName) -> Result<u64, CardError> {
    Ok(Context::open(card)?.memory()?.0)
}

/// Refuses what is packed for another device or a newer generation.
fn check_target(card: &CardInfo, target: &str) -> Result<()> {
    match card.takes(target) {
        true => Ok(()),
        false => Err(RuntimeError::Incompatible(format!(
            "this container is packed for {target}, {} ({}) is {}; gantry replan --target {}:{} packs it for here",
            card.at, card.name, card.generation, card.at.family, card.generation
        ))),
    }
}
