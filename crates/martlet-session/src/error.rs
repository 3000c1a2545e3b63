//! What can go wrong between a caller and a model.

use martlet_chat::{ChatModelError, GrammarError, TokenizerError};
use martlet_engine::{EngineError, Refused};
use martlet_model::ModelError;
use martlet_weights::WeightsError;

/// What can go wrong between a caller and a model.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SessionError {
    /// The model can not be used at all.
    #[error("cannot open model \"{model}\": {source}")]
    Open {
        /// Its name.
        model: String,
        /// Why.
        source: Box<OpenError>,
    },
    /// The conversation or the text can not become a prompt.
    #[error(transparent)]
    Prompt(#[from] ChatModelError),
    /// The text can not become token ids.
    #[error(transparent)]
    Tokenizer(#[from] TokenizerError),
    /// A part of a message that only a model with eyes could use.
    #[error("{path} is of type \"{kind}\": only text is read; leave the part out, or say it in words")]
    NotText {
        /// Where it stands, such as `messages[0].content[1]`.
        path: String,
        /// Its type, as the request has it.
        kind: String,
    },
    /// The answer can not be held to the format or to the tools that are asked for. Paths in it are those inside the schema,
    /// or inside the list of tools.
    #[error(transparent)]
    Grammar(#[from] GrammarError),
    /// The request was refused before any work.
    #[error(transparent)]
    Refused(#[from] Refused),
    /// More stop strings than [`crate::MAX_STOPS`].
    #[error("stop strings: {found} were given; at most {limit} are watched for")]
    TooManyStops {
        /// So many were given.
        found: usize,
        /// [`crate::MAX_STOPS`].
        limit: usize,
    },
    /// A stop string of no characters.
    #[error("stop strings: number {index} is empty, and would end every answer at once")]
    EmptyStop {
        /// Counted from 1.
        index: usize,
    },
    /// The engine broke down during the answer.
    #[error(transparent)]
    Engine(#[from] EngineError),
}

/// Why a model can not be opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// A file of the checkpoint is missing, damaged, or of an unknown form.
    #[error(transparent)]
    Weights(#[from] WeightsError),
    /// The config asks for what is not known, or tensors are missing or misshapen.
    #[error(transparent)]
    Model(#[from] ModelError),
    /// The tokenizer or the template can not be used.
    #[error(transparent)]
    Text(#[from] ChatModelError),
    /// It does not fit into memory, or the engine could not start.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// Its experts can not be read from disk as they are chosen.
    #[error(transparent)]
    Stream(#[from] martlet_stream::StreamError),
    /// Both were asked for, and one undoes the other.
    #[error(
        "weights that are copied into memory (load copy) can not be read from disk as they are chosen (experts stream)"
    )]
    CopiedAndStreamed,
    /// There is no such device here, or it could not do its work.
    #[error("the device can not be used: {0}")]
    Device(String),
    /// For drafts of a head, or its check.
    #[error(
        "the checkpoint has no draft head (multi-token prediction); the drafters auto, suffix and none do without one"
    )]
    NoDrafts,
}

impl OpenError {
    /// The error with the name of the model.
    pub(crate) fn of(self, model: &str) -> SessionError {
        SessionError::Open { model: model.to_string(), source: Box::new(self) }
    }
}
