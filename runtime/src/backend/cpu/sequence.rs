//! What the processor keeps of one sequence.

use super::recurrent::{ConvState, DeltaState};
use super::shapes;
use crate::backend::{KvType, Sequence, Settings};
use crate::model::program::{CacheShape, Kept, KeptId, Program};
use crate::{Result, RuntimeError};
use gantry_kernels::cpu::{KvCache, KvShape, Window};

/// One thing kept.
pub(super) enum State {
    Cache(KvCache, CacheShape),
    Conv(ConvState),
    Delta(DeltaState),
}

/// What a card sees of a sequence in a run: its tokens, and of what is kept of it that which this card keeps.
pub(super) struct Lent<'s> {
    /// Every token, by position.
    pub(super) tokens: &'s [u32],
    /// By `KeptId`; none: on another card.
    pub(super) states: Vec<Option<&'s mut State>>,
}

impl Lent<'_> {
    pub(super) fn state(&self, id: KeptId) -> Result<&State> {
        self.states.get(id.0).and_then(Option::as_deref).ok_or_else(|| elsewhere(id))
    }

    pub(super) fn state_mut(&mut self, id: KeptId) -> Result<&mut State> {
        self.states.get_mut(id.0).and_then(Option::as_deref_mut).ok_or_else(|| elsewhere(id))
    }
}

fn elsewhere(id: KeptId) -> RuntimeError {
    let what = format!("what is kept as {} is not on the card of a step that reads it", id.0);
    RuntimeError::Tensor { tensor: "program".into(), what }
}

/// A sequence on this device.
pub(super) struct CpuSequence {
    /// Every token, by position.
    pub(super) tokens: Vec<u32>,
    /// By `KeptId`.
    pub(super) states: Vec<State>,
    /// The trunk's streams of the last token, where the block that drafts goes on from them.
    pub(super) carry: Vec<f32>,
    kept: Vec<Kept>,
    settings: Settings,
}

impl CpuSequence {
    pub(super) fn new(program: &Program, settings: &Settings) -> Result<Self> {
        Self::of(&program.kept, settings)
    }

    /// What each of some cards sees of it; `cards` has the card of each state.
    pub(super) fn lend(&mut self, cards: &[usize], count: usize) -> Vec<Lent<'_>> {
        let tokens = &self.tokens[..];
        let none = |_| (0..self.kept.len()).map(|_| None).collect();
        let mut lent: Vec<Lent<'_>> = (0..count).map(|card| Lent { tokens, states: none(card) }).collect();
        for (id, state) in self.states.iter_mut().enumerate() {
            let card = cards.get(id).copied().unwrap_or(0);
            lent[card].states[id] = Some(state);
        }
        lent
    }

    /// An empty sequence like `other`.
    pub(super) fn like(other: &Self) -> Result<Self> {
        Self::of(&other.kept, &other.settings)
    }

    fn of(kept: &[Kept], settings: &Settings) -> Result<Self> {
        let mut states = Vec::with_capacity(kept.len());
        for kept in kept {
            can_have(kept_bytes(kept, settings))?;
            states.push(match *kept {
                Kept::Cache(shape) => State::Cache(cache(shape, settings), shape),
                Kept::Conv(shape) => State::Conv(ConvState::new(shapes::conv(shape), settings.window)),
                Kept::Delta(shape) => State::Delta(DeltaState::new(shapes::delta(shape), settings.window)),
            });
        }
        let (kept, settings) = (kept.to_vec(), *settings);
        Ok(Self { tokens: Vec::new(), states, carry: Vec::new(), kept, settings })
    }

    /// Positions that it has room for.
    pub(super) fn context(&self) -> usize {
        self.settings.context
    }

    /// Whether what is kept is enough to go on at `position`.
    pub(super) fn goes_on(&self, position: usize) -> bool {
        let reaches = |state: &State| match state {
            State::Cache(..) => true,
            State::Conv(state) => state.reaches(position),
            State::Delta(state) => state.reaches(position),
        };
        self.remembers(position) && self.states.iter().all(reaches)
    }

    /// Whether everything before `position` is still known.
    fn remembers(&self, position: usize) -> bool {
        self.states.iter().all(|state| match state {
            State::Cache(cache, shape) => {
                shape.window.is_none_or(|w| cache.first() <= (position + 1).saturating_sub(w))
            }
            State::Conv(state) => state.remembers(position),
            State::Delta(state) => state.remembers(position),
        })
    }
}

