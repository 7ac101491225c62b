//! The driver's state, and what every call has in common.

use crate::code::{Code, INVALID_CONTEXT, INVALID_HANDLE, INVALID_VALUE, NOT_INITIALIZED};
use crate::graph::{Graph, Recording};
use crate::settings::Settings;
use std::alloc::Layout;
use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{LazyLock, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

/// Everything that there is. Handles are numbers that are never used again.
pub(crate) struct Driver {
    pub(crate) settings: Settings,
    pub(crate) started: bool,
    /// By card, how often its context is retained.
    pub(crate) retained: Vec<usize>,
    /// Cards with those whose memory they reach.
    pub(crate) peers: BTreeSet<(usize, usize)>,
    /// By first address.
    pub(crate) allocations: BTreeMap<usize, Allocation>,
    /// Pinned pages of mappings: by first address their end and their card.
    pub(crate) registered: BTreeMap<usize, (usize, usize)>,
    /// By handle, the card.
    pub(crate) streams: BTreeMap<usize, usize>,
    pub(crate) events: BTreeMap<usize, Event>,
    /// By handle, the card.
    pub(crate) modules: BTreeMap<usize, usize>,
    pub(crate) functions: BTreeMap<usize, Function>,
    /// By stream that is recorded, what it was given.
    pub(crate) recorded: BTreeMap<usize, Recording>,
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

pub(crate) struct Allocation {
    pub(crate) layout: Layout,
    pub(crate) bytes: usize,
    pub(crate) card: usize,
    /// Whether it is pinned memory of the host.
    pub(crate) host: bool,
}

pub(crate) struct Event {
    pub(crate) card: usize,
    pub(crate) timed: bool,
    pub(crate) recorded: Option<Instant>,
}

pub(crate) struct Function {
    pub(crate) module: usize,
    pub(crate) name: String,
}

static DRIVER: LazyLock<Mutex<Driver>> = LazyLock::new(|| Mutex::new(Driver::new(Settings::read())));

thread_local! {
    /// The card whose context is current on this thread.
    pub(crate) static CURRENT: Cell<Option<usize>> = const { Cell::new(None) };
}

/// The driver, for this thread alone.
pub(crate) fn lock() -> MutexGuard<'static, Driver> {
    DRIVER.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A call of `function`: counted, and failed instead where the environment asks for it.
pub(crate) fn call(function: &'static str, work: impl FnOnce(&mut Driver) -> Result<(), Code>) -> i32 {
    let mut driver = lock();
    let asked = driver.count(function);
    status(asked.and_then(|()| work(&mut driver)))
}

/// [`call`] for functions that free, which do so even where they fail.
pub(crate) fn call_to_free(
    function: &'static str,
    work: impl FnOnce(&mut Driver) -> Result<(), Code>,
) -> i32 {
    let mut driver = lock();
    let asked = driver.count(function);
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
    fn new(settings: Settings) -> Self {
        Self {
            started: false,
            retained: vec![0; settings.cards],
            peers: BTreeSet::new(),
            allocations: BTreeMap::new(),
            registered: BTreeMap::new(),
            streams: BTreeMap::new(),
            events: BTreeMap::new(),
            modules: BTreeMap::new(),
            functions: BTreeMap::new(),
            recorded: BTreeMap::new(),
            graphs: BTreeMap::new(),
            executables: BTreeMap::new(),
            handles: 0,
            calls: BTreeMap::new(),
            allocated: Vec::new(),
            wrong: Vec::new(),
            flipped: false,
            settings,
        }
    }

    fn count(&mut self, function: &'static str) -> Result<(), Code> {
        let calls = self.calls.entry(function).or_default();
        *calls += 1;
        let fail = self.settings.fail.as_ref();
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

    /// The card whose context is current.
    pub(crate) fn current(&self) -> Result<usize, Code> {
        if !self.started {
            return Err(NOT_INITIALIZED);
        }
        let card = CURRENT.get().ok_or(INVALID_CONTEXT)?;
        // One that was released meanwhile is as good as none.
        if self.retained[card] == 0 { Err(INVALID_CONTEXT) } else { Ok(card) }
    }

    /// The current card, whose stream this must be.
    pub(crate) fn card_of_stream(&self, stream: usize) -> Result<usize, Code> {
        let card = self.current()?;
        match self.streams.get(&stream) {
            Some(of) if *of == card => Ok(card),
            _ => Err(INVALID_HANDLE),
        }
    }

    /// Whether `len` bytes from `address` on lie in one allocation of pinned memory.
    pub(crate) fn holds_pinned(&self, address: usize, len: usize) -> bool {
        let found = self.allocations.range(..=address).next_back();
        found.is_some_and(|(start, of)| {
            of.host && address.checked_add(len).is_some_and(|end| end <= start + of.bytes)
        })
    }

    /// Whether `len` bytes from `address` on lie in one allocation of a card.
    pub(crate) fn holds(&self, card: usize, address: usize, len: usize) -> bool {
        let found = self.allocations.range(..=address).next_back();
        found.is_some_and(|(start, of)| {
            !of.host && of.card == card && address.checked_add(len).is_some_and(|end| end <= start + of.bytes)
        })
    }
}
