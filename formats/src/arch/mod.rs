//! Architecture tables: which tensors a model has, their roles and shapes.
