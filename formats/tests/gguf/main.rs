//! GGUF files, good and hostile, through the public interface.

mod bytes;
mod fuzz;
mod hostile;
mod split;
mod writing;
