//! What devices compute.
