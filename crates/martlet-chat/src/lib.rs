//! Text in, text out: conversations, chat templates, tokenizer, streaming decoder, and the split of reasoning from
//! answer. Knows nothing of devices, engines or HTTP.
//!
//! ```no_run
//! use martlet_chat::{ChatModel, Conversation, Message, Role, TextFiles};
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let model = ChatModel::load(&TextFiles::from_folder("models/fledgling".as_ref())?)?;
//! let chat = Conversation::new(vec![Message::text(Role::User, "Hello")]);
//! let ids = model.tokenizer.encode(&model.render(&chat, true)?)?;
//! # Ok(()) }
//! ```

pub mod conversation;
pub mod detokenize;
pub mod generation;
pub mod model;
pub mod parser;
pub mod template;
pub mod tokenizer;

pub use conversation::{Arguments, Content, Conversation, ConversationError, Message, Part, Role, ToolCall};
pub use detokenize::{Detokenizer, SpecialTokens};
pub use generation::GenerationDefaults;
pub use model::{ChatModel, ChatModelError, GenerationConfig, TEXT_FILES, TextFiles};
pub use parser::thinking::{Event, ThinkingSplitter, prompt_opens_thinking};
pub use template::{ChatTemplate, TemplateError, TemplateLimits};
pub use tokenizer::{Tokenizer, TokenizerError};
