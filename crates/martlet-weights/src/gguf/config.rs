//! config.json from the metadata.

use super::metadata::Metadata;
use crate::source::Source;
use serde_json::{Value as Json, json};

/// `general.architecture` and the `model_type` that it is elsewhere.
const ARCHITECTURES: [(&str, &str); 3] =
    [("qwen3next", "qwen3_next"), ("qwen35", "qwen3_5_text"), ("qwen35moe", "qwen3_5_moe_text")];

/// Keys of an architecture's own.
struct Keys<'a> {
    metadata: &'a Metadata,
    architecture: &'a str,
}

impl Keys<'_> {
    fn name(&self, key: &str) -> String {
        format!("{}.{key}", self.architecture)
    }

    fn need(&self, key: &str) -> Result<u64, String> {
        self.metadata.need_number(&self.name(key))
    }

    fn number(&self, key: &str) -> Result<Option<u64>, String> {
        self.metadata.number(&self.name(key))
    }

    /// A number, or an array with one for each layer, which must agree where they are not 0.
    fn each_layer(&self, key: &str) -> Result<u64, String> {
        let name = self.name(key);
        if self.metadata.list(&name).is_err() {
            return self.metadata.need_number(&name);
        }
        let list = self.metadata.numbers(&name)?.ok_or_else(|| format!("key {name} is missing"))?;
        let mut numbers = list.into_iter().filter(|&n| n > 0);
        match numbers.next() {
            Some(first) if numbers.all(|n| n == first) => Ok(first),
            _ => Err(format!("key {name} differs from layer to layer, which is not supported")),
        }
    }

    /// Refuses a value that would change the maths.
    fn only(&self, key: &str, same: impl Fn(&super::Value) -> bool, expected: &str) -> Result<(), String> {
        match self.metadata.get(&self.name(key)) {
            Some(value) if !same(value) => {
                Err(format!("key {} is {value:?}; only {expected} is supported", self.name(key)))
            }
            _ => Ok(()),
        }
    }
}

/// config.json as the Hugging Face format has it. The error names the key.
pub fn config(metadata: &Metadata, source: &Source) -> Result<Json, String> {
    let architecture = metadata.text("general.architecture")?.ok_or("key general.architecture is missing")?;
    if architecture == "clip" {
        return Err("is a vision projector (mmproj), not a model: give the file of the model itself".into());
    }
    let Some((_, model_type)) = ARCHITECTURES.iter().find(|(name, _)| *name == architecture) else {
        let known: Vec<&str> = ARCHITECTURES.iter().map(|(name, _)| *name).collect();
        let text = format!("has general.architecture {architecture}; supported are {}", known.join(", "));
        return Err(text);
    };
    let keys = Keys { metadata, architecture };
    refuse(&keys)?;
    let embedding = source.tensors.iter().find(|t| t.name == "token_embd.weight");
    let vocabulary = embedding.and_then(|t| t.shape.first()).ok_or("tensor token_embd.weight is missing")?;
    let drafts = keys.number("nextn_predict_layers")?.unwrap_or(0);
    let blocks = keys.need("block_count")?;
    let layers = blocks.checked_sub(drafts).ok_or_else(|| {
        format!("key {} is {drafts}, but there are {blocks} blocks", keys.name("nextn_predict_layers"))
    })?;
    let value_heads = keys.need("ssm.time_step_rank")?.max(1);
    let inner = keys.need("ssm.inner_size")?;
    if !inner.is_multiple_of(value_heads) {
        return Err(format!("key {} is {inner}, no multiple of {value_heads} heads", keys.name("ssm.inner_size")));
    }
    let mut config = json!({
        "model_type": model_type,
        "vocab_size": vocabulary,
        "hidden_size": keys.need("embedding_length")?,
        "num_hidden_layers": layers,
        "num_attention_heads": keys.each_layer("attention.head_count")?,
        "num_key_value_heads": keys.each_layer("attention.head_count_kv")?,
        "head_dim": keys.need("attention.key_length")?,
        "rms_norm_eps": metadata.need_float(&keys.name("attention.layer_norm_rms_epsilon"))?,
        "max_position_embeddings": keys.need("context_length")?,
        "linear_conv_kernel_dim": keys.need("ssm.conv_kernel")?,
        "linear_key_head_dim": keys.need("ssm.state_size")?,
        "linear_num_key_heads": keys.need("ssm.group_count")?,
        "linear_num_value_heads": value_heads,
        "linear_value_head_dim": inner / value_heads,
        "full_attention_interval": keys.number("full_attention_interval")?.unwrap_or(4),
        "mtp_num_hidden_layers": drafts,
        "tie_word_embeddings": source.tensors.iter().all(|t| t.name != "output.weight"),
        "rope_parameters": rope(&keys)?,
    });
    let mut optional = |key: &str, value: Option<Json>| {
        if let Some(value) = value {
            config[key] = value;
        }
    };
    optional("layer_types", layer_types(&keys, layers)?);
    optional("eos_token_id", metadata.number("tokenizer.ggml.eos_token_id")?.map(Json::from));
    for (field, key) in [
        ("intermediate_size", "feed_forward_length"),
        ("num_experts", "expert_count"),
        ("num_experts_per_tok", "expert_used_count"),
        ("moe_intermediate_size", "expert_feed_forward_length"),
        ("shared_expert_intermediate_size", "expert_shared_feed_forward_length"),
    ] {
        // A dense model has no experts, and its reader would not know the keys.
        let experts = field != "intermediate_size";
        let wanted = experts == (architecture != "qwen35");
        let number = if wanted { Some(keys.need(key)?) } else { None };
        optional(field, number.map(Json::from));
    }
    Ok(config)
}

