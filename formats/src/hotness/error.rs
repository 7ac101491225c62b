//! What can be wrong with counts.

use super::json::{SCHEMA, VERSION};
use crate::exit::{Exit, ExitCode};
use crate::gguf::GgufError;

/// Why a file of counts is refused.
#[derive(Debug, thiserror::Error)]
#[error("{file}: {fault}")]
pub struct HotnessError {
    /// The file, or the model, by name.
    pub file: String,
    /// What is wrong.
    pub fault: HotnessFault,
}

/// What is wrong with counts.
#[derive(Debug, thiserror::Error)]
pub enum HotnessFault {
    /// The operating system said no.
    #[error("cannot read it: {0}")]
    Io(std::io::Error),
    /// An importance matrix that is no sound GGUF.
    #[error("{}", .0.fault())]
    Gguf(Box<GgufError>),
    /// None of the formats.
    #[error("{found}; expected token counts: JSON of Gantry, an importance matrix (GGUF) or SGLang's CSV")]
    Format {
        /// What it seems to be.
        found: String,
    },
    /// Longer than any real one.
    #[error("{bytes} bytes of text; token counts have at most {limit}")]
    TooLarge {
        /// Its length.
        bytes: u64,
        /// The most that is read.
        limit: u64,
    },
    /// A newer JSON, or another document.
    #[error("schema {schema:?} version {version}, this program reads {SCHEMA:?} version {VERSION}")]
    Version {
        /// `schema`.
        schema: String,
        /// `version`.
        version: u64,
    },
    /// Not what the format says.
    #[error("{what}")]
    Malformed {
        /// Where, found and expected.
        what: String,
    },
    /// A line of a CSV that is no row.
    #[error("line {line}: {what}")]
    Line {
        /// Line, from 1.
        line: u64,
        /// Found and expected.
        what: String,
    },
    /// Counts that do not fit.
    #[error("the sum of {what} does not fit 64 bits")]
    Overflow {
        /// Which.
        what: String,
    },
    /// Files that do not belong together.
    #[error("{what}; give files of one run in one format")]
    Mixed {
        /// What differs, and from which file.
        what: String,
    },
    /// Counts of another model.
    #[error("{what}: found {found}, the model has {expected}; the counts are of another model")]
    OtherModel {
        /// What disagrees.
        what: String,
        /// In the counts.
        found: String,
        /// In the model.
        expected: String,
    },
    /// The model has no experts.
    #[error("the model has no experts, so that nothing is routed")]
    NoExperts,
}

impl HotnessFault {
    /// The error that names the file.
    pub fn of(self, file: impl Into<String>) -> HotnessError {
        HotnessError { file: file.into(), fault: self }
    }
}

impl ExitCode for HotnessFault {
    fn exit(&self) -> Exit {
        match self {
            Self::Version { .. } => Exit::Incompatible,
            Self::Gguf(error) => error.exit(),
            _ => Exit::Input,
        }
    }
}

impl ExitCode for HotnessError {
    fn exit(&self) -> Exit {
        self.fault.exit()
    }
}
