//! The kernels of a card, by name.

use super::driver::{Arg, CardError, Context, Family, Function, Module, Start, Stream, TensorMap};
use gantry_kernels::room::room;
use std::collections::HashMap;
use std::sync::{Arc, PoisonError, RwLock};

/// What a group of a launch has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Group {
    /// Threads, where they are fewer than the kernel was compiled for.
    pub(super) threads: Option<usize>,
    /// Bytes of shared memory beside what the kernel declares.
    pub(super) shared: usize,
}

impl Group {
    /// A group of so many threads.
    pub(super) fn of(threads: usize) -> Self {
        Self { threads: Some(threads), shared: 0 }
    }
}

/// The kernels of a card.
pub(super) struct Kernels {
    module: Arc<Module>,
    family: Family,
    /// Those that were used, and bytes of shared memory that all launches of one have beside what it declares.
    found: RwLock<HashMap<&'static str, (Function, u32)>>,
}

impl Kernels {
    pub(super) fn new(context: &Arc<Context>) -> Result<Self, CardError> {
        let family = context.info().at.family;
        Ok(Self { module: Module::new(context)?, family, found: RwLock::default() })
    }

    /// A kernel, of which all launches ask for shared memory or none does, and the bytes of it that all have.
    fn function(&self, name: &'static str, group: &Group) -> Result<(Function, u32), CardError> {
        let known = self.found.read().unwrap_or_else(PoisonError::into_inner).get(name).cloned();
        if let Some(known) = known {
            return Ok(known);
        }
        let mut function = self.module.function(name)?;
        let room = room(name);
        if group.shared > 0 || room.bytes > 0 {
            function.allow_shared()?;
        }
        let room = room.on(function.shared());
        let found = (function, room);
        self.found.write().unwrap_or_else(PoisonError::into_inner).insert(name, found.clone());
        Ok(found)
    }

    /// Gives a kernel to a stream.
    ///
    /// # Safety
    /// As [`Function::launch`]; all kernels begin with `BEGIN`.
    #[allow(unsafe_code, reason = "hands the caller's promise on")]
    pub(super) unsafe fn launch(
        &self,
        stream: &Stream,
        name: &'static str,
        grid: [usize; 3],
        group: Group,
        args: &Args,
    ) -> Result<(), CardError> {
        let (function, room) = self.function(name, &group)?;
        let all = function.group();
        // Kernels of other families take the group that they were compiled for.
        let fewer = group.threads.filter(|_| self.family == Family::Cuda);
        let threads = fewer.and_then(|n| u32::try_from(n).ok()).map_or(all, |n| n.min(all));
        // The driver refuses a launch with more than there is.
        let shared = u32::try_from(group.shared).unwrap_or(u32::MAX).max(room);
        // Sizes of buffers are below 2^31, so that counts of groups fit.
        let grid = grid.map(|n| u32::try_from(n).unwrap_or(u32::MAX));
        // SAFETY: the caller's promise.
        unsafe { function.launch(stream, grid, (threads, shared), Start::Early, &args.0) }
    }
}

/// Arguments, in the order in which kernels take them.
#[derive(Default)]
pub(super) struct Args(Vec<Arg>);

impl Args {
    /// Addresses on the card; 0 is null.
    pub(super) fn at(addresses: &[u64]) -> Self {
        Self(addresses.iter().map(|a| Arg::U64(*a)).collect())
    }

    /// 64-bit numbers.
    pub(super) fn long(mut self, numbers: &[usize]) -> Self {
        self.0.extend(numbers.iter().map(|n| Arg::U64(*n as u64)));
        self
    }

    /// 32-bit numbers.
    pub(super) fn int(mut self, numbers: &[usize]) -> Self {
        self.0.extend(numbers.iter().map(|n| Arg::U32(u32::try_from(*n).unwrap_or(u32::MAX))));
        self
    }

    /// Matrices that are copied by tiles.
    pub(super) fn maps(maps: &[TensorMap]) -> Self {
        Self(maps.iter().map(|map| Arg::Map(map.0)).collect())
    }

    /// Addresses on the card, after others.
    pub(super) fn and_at(mut self, addresses: &[u64]) -> Self {
        self.0.extend(addresses.iter().map(|a| Arg::U64(*a)));
        self
    }

    /// One of any kind.
    pub(super) fn with(mut self, arg: Arg) -> Self {
        self.0.push(arg);
        self
    }

    /// Floats.
    pub(super) fn float(mut self, number: f32) -> Self {
        self.0.push(Arg::F32(number));
        self
    }
}

/// Threads of a group for `n` things, where it may have fewer than its kernel names: whole warps.
pub(super) fn members(n: usize) -> usize {
    n.clamp(1, 1024).next_multiple_of(32)
}

/// Groups of `size` for `n` things.
pub(super) fn groups(n: usize, size: usize) -> usize {
    n.div_ceil(size)
}
