//! Errors on their way to the exit code: the one place that knows which error leaves with which code.

use gantry_formats::arch::HparamsError;
use gantry_formats::container::ContainerError;
use gantry_formats::exit::{Exit, ExitCode};
use gantry_formats::gguf::GgufError;
use gantry_formats::hotness::HotnessError;
use gantry_formats::layout::LayoutError;
use gantry_formats::placement::PlacementError;
use std::fmt;

/// A refusal with its exit code, for what no library error covers.
#[derive(Debug)]
pub(crate) struct Refusal {
    exit: Exit,
    message: String,
}

impl Refusal {
    /// An error that ends the program with `exit`.
    #[allow(clippy::new_ret_no_self, reason = "nobody needs a refusal that is not an error yet")]
    pub(crate) fn new(exit: Exit, message: impl Into<String>) -> anyhow::Error {
        Self { exit, message: message.into() }.into()
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Refusal {}

/// The exit code of an error: that of the first link of its chain that has one.
pub(crate) fn exit_of(error: &anyhow::Error) -> Exit {
    error.chain().find_map(exit_of_link).unwrap_or(Exit::Other)
}

fn exit_of_link(link: &(dyn std::error::Error + 'static)) -> Option<Exit> {
    if let Some(e) = link.downcast_ref::<Refusal>() {
        return Some(e.exit);
    }
    if let Some(e) = link.downcast_ref::<ContainerError>() {
        return Some(e.exit());
    }
    if let Some(e) = link.downcast_ref::<LayoutError>() {
        return Some(e.exit());
    }
    if let Some(e) = link.downcast_ref::<GgufError>() {
        return Some(e.exit());
    }
    if let Some(e) = link.downcast_ref::<HotnessError>() {
        return Some(e.exit());
    }
    if let Some(e) = link.downcast_ref::<HparamsError>() {
        return Some(e.exit());
    }
    if let Some(e) = link.downcast_ref::<PlacementError>() {
        return Some(e.exit());
    }
    let io = link.downcast_ref::<std::io::Error>()?;
    Some(match io.kind() {
        std::io::ErrorKind::StorageFull | std::io::ErrorKind::OutOfMemory => Exit::Resources,
        std::io::ErrorKind::NotFound
        | std::io::ErrorKind::PermissionDenied
        | std::io::ErrorKind::IsADirectory => Exit::Input,
        _ => Exit::Other,
    })
}

/// Whether an error only says that the reader of our output went away, which is no fault.
pub(crate) fn is_closed_pipe(error: &anyhow::Error) -> bool {
    error
        .chain()
        .filter_map(|e| e.downcast_ref::<std::io::Error>())
        .any(|e| e.kind() == std::io::ErrorKind::BrokenPipe)
}
