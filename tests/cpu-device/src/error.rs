//! What goes wrong.

use opencl3::error_codes::ClError;

/// Why something could not be done.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// OpenCL refused a call.
    #[error("{what}: OpenCL says {text} ({code})")]
    Refused {
        /// What was to be done.
        what: String,
        /// Its error.
        code: i32,
        /// What that is called.
        text: String,
    },
    /// A program does not build.
    #[error("{name} does not build:\n{log}")]
    Build {
        /// Of the program.
        name: String,
        /// What the compiler said.
        log: String,
    },
    /// There is no such platform with a processor.
    #[error("OpenCL has no platform {wanted:?} with a device that is a processor; it has {found:?}")]
    NoPlatform {
        /// What was asked for.
        wanted: String,
        /// What there is.
        found: Vec<String>,
    },
    /// A program has no such kernel.
    #[error("{program} has no kernel {name:?}")]
    NoKernel {
        /// Of the program.
        program: String,
        /// What was asked for.
        name: String,
    },
    /// Arguments that are not a kernel's.
    #[error("{kernel}: {what}")]
    Arguments {
        /// Its name.
        kernel: String,
        /// What is wrong with them.
        what: String,
    },
}

impl Error {
    /// What to make of OpenCL's error where `what` was to be done.
    pub(crate) fn refused(what: impl Into<String>) -> impl FnOnce(i32) -> Self {
        move |code| Self::Refused { what: what.into(), code, text: ClError(code).to_string() }
    }
}
