//! From token ids to token ids: sequences, the step over many of them, sampling, and the thread that owns the device.
//!
//! [`Engine`] is the front: requests in, events out, from any thread. [`Runner`] is what its thread works with, and
//! what tests use directly: one step over any rows of any sequences.

mod admit;
mod constraint;
pub mod disk;
mod draft;
mod engine;
mod events;
mod memory;
mod mtp_check;
mod pages;
mod plan;
mod prefix;
mod queue;
mod runner;
mod sampling;
mod schedule;
mod sequence;
mod states;
mod stats;
mod step;
mod worker;

pub use admit::{Priority, Refused, Request};
pub use constraint::{Constraint, Rule};
pub use draft::{Accept, DrafterChoice};
pub use engine::{Engine, EngineOptions, Handle};
pub use events::{EngineError, Event, Finish, Timings, TokenEvent};
pub use martlet_device::sampling::SampleParams;
pub use memory::FreeMemory;
pub use mtp_check::{MtpReport, check_mtp};
pub use plan::Plan;
pub use runner::{Capacity, DraftInput, Hidden, Runner, SeqInput, SeqState, StepError, Trace};
pub use sampling::{ParamError, Sampling};
pub use states::Kept;
pub use stats::{CacheStats, DraftStats, Stats};
