//! The lean runtime, on the command line.
fn main() {}
