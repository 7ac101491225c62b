//! `gantry inspect`, `verify`, `diff` and `export` as a user runs them, on containers that `convert` wrote.

mod many;
mod pipes;
mod round_trip;
#[path = "../pack/source/mod.rs"]
#[allow(dead_code, reason = "shared with the tests of packing")]
mod source;
