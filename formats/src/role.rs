//! Roles of tensors.
