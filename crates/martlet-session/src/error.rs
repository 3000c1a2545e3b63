//! What can go wrong between a caller and a model.

use martlet_chat::{ChatModelError, TokenizerError};
use martlet_engine::{EngineError, Refused};
use martlet_model::ModelError;
use martlet_weights::WeightsError;

/// What can go wrong between a caller and a model.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SessionError {
    /// The model can not be used at all.
    #[error("cannot open model \"{model}\": {source}")]
    Open { model: String, source: Box<OpenError> },
    /// The conversation or the text can not become a prompt.
    #[error(transparent)]
    Prompt(#[from] ChatModelError),
    #[error(transparent)]
    Tokenizer(#[from] TokenizerError),
    /// A part of a message that only a model with eyes could use.
    #[error("{path} is of type \"{kind}\": only text is read; leave the part out, or say it in words")]
    NotText { path: String, kind: String },
    /// The request was refused before any work.
    #[error(transparent)]
    Refused(#[from] Refused),
    #[error("stop strings: {found} were given; at most {limit} are watched for")]
    TooManyStops { found: usize, limit: usize },
    #[error("stop strings: number {index} is empty, and would end every answer at once")]
    EmptyStop { index: usize },
    /// The engine broke down during the answer.
    #[error(transparent)]
    Engine(#[from] EngineError),
}

/// Why a model can not be opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    #[error(transparent)]
    Weights(#[from] WeightsError),
    #[error(transparent)]
    Model(#[from] ModelError),
    #[error(transparent)]
    Text(#[from] ChatModelError),
    #[error(transparent)]
    Engine(#[from] EngineError),
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
