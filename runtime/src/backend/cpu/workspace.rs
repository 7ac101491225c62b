//! Walks the steps of a card.

use super::Loaded;
use super::buffers::Buffers;
use super::experts::Experts;
use super::links::{Links, Turns};
use super::sequence::Lent;
use crate::Result;
use crate::model::program::{Part, Step};
use gantry_kernels::cpu::RopeAngles;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The tokens of one sequence in a run.
#[derive(Clone, Copy, Debug)]
pub(super) struct Span {
    /// Their first row.
    pub(super) row: usize,
    /// How many.
    pub(super) tokens: usize,
    /// Position of the first.
    pub(super) start: usize,
}

/// What a run works on: rows of tokens, some of each sequence.
pub(super) struct Batch<'a, 's> {
    pub(super) tokens: &'a [u32],
    pub(super) spans: &'a [Span],
    pub(super) sequences: &'a mut [Lent<'s>],
}

/// Working memory of runs on one card.
pub(super) struct Walker {
    pub(super) loaded: Arc<Loaded>,
    pub(super) buffers: Buffers,
    /// By rotation, for the current positions.
    pub(super) angles: Vec<RopeAngles>,
    /// A product on its way to some columns of a wider buffer.
    pub(super) aside: Vec<f32>,
    pub(super) experts: Experts,
    /// Of the tokens, by row.
    pub(super) positions: Vec<u32>,
    /// To the other cards.
    pub(super) links: Option<Arc<Links>>,
    /// How often each was used.
    pub(super) turns: Turns,
    profile: Option<Profile>,
}

/// Time by part.
#[derive(Default)]
struct Profile {
    times: BTreeMap<Part, Duration>,
    now: Option<(Part, Instant)>,
}

impl Profile {
    /// Ends the part that runs, if one does, and begins another.
    fn turn(&mut self, next: Option<Part>) {
        let at = Instant::now();
        if let Some((part, since)) = self.now {
            *self.times.entry(part).or_default() += at - since;
        }
        self.now = next.map(|part| (part, at));
    }
}

impl Walker {
    pub(super) fn new(loaded: Arc<Loaded>) -> Self {
        let buffers = Buffers::new(&loaded.program.buffers);
        let angles = loaded.program.rotations.iter().map(|_| RopeAngles::default()).collect();
        let (aside, positions) = Default::default();
        let experts = Experts::default();
        let (links, turns, profile) = Default::default();
        Self { loaded, buffers, angles, aside, experts, positions, links, turns, profile }
    }

    /// Runs `steps` for the tokens of `batch`.
    pub(super) fn walk(&mut self, steps: &[Step], batch: &mut Batch<'_, '_>) -> Result<()> {
        let loaded = Arc::clone(&self.loaded);
        for step in steps {
            match (step, &mut self.profile) {
                (Step::Begin(part), Some(profile)) => profile.turn(Some(*part)),
                (Step::Begin(_), None) => {}
                (step, _) => self.step(&loaded, step, batch)?,
            }
        }
        if let Some(profile) = &mut self.profile {
            profile.turn(None);
        }
        Ok(())
    }

    /// Angles for the positions of `spans`.
    pub(super) fn turn(&mut self, spans: &[Span]) {
        self.positions.clear();
        for span in spans {
            self.positions.extend((span.start..span.start + span.tokens).map(|p| p as u32));
        }
        for (table, angles) in self.loaded.tables.iter().zip(&mut self.angles) {
            table.angles(&self.positions, angles);
        }
    }

    /// Measures from now on how long each part takes.
    pub(super) fn measure(&mut self) {
        self.profile = Some(Profile::default());
    }

    /// What was measured.
    pub(super) fn measured(&self) -> impl Iterator<Item = (Part, Duration)> + '_ {
        self.profile.iter().flat_map(|p| p.times.iter().map(|(part, time)| (*part, *time)))
    }
}
