//! Incremental parsers of what the model writes: pieces of text in, events out, no I/O.

pub mod thinking;
