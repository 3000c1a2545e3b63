//! What the configs of the family have in common.

use crate::fields::Fields;
use crate::rope::RopeSpec;
use crate::spec::{LayerSpec, MAX_DRAFTS, MixerSpec, MlpSpec, SamplingDefaults};
use crate::{ModelError, ModelSpec};
use martlet_device::{AttentionSpec, DeltaSpec};
use serde_json::{Value, json};

/// Keys that say nothing about the forward pass of the text model.
const HARMLESS: [&str; 34] = [
    "_name_or_path",
    "architectures",
    "attention_dropout",
    "auto_map",
    "bos_token_id",
    "dtype",
    "eos_token_id",
    "initializer_range",
    "intermediate_size",
    "language_model_only",
    "mamba_ssm_dtype",
    "model_type",
    "mlp_only_layers",
    "decoder_sparse_step",
    "mtp_num_hidden_layers",
    "mtp_use_dedicated_embeddings",
    "norm_topk_prob",
    "output_attentions",
    "output_hidden_states",
    "output_router_logits",
    "pad_token_id",
    "quantization",
    "quantization_config",
    "router_aux_loss_coef",
    "return_dict",
    "tie_word_embeddings",
    "torch_dtype",
    "transformers_version",
    "unsloth_fixed",
    "unsloth_version",
    "use_cache",
    "max_window_layers",
    "vocab_size",
    "partial_rotary_factor",
];

/// Keys of the wrapper around `text_config` that belong to vision and video.
const WRAPPER: [&str; 6] = [
    "text_config",
    "vision_config",
    "image_token_id",
    "video_token_id",
    "vision_start_token_id",
    "vision_end_token_id",
];

/// The text part of a config: `text_config` where there is a wrapper, else the config itself. The wrapper's own keys
/// are checked too.
pub fn text_config(config: &Value) -> Result<(Fields<'_>, bool), ModelError> {
    let top = Fields::new(config, "")?;
    let tied = top.flag("tie_word_embeddings", false)?;
    let Some(text) = top.get("text_config") else { return Ok((top, tied)) };
    top.ignore(&WRAPPER);
    top.ignore(&HARMLESS);
    let fields = Fields::new(text, "text_config.")?;
    // transformers lets the inner key win where both are there.
    let tied = fields.flag("tie_word_embeddings", tied)?;
    top.finish()?;
    Ok((fields, tied))
}

/// Builds the spec from the text fields; `mlp` says what the MLP of layer i is.
pub fn build(
    fields: Fields<'_>,
    model_type: &'static str,
    tied: bool,
    sampling: [SamplingDefaults; 2],
    mlp: impl Fn(usize) -> MlpSpec,
) -> Result<ModelSpec, ModelError> {
    fields.only("hidden_act", &json!("silu"))?;
    fields.only("attention_bias", &json!(false))?;
    fields.only("attn_output_gate", &json!(true))?;
    // Two names of one function.
    if fields.get("output_gate_type") != Some(&json!("silu")) {
        fields.only("output_gate_type", &json!("swish"))?;
    }
    fields.only("use_sliding_window", &json!(false))?;
    fields.get("sliding_window"); // without use_sliding_window it says nothing
    let hidden = fields.count("hidden_size", None)?;
    let attention = attention(&fields)?;
    let delta = delta(&fields)?;
    let layers = mixers(&fields, attention, delta)?;
    let spec = ModelSpec {
        model_type,
        vocabulary: fields.count("vocab_size", None)?,
        hidden,
        eps: fields.positive("rms_norm_eps", Some(1e-6))? as f32,
        tied,
        layers: layers.into_iter().enumerate().map(|(i, mixer)| LayerSpec { mixer, mlp: mlp(i) }).collect(),
        rope: rope(&fields, attention.dim)?,
        context: fields.count("max_position_embeddings", Some(32768))?,
        mtp: LayerSpec { mixer: MixerSpec::Attention(attention), mlp: mlp(0) },
        sampling,
    };
    if fields.get("mtp_num_hidden_layers").is_some_and(|v| v.as_u64().is_none_or(|n| n > 1)) {
        return Err(fields.error("mtp_num_hidden_layers", "is not 0 or 1: deeper draft heads are not supported"));
    }
    fields.only("mtp_use_dedicated_embeddings", &json!(false))?;
    fields.ignore(&HARMLESS);
    fields.finish()?;
    Ok(spec)
}

fn attention(fields: &Fields<'_>) -> Result<AttentionSpec, ModelError> {
    let heads = fields.count("num_attention_heads", None)?;
    let kv_heads = fields.count("num_key_value_heads", Some(heads))?;
    let dim = fields.count("head_dim", Some(256))?;
    if !heads.is_multiple_of(kv_heads) {
        return Err(fields.error(
            "num_key_value_heads",
            format!("is {kv_heads}, which does not divide num_attention_heads = {heads}"),
        ));
    }
    Ok(AttentionSpec { heads, kv_heads, dim, scale: (1.0 / (dim as f64).sqrt()) as f32 })
}

