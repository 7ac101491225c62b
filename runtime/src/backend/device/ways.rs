//! Memory of the ways from card to card: where words and flags of [`crate::exchange`] are.

use super::driver::{CardError, Context, DeviceMemory, SharedWords, Stream};
use super::loaded::{Loaded, wrong};
use crate::RuntimeError;
use crate::model::program::{BufferId, CardPrograms, Program, Step};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

/// Bytes of a slot of a message.
pub(super) const SLOT: u64 = 16_384;
/// Bytes of the end of a slot.
pub(super) const END: u64 = 64;
/// Words in an end: the last epoch of the card that it belongs to, and the first word of its note.
pub(super) const COUNT: usize = 8;
pub(super) const NOTE: usize = 9;
/// Stretches that a launch takes.
pub(super) const STRETCHES: usize = 6;
/// Beginnings of stretches are multiples of this.
pub(super) const ALIGN: u64 = 16;

const WHAT: &str = "what cards give each other";

/// A way from one card to another.
pub(super) type Way = (usize, usize);

/// What links of a program take, for some tokens.
pub(super) struct Sizes {
    /// Bytes of each launch of a message, by way.
    pub(super) mail: BTreeMap<Way, Vec<u64>>,
    /// Rows and bytes by way.
    pub(super) boards: BTreeMap<Way, (u64, u64)>,
}

impl Sizes {
    pub(super) fn of(program: &Program, cards: &CardPrograms, tokens: usize) -> Self {
        let mut sizes = Self { mail: BTreeMap::new(), boards: BTreeMap::new() };
        for (card, step) in cards.lists().flat_map(|(card, steps)| steps.iter().map(move |s| (card, s))) {
            match step {
                Step::Send { to, buffers, .. } => {
                    let launches = sizes.mail.entry((card, *to)).or_default();
                    let lengths = lengths(program, buffers, tokens);
                    for (i, chunk) in lengths.chunks(STRETCHES).enumerate() {
                        let bytes =
                            chunk.iter().fold(0, |n, m| u64::saturating_add(n, *m)).next_multiple_of(SLOT);
                        match launches.get_mut(i) {
                            Some(most) => *most = bytes.max(*most),
                            None => launches.push(bytes),
                        }
                    }
                }
                Step::Return { to, y, .. } => {
                    let (rows, bytes) = sizes.boards.entry((card, *to)).or_default();
                    let y = &program.buffers[y.0];
                    let all = (y.rows as u64).saturating_mul(tokens as u64);
                    *rows = all.max(*rows);
                    *bytes = all.saturating_mul(y.width as u64).saturating_mul(4).max(*bytes);
                }
                _ => {}
            }
        }
        sizes
    }
}

/// Bytes on each card of what links take for runs of `tokens` tokens.
pub(super) fn bytes(program: &Program, cards: &CardPrograms, tokens: usize) -> Vec<u64> {
    let mut bytes = vec![0u64; cards.body.lists.len()];
    let mut add = |card: usize, more: u64| {
        if let Some(sum) = bytes.get_mut(card) {
            *sum = sum.saturating_add(more);
        }
    };
    let Sizes { mail, boards } = Sizes::of(program, cards, tokens);
    for ((from, to), launches) in mail {
        let words = launches.iter().fold(0, |n, m| u64::saturating_add(n, *m));
        let ends = words / SLOT * END;
        add(from, ends);
        add(to, ends.saturating_add(words));
    }
    for ((from, to), (rows, words)) in boards {
        let ends = rows.saturating_mul(END);
        add(from, ends);
        add(to, ends.saturating_add(words));
    }
    bytes
}

/// Bytes of the stretches of buffers that a message of `n` tokens has.
pub(super) fn lengths(program: &Program, ids: &[BufferId], n: usize) -> Vec<u64> {
    let of = |id: &BufferId| program.buffers[id.0].bytes(n);
    ids.iter().flat_map(of).filter(|bytes| *bytes > 0).map(|bytes| bytes.next_multiple_of(ALIGN)).collect()
}

/// Memory of one end of a way.
pub(super) enum Room {
    /// A card's.
    Card(DeviceMemory),
    /// The host's, which the card at the other end reaches too.
    Host(SharedWords),
}

impl Room {
    fn new(context: &Arc<Context>, host: bool, bytes: u64) -> Result<Self, CardError> {
        Ok(match host {
            false => Self::Card(DeviceMemory::exchanged(context, bytes, WHAT)?),
            true => {
                let words = usize::try_from(bytes.div_ceil(4)).unwrap_or(usize::MAX);
                Self::Host(SharedWords::new(context, words, WHAT)?)
            }
        })
    }

    pub(super) fn address(&self) -> u64 {
        match self {
            Self::Card(memory) => memory.address(),
            Self::Host(words) => words.address(),
        }
    }

    /// Words of the host's memory; none of a card's.
    pub(super) fn words(&self) -> &[AtomicU32] {
        match self {
            Self::Card(_) => &[],
            Self::Host(words) => words.words(),
        }
    }

    /// Sets all bytes to `value`, where it is a card's in the order of `stream`.
    pub(super) fn fill(&self, value: u8, stream: Option<&Stream>) -> Result<(), CardError> {
        match (self, stream) {
            (Self::Card(memory), Some(stream)) => memory.fill(0..memory.bytes(), value, stream),
            (Self::Card(_), None) => Ok(()),
            (Self::Host(words), _) => {
                words.fill(u32::from_ne_bytes([value; 4]));
                Ok(())
            }
        }
    }

    /// All words.
    pub(super) fn read(&self, stream: &Stream) -> Result<Vec<u32>, CardError> {
        match self {
            Self::Card(memory) => {
                let mut bytes = vec![0; memory.bytes() as usize];
                memory.read(0, &mut bytes, stream)?;
                Ok(bytes.as_chunks().0.iter().map(|b| u32::from_le_bytes(*b)).collect())
            }
            Self::Host(words) => Ok(words.words().iter().map(|w| w.load(Ordering::Acquire)).collect()),
        }
    }
}

/// A way's memory.
pub(super) struct Link {
    /// At the card that reads.
    pub(super) words: Room,
    /// At the card that writes, and at the one that reads.
    pub(super) ends: [Room; 2],
    /// First slot of each launch of a message.
    pub(super) launches: Vec<u64>,
}

impl Link {
    /// Between two cards, of which one may be the host's: then all of it is in the host's memory.
    pub(super) fn new(
        [from, to]: [Option<&Loaded>; 2],
        (slots, words): (u64, u64),
        launches: Vec<u64>,
    ) -> Result<Self, RuntimeError> {
        let any = from.or(to).ok_or_else(|| wrong("program", "a way without a card".into()))?;
        let host = from.is_none() || to.is_none();
        let room = |card: Option<&Loaded>, bytes| Room::new(&card.unwrap_or(any).context, host, bytes);
        let ends = slots.saturating_mul(END);
        Ok(Self { words: room(to, words)?, ends: [room(from, ends)?, room(to, ends)?], launches })
    }
}
