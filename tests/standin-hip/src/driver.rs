//! What there is, and what every call has in common.

use crate::code::{Code, INVALID_HANDLE, INVALID_VALUE, NOT_INITIALIZED};
use crate::event::Event;
use crate::graph::Graph;
use crate::memory::Allocation;
use crate::module::{Function, Module};
use crate::settings::settings;
use crate::stream::Stream;
use crate::work::Work;
use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError};

/// Everything that there is. Handles are numbers that are never used again.
#[derive(Default)]
pub(crate) struct Driver {
    pub(crate) started: bool,
    /// Cards with those whose memory they reach.
    pub(crate) peers: BTreeSet<(usize, usize)>,
    /// By first address.
    pub(crate) allocations: BTreeMap<usize, Allocation>,
    /// Pinned pages of mappings: by first address their end and their card.
    pub(crate) registered: BTreeMap<usize, (usize, usize)>,
    pub(crate) streams: BTreeMap<usize, Arc<Stream>>,
    pub(crate) events: BTreeMap<usize, Arc<Event>>,
    pub(crate) modules: BTreeMap<usize, Module>,
    pub(crate) functions: BTreeMap<usize, Arc<Function>>,
    /// By stream that is recorded, what it was given.
    pub(crate) recorded: BTreeMap<usize, Vec<Work>>,
    pub(crate) graphs: BTreeMap<usize, Graph>,
    pub(crate) executables: BTreeMap<usize, Graph>,
    handles: usize,
    /// How often each function was called.
    pub(crate) calls: BTreeMap<&'static str, u64>,
    /// Bytes of each allocation that was ever made on a card.
    pub(crate) allocated: Vec<usize>,
    /// What callers did wrongly.
    pub(crate) wrong: Vec<String>,
    /// Whether the bit that is to change has changed.
    pub(crate) flipped: bool,
}

static DRIVER: LazyLock<Mutex<Driver>> = LazyLock::new(Mutex::default);

thread_local! {
    /// The card of this thread. HIP takes the first where none was chosen; here that is a mistake.
    pub(crate) static CURRENT: Cell<Option<usize>> = const { Cell::new(None) };
}

/// The driver, for this thread alone. Nobody waits for anything while he has it.
pub(crate) fn lock() -> MutexGuard<'static, Driver> {
    DRIVER.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A call of `function`: counted, and failed instead where the environment asks for it.
pub(crate) fn call(function: &'static str, work: impl FnOnce(&mut Driver) -> Result<(), Code>) -> i32 {
    call_then(function, work, |()| Ok(()))
}

/// The same for what takes time: `then` is done without the driver.
pub(crate) fn call_then<T>(
    function: &'static str,
    work: impl FnOnce(&mut Driver) -> Result<T, Code>,
    then: impl FnOnce(T) -> Result<(), Code>,
) -> i32 {
    let mut driver = lock();
    let asked = driver.count(function);
    let done = asked.and_then(|()| work(&mut driver));
    drop(driver);
    status(done.and_then(then))
}

/// [`call`] for functions that free, which do so even where they fail. Before it, what `idle` gives is waited for.
pub(crate) fn call_to_free(
    function: &'static str,
    idle: impl FnOnce(&Driver) -> Vec<Arc<Stream>>,
    work: impl FnOnce(&mut Driver) -> Result<(), Code>,
) -> i32 {
    let asked = {
        let mut driver = lock();
        let asked = driver.count(function);
        let streams = idle(&driver);
        drop(driver);
        streams.iter().for_each(|stream| stream.rest());
        asked
    };
    let mut driver = lock();
    let done = work(&mut driver);
    if let Err(code) = done {
        let name = code.name().unwrap_or_default().to_string_lossy();
        driver.wrong.push(format!("{function}: {name}"));
    }
    status(done.and(asked))
}

fn status(result: Result<(), Code>) -> i32 {
    result.map_or_else(|code| code.0, |()| 0)
}

/// Writes what a caller asked for.
///
/// # Safety
/// `to` is null or may be written.
pub(crate) unsafe fn give<T>(to: *mut T, value: T) -> Result<(), Code> {
    if to.is_null() {
        return Err(INVALID_VALUE);
    }
    // SAFETY: the caller's promise.
    unsafe { to.write(value) };
    Ok(())
}

impl Driver {
    pub(crate) fn count(&mut self, function: &'static str) -> Result<(), Code> {
        let calls = self.calls.entry(function).or_default();
        *calls += 1;
        let fail = settings().fail.as_ref();
        match fail.filter(|fail| fail.function == function && fail.turn == *calls) {
            Some(fail) => Err(fail.code),
            None => Ok(()),
        }
    }

    /// A new handle, which is never null.
    pub(crate) fn handle(&mut self) -> usize {
        self.handles += 1;
        self.handles << 8
    }

    /// The card of this thread.
    pub(crate) fn current(&mut self) -> Result<usize, Code> {
        if !self.started {
            return Err(NOT_INITIALIZED);
        }
        let card = CURRENT.get();
        if card.is_none() {
            self.wrong.push("a call before hipSetDevice".into());
        }
        card.ok_or(INVALID_VALUE)
    }

    /// The stream, which must be of the current card.
    pub(crate) fn stream(&mut self, stream: usize) -> Result<Arc<Stream>, Code> {
        let card = self.current()?;
        let found = self.streams.get(&stream).filter(|of| of.card == card);
        found.cloned().ok_or(INVALID_HANDLE)
    }

    /// Gives work to a stream of the current card, or records it.
    pub(crate) fn give_work(&mut self, stream: usize, work: Work) -> Result<(), Code> {
        let of = self.stream(stream)?;
        match self.recorded.get_mut(&stream) {
            Some(recorded) => recorded.push(work),
            None => of.give(self, work),
        }
        Ok(())
    }
}
