//! From handles to the engine's thread: commands in the order in which they were sent, a bound on requests that wait, and
//! an end. `channel.rs` is the protocol; `model.rs` runs it under many orders of its threads' steps.

mod channel;
#[cfg(test)]
mod model;
mod sync;

pub(crate) use channel::{Inbox, Next, NotSent, Outbox, channel};
