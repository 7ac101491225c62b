//! A card in the host's memory beside cards of another kind: it computes experts, which those ask it for.

use super::workspace::{Batch, Walker};
use super::{Cpu, Loaded, Shared, view};
use crate::load::Weights;
use crate::model::program::{BufferId, CardPrograms, Format, Program, Step, StepKind};
use crate::{Result, RuntimeError};
use std::collections::BTreeMap;
use std::sync::Arc;

/// How it exchanges data with the others: the protocol of [`crate::exchange`] over memory that both reach.
pub(in crate::backend) trait Ways: Send + Sync {
    /// Waits for a message from card `from` whose stretches have these lengths in bytes, and takes it: all words, each
    /// stretch rounded up to a multiple of 16 bytes.
    ///
    /// # Errors
    /// Where it does not come in time, or the other card has failed.
    fn receive(
        &self,
        from: usize,
        layer: Option<usize>,
        stretches: &[u64],
        words: &mut Vec<u32>,
    ) -> Result<()>;

    /// Puts rows, by their numbers, on the board of card `to`.
    ///
    /// # Errors
    /// Where there is no such board or row.
    fn give(&self, to: usize, rows: &mut dyn Iterator<Item = (usize, &[f32])>) -> Result<()>;
}

/// The card.
pub(in crate::backend) struct HostCard {
    walker: Walker,
    ways: Arc<dyn Ways>,
    words: Vec<u32>,
}

/// What the card has of a program, for any number of runs at the same time.
pub(in crate::backend) struct HostLoaded(Arc<Loaded>);

impl HostLoaded {
    /// Card `card`'s share of a program. `vectors` are the values of all small vectors.
    ///
    /// # Errors
    /// Where it is given anything but experts, or one that it cannot read.
    pub(in crate::backend) fn new(
        cpu: &Cpu,
        card: usize,
        (program, cards): (&Program, &CardPrograms),
        weights: &Arc<Weights>,
        vectors: Vec<Vec<f32>>,
    ) -> Result<Self> {
        let shared = Shared {
            isa: cpu.isa,
            program: program.clone(),
            cards: cards.clone(),
            weights: Arc::clone(weights),
            vectors,
            tables: Vec::new(),
            ngrams: BTreeMap::new(),
            routed: None,
        };
        for (of, steps) in cards.lists().filter(|(of, _)| *of == card) {
            for step in steps {
                check(of, step)?;
                if let Step::Experts { products, .. } = step {
                    let all = products.iter().flat_map(|p| p.weights.iter());
                    let mut own = all.filter(|m| m.card == card);
                    own.try_for_each(|m| view(&shared, StepKind::Experts, m).map(drop))?;
                }
            }
        }
        let pool = Arc::clone(&cpu.pool);
        Ok(Self(Arc::new(Loaded { card, pool, shared: Arc::new(shared) })))
    }

    /// Working memory for runs of it.
    pub(in crate::backend) fn card(&self, ways: Arc<dyn Ways>) -> HostCard {
        HostCard { walker: Walker::new(Arc::clone(&self.0)), ways, words: Vec::new() }
    }
}

/// Refuses a step that the card cannot do beside others.
///
/// # Errors
/// What it lacks.
pub(in crate::backend) fn check(card: usize, step: &Step) -> Result<()> {
    match step {
        Step::Begin(_)
        | Step::Receive { .. }
        | Step::Return { .. }
        | Step::Experts { .. }
        | Step::SiluMul { .. }
        | Step::Quantize { .. }
        | Step::Rotate { .. } => Ok(()),
        other => Err(RuntimeError::Incompatible(format!(
            "card {card} is the host's (cpu) and computes experts alone beside NVIDIA cards, not the step {}; place it \
             so (--placement paired), or leave it out",
            other.name()
        ))),
    }
}

/// Bytes of the stretches of a buffer: values or quants, and scales.
fn stretches(program: &Program, id: BufferId, n: usize) -> [u64; 2] {
    let buffer = &program.buffers[id.0];
    let rows = (buffer.rows * n) as u64;
    let values = rows * buffer.width as u64;
    match buffer.format {
        Format::F32 | Format::Ids => [values * 4, 0],
        Format::Q8 => [values, values / 32 * 4],
        Format::I8 => [values, rows * 4],
    }
}

impl HostCard {
    /// Runs the card's list for tokens at these positions.
    ///
    /// # Errors
    /// Where another card is waited for in vain.
    pub(in crate::backend) fn walk(&mut self, steps: &[Step], positions: &[u32]) -> Result<()> {
        self.walker.positions.clear();
        self.walker.positions.extend_from_slice(positions);
        let loaded = Arc::clone(&self.walker.loaded);
        for step in steps {
            match step {
                Step::Begin(_) => {}
                Step::Receive { from, layer, buffers } => self.receive(&loaded, (*from, *layer), buffers)?,
                Step::Return { to, holders, ids, y } => {
                    let width = loaded.program.buffers[y.0].width;
                    let own = |card| card == loaded.card;
                    let rows = self.walker.rows(&loaded, holders, *ids, positions.len(), own);
                    let values = self.walker.buffers.f32(*y);
                    let mut rows = rows.into_iter().map(|(row, _)| (row, &values[row * width..][..width]));
                    self.ways.give(*to, &mut rows)?;
                }
                // Nothing that it computes depends on ids of tokens or on sequences.
                step => {
                    let mut batch = Batch { tokens: positions, spans: &[], sequences: &mut [] };
                    self.walker.step(&loaded, step, &mut batch)?;
                }
            }
        }
        Ok(())
    }

    fn receive(
        &mut self,
        loaded: &Loaded,
        (from, layer): (usize, Option<usize>),
        ids: &[BufferId],
    ) -> Result<()> {
        let n = self.walker.positions.len();
        let all = ids.iter().flat_map(|id| stretches(&loaded.program, *id, n)).filter(|bytes| *bytes > 0);
        let all: Vec<u64> = all.collect();
        self.ways.receive(from, layer, &all, &mut self.words)?;
        let mut rest = &self.words[..];
        for id in ids {
            let buffer = &loaded.program.buffers[id.0];
            let both = stretches(&loaded.program, *id, n).map(|bytes| {
                let words = bytes.next_multiple_of(16) as usize / 4;
                let (own, later) = rest.split_at(words.min(rest.len()));
                rest = later;
                own
            });
            self.walker.buffers.take_words(*id, n * buffer.rows, buffer.width, both)?;
        }
        Ok(())
    }
}
