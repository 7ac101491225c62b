//! `gantry plan` and `gantry convert` as a user runs them.

mod convert;
mod layouts;
mod resume;
mod source;
