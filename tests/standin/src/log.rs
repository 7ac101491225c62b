//! What was seen, written when the process ends.
//!
//! A line each: `called FUNCTION TIMES`, `allocated BYTES` for each allocation that was ever made on a card, `left WHAT`
//! for what is still there, `wrong WHAT` for calls that no caller should make.

use crate::driver::{Driver, lock};
use std::fmt::Write;

impl Driver {
    /// What is there now, of one card or of all.
    pub(crate) fn left(&self, card: Option<usize>) -> Vec<String> {
        let of = |which: usize| card.is_none_or(|card| card == which);
        let memory = self.allocations.values().filter(|a| of(a.card)).map(|a| {
            let kind = if a.host { "pinned memory" } else { "memory" };
            format!("{} bytes of {kind} of card {}", a.bytes, a.card)
        });
        let pages = self.registered.iter().filter(|(_, (_, card))| of(*card));
        let pages = pages.map(|(start, (end, card))| format!("{} pinned bytes of card {card}", end - start));
        let streams =
            self.streams.values().filter(|card| of(**card)).map(|c| format!("a stream of card {c}"));
        let events =
            self.events.values().filter(|e| of(e.card)).map(|e| format!("an event of card {}", e.card));
        let modules =
            self.modules.values().filter(|card| of(**card)).map(|c| format!("a module of card {c}"));
        let graphs = self.graphs.values().chain(self.executables.values()).filter(|graph| of(graph.card));
        let graphs = graphs.map(|graph| format!("a graph of card {}", graph.card));
        memory.chain(pages).chain(streams).chain(events).chain(modules).chain(graphs).collect()
    }

    fn report(&self) -> String {
        let mut text = String::new();
        let mut line = |what: &str, of: &str| {
            // Writing to a string does not fail.
            let _ = writeln!(text, "{what} {of}");
        };
        self.calls.iter().for_each(|(function, times)| line("called", &format!("{function} {times}")));
        self.allocated.iter().for_each(|bytes| line("allocated", &bytes.to_string()));
        self.left(None).iter().for_each(|what| line("left", what));
        let contexts = self.retained.iter().enumerate().filter(|(_, n)| **n > 0);
        contexts.for_each(|(card, _)| line("left", &format!("the context of card {card}")));
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
