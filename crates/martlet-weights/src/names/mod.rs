//! From the names of each source format to the canonical ones: those of Hugging Face's Qwen3.5 without the prefix
//! before `embed_tokens`, `layers`, `norm` and `visual`. One table for each format.

pub(crate) mod gguf;
mod hf;
pub(crate) mod mlx;
pub(crate) mod next;

use serde_json::Value;

/// What a stored tensor is of the canonical ones.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Target {
    /// The whole of one.
    Whole(String),
    /// One expert of a stack.
    Expert {
        stack: String,
        index: usize,
    },
    /// [E, 2I, H]: for each expert the rows of the gate, then those of the up projection.
    GateUp {
        gate: String,
        up: String,
    },
    /// Qwen3-Next's joint projections, interleaved by key head: see [`next`].
    Qkvz {
        qkv: String,
        z: String,
    },
    Ba {
        b: String,
        a: String,
    },
}

/// `name` as a file has it, without the prefix that says where the language model or the vision tower sits.
pub(crate) fn strip_prefix(name: &str) -> String {
    for (prefix, instead) in [
        ("model.language_model.", ""),
        ("language_model.model.", ""),
        ("language_model.", ""),
        ("model.visual.", "visual."),
        ("vision_tower.", "visual."),
        ("model.", ""),
    ] {
        if let Some(rest) = name.strip_prefix(prefix) {
            return format!("{instead}{rest}");
        }
    }
    name.to_string()
}

/// Where a stored tensor of this (prefix-free) name belongs.
pub(crate) fn target(name: &str) -> Target {
    mlx::target(name).or_else(|| hf::target(name)).unwrap_or_else(|| Target::Whole(name.to_string()))
}

/// Whether the tensor multiplies a normalised input and is stored as value - 1 in the Hugging Face layout. The gated
/// norm of linear layers and the LayerNorms of the vision tower are not of this kind.
pub(crate) fn is_shifted_norm(name: &str) -> bool {
    if matches!(name, "norm.weight" | "mtp.norm.weight") {
        return true;
    }
    let Some(module) = name.strip_suffix(".weight") else {
        return false;
    };
    let kinds = [
        "input_layernorm",
        "post_attention_layernorm",
        "q_norm",
        "k_norm",
        "pre_fc_norm_embedding",
        "pre_fc_norm_hidden",
    ];
    !name.starts_with("visual.") && module.rsplit('.').next().is_some_and(|last| kinds.contains(&last))
}

/// Width of the inputs of a matrix as the model's configuration has it: what tells the number of bits of a packed
/// matrix apart from its group size. `name` is canonical or prefix-free; `None` where the configuration does not say.
pub(crate) fn input_width(name: &str, config: &Value) -> Option<usize> {
    let field = |key: &str| number(config, key);
    let module = name.strip_suffix(".weight").unwrap_or(name);
    if module.starts_with("visual.") {
        return None;
    }
    if module == "mtp.fc" {
        return field("hidden_size")?.checked_mul(2);
    }
    match module.rsplit('.').next()? {
        "o_proj" => field("num_attention_heads")?.checked_mul(field("head_dim")?),
        "out_proj" => field("linear_num_value_heads")?.checked_mul(field("linear_value_head_dim")?),
        "down_proj" if module.contains(".shared_expert.") => field("shared_expert_intermediate_size"),
        "down_proj" if module.contains(".experts.") || module.contains(".switch_mlp.") => {
            field("moe_intermediate_size")
        }
        "down_proj" => field("intermediate_size"),
        "embed_tokens" | "lm_head" | "q_proj" | "k_proj" | "v_proj" | "in_proj_qkv" | "in_proj_z" | "in_proj_b"
        | "in_proj_a" | "in_proj_qkvz" | "in_proj_ba" | "gate_proj" | "up_proj" | "gate_up_proj" | "gate"
        | "shared_expert_gate" => field("hidden_size"),
        _ => None,
    }
}

/// A whole number of the text model's configuration.
pub(crate) fn number(config: &Value, key: &str) -> Option<usize> {
    let text = config.get("text_config").unwrap_or(config);
    text.get(key)?.as_u64().and_then(|n| usize::try_from(n).ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prefixes_of_all_formats_go() {
        for (stored, canonical) in [
            ("model.language_model.layers.0.mlp.gate.weight", "layers.0.mlp.gate.weight"),
            ("language_model.model.embed_tokens.scales", "embed_tokens.scales"),
            ("language_model.lm_head.weight", "lm_head.weight"),
            ("language_model.mtp.fc.weight", "mtp.fc.weight"),
            ("model.norm.weight", "norm.weight"),
            ("model.visual.pos_embed.weight", "visual.pos_embed.weight"),
            ("vision_tower.pos_embed.weight", "visual.pos_embed.weight"),
            ("mtp.norm.weight", "mtp.norm.weight"),
        ] {
            assert_eq!(strip_prefix(stored), canonical);
        }
    }

    #[test]
    fn only_norms_of_one_kind_are_shifted() {
        for name in
            ["norm.weight", "mtp.norm.weight", "layers.3.self_attn.k_norm.weight", "mtp.pre_fc_norm_hidden.weight"]
        {
            assert!(is_shifted_norm(name), "{name}");
        }
        for name in [
            "layers.0.linear_attn.norm.weight",
            "visual.merger.norm.weight",
            "visual.blocks.0.norm1.weight",
            "lm_head.weight",
        ] {
            assert!(!is_shifted_norm(name), "{name}");
        }
    }

    #[test]
    fn widths_follow_the_config() {
        let config = serde_json::json!({"text_config": {
            "hidden_size": 10, "num_attention_heads": 3, "head_dim": 4, "moe_intermediate_size": 5,
            "shared_expert_intermediate_size": 6, "intermediate_size": 7
        }});
        for (name, width) in [
            ("mtp.fc.weight", Some(20)),
            ("layers.0.self_attn.o_proj.weight", Some(12)),
            ("layers.0.mlp.switch_mlp.down_proj.weight", Some(5)),
            ("layers.0.mlp.shared_expert.down_proj", Some(6)),
            ("layers.0.mlp.down_proj.weight", Some(7)),
            ("lm_head.weight", Some(10)),
            ("layers.0.linear_attn.out_proj.weight", None),
            ("visual.blocks.0.attn.proj.weight", None),
        ] {
            assert_eq!(input_width(name, &config), width, "{name}");
        }
    }
}