impl Sequence for CpuSequence {
    fn tokens(&self) -> &[u32] {
        &self.tokens
    }

    fn rewind(&mut self, position: usize) -> usize {
        if position >= self.tokens.len() {
            return self.tokens.len();
        }
        let position = if self.remembers(position) { position } else { 0 };
        if position == 0 {
            for state in &mut self.states {
                match state {
                    // A write at 0 begins a cache anew.
                    State::Cache(..) => {}
                    State::Conv(state) => state.clear(),
                    State::Delta(state) => state.clear(),
                }
            }
        }
        self.tokens.truncate(position);
        self.carry.clear();
        position
    }

    fn save(&self, out: &mut Vec<u8>) -> Result<()> {
        super::saved::save(self, out);
        Ok(())
    }

    fn restore(&mut self, saved: &[u8]) -> Result<()> {
        super::saved::restore(self, saved)
    }
}

/// An empty cache.
fn cache(shape: CacheShape, settings: &Settings) -> KvCache {
    let kind = match settings.kv {
        KvType::F16 if !shape.exact => gantry_kernels::cpu::KvType::F16,
        KvType::Int8 if !shape.exact => gantry_kernels::cpu::KvType::Int8,
        _ => gantry_kernels::cpu::KvType::F32,
    };
    let CacheShape { heads, key_len, value_len, shared, window, .. } = shape;
    let window = window.map(|w| kept_window(w, settings));
    let each = KvShape { heads, key_len, value_len, shared };
    KvCache::new(kind, each, positions(shape, settings), window)
}

/// What a cache of `window` positions keeps so that as many tokens can be taken back as a session may.
fn kept_window(window: usize, settings: &Settings) -> Window {
    Window { keep: window.saturating_add(settings.window), batch: settings.batch.max(settings.window) }
}

/// Positions that a cache has room for.
pub(super) fn positions(shape: CacheShape, settings: &Settings) -> usize {
    (settings.context / shape.ratio).max(1)
}

/// Bytes of something kept, at most.
pub(super) fn kept_bytes(kept: &Kept, settings: &Settings) -> usize {
    match *kept {
        Kept::Cache(shape) => {
            let kind = if shape.exact { KvType::F32 } else { settings.kv };
            let row = kind.bytes(shape.values() as u64, shape.rows() as u64);
            let rows = match shape.window {
                Some(w) => {
                    let Window { keep, batch } = kept_window(w, settings);
                    keep.saturating_mul(2).saturating_add(batch).min(positions(shape, settings))
                }
                None => positions(shape, settings),
            };
            usize::try_from(row).unwrap_or(usize::MAX).saturating_mul(rows)
        }
        Kept::Conv(shape) => ConvState::bytes(shapes::conv(shape), settings.window),
        Kept::Delta(shape) => DeltaState::bytes(shapes::delta(shape), settings.window),
    }
}

/// An allocation that fails inside a collection ends the process; one that is tried first is an error. It is tried
/// with a mapping of its own: memory that went through the heap would come back from it not known to be zero, and
/// zeroing it would make the whole cache resident before a token is in it.
fn can_have(bytes: usize) -> Result<()> {
    let tried = memmap2::MmapOptions::new().len(bytes.max(1)).map_anon();
    tried.map(drop).map_err(|source| RuntimeError::Allocation {
        what: "what a sequence keeps",
        bytes: bytes as u64,
        source,
    })
}
