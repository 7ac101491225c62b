//! The driver's state, and what every call has in common.

use crate::event::Event;
use crate::kernel::Kernel;
use crate::list::List;
use crate::memory::Allocation;
use crate::module::Module;
use crate::settings::Settings;
use crate::worker::Worker;
use level_zero_sys::ze_result_t;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, LazyLock, Mutex, MutexGuard, PoisonError};

/// Why a call is refused: anything but success.
pub(crate) type Code = ze_result_t;

/// The driver's own handle; the devices' come after it, those of other things long after them.
pub(crate) const DRIVER: usize = 0x10;

/// Everything that there is. Handles are numbers that are never used again.
pub(crate) struct Driver {
    pub(crate) settings: Settings,
    pub(crate) started: bool,
    pub(crate) contexts: BTreeSet<usize>,
    /// By first address.
    pub(crate) allocations: BTreeMap<usize, Allocation>,
    pub(crate) queues: BTreeMap<usize, Arc<Worker>>,
    pub(crate) lists: BTreeMap<usize, Arc<List>>,
    /// With the events that were made in each, by index.
    pub(crate) pools: BTreeMap<usize, Pool>,
    pub(crate) events: BTreeMap<usize, Placed>,
    pub(crate) modules: BTreeMap<usize, Module>,
    /// What compilers said.
    pub(crate) logs: BTreeMap<usize, String>,
    pub(crate) kernels: BTreeMap<usize, Kernel>,
    handles: usize,
    /// How often each function was called.
    pub(crate) calls: BTreeMap<&'static str, u64>,
    /// Bytes of each allocation that was ever made on a card.
    pub(crate) allocated: Vec<usize>,
    /// What callers did wrongly.
    pub(crate) wrong: Vec<String>,
}

pub(crate) struct Pool {
    pub(crate) count: u32,
    pub(crate) taken: BTreeSet<u32>,
}

pub(crate) struct Placed {
    pub(crate) event: Arc<Event>,
    pub(crate) pool: usize,
    pub(crate) index: u32,
}

static STATE: LazyLock<Mutex<Driver>> = LazyLock::new(|| Mutex::new(Driver::new(Settings::read())));

/// Tells that work is done.
pub(crate) static DONE: Condvar = Condvar::new();

/// A bit for each card that is lost.
static LOST: AtomicU64 = AtomicU64::new(0);

/// The driver, for this thread alone.
pub(crate) fn lock() -> MutexGuard<'static, Driver> {
    STATE.lock().unwrap_or_else(PoisonError::into_inner)
}

pub(crate) fn lose(card: usize) {
    LOST.fetch_or(1 << card, Ordering::SeqCst);
}

pub(crate) fn is_lost(card: usize) -> bool {
    LOST.load(Ordering::SeqCst) >> card & 1 == 1
}

/// A call of `function`: counted, and failed instead where the environment asks for it.
pub(crate) fn call(
    function: &'static str,
    work: impl FnOnce(&mut Driver) -> Result<(), Code>,
) -> ze_result_t {
    let mut driver = lock();
    let asked = driver.count(function);
    status(asked.and_then(|()| work(&mut driver)))
}

/// [`call`] for functions that free, which do so even where they fail.
pub(crate) fn call_to_free(
    function: &'static str,
    work: impl FnOnce(&mut Driver) -> Result<(), Code>,
) -> ze_result_t {
    let mut driver = lock();
    let asked = driver.count(function);
    let done = work(&mut driver);
    if let Err(code) = done {
        driver.wrong.push(format!("{function}: {:#x}", code.0));
    }
    status(done.and(asked))
}

pub(crate) fn status(result: Result<(), Code>) -> ze_result_t {
    result.err().unwrap_or(ze_result_t::ZE_RESULT_SUCCESS)
}

/// Writes what a caller asked for.
///
/// # Safety
/// `to` is null or may be written.
pub(crate) unsafe fn give<T>(to: *mut T, value: T) -> Result<(), Code> {
    if to.is_null() {
        return Err(Code::ZE_RESULT_ERROR_INVALID_NULL_POINTER);
    }
    // SAFETY: the caller's promise.
    unsafe { to.write(value) };
    Ok(())
}

/// A caller's structure, whose type must be this.
///
/// # Safety
/// `from` is null or such a structure, for as long as the result is used.
pub(crate) unsafe fn read<'a, T>(from: *const T) -> Result<&'a T, Code> {
    // SAFETY: the caller's promise.
    unsafe { from.as_ref() }.ok_or(Code::ZE_RESULT_ERROR_INVALID_NULL_POINTER)
}

/// What names a type of structure is another's.
pub(crate) fn expect_type(
    found: level_zero_sys::ze_structure_type_t,
    expected: level_zero_sys::ze_structure_type_t,
) -> Result<(), Code> {
    if found == expected { Ok(()) } else { Err(Code::ZE_RESULT_ERROR_UNSUPPORTED_ENUMERATION) }
}

impl Driver {
    fn new(settings: Settings) -> Self {
        Self {
            started: false,
            contexts: BTreeSet::new(),
            allocations: BTreeMap::new(),
            queues: BTreeMap::new(),
            lists: BTreeMap::new(),
            pools: BTreeMap::new(),
            events: BTreeMap::new(),
            modules: BTreeMap::new(),
            logs: BTreeMap::new(),
            kernels: BTreeMap::new(),
            handles: 0,
            calls: BTreeMap::new(),
            allocated: Vec::new(),
            wrong: Vec::new(),
            settings,
        }
    }

    pub(crate) fn count(&mut self, function: &'static str) -> Result<(), Code> {
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
        (self.handles + 0x100) << 8
    }

    /// A context that there is.
    pub(crate) fn context(&self, handle: usize) -> Result<(), Code> {
        self.contexts.contains(&handle).then_some(()).ok_or(Code::ZE_RESULT_ERROR_INVALID_NULL_HANDLE)
    }

    pub(crate) fn event(&self, handle: usize) -> Result<&Arc<Event>, Code> {
        let placed = self.events.get(&handle).ok_or(Code::ZE_RESULT_ERROR_INVALID_NULL_HANDLE)?;
        Ok(&placed.event)
    }
}

/// Refuses what is asked of a card that is lost.
pub(crate) fn alive(card: usize) -> Result<(), Code> {
    if is_lost(card) { Err(Code::ZE_RESULT_ERROR_DEVICE_LOST) } else { Ok(()) }
}
