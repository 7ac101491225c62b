//! Graphs: work that a stream was given while it was recorded. It is counted, and kept where it is computed here.

use crate::code::{Code, INVALID_HANDLE, INVALID_VALUE, NOT_SUPPORTED};
use crate::driver::{Driver, call, call_to_free, give, lock};
use crate::module::Launch;
use std::ffi::{c_int, c_ulonglong};

/// A graph, or one that can be launched.
#[derive(Clone)]
pub(crate) struct Graph {
    pub(crate) card: usize,
    work: Recording,
}

/// What a stream was given while it was recorded.
#[derive(Clone, Default)]
pub(crate) struct Recording {
    /// Everything that is not computed here.
    idle: u64,
    computed: Vec<Launch>,
}

impl Driver {
    /// Whether the stream is recorded; if so, what it is given now is part of the graph, and not done.
    pub(crate) fn records(&mut self, stream: usize) -> bool {
        let recorded = self.recorded.get_mut(&stream);
        recorded.map(|work| work.idle += 1).is_some()
    }

    /// The same for a launch that is computed here.
    pub(crate) fn records_launch(&mut self, stream: usize, launch: Launch) -> bool {
        let recorded = self.recorded.get_mut(&stream);
        recorded.map(|work| work.computed.push(launch)).is_some()
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuStreamBeginCapture_v2(stream: usize, mode: c_int) -> i32 {
    call("cuStreamBeginCapture_v2", |driver| {
        driver.card_of_stream(stream)?;
        if !(0..=2).contains(&mode) || driver.recorded.contains_key(&stream) {
            return Err(INVALID_VALUE);
        }
        driver.recorded.insert(stream, Recording::default());
        Ok(())
    })
}

/// Recording ends even where this fails; then there is no graph.
#[unsafe(no_mangle)]
unsafe extern "C" fn cuStreamEndCapture(stream: usize, graph: *mut usize) -> i32 {
    let work = lock().recorded.remove(&stream);
    call("cuStreamEndCapture", |driver| {
        let card = driver.card_of_stream(stream)?;
        let made = Graph { card, work: work.ok_or(INVALID_VALUE)? };
        let handle = driver.handle();
        // SAFETY: the caller's pointer, to one handle.
        unsafe { give(graph, handle) }?;
        driver.graphs.insert(handle, made);
        Ok(())
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuGraphInstantiateWithFlags(
    executable: *mut usize,
    graph: usize,
    flags: c_ulonglong,
) -> i32 {
    call("cuGraphInstantiateWithFlags", |driver| {
        let made = driver.graphs.get(&graph).filter(|_| flags == 0).ok_or(INVALID_VALUE)?.clone();
        let handle = driver.handle();
        // SAFETY: the caller's pointer, to one handle.
        unsafe { give(executable, handle) }?;
        driver.executables.insert(handle, made);
        Ok(())
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuGraphLaunch(executable: usize, stream: usize) -> i32 {
    call("cuGraphLaunch", |driver| {
        let card = driver.card_of_stream(stream)?;
        let graph = driver.executables.get(&executable).filter(|graph| graph.card == card);
        let Recording { idle, computed } = graph.ok_or(INVALID_HANDLE)?.work.clone();
        if idle > 0 && !driver.settings.skip {
            return Err(NOT_SUPPORTED);
        }
        computed.iter().try_for_each(|launch| launch.run(driver, card))
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuGraphDestroy(graph: usize) -> i32 {
    call_to_free("cuGraphDestroy", |driver| gone(driver.graphs.remove(&graph)))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuGraphExecDestroy(executable: usize) -> i32 {
    call_to_free("cuGraphExecDestroy", |driver| gone(driver.executables.remove(&executable)))
}

fn gone(graph: Option<Graph>) -> Result<(), Code> {
    graph.map(|_| ()).ok_or(INVALID_HANDLE)
}
