//! Commands, and doing them.

use crate::compute;
use crate::driver::{is_lost, lock, lose};
use crate::event::Event;
use crate::kernel::Launch;
use gantry_cpu_device::Queue;
use std::sync::Arc;
use std::sync::LazyLock;
use std::time::Instant;

/// What a command list holds. Addresses were looked up when it was given.
pub(crate) enum Command {
    Launch(Launch),
    Copy {
        to: usize,
        from: usize,
        bytes: usize,
    },
    Fill {
        at: usize,
        value: u8,
        bytes: usize,
    },
    /// All before is done before anything after begins: so it is here anyway.
    Barrier,
    Signal(Arc<Event>),
    Reset(Arc<Event>),
    Wait(Vec<Arc<Event>>),
    /// The time in ns, to there.
    Timestamp(usize),
}

impl Command {
    /// Whether nothing else may go on beside it, in what this program gives to cards.
    pub(crate) fn is_work(&self) -> bool {
        matches!(self, Self::Launch(_) | Self::Copy { .. } | Self::Fill { .. } | Self::Timestamp(_))
    }

    /// Does it, on a card that is there; what goes wrong loses the card.
    pub(crate) fn run(&self, card: usize, queue: &mut Option<Queue>) {
        if is_lost(card) {
            return;
        }
        match self {
            Self::Launch(launch) => {
                if let Err(error) = compute::run(launch, card, queue) {
                    lock().wrong.extend(error);
                    lose(card);
                }
            }
            Self::Copy { to, from, bytes } => {
                let from = std::ptr::with_exposed_provenance::<u8>(*from);
                let to = std::ptr::with_exposed_provenance_mut::<u8>(*to);
                // SAFETY: both lie in allocations, which are not freed before this is done.
                unsafe { std::ptr::copy(from, to, *bytes) };
            }
            Self::Fill { at, value, bytes } => {
                let at = std::ptr::with_exposed_provenance_mut::<u8>(*at);
                // SAFETY: it lies in an allocation, which is not freed before this is done.
                unsafe { at.write_bytes(*value, *bytes) };
            }
            Self::Barrier => {}
            Self::Signal(event) => event.set(true),
            Self::Reset(event) => event.set(false),
            Self::Wait(events) => {
                if !events.iter().all(|event| event.wait(None)) {
                    lose(card);
                }
            }
            Self::Timestamp(to) => {
                static START: LazyLock<Instant> = LazyLock::new(Instant::now);
                // A clock of 36 bits, as the card says that it has.
                let now = START.elapsed().as_nanos() as u64 & ((1 << 36) - 1);
                // SAFETY: as above.
                unsafe { std::ptr::with_exposed_provenance_mut::<u64>(*to).write_unaligned(now) };
            }
        }
    }
}
