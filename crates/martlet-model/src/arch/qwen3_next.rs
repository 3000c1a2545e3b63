//! Qwen3-Next: flat config, text only, every layer sparse unless the config makes some dense.

use super::shared;
use crate::spec::{MlpSpec, SamplingDefaults};
use crate::{ModelError, ModelSpec};
use martlet_device::RouteSpec;
use serde_json::Value;

pub const MODEL_TYPE: &str = "qwen3_next";

/// Recommended for the instruct and the thinking models.
const SAMPLING: [SamplingDefaults; 2] = [
    SamplingDefaults { temperature: 0.7, top_p: 0.8, top_k: 20, presence_penalty: 0.0 },
    SamplingDefaults { temperature: 0.6, top_p: 0.95, top_k: 20, presence_penalty: 0.0 },
];

pub fn read(config: &Value) -> Result<ModelSpec, ModelError> {
    let (fields, tied) = shared::text_config(config)?;
    let sparse = MlpSpec::Experts {
        route: RouteSpec {
            experts: fields.count("num_experts", Some(512))?,
            chosen: fields.count("num_experts_per_tok", Some(10))?,
            renormalise: fields.flag("norm_topk_prob", true)?,
        },
        width: fields.count("moe_intermediate_size", Some(512))?,
        shared: fields.count("shared_expert_intermediate_size", Some(512))?,
    };
    shared::check_route(&fields, &sparse)?;
    let dense = MlpSpec::Dense { width: fields.count("intermediate_size", Some(5632))? };
    let step = fields.count("decoder_sparse_step", Some(1))?;
    let dense_layers: Vec<u64> =
        fields.list("mlp_only_layers")?.unwrap_or_default().iter().filter_map(Value::as_u64).collect();
    shared::build(fields, MODEL_TYPE, tied, SAMPLING, |i| {
        if dense_layers.contains(&(i as u64)) || (i + 1) % step != 0 { dense } else { sparse }
    })
}
