//! Qwen3.5 and 3.6 mixture of experts: config with `text_config`, every layer sparse, router weights always
//! renormalised (the config has no key for it).

use super::{qwen3_5, shared};
use crate::spec::MlpSpec;
use crate::{ModelError, ModelSpec};
use martlet_device::RouteSpec;
use serde_json::{Value, json};

pub const MODEL_TYPE: &str = "qwen3_5_moe";

pub fn read(config: &Value) -> Result<ModelSpec, ModelError> {
    let (fields, tied) = shared::text_config(config)?;
    fields.only("norm_topk_prob", &json!(true))?;
    fields.only("mlp_only_layers", &json!([]))?;
    let mlp = MlpSpec::Experts {
        route: RouteSpec {
            experts: fields.count("num_experts", Some(256))?,
            chosen: fields.count("num_experts_per_tok", Some(8))?,
            renormalise: true,
        },
        width: fields.count("moe_intermediate_size", Some(512))?,
        shared: fields.count("shared_expert_intermediate_size", Some(512))?,
    };
    shared::check_route(&fields, &mlp)?;
    shared::build(fields, MODEL_TYPE, tied, qwen3_5::SAMPLING, |_| mlp)
}
