//! Bindings of Intel's Level Zero, as far as Gantry calls it, over a library that is looked for at run time.
//!
//! [`load`] opens `libze_loader.so.1` and looks for every function before any is called, so that none is missing later. What
//! is called how and when is the [specification's](https://oneapi-src.github.io/level-zero-spec/level-zero/latest/) to say.

#[rustfmt::skip]
#[allow(missing_docs, unsafe_code, unsafe_op_in_unsafe_fn, unreachable_pub, reason = "generated")]
#[allow(non_camel_case_types, non_upper_case_globals, non_snake_case, reason = "the header's names")]
#[allow(clippy::all, clippy::undocumented_unsafe_blocks, clippy::missing_safety_doc, reason = "generated")]
mod bindings;

pub use bindings::*;

use std::fmt;
use std::sync::OnceLock;

/// The library that hands calls to the drivers which are installed, by the name that its packages give it.
pub const LIBRARY: &str = "libze_loader.so.1";

/// Every function of [`ZeLib`], in order.
pub fn functions() -> impl Iterator<Item = &'static str> {
    include_str!("functions.txt").lines()
}

/// Why the library cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotLoaded {
    /// It was not found, or is none.
    Absent,
    /// It lacks this function, the first of those.
    Symbol(&'static str),
}

impl fmt::Display for NotLoaded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Absent => write!(f, "{LIBRARY} was not found"),
            Self::Symbol(symbol) => write!(f, "{LIBRARY} lacks {symbol}"),
        }
    }
}

impl std::error::Error for NotLoaded {}

/// The library, which stays open from the first call on.
///
/// # Errors
/// Where it is not there, or lacks a function; the same at every call.
pub fn load() -> Result<&'static ZeLib, NotLoaded> {
    static LOADED: OnceLock<Result<ZeLib, NotLoaded>> = OnceLock::new();
    LOADED.get_or_init(open).as_ref().map_err(|e| *e)
}

#[allow(unsafe_code, reason = "a library is opened")]
fn open() -> Result<ZeLib, NotLoaded> {
    // SAFETY: it opens the library if there is one; its initialisers are those of Level Zero's loader.
    let library = unsafe { libloading::Library::new(LIBRARY) }.map_err(|_| NotLoaded::Absent)?;
    let lacks = |name: &&str| {
        // SAFETY: the symbol is only looked up, not called.
        unsafe { library.get::<*const ()>(name.as_bytes()) }.is_err()
    };
    if let Some(missing) = functions().find(lacks) {
        return Err(NotLoaded::Symbol(missing));
    }
    // SAFETY: the functions have the types of the header that this library is for.
    unsafe { ZeLib::from_library(library) }.map_err(|_| NotLoaded::Absent)
}
