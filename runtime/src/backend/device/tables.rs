//! Small tables for kernels: many in one piece of a card's memory.

use super::driver::{CardError, Context, DeviceMemory, Staged, Stream};
use std::sync::Arc;

/// Beginnings of tables are multiples of this.
const ALIGN: usize = 256;

/// Tables that are being put together.
#[derive(Default)]
pub(super) struct Tables {
    bytes: Vec<u8>,
}

/// A table by its first byte among all.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct TableId(usize);

impl Tables {
    pub(super) fn add(&mut self, bytes: impl IntoIterator<Item = u8>) -> TableId {
        self.bytes.resize(self.bytes.len().next_multiple_of(ALIGN), 0);
        let id = TableId(self.bytes.len());
        self.bytes.extend(bytes);
        id
    }

    pub(super) fn floats(&mut self, values: impl IntoIterator<Item = f32>) -> TableId {
        self.add(values.into_iter().flat_map(f32::to_le_bytes))
    }

    pub(super) fn ints(&mut self, values: impl IntoIterator<Item = u32>) -> TableId {
        self.add(values.into_iter().flat_map(u32::to_le_bytes))
    }

    pub(super) fn longs(&mut self, values: impl IntoIterator<Item = u64>) -> TableId {
        self.add(values.into_iter().flat_map(u64::to_le_bytes))
    }

    pub(super) fn clear(&mut self) {
        self.bytes.clear();
    }
}

/// Tables on a card.
pub(super) struct Placed {
    memory: DeviceMemory,
    /// Others on their way, where they are replaced.
    staged: Option<Staged>,
}

impl Placed {
    /// Tables that stay as they are.
    pub(super) fn new(tables: &Tables, context: &Arc<Context>, stream: &Stream) -> Result<Self, CardError> {
        let memory = DeviceMemory::new(context, tables.bytes.len() as u64, "tables of a model")?;
        memory.write(0, &tables.bytes, stream)?;
        Ok(Self { memory, staged: None })
    }

    /// Other tables in the place of these.
    pub(super) fn replace(&mut self, tables: &Tables, stream: &Stream) -> Result<(), CardError> {
        if tables.bytes.len() as u64 > self.memory.bytes() {
            // What was given to the stream may still read them.
            stream.synchronize()?;
            let context = Arc::clone(self.memory.context());
            let bytes = tables.bytes.len().next_power_of_two() as u64;
            self.memory = DeviceMemory::new(&context, bytes, "tables of a batch")?;
        }
        let staged = match &mut self.staged {
            Some(staged) => staged,
            none => none.insert(Staged::new(self.memory.context(), "tables of a batch")?),
        };
        staged.write(&self.memory, 0, &tables.bytes, stream)
    }

    pub(super) fn at(&self, id: TableId) -> u64 {
        self.memory.address() + id.0 as u64
    }
}
