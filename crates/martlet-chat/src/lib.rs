//! Text in, text out: conversations, chat templates, tokenizer, streaming decoder, and the parser that tells thinking,
//! tool calls and text apart. Knows nothing of devices, engines or HTTP.
//!
//! ```no_run
//! use martlet_chat::{ChatModel, Conversation, Message, Role, TextFiles};
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let model = ChatModel::load(&TextFiles::from_folder("models/fledgling".as_ref())?)?;
//! let chat = Conversation::new(vec![Message::text(Role::User, "Hello")]);
//! let ids = model.tokenizer.encode(&model.prompt(&chat)?.text)?;
//! # Ok(()) }
//! ```

pub mod conversation;
pub mod detokenize;
pub mod generation;
pub mod grammar;
pub mod model;
pub mod parser;
pub mod prompt;
pub mod template;
pub mod tokenizer;
pub mod trace;

pub use conversation::{Arguments, Content, Conversation, ConversationError, Message, Part, Role, ToolCall};
pub use detokenize::{Detokenizer, SpecialTokens};
pub use generation::GenerationDefaults;
pub use grammar::{Format, GrammarError, ToolChoice, Vocabulary};
pub use model::{ChatModel, ChatModelError, GenerationConfig, TEXT_FILES, TextFiles};
pub use parser::{Event, OutputParser, prompt_opens_thinking};
pub use prompt::ChatPrompt;
pub use template::{ChatTemplate, TemplateError, TemplateLimits};
pub use tokenizer::{Tokenizer, TokenizerError};
pub use trace::{Trace, TraceError};
