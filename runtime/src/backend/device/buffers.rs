//! The buffers of a program on a card.

use super::driver::{CardError, Context, DeviceMemory, Staged, Stream};
use crate::model::program::{Buffer, BufferId};
use std::sync::Arc;

/// Beginnings of buffers are multiples of this.
const ALIGN: u64 = 256;

/// All of them, for batches of some tokens.
pub(super) struct Buffers {
    memory: DeviceMemory,
    /// By [`BufferId`]: values or quants, and scales.
    places: Vec<[u64; 2]>,
}

/// Bytes of all of `buffers` for batches of `tokens`.
pub(super) fn bytes(buffers: &[Buffer], tokens: usize) -> u64 {
    let of = |b: &Buffer| b.bytes(tokens).map(|n| n.next_multiple_of(ALIGN));
    buffers.iter().flat_map(of).fold(0, u64::saturating_add)
}

impl Buffers {
    pub(super) fn new(context: &Arc<Context>, buffers: &[Buffer], tokens: usize) -> Result<Self, CardError> {
        let memory = DeviceMemory::new(context, bytes(buffers, tokens), "working memory")?;
        let mut next = memory.address();
        let mut take = |bytes: u64| {
            let at = next;
            next += bytes.next_multiple_of(ALIGN);
            at
        };
        let places = buffers.iter().map(|b| b.bytes(tokens).map(&mut take)).collect();
        Ok(Self { memory, places })
    }

    /// Where a buffer's values or quants are.
    pub(super) fn at(&self, id: BufferId) -> u64 {
        self.places[id.0][0]
    }

    /// Where its scales are.
    pub(super) fn scales(&self, id: BufferId) -> u64 {
        self.places[id.0][1]
    }

    /// Copies bytes of a buffer's values here.
    pub(super) fn read(
        &self,
        id: BufferId,
        first: usize,
        into: &mut [u8],
        stream: &Stream,
    ) -> Result<(), CardError> {
        let at = self.at(id) - self.memory.address() + first as u64;
        self.memory.read(at, into, stream)
    }

    /// Copies bytes there, by way of `staged`.
    pub(super) fn write(
        &self,
        id: BufferId,
        from: &[u8],
        (staged, stream): (&mut Staged, &Stream),
    ) -> Result<(), CardError> {
        staged.write(&self.memory, self.at(id) - self.memory.address(), from, stream)
    }
}
