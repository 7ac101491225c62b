//! The kernels of a card, by name.

use super::driver::{Arg, Context, CudaError, Function, Module, Start, Stream};
use gantry_kernels::cuda::{FATBIN, room};
use std::collections::HashMap;
use std::sync::{Arc, PoisonError, RwLock};

/// The kernels of a card.
pub(super) struct Kernels {
    module: Arc<Module>,
    /// Those that were used.
    found: RwLock<HashMap<&'static str, Function>>,
}

impl Kernels {
    pub(super) fn new(context: &Arc<Context>) -> Result<Self, CudaError> {
        Ok(Self { module: Module::new(context, FATBIN)?, found: RwLock::default() })
    }

    fn function(&self, name: &'static str) -> Result<Function, CudaError> {
        let known = self.found.read().unwrap_or_else(PoisonError::into_inner).get(name).cloned();
        if let Some(function) = known {
            return Ok(function);
        }
        let function = self.module.function(name, room(name))?;
        self.found.write().unwrap_or_else(PoisonError::into_inner).insert(name, function.clone());
        Ok(function)
    }

    /// Gives a kernel to a stream: groups of `threads`, or of as many as it was compiled for.
    ///
    /// # Safety
    /// As [`Function::launch`]; all kernels begin with `BEGIN`.
    #[allow(unsafe_code, reason = "hands the caller's promise on")]
    pub(super) unsafe fn launch(
        &self,
        stream: &Stream,
        name: &'static str,
        grid: [usize; 3],
        threads: Option<usize>,
        args: &Args,
    ) -> Result<(), CudaError> {
        let function = self.function(name)?;
        let all = function.group();
        let group = threads.and_then(|n| u32::try_from(n).ok()).map_or(all, |n| n.min(all));
        // Sizes of buffers are below 2^31, so that counts of groups fit.
        let grid = grid.map(|n| u32::try_from(n).unwrap_or(u32::MAX));
        // SAFETY: the caller's promise.
        unsafe { function.launch(stream, grid, group, Start::Early, &args.0) }
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

/// Groups of `size` for `n` things.
pub(super) fn groups(n: usize, size: usize) -> usize {
    n.div_ceil(size)
}
