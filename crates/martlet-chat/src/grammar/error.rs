//! Why an answer can not be held to what was asked for.

/// Why an answer can not be held to what was asked for. Paths are those inside the schema or list that was given, such as
/// `properties.name.pattern`; empty for the whole of it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum GrammarError {
    /// A keyword of JSON Schema that is known, but can not be enforced.
    #[error("{path}: the keyword is not supported, and answers can not be held to it; leave it out")]
    Keyword { path: String },
    /// Anything else about a schema.
    #[error("{}: {message}", if path.is_empty() { "the schema" } else { path })]
    Schema { path: String, message: String },
    /// A schema that is nested too deeply.
    #[error("{}: nested more than {limit} deep", if path.is_empty() { "the schema" } else { path })]
    TooDeep { path: String, limit: usize },
    #[error("{what} has {found} {unit}; at most {limit} are supported")]
    TooLarge { what: &'static str, found: usize, limit: usize, unit: &'static str },
    #[error("the regular expression can not be used: {0}")]
    Regex(String),
    #[error("the grammar can not be used: {0}")]
    Lark(String),
    /// No texts to choose from, or an empty one.
    #[error("choice: {0}")]
    Choice(String),
    /// A tool declaration that can not be used.
    #[error("tools[{index}]{}{path}: {message}", if path.is_empty() { "" } else { "." })]
    Tool { index: usize, path: String, message: String },
    /// A tool is asked for that is not declared.
    #[error("tool {name:?} is not declared; declared are {}", if known.is_empty() { "none" } else { known })]
    UnknownTool { name: String, known: String },
    #[error("a tool call is asked for, but no tools are declared")]
    NoTools,
    /// The model's tokens can not be used for grammars.
    #[error("answers of this model can not be held to a form: {0}")]
    Vocabulary(String),
}

impl GrammarError {
    /// Where in the schema or list it went wrong.
    pub fn path(&self) -> Option<&str> {
        match self {
            GrammarError::Keyword { path }
            | GrammarError::Schema { path, .. }
            | GrammarError::TooDeep { path, .. }
            | GrammarError::Tool { path, .. } => Some(path),
            _ => None,
        }
    }
}
