//! Ctrl-C and SIGTERM: the first one ends the text cleanly, the second one the program at once.

use gantry_formats::exit::Exit;
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::flag;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// Says when to stop.
pub(crate) struct Signals {
    /// Nothing is under way that should be ended cleanly: a signal ends the program at once.
    idle: Arc<AtomicBool>,
    stopping: Arc<AtomicBool>,
    which: Arc<AtomicUsize>,
}

impl Signals {
    /// Listens from now on, idle.
    pub(crate) fn new() -> std::io::Result<Self> {
        let idle = Arc::new(AtomicBool::new(true));
        let stopping = Arc::new(AtomicBool::new(false));
        let which = Arc::new(AtomicUsize::new(0));
        for (signal, exit) in [(SIGINT, Exit::Interrupted), (SIGTERM, Exit::Terminated)] {
            // In this order: the second signal finds what the first one set.
            flag::register_conditional_shutdown(signal, exit as i32, Arc::clone(&idle))?;
            flag::register_conditional_shutdown(signal, exit as i32, Arc::clone(&stopping))?;
            flag::register(signal, Arc::clone(&stopping))?;
            flag::register_usize(signal, Arc::clone(&which), exit as usize)?;
        }
        Ok(Self { idle, stopping, which })
    }

    /// Whether something is under way that a signal should let end cleanly.
    pub(crate) fn set_busy(&self, busy: bool) {
        self.idle.store(!busy, Ordering::SeqCst);
    }

    /// Forgets a signal that was answered: the next one is a first one again.
    pub(crate) fn clear(&self) {
        self.stopping.store(false, Ordering::SeqCst);
    }

    /// The exit code of the signal that came, if one did.
    pub(crate) fn stopped(&self) -> Option<Exit> {
        if !self.stopping.load(Ordering::SeqCst) {
            return None;
        }
        let terminated = self.which.load(Ordering::SeqCst) == Exit::Terminated as usize;
        Some(if terminated { Exit::Terminated } else { Exit::Interrupted })
    }
}
