//! Graphs: work that a stream was given while it was recorded.

use crate::code::{Code, INVALID_HANDLE, INVALID_VALUE};
use crate::driver::{Driver, call, call_to_free, give, lock};
use crate::settings::settings;
use crate::work::Work;
use std::ffi::{c_char, c_int, c_void};
use std::sync::Arc;

/// A graph, or one that can be launched.
#[derive(Clone)]
pub(crate) struct Graph {
    pub(crate) card: usize,
    work: Arc<[Work]>,
}

#[unsafe(no_mangle)]
extern "C" fn hipStreamBeginCapture(stream: usize, mode: c_int) -> i32 {
    call("hipStreamBeginCapture", |driver| {
        driver.stream(stream)?;
        if !(0..=2).contains(&mode) || driver.recorded.contains_key(&stream) {
            return Err(INVALID_VALUE);
        }
        driver.recorded.insert(stream, Vec::new());
        Ok(())
    })
}

/// Recording ends even where this fails; then there is no graph.
#[unsafe(no_mangle)]
unsafe extern "C" fn hipStreamEndCapture(stream: usize, graph: *mut usize) -> i32 {
    let work = lock().recorded.remove(&stream);
    call("hipStreamEndCapture", |driver| {
        let card = driver.stream(stream)?.card;
        let made = Graph { card, work: work.ok_or(INVALID_VALUE)?.into() };
        let handle = driver.handle();
        // SAFETY: the caller's pointer, to one handle.
        unsafe { give(graph, handle) }?;
        driver.graphs.insert(handle, made);
        Ok(())
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn hipGraphInstantiate(
    executable: *mut usize,
    graph: usize,
    _node: *mut *mut c_void,
    _log: *mut c_char,
    _log_bytes: usize,
) -> i32 {
    call("hipGraphInstantiate", |driver| {
        let made = driver.graphs.get(&graph).ok_or(INVALID_VALUE)?.clone();
        let handle = driver.handle();
        // SAFETY: the caller's pointer, to one handle.
        unsafe { give(executable, handle) }?;
        driver.executables.insert(handle, made);
        Ok(())
    })
}

/// What was recorded is looked at again: its memory may have been freed meanwhile.
#[unsafe(no_mangle)]
extern "C" fn hipGraphLaunch(executable: usize, stream: usize) -> i32 {
    call("hipGraphLaunch", |driver| {
        let card = driver.stream(stream)?.card;
        let graph = driver.executables.get(&executable).filter(|graph| graph.card == card);
        let work = Arc::clone(&graph.ok_or(INVALID_HANDLE)?.work);
        if settings().skip == 0 {
            driver.still_there(card, &work)?;
        }
        driver.give_work(stream, Work::Graph(work))
    })
}

impl Driver {
    fn still_there(&mut self, card: usize, all: &[Work]) -> Result<(), Code> {
        for work in all {
            if let Work::Launch(launch) = work {
                launch.check(self, card)?;
            }
        }
        Ok(())
    }
}

#[unsafe(no_mangle)]
extern "C" fn hipGraphDestroy(graph: usize) -> i32 {
    call_to_free("hipGraphDestroy", |_| Vec::new(), |driver| gone(driver.graphs.remove(&graph)))
}

#[unsafe(no_mangle)]
extern "C" fn hipGraphExecDestroy(executable: usize) -> i32 {
    call_to_free("hipGraphExecDestroy", |_| Vec::new(), |driver| gone(driver.executables.remove(&executable)))
}

fn gone(graph: Option<Graph>) -> Result<(), Code> {
    graph.map(|_| ()).ok_or(INVALID_HANDLE)
}
