//! What the queue takes from the system.

pub use std::sync::{Arc, atomic, mpsc};
