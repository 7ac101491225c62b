//! Layout tags and their geometry.
