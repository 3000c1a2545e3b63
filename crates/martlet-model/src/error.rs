//! What can be wrong with a model.

use martlet_device::DeviceError;
use martlet_weights::WeightsError;

#[derive(Debug, thiserror::Error)]
pub enum ModelError {
    #[error("config.json: {key} {what}")]
    Config { key: String, what: String },
    #[error("config.json: model_type is \"{found}\"; supported are {}", supported.join(", "))]
    ModelType { found: String, supported: Vec<&'static str> },
    #[error("no released model has the shape \"{found}\"; known are {}", known.join(", "))]
    Shape { found: String, known: Vec<&'static str> },
    #[error(transparent)]
    Weights(#[from] WeightsError),
    #[error(transparent)]
    Device(#[from] DeviceError),
}

impl ModelError {
    pub(crate) fn config(key: &str, what: impl Into<String>) -> ModelError {
        ModelError::Config { key: key.to_string(), what: what.into() }
    }
}
