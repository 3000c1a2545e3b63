//! Qwen3.5, 3.6 and 3.8 dense: config with `text_config`, one MLP a layer.

use super::shared;
use crate::spec::{MlpSpec, SamplingDefaults};
use crate::{ModelError, ModelSpec};
use serde_json::Value;

pub const MODEL_TYPE: &str = "qwen3_5";

/// Recommended for general use, thinking off and on.
pub const SAMPLING: [SamplingDefaults; 2] = [
    SamplingDefaults { temperature: 0.7, top_p: 0.8, top_k: 20, presence_penalty: 1.5 },
    SamplingDefaults { temperature: 1.0, top_p: 0.95, top_k: 20, presence_penalty: 1.5 },
];

pub fn read(config: &Value) -> Result<ModelSpec, ModelError> {
    let (fields, tied) = shared::text_config(config)?;
    let mlp = MlpSpec::Dense { width: fields.count("intermediate_size", Some(12288))? };
    shared::build(fields, MODEL_TYPE, tied, SAMPLING, |_| mlp)
}
