//! What an exit code means: one table for both binaries.

/// Exit codes of `gantry` and `gantry-run`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Exit {
    /// All went well.
    Ok = 0,
    /// Anything without a code of its own.
    Other = 1,
    /// The command line asks for something that does not exist.
    Usage = 2,
    /// Malformed or unreadable input.
    Input = 3,
    /// Bytes are not those that were written.
    Integrity = 4,
    /// A version, layout, architecture or device that this program does not take.
    Incompatible = 5,
    /// Not enough memory, VRAM or disk.
    Resources = 6,
    /// Ended by SIGINT.
    Interrupted = 130,
    /// Ended by SIGTERM.
    Terminated = 143,
}

/// An error that knows its exit code.
pub trait ExitCode {
    /// The code to leave with.
    fn exit(&self) -> Exit;
}
