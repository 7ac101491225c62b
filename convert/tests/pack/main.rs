//! `gantry plan` and `gantry convert` as a user runs them.

mod convert;
mod copies;
mod layouts;
mod mixed;
mod placement;
mod resume;
mod source;
