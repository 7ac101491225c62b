//! The Gantry container.
