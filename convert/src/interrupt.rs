//! SIGINT and SIGTERM: the first one asks the work to stop, the second one ends the program at once.

use crate::failure::Refusal;
use anyhow::Result;
use gantry_formats::exit::Exit;
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::flag;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// Whether the program was asked to stop.
#[derive(Clone, Debug, Default)]
pub(crate) struct Interrupt {
    asked: Arc<AtomicBool>,
    signal: Arc<AtomicUsize>,
}

impl Interrupt {
    /// Starts listening, for the rest of the program.
    pub(crate) fn listen() -> Result<Self> {
        let this = Self::default();
        for (signal, exit) in [(SIGINT, Exit::Interrupted), (SIGTERM, Exit::Terminated)] {
            // In this order: the first signal finds the flag unset, sets it, and only a second one ends all.
            flag::register_conditional_shutdown(signal, exit as i32, this.asked.clone())?;
            flag::register(signal, this.asked.clone())?;
            flag::register_usize(signal, this.signal.clone(), signal as usize)?;
        }
        Ok(this)
    }

    /// Whether to stop.
    pub(crate) fn is_asked(&self) -> bool {
        self.asked.load(Ordering::Relaxed)
    }

    /// The error that ends the program with the code of the signal that came.
    pub(crate) fn error(&self, what: &str) -> anyhow::Error {
        let terminated = self.signal.load(Ordering::Relaxed) == SIGTERM as usize;
        Refusal::new(if terminated { Exit::Terminated } else { Exit::Interrupted }, what)
    }
}