/// What would change the maths and is not supported.
fn refuse(keys: &Keys<'_>) -> Result<(), String> {
    let head = keys.need("attention.key_length")?;
    keys.only("attention.value_length", |v| v.number() == Some(head), "the key_length")?;
    keys.only("rope.scaling.type", |v| v.text() == Some("none"), "none")?;
    keys.only("expert_gating_func", |v| v.number() == Some(1), "1 (softmax)")?;
    keys.only("expert_weights_scale", |v| matches!(v, super::Value::Float(0.0 | 1.0)), "1")?;
    keys.only("attention.scale", |v| *v == super::Value::Float(0.0), "0 (the usual scale)")
}

fn rope(keys: &Keys<'_>) -> Result<Json, String> {
    let (width, head) = (keys.need("rope.dimension_count")?, keys.need("attention.key_length")?.max(1));
    let factor = width as f64 / head as f64;
    if (head as f64 * factor) as u64 != width {
        return Err(format!("key {}: {width} of {head} dimensions", keys.name("rope.dimension_count")));
    }
    let mut rope = json!({
        "rope_type": "default",
        "rope_theta": keys.metadata.need_float(&keys.name("rope.freq_base"))?,
        "partial_rotary_factor": factor,
    });
    let name = keys.name("rope.dimension_sections");
    match keys.metadata.numbers(&name)?.as_deref() {
        None => {}
        Some([sections @ .., 0] | sections) if sections.len() == 3 => {
            rope["mrope_section"] = json!(sections);
            rope["mrope_interleaved"] = json!(true);
        }
        Some(other) => return Err(format!("key {name} is {other:?}, expected three numbers (and a 0)")),
    }
    Ok(rope)
}

/// Where the file says for each layer whether it is recurrent.
fn layer_types(keys: &Keys<'_>, layers: u64) -> Result<Option<Json>, String> {
    let name = keys.name("attention.recurrent_layers");
    let Some(list) = keys.metadata.list(&name)? else { return Ok(None) };
    let recurrent = |v: &super::Value| match v {
        super::Value::Bool(b) => Ok(*b),
        v => v.number().map(|n| n != 0).ok_or_else(|| format!("key {name} is not an array of bools")),
    };
    let all = list.iter().map(recurrent).collect::<Result<Vec<bool>, _>>()?;
    // Draft layers may be listed too.
    let Some(own) = usize::try_from(layers).ok().and_then(|n| all.get(..n)) else {
        return Err(format!("key {name} names {} layers, but there are {layers}", all.len()));
    };
    let types = own.iter().map(|&r| if r { "linear_attention" } else { "full_attention" });
    Ok(Some(types.collect()))
}