fn delta(fields: &Fields<'_>) -> Result<DeltaSpec, ModelError> {
    let spec = DeltaSpec {
        key_heads: fields.count("linear_num_key_heads", Some(16))?,
        value_heads: fields.count("linear_num_value_heads", Some(32))?,
        key_dim: fields.count("linear_key_head_dim", Some(128))?,
        value_dim: fields.count("linear_value_head_dim", Some(128))?,
        taps: fields.count("linear_conv_kernel_dim", Some(4))?,
        max_tentative: MAX_DRAFTS,
    };
    if !spec.value_heads.is_multiple_of(spec.key_heads) {
        return Err(fields.error(
            "linear_num_value_heads",
            format!("is {}, no multiple of linear_num_key_heads = {}", spec.value_heads, spec.key_heads),
        ));
    }
    Ok(spec)
}

/// The mixer of each layer: `layer_types` where given, else every `full_attention_interval`-th layer is full.
fn mixers(fields: &Fields<'_>, full: AttentionSpec, linear: DeltaSpec) -> Result<Vec<MixerSpec>, ModelError> {
    let count = fields.count("num_hidden_layers", None)?;
    let interval = fields.count("full_attention_interval", Some(4))?;
    let mixer = |is_full| if is_full { MixerSpec::Attention(full) } else { MixerSpec::GatedDelta(linear) };
    let Some(types) = fields.list("layer_types")? else {
        return Ok((0..count).map(|i| mixer((i + 1) % interval == 0)).collect());
    };
    if types.len() != count {
        return Err(
            fields.error("layer_types", format!("names {} layers, but num_hidden_layers is {count}", types.len()))
        );
    }
    let known = |v: &Value| match v.as_str() {
        Some("full_attention") => Ok(mixer(true)),
        Some("linear_attention") => Ok(mixer(false)),
        _ => Err(fields.error("layer_types", format!("has {v}; known are full_attention and linear_attention"))),
    };
    types.iter().map(known).collect()
}

/// `rope_parameters` (3.5 and later), or the flat `rope_theta` and `rope_scaling` (Next).
fn rope(fields: &Fields<'_>, dim: usize) -> Result<RopeSpec, ModelError> {
    let flat_factor = fields.number("partial_rotary_factor", Some(0.25))?;
    let flat_theta = fields.positive("rope_theta", Some(10_000.0))?;
    let scaling = fields.get("rope_scaling");
    let Some(parameters) = fields.get("rope_parameters").or(scaling) else {
        return Ok(RopeSpec::new(rotary_width(fields, dim, flat_factor)?, flat_theta, None));
    };
    let inner = Fields::new(parameters, "rope_parameters.")?;
    inner.only("rope_type", &json!("default"))?;
    inner.only("type", &json!("default"))?;
    let theta = inner.positive("rope_theta", Some(flat_theta))?;
    let factor = inner.number("partial_rotary_factor", Some(flat_factor))?;
    let width = rotary_width(fields, dim, factor)?;
    let mut sections = None;
    if let Some(list) = inner.list("mrope_section")? {
        if !inner.flag("mrope_interleaved", false)? {
            return Err(inner.error("mrope_interleaved", "is not true: only interleaved sections are supported"));
        }
        let numbers: Vec<usize> = list.iter().filter_map(|v| v.as_u64()).map(|n| n as usize).collect();
        match numbers[..] {
            [t, h, w] if list.len() == 3 && t + h + w == width / 2 => sections = Some([t, h, w]),
            _ => {
                let want = width / 2;
                return Err(inner.error("mrope_section", format!("is not three numbers that sum to {want}")));
            }
        }
    }
    inner.ignore(&["mrope_interleaved"]);
    inner.finish()?;
    Ok(RopeSpec::new(width, theta, sections))
}

fn rotary_width(fields: &Fields<'_>, dim: usize, factor: f64) -> Result<usize, ModelError> {
    let width = (dim as f64 * factor) as usize;
    if factor <= 0.0 || width > dim || width == 0 || !width.is_multiple_of(2) {
        return Err(fields.error(
            "partial_rotary_factor",
            format!("is {factor}: {width} of {dim} dimensions can not rotate in pairs"),
        ));
    }
    Ok(width)
}

/// A router can not choose more experts than there are.
pub fn check_route(fields: &Fields<'_>, mlp: &MlpSpec) -> Result<(), ModelError> {
    match mlp.route() {
        Some(r) if r.chosen > r.experts => {
            Err(fields.error("num_experts_per_tok", format!("is {}, more than num_experts = {}", r.chosen, r.experts)))
        }
        _ => Ok(()),
    }
}
