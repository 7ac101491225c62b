//! Small models through the library and through `gantry-run`: drafts, taking back, going together, sessions in files,
//! counts of experts, rotated experts, memory.

mod cards;
mod counts;
mod drafts;
mod hostile;
mod models;
mod placed;
mod rewind;
mod rotated;
mod saved;
mod scratch;
mod tables;
mod together;
mod typed;
