//! Experts that are read from disk as routers choose them: models larger than memory.
//!
//! A pack's `experts.bin` holds every expert in the tiles that kernels read, in one piece. [`Streamed`] has one pool of
//! slots for the experts of all layers. In each layer of each step it
//! 1. finds out which experts the rows chose, and which of them lie in a slot already ([`slots`]);
//! 2. begins to read the others, in file order, into slots of experts that are worth less ([`scores`]);
//! 3. guesses what the next layer will choose, and reads that where the disk would have nothing to do ([`ahead`]);
//! 4. has the device compute those that are there while the others come, and then those as they come.
//!
//! Every (row, rank) has a place of its own for its output, so the order in which experts come changes no bit.
//!
//! A prompt of many rows chooses nearly all experts of a layer, most of which are not worth a slot of those that answers
//! use. These pass through a small ring: while some are computed, the next are read.
//!
//! What can not be read ends the step with an error that names file and offset; the next step begins anew.

mod ahead;
mod control;
mod provider;
mod scores;
mod simulate;
mod slots;
mod trace;

pub use ahead::LookAhead;
pub use control::{Control, StreamStats};
pub use provider::{READS, StreamError, Streamed, disk_speed, least_bytes, slot_bytes};
pub use simulate::{Policy, hit_rate};
pub use trace::{Choice, Trace};
