//! What was seen, written when the process ends.
//!
//! A line each: `called FUNCTION TIMES`, `allocated BYTES` for each allocation that was ever made on a card, `left WHAT`
//! for what is still there, `wrong WHAT` for calls that no caller should make.

use crate::driver::{Driver, lock};
use std::fmt::Write;

impl Driver {
    /// What is there now, beside contexts.
    pub(crate) fn left(&self) -> Vec<String> {
        let memory = self.allocations.values().map(|a| match a.card {
            Some(card) => format!("{} bytes of memory of card {card}", a.bytes),
            None => format!("{} bytes of the host's memory", a.bytes),
        });
        let many = |what: &str, count: usize| vec![what.to_owned(); count];
        let lists = many("a command list", self.lists.len());
        let queues = many("a command queue", self.queues.len());
        let pools = many("an event pool", self.pools.len());
        let events = many("an event", self.events.len());
        let modules = many("a module", self.modules.len());
        let kernels = many("a kernel", self.kernels.len());
        let logs = many("a build log", self.logs.len());
        memory.chain([lists, queues, pools, events, modules, kernels, logs].into_iter().flatten()).collect()
    }

    fn report(&self) -> String {
        let mut text = String::new();
        let mut line = |what: &str, of: &str| {
            // Writing to a string does not fail. What a compiler says has lines of its own.
            let _ = writeln!(text, "{what} {}", of.replace('\n', " / "));
        };
        self.calls.iter().for_each(|(function, times)| line("called", &format!("{function} {times}")));
        self.allocated.iter().for_each(|bytes| line("allocated", &bytes.to_string()));
        self.left().iter().for_each(|what| line("left", what));
        self.contexts.iter().for_each(|_| line("left", "a context"));
        self.wrong.iter().for_each(|what| line("wrong", what));
        text
    }
}

/// Called by the system's loader when the process ends.
extern "C" fn write_log() {
    let driver = lock();
    if let Some(path) = &driver.settings.log
        && let Err(error) = std::fs::write(path, driver.report())
    {
        // Nobody is left to tell it to; a test that finds no log fails.
        let _ = std::io::Write::write_fmt(&mut std::io::stderr(), format_args!("{path}: {error}\n"));
    }
}

// SAFETY: the section is the one for functions that run when a library is unloaded or the process ends; this one takes
// nothing and relies on nothing that could be gone.
#[used]
#[unsafe(link_section = ".fini_array")]
static AT_END: extern "C" fn() = write_log;
