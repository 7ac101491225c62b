//! Command lists: immediate ones, whose commands are done at once, and those that are recorded, closed and executed.

use crate::command::Command;
use crate::driver::{Code, Driver, alive, call, call_to_free, expect_type, give, read};
use crate::event::Event;
use crate::memory::Use;
use crate::worker::{Job, Worker};
use level_zero_sys::*;
use std::ffi::c_void;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

pub(crate) struct List {
    pub(crate) card: usize,
    /// Of an immediate one.
    worker: Option<Arc<Worker>>,
    state: Mutex<State>,
    /// How often it was given to queues and is not done.
    running: AtomicUsize,
}

#[derive(Default)]
struct State {
    commands: Vec<Command>,
    uses: Vec<Use>,
    closed: Option<Arc<Vec<Command>>>,
    /// Whether work was given since the last barrier.
    open: bool,
}

impl List {
    pub(crate) fn ended(&self) {
        self.running.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Events that a command waits for and signals.
pub(crate) struct Around {
    waits: Vec<Arc<Event>>,
    signal: Option<Arc<Event>>,
}

impl Driver {
    fn around(&self, signal: usize, count: u32, waits: *const usize) -> Result<Around, Code> {
        if count > 0 && waits.is_null() {
            return Err(Code::ZE_RESULT_ERROR_INVALID_SIZE);
        }
        // SAFETY: the caller has so many.
        let wait = |i: u32| self.event(unsafe { waits.add(i as usize).read() }).cloned();
        let waits = (0..count).map(wait).collect::<Result<_, Code>>()?;
        let signal = (signal != 0).then(|| self.event(signal).cloned()).transpose()?;
        Ok(Around { waits, signal })
    }

    pub(crate) fn list(&self, handle: usize) -> Result<Arc<List>, Code> {
        let list = self.lists.get(&handle).ok_or(Code::ZE_RESULT_ERROR_INVALID_NULL_HANDLE)?;
        alive(list.card)?;
        Ok(Arc::clone(list))
    }

    /// Gives a command to a list.
    pub(crate) fn append(
        &mut self,
        list: &Arc<List>,
        command: Command,
        mut uses: Vec<Use>,
        Around { waits, signal }: Around,
    ) -> Result<(), Code> {
        let mut state = list.state.lock().unwrap_or_else(PoisonError::into_inner);
        if state.closed.is_some() {
            self.wrong.push("a command for a list that is closed".into());
            return Err(Code::ZE_RESULT_ERROR_INVALID_ARGUMENT);
        }
        match &command {
            Command::Barrier if waits.is_empty() => state.open = false,
            Command::Barrier => {}
            // Two kernels at once would be right where neither needs the other, which this program never says.
            _ if state.open => {
                self.wrong.push("a command after another without a barrier between them".into());
                return Err(Code::ZE_RESULT_ERROR_INVALID_ARGUMENT);
            }
            _ => state.open = command.is_work(),
        }
        let mut commands = Vec::new();
        if !waits.is_empty() {
            commands.push(Command::Wait(waits));
        }
        if let Command::Signal(event) = &command {
            event.expect_from(list.card);
        }
        commands.push(command);
        if let Some(event) = signal {
            event.expect_from(list.card);
            commands.push(Command::Signal(event));
        }
        match &list.worker {
            Some(worker) => {
                self.take(&uses)?;
                worker.give(Job { commands: Arc::new(commands), uses, list: None })
            }
            None => {
                state.commands.append(&mut commands);
                state.uses.append(&mut uses);
                Ok(())
            }
        }
    }
}

/// What a list or a queue may ask for.
fn expect_queue(ordinal: u32, flags: u32) -> Result<(), Code> {
    if ordinal == 0 && flags == 0 { Ok(()) } else { Err(Code::ZE_RESULT_ERROR_INVALID_ARGUMENT) }
}

unsafe fn queue(desc: *const ze_command_queue_desc_t) -> Result<(), Code> {
    // SAFETY: the caller's pointer, to one structure.
    let desc = unsafe { read(desc) }?;
    expect_type(desc.stype, ze_structure_type_t::ZE_STRUCTURE_TYPE_COMMAND_QUEUE_DESC)?;
    expect_queue(desc.ordinal, desc.flags)?;
    match desc.mode == ze_command_queue_mode_t::ZE_COMMAND_QUEUE_MODE_ASYNCHRONOUS && desc.index == 0 {
        true => Ok(()),
        false => Err(Code::ZE_RESULT_ERROR_INVALID_ENUMERATION),
    }
}

pub(crate) unsafe extern "C" fn zeCommandQueueCreate(
    context: usize,
    device: usize,
    desc: *const ze_command_queue_desc_t,
    to: *mut usize,
) -> ze_result_t {
    call("zeCommandQueueCreate", |driver| {
        driver.context(context)?;
        let card = driver.card(device)?;
        alive(card)?;
        // SAFETY: the caller's pointer, to one structure.
        unsafe { queue(desc) }?;
        let handle = driver.handle();
        // SAFETY: the caller's pointer, to one handle.
        unsafe { give(to, handle) }?;
        driver.queues.insert(handle, Arc::new(Worker::new(card)));
        Ok(())
    })
}

pub(crate) unsafe extern "C" fn zeCommandQueueDestroy(queue: usize) -> ze_result_t {
    call_to_free("zeCommandQueueDestroy", |driver| {
        let gone = driver.queues.remove(&queue).ok_or(Code::ZE_RESULT_ERROR_INVALID_NULL_HANDLE)?;
        gone.end(driver);
        Ok(())
    })
}

pub(crate) unsafe extern "C" fn zeCommandListCreate(
    context: usize,
    device: usize,
    desc: *const ze_command_list_desc_t,
    to: *mut usize,
) -> ze_result_t {
    call("zeCommandListCreate", |driver| {
        driver.context(context)?;
        let card = driver.card(device)?;
        alive(card)?;
        // SAFETY: the caller's pointer, to one structure.
        let desc = unsafe { read(desc) }?;
        expect_type(desc.stype, ze_structure_type_t::ZE_STRUCTURE_TYPE_COMMAND_LIST_DESC)?;
        expect_queue(desc.commandQueueGroupOrdinal, desc.flags)?;
        driver.new_list(card, None, to)
    })
}

pub(crate) unsafe extern "C" fn zeCommandListCreateImmediate(
    context: usize,
    device: usize,
    desc: *const ze_command_queue_desc_t,
    to: *mut usize,
) -> ze_result_t {
    call("zeCommandListCreateImmediate", |driver| {
        driver.context(context)?;
        let card = driver.card(device)?;
        alive(card)?;
        // SAFETY: the caller's pointer, to one structure.
        unsafe { queue(desc) }?;
        driver.new_list(card, Some(Arc::new(Worker::new(card))), to)
    })
}

impl Driver {
    fn new_list(&mut self, card: usize, worker: Option<Arc<Worker>>, to: *mut usize) -> Result<(), Code> {
        let handle = self.handle();
        // SAFETY: the caller's pointer, to one handle.
        unsafe { give(to, handle) }?;
        let list = List { card, worker, state: Mutex::default(), running: AtomicUsize::new(0) };
        self.lists.insert(handle, Arc::new(list));
        Ok(())
    }
}

pub(crate) unsafe extern "C" fn zeCommandListDestroy(list: usize) -> ze_result_t {
    call_to_free("zeCommandListDestroy", |driver| {
        let gone = driver.lists.remove(&list).ok_or(Code::ZE_RESULT_ERROR_INVALID_NULL_HANDLE)?;
        if gone.running.load(Ordering::SeqCst) > 0 && alive(gone.card).is_ok() {
            driver.wrong.push(format!("a list of card {} was destroyed while it was executed", gone.card));
        }
        gone.worker.iter().for_each(|worker| worker.end(driver));
        Ok(())
    })
}

pub(crate) unsafe extern "C" fn zeCommandListClose(list: usize) -> ze_result_t {
    call("zeCommandListClose", |driver| {
        let list = driver.list(list)?;
        let mut state = list.state.lock().unwrap_or_else(PoisonError::into_inner);
        if list.worker.is_some() || state.closed.is_some() {
            return Err(Code::ZE_RESULT_ERROR_INVALID_COMMAND_LIST_TYPE);
        }
        if state.open {
            driver.wrong.push("a list that does not end with a barrier".into());
        }
        state.closed = Some(Arc::new(std::mem::take(&mut state.commands)));
        state.uses.sort_unstable();
        state.uses.dedup();
        Ok(())
    })
}

pub(crate) unsafe extern "C" fn zeCommandQueueExecuteCommandLists(
    queue: usize,
    count: u32,
    lists: *const usize,
    fence: usize,
) -> ze_result_t {
    call("zeCommandQueueExecuteCommandLists", |driver| {
        let found = driver.queues.get(&queue).ok_or(Code::ZE_RESULT_ERROR_INVALID_NULL_HANDLE)?;
        let worker = Arc::clone(found);
        alive(worker.card)?;
        if count == 0 || lists.is_null() || fence != 0 {
            return Err(Code::ZE_RESULT_ERROR_INVALID_SIZE);
        }
        for i in 0..count as usize {
            // SAFETY: the caller has so many.
            let list = driver.list(unsafe { lists.add(i).read() })?;
            let state = list.state.lock().unwrap_or_else(PoisonError::into_inner);
            let closed = state.closed.as_ref().filter(|_| list.card == worker.card);
            let commands = Arc::clone(closed.ok_or(Code::ZE_RESULT_ERROR_INVALID_COMMAND_LIST_TYPE)?);
            driver.take(&state.uses)?;
            list.running.fetch_add(1, Ordering::SeqCst);
            worker.give(Job { commands, uses: state.uses.clone(), list: Some(Arc::clone(&list)) })?;
        }
        Ok(())
    })
}

pub(crate) unsafe extern "C" fn zeCommandListAppendBarrier(
    list: usize,
    signal: usize,
    count: u32,
    waits: *const usize,
) -> ze_result_t {
    call("zeCommandListAppendBarrier", |driver| {
        let list = driver.list(list)?;
        let around = driver.around(signal, count, waits)?;
        // It waits for all before where it waits for nothing that is named.
        driver.append(&list, Command::Barrier, Vec::new(), around)
    })
}

pub(crate) unsafe extern "C" fn zeCommandListAppendEventReset(list: usize, event: usize) -> ze_result_t {
    call("zeCommandListAppendEventReset", |driver| {
        let list = driver.list(list)?;
        let (event, around) = (Arc::clone(driver.event(event)?), driver.around(0, 0, std::ptr::null())?);
        driver.append(&list, Command::Reset(event), Vec::new(), around)
    })
}

pub(crate) unsafe extern "C" fn zeCommandListAppendWriteGlobalTimestamp(
    list: usize,
    to: *mut u64,
    signal: usize,
    count: u32,
    waits: *const usize,
) -> ze_result_t {
    call("zeCommandListAppendWriteGlobalTimestamp", |driver| {
        let list = driver.list(list)?;
        let around = driver.around(signal, count, waits)?;
        let uses = vec![driver.reached(list.card, to.addr(), 8)?];
        driver.append(&list, Command::Timestamp(to.addr()), uses, around)
    })
}

pub(crate) unsafe extern "C" fn zeCommandListAppendMemoryCopy(
    list: usize,
    to: *mut c_void,
    from: *const c_void,
    bytes: usize,
    signal: usize,
    count: u32,
    waits: *const usize,
) -> ze_result_t {
    call("zeCommandListAppendMemoryCopy", |driver| {
        let list = driver.list(list)?;
        let around = driver.around(signal, count, waits)?;
        let (to, from) = (to.addr(), from.addr());
        let uses = vec![driver.reached(list.card, to, bytes)?, driver.reached(list.card, from, bytes)?];
        driver.append(&list, Command::Copy { to, from, bytes }, uses, around)
    })
}

pub(crate) unsafe extern "C" fn zeCommandListAppendMemoryFill(
    list: usize,
    at: *mut c_void,
    pattern: *const u8,
    width: usize,
    bytes: usize,
    signal: usize,
    count: u32,
    waits: *const usize,
) -> ze_result_t {
    call("zeCommandListAppendMemoryFill", |driver| {
        let list = driver.list(list)?;
        let around = driver.around(signal, count, waits)?;
        if width != 1 {
            return Err(Code::ZE_RESULT_ERROR_INVALID_SIZE);
        }
        // SAFETY: the caller's pointer, to a pattern of one byte.
        let value = *unsafe { read(pattern) }?;
        let at = at.addr();
        let uses = vec![driver.reached(list.card, at, bytes)?];
        driver.append(&list, Command::Fill { at, value, bytes }, uses, around)
    })
}

pub(crate) unsafe extern "C" fn zeCommandListAppendLaunchKernel(
    list: usize,
    kernel: usize,
    groups: *const ze_group_count_t,
    signal: usize,
    count: u32,
    waits: *const usize,
) -> ze_result_t {
    call("zeCommandListAppendLaunchKernel", |driver| {
        let list = driver.list(list)?;
        let around = driver.around(signal, count, waits)?;
        // SAFETY: the caller's pointer, to one structure.
        let groups = unsafe { read(groups) }?;
        let grid = [groups.groupCountX, groups.groupCountY, groups.groupCountZ];
        let (launch, uses) = driver.launch(kernel, list.card, grid)?;
        driver.append(&list, Command::Launch(launch), uses, around)
    })
}
