//! Sessions through the library and through `gantry-run`: drafts, taking back, going together, files, counts.

mod counts;
mod drafts;
mod hostile;
mod models;
mod rewind;
mod saved;
mod together;
mod typed;
