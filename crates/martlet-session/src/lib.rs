//! Where chat meets engine: a conversation, a text or token ids in, events out. For programs that embed martlet, the
//! command line and the server; it knows neither terminals nor HTTP.
//!
//! ```no_run
//! use martlet_session::{Event, ModelSource, Options, Prompt, Session, TurnOptions};
//! use martlet_chat::{Conversation, Message, Role};
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let source = ModelSource::Path("models/fledgling".into());
//! let session = Session::open(&source, &Options::default(), &mut |_, _| {})?;
//! let chat = Conversation::new(vec![Message::text(Role::User, "Hello")]);
//! for event in session.start(&Prompt::Chat(chat), &TurnOptions::default())? {
//!     if let Event::Text(piece) = event? {
//!         print!("{piece}");
//!     }
//! }
//! # Ok(()) }
//! ```

#![warn(missing_docs)]

mod constraint;
mod device;
mod drafts;
mod error;
mod events;
pub mod machine;
mod output;
mod plan;
mod repeat;
mod request;
mod session;
mod source;
mod stop;
mod turn;

pub use device::{DeviceKind, Experts, Load};
pub use drafts::{DraftCheck, check_drafts};
pub use error::{OpenError, SessionError};
pub use events::{Answer, AnswerCall, Event, FinishReason, Outcome, TokenInfo, Usage};
pub use martlet_io::memory::return_freed_blocks;
pub use plan::{disk_options, free_memory};
pub use request::{LoopGuard, MAX_STOPS, Prompt, TurnOptions, default_sampling};
pub use session::{Options, Session};
pub use source::{EmbeddedModel, ModelSource, SyntheticModel};
pub use turn::Turn;

pub use martlet_chat::{Format, GrammarError, ToolChoice};
pub use martlet_cpu::Isa;
pub use martlet_device::timed::{Operation, OperationTime};
pub use martlet_device::{KvScheme, PAGE};
pub use martlet_engine::disk;
pub use martlet_engine::{
    Accept, CacheStats, DraftStats, DrafterChoice, EngineError, MtpReport, ParamError, Plan, Priority, Refused,
    Sampling, Stats, Timings,
};
pub use martlet_stream::{LookAhead, Policy, StreamStats, Trace as ExpertTrace, hit_rate};
