//! The lean runtime.
