//! `gantry`.
fn main() {}
