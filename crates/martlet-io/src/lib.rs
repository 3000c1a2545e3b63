//! What comes from the operating system: mapped files, memory, the machine's cores.
//!
//! Knows bytes and offsets, never tensors.

pub mod map;
pub mod memory;
pub mod topology;

pub use map::{Map, MapError};
