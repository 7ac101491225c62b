//! GGUF files: read, validate once, write back losslessly.
