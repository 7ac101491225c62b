//! What a stream does.

use crate::code::Code;
use crate::driver::Driver;
use crate::event::Event;
use crate::launch::Launch;
use std::sync::Arc;

#[derive(Clone)]
pub(crate) enum Work {
    /// Between a card's memory and pinned memory of the host.
    Copy {
        to: usize,
        from: usize,
        bytes: usize,
    },
    /// From what was not pinned.
    Write {
        to: usize,
        from: Arc<[u8]>,
    },
    Fill {
        to: usize,
        value: u8,
        bytes: usize,
    },
    Launch(Arc<Launch>),
    Graph(Arc<[Work]>),
    Record {
        event: Arc<Event>,
        turn: u64,
    },
    Wait {
        event: Arc<Event>,
        turn: u64,
    },
}

impl Work {
    /// Does it; where something `failed` before, only what others may wait for.
    pub(crate) fn run(&self, card: usize, failed: bool) -> Result<(), Code> {
        match self {
            Self::Record { event, turn } => event.come(*turn),
            Self::Wait { event, turn } => event.wait(*turn),
            _ if failed => {}
            Self::Launch(launch) => return launch.run(card),
            Self::Graph(all) => return all.iter().try_for_each(|work| work.run(card, false)),
            _ => self.move_bytes(),
        }
        Ok(())
    }

    fn move_bytes(&self) {
        match self {
            Self::Copy { to, from, bytes } => {
                let from = std::ptr::with_exposed_provenance::<u8>(*from);
                let to = std::ptr::with_exposed_provenance_mut::<u8>(*to);
                // SAFETY: both lay in allocations when this was given, whose owners keep them until the stream is past it;
                // one is a card's, which the host does not know, so that they do not overlap.
                unsafe { std::ptr::copy_nonoverlapping(from, to, *bytes) };
            }
            Self::Write { to, from } => {
                let to = std::ptr::with_exposed_provenance_mut::<u8>(*to);
                // SAFETY: as above.
                unsafe { std::ptr::copy_nonoverlapping(from.as_ptr(), to, from.len()) };
            }
            Self::Fill { to, value, bytes } => {
                let to = std::ptr::with_exposed_provenance_mut::<u8>(*to);
                // SAFETY: as above.
                unsafe { to.write_bytes(*value, *bytes) };
            }
            _ => {}
        }
    }

    /// Whether it waits for nothing and computes nothing, where kernels do nothing.
    pub(crate) fn is_quick(&self) -> bool {
        match self {
            Self::Wait { .. } => false,
            Self::Launch(launch) => !launch.is_computed(),
            Self::Graph(all) => all.iter().all(Self::is_quick),
            _ => true,
        }
    }

    /// Does what is quick.
    pub(crate) fn run_quickly(&self, _alone: &mut Driver) {
        match self {
            Self::Record { event, turn } => event.come(*turn),
            Self::Graph(all) => all.iter().for_each(Self::move_bytes),
            _ => self.move_bytes(),
        }
    }
}
