//! What comes from the operating system: mapped files, memory and huge pages, the machine's cores.
//!
//! Knows bytes and offsets, never tensors.

pub mod arena;
pub mod bandwidth;
pub mod disk;
pub mod map;
pub mod memory;
pub mod reserve;
pub mod topology;

pub use arena::Arena;
pub use map::{Map, MapError};
pub use reserve::Reserve;
