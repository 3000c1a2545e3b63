//! What comes from the operating system: mapped files, direct reads, memory and huge pages, the machine's cores.
//!
//! Knows bytes and offsets, never tensors.

pub mod arena;
pub mod bandwidth;
pub mod disk;
pub mod map;
pub mod memory;
pub mod reader;
pub mod reserve;
pub mod slots;
pub mod supply;
pub mod topology;

pub use arena::Arena;
pub use map::{Map, MapError};
pub use reader::Reader;
pub use reserve::Reserve;
pub use slots::Slot;
pub use supply::Supply;
