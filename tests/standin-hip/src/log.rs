//! What was seen, written when the process ends.
//!
//! A line each: `called FUNCTION TIMES`, `allocated BYTES` for each allocation that was ever made on a card, `left WHAT`
//! for what is still there, `wrong WHAT` for calls that no caller should make.

use crate::driver::{Driver, lock};
use crate::settings::settings;
use std::fmt::Write;

impl Driver {
    /// What is there now.
    fn left(&self) -> Vec<String> {
        let memory = self.allocations.values().map(|a| {
            let kind = if a.host { "pinned memory" } else { "memory" };
            format!("{} bytes of {kind} of card {}", a.bytes, a.card)
        });
        let pages = self.registered.iter();
        let pages = pages.map(|(start, (end, card))| format!("{} pinned bytes of card {card}", end - start));
        let streams = self.streams.values().map(|stream| format!("a stream of card {}", stream.card));
        let events = self.events.values().map(|event| format!("an event of card {}", event.card));
        let modules = self.modules.values().map(|module| format!("a module of card {}", module.card));
        let graphs = self.graphs.values().chain(self.executables.values());
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
        self.left().iter().for_each(|what| line("left", what));
        self.wrong.iter().for_each(|what| line("wrong", &what.replace('\n', " | ")));
        text
    }
}

/// Called by the system's loader when the process ends.
extern "C" fn write_log() {
    if let Some(path) = &settings().log
        && let Err(error) = std::fs::write(path, lock().report())
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
