//! Pure functions from source bytes to packed bytes.
