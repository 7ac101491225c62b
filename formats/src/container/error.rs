//! What can be wrong with a container.

use crate::exit::{Exit, ExitCode};
use crate::layout::LayoutError;
use std::path::PathBuf;

/// Why a container is refused.
#[derive(Debug, thiserror::Error)]
pub enum ContainerError {
    /// The operating system said no.
    #[error("cannot read {path}")]
    Io {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// Not a container at all.
    #[error("{path} is not a Gantry container: {what}")]
    NotAContainer {
        /// The file.
        path: PathBuf,
        /// What it seems to be instead.
        what: String,
    },
    /// Written by something newer, or for features this program lacks.
    #[error("{0}")]
    Incompatible(String),
    /// A layout tag that this program does not take.
    #[error("{tensor}: {fault}")]
    Layout {
        /// The stored tensor.
        tensor: String,
        /// What is wrong with the tag.
        fault: LayoutError,
    },
    /// The bytes are not those that were written.
    #[error("{region}: {what}; the file is damaged, convert or copy it again")]
    Integrity {
        /// Which part of the file.
        region: String,
        /// Found and expected.
        what: String,
    },
    /// Hashes agree, yet the content breaks a rule of the format.
    #[error("{region}: {what}")]
    Malformed {
        /// Which part of the file.
        region: String,
        /// Which rule, found and expected.
        what: String,
    },
    /// The file of one card is of another container than the index beside it.
    #[error(
        "card {card}: its file {path} belongs to another container than {index}; an interrupted conversion leaves such a \
         mix where it replaces files: run it again, or put the files of one container together"
    )]
    OtherContainer {
        /// The card.
        card: usize,
        /// Its file.
        path: PathBuf,
        /// The index file.
        index: PathBuf,
    },
    /// The file of one card of a split container is not there.
    #[error("card {card}: its file {path} is missing; put it beside the index file")]
    MissingCard {
        /// The card.
        card: usize,
        /// Where it was looked for.
        path: PathBuf,
    },
}

impl ContainerError {
    pub(crate) fn malformed(region: impl Into<String>, what: impl Into<String>) -> Self {
        Self::Malformed { region: region.into(), what: what.into() }
    }

    pub(crate) fn integrity(region: impl Into<String>, what: impl Into<String>) -> Self {
        Self::Integrity { region: region.into(), what: what.into() }
    }
}

impl ExitCode for ContainerError {
    fn exit(&self) -> Exit {
        match self {
            Self::Io { .. }
            | Self::NotAContainer { .. }
            | Self::Malformed { .. }
            | Self::MissingCard { .. } => Exit::Input,
            Self::Incompatible(_) | Self::Layout { .. } => Exit::Incompatible,
            Self::Integrity { .. } | Self::OtherContainer { .. } => Exit::Integrity,
        }
    }
}
