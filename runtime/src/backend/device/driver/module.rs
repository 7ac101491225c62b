//! Kernels: all that this program has for a card, and launches.
#![allow(unsafe_code, reason = "calls of the driver, each with its reason")]

use super::calls::{Arg, Handle, Launch};
use super::{CardError, Context, Stream};
use std::sync::Arc;

/// Compiled kernels on a card.
#[derive(Debug)]
pub(crate) struct Module {
    context: Arc<Context>,
    kernels: Handle,
}

impl Module {
    /// Loads the kernels that this program has for the card.
    ///
    /// # Errors
    /// [`CardError::NoKernels`] where it has none; what the driver says.
    pub(crate) fn new(context: &Arc<Context>) -> Result<Arc<Self>, CardError> {
        let kernels = context.card().kernels().map_err(|e| context.failed("loading kernels", e))?;
        let kernels = kernels.ok_or(CardError::NoKernels { at: context.info().at })?;
        Ok(Arc::new(Self { context: Arc::clone(context), kernels }))
    }

    /// The kernel called `name`.
    ///
    /// # Errors
    /// [`CardError::NoKernel`]; what the driver says.
    pub(crate) fn function(self: &Arc<Self>, name: &str) -> Result<Function, CardError> {
        let context = &self.context;
        // SAFETY: the kernels live as long as the function, which holds them.
        let found = unsafe { context.card().function(self.kernels, name) };
        let found = found.map_err(|e| context.failed(format!("looking for {name}"), e))?;
        let family = context.info().at.family;
        let found = found.ok_or_else(|| CardError::NoKernel { family, name: name.into() })?;
        let (function, group) = (found.function, found.group.max(1));
        Ok(Function { module: Arc::clone(self), function, group, shared: 0, name: name.into() })
    }
}

impl Drop for Module {
    fn drop(&mut self) {
        // SAFETY: loaded in `new`, given back once.
        unsafe { self.context.card().free_kernels(self.kernels) };
    }
}

/// A kernel.
#[derive(Clone, Debug)]
pub(crate) struct Function {
    module: Arc<Module>,
    function: Handle,
    group: u32,
    /// Bytes of shared memory that a group may have beside what the kernel declares.
    shared: u32,
    name: Arc<str>,
}

/// When a kernel may start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Start {
    /// When all that the stream had before is done.
    After,
    /// As soon as the kernel before it lets it (`BEGIN` in `kernels/device/portable.h`): what does not depend on that one
    /// is then under way already. On cards that cannot do so the same as `After`.
    Early,
}

impl Function {
    /// Threads of a group: as many as the kernel was compiled for.
    pub(crate) fn group(&self) -> u32 {
        self.group
    }

    /// Bytes of shared memory that a group may have beside what the kernel declares: none before [`Self::allow_shared`].
    pub(crate) fn shared(&self) -> u32 {
        self.shared
    }

    /// Lets launches ask for as much shared memory as a group may have on the card.
    ///
    /// # Errors
    /// What the driver says.
    pub(crate) fn allow_shared(&mut self) -> Result<(), CardError> {
        let context = &self.module.context;
        // SAFETY: the function is the module's, which lives.
        let shared = unsafe { context.card().allow_shared(self.function) };
        self.shared =
            shared.map_err(|e| context.failed(format!("allowing {} its shared memory", self.name), e))?;
        Ok(())
    }

    /// Gives the kernel to `stream`: `grid` groups of `group` threads, each with `shared` bytes of shared memory beside what the
    /// kernel declares.
    ///
    /// # Safety
    /// The arguments are those that the kernel declares, in order, and all that it does with the addresses among them
    /// stays within allocations that live until the stream is past it. With [`Start::Early`] it waits for what came
    /// before by itself.
    ///
    /// # Errors
    /// What the driver says; errors of the kernel itself come when the stream is waited for.
    pub(crate) unsafe fn launch(
        &self,
        stream: &Stream,
        grid: [u32; 3],
        (group, shared): (u32, u32),
        start: Start,
        args: &[Arg],
    ) -> Result<(), CardError> {
        if grid.contains(&0) {
            return Ok(());
        }
        let (function, early) = (self.function, start == Start::Early);
        let launch = Launch { function, grid, group, shared, early, args };
        let context = &self.module.context;
        // SAFETY: the function is the module's, which lives; the caller vouches for the arguments.
        unsafe { context.card().launch(stream.raw(), &launch) }
            .map_err(|e| context.failed(format!("launching {}", self.name), e))
    }
}
