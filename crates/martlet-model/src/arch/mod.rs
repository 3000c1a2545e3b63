//! Architectures: one file for each `model_type`, holding only what differs.

mod qwen3_5;
mod qwen3_5_moe;
mod qwen3_next;
mod shared;

use crate::{ModelError, ModelSpec};
use serde_json::Value;

/// (model_type, reader of the config)
type Entry = (&'static str, fn(&Value) -> Result<ModelSpec, ModelError>);

/// Every supported architecture.
pub const ARCHITECTURES: [Entry; 3] = [
    (qwen3_next::MODEL_TYPE, qwen3_next::read),
    (qwen3_5::MODEL_TYPE, qwen3_5::read),
    (qwen3_5_moe::MODEL_TYPE, qwen3_5_moe::read),
];

/// Reads a checkpoint's config.json. An unknown `model_type`, and a field that changes the maths in a way that is not
/// supported, is an error that names it.
pub fn read_config(config: &Value) -> Result<ModelSpec, ModelError> {
    let found = config.get("model_type").and_then(Value::as_str).unwrap_or_default();
    // Text-only exports carry the inner config at the top.
    let name = found.strip_suffix("_text").unwrap_or(found);
    match ARCHITECTURES.iter().find(|(model_type, _)| *model_type == name) {
        Some((_, read)) => read(config),
        None => Err(ModelError::ModelType {
            found: found.to_string(),
            supported: ARCHITECTURES.iter().map(|(name, _)| *name).collect(),
        }),
    }
}
