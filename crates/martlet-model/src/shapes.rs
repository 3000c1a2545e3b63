//! The shapes of released models, for random weights: what counts for speed and memory.

use crate::{ModelError, expected_tensors, read_config};
use martlet_weights::synthetic::{Options, Synthetic};
use serde_json::{Value, json};

/// Dimensions of a model.
struct Shape {
    name: &'static str,
    layers: usize,
    hidden: usize,
    /// Of the MLP, or of one expert.
    width: usize,
    heads: usize,
    kv_heads: usize,
    value_heads: usize,
    /// (experts, chosen)
    experts: Option<(usize, usize)>,
    tied: bool,
}

const SHAPES: [Shape; 11] = [
    dense("tiny", 4, 256, 512, [4, 2, 16], true),
    dense("0.8b", 24, 1024, 3584, [8, 2, 16], true),
    dense("2b", 24, 2048, 6144, [8, 2, 16], true),
    dense("4b", 32, 2560, 9216, [16, 4, 32], true),
    dense("9b", 32, 4096, 12288, [16, 4, 32], false),
    dense("27b", 64, 5120, 17408, [24, 4, 48], false),
    // The dimensions of 35b-a3b with fewer layers and experts, for machines that can not hold it.
    sparse("moe-small", 12, 2048, 512, [16, 2, 32], (64, 8)),
    sparse("35b-a3b", 40, 2048, 512, [16, 2, 32], (256, 8)),
    sparse(NEXT, 48, 2048, 512, [16, 2, 32], (512, 10)),
    sparse("122b-a10b", 48, 3072, 1024, [32, 2, 64], (256, 8)),
    sparse("397b-a17b", 60, 4096, 1024, [32, 2, 64], (512, 10)),
];

/// The one of Qwen3-Next, whose config is another.
const NEXT: &str = "80b-a3b";

const fn dense(
    name: &'static str,
    layers: usize,
    hidden: usize,
    width: usize,
    [heads, kv_heads, value_heads]: [usize; 3],
    tied: bool,
) -> Shape {
    Shape { name, layers, hidden, width, heads, kv_heads, value_heads, experts: None, tied }
}

const fn sparse(
    name: &'static str,
    layers: usize,
    hidden: usize,
    width: usize,
    heads: [usize; 3],
    experts: (usize, usize),
) -> Shape {
    Shape { experts: Some(experts), ..dense(name, layers, hidden, width, heads, false) }
}

/// Names of the shapes, smallest first. "tiny" is none of a released model: it is for tests.
pub fn shape_names() -> Vec<&'static str> {
    SHAPES.iter().map(|s| s.name).collect()
}

/// config.json of a shape, without quantisation; `None` for an unknown name.
pub fn shape_config(name: &str) -> Option<Value> {
    let s = SHAPES.iter().find(|s| s.name.eq_ignore_ascii_case(name))?;
    let mut text = json!({
        "hidden_size": s.hidden, "num_hidden_layers": s.layers, "full_attention_interval": 4,
        "num_attention_heads": s.heads, "num_key_value_heads": s.kv_heads, "head_dim": 256,
        "linear_num_key_heads": 16, "linear_num_value_heads": s.value_heads, "linear_key_head_dim": 128,
        "linear_value_head_dim": 128, "tie_word_embeddings": s.tied, "max_position_embeddings": 262_144});
    let own = match s.experts {
        None => json!({"intermediate_size": s.width}),
        Some((experts, chosen)) => json!({"num_experts": experts, "num_experts_per_tok": chosen,
            "moe_intermediate_size": s.width, "shared_expert_intermediate_size": s.width}),
    };
    let kind = if s.experts.is_some() { "qwen3_5_moe" } else { "qwen3_5" };
    let rest = match s.name {
        NEXT => json!({"model_type": "qwen3_next", "vocab_size": 151_936, "decoder_sparse_step": 1,
            "norm_topk_prob": true, "rope_theta": 1e7, "partial_rotary_factor": 0.25}),
        _ => json!({"model_type": format!("{kind}_text"), "vocab_size": 248_320, "mtp_num_hidden_layers": 1,
            "rope_parameters": {"rope_type": "default", "rope_theta": 1e7, "partial_rotary_factor": 0.25,
                "mrope_interleaved": true, "mrope_section": [11, 11, 10]}}),
    };
    for more in [own, rest] {
        text.as_object_mut()?.extend(more.as_object()?.clone());
    }
    Some(if s.name == NEXT { text } else { json!({"model_type": kind, "text_config": text}) })
}

/// A checkpoint of random weights in a shape, draft head included. An error names the shapes that there are.
pub fn synthetic(shape: &str, options: Options) -> Result<Synthetic, ModelError> {
    let config = shape_config(shape).ok_or_else(|| ModelError::Shape { found: shape.into(), known: shape_names() })?;
    Ok(Synthetic::new(&config, &expected_tensors(&read_config(&config)?, true), options)?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Model;
    use martlet_device::reference::Reference;

    fn options(bits: u8) -> Options {
        Options::new("affine", Some(bits), Some(64), 1).unwrap()
    }

    #[test]
    fn every_shape_is_a_whole_checkpoint() {
        for name in shape_names() {
            let made = synthetic(name, options(4)).unwrap().checkpoint().unwrap();
            let (spec, report) = Model::<Reference>::check(&made).unwrap_or_else(|e| panic!("{name}: {e}"));
            assert_eq!(spec.layers.len() % 4, 0, "{name}");
            assert!(report.draft_parameters > 0, "{name}");
        }
    }

    #[test]
    fn shapes_have_the_sizes_of_their_names() {
        let parameters = |name: &str| {
            let made = synthetic(name, options(4)).unwrap().checkpoint().unwrap();
            let (_, report) = Model::<Reference>::check(&made).unwrap();
            [report.parameters - report.draft_parameters, report.active_parameters].map(|n| n as f64 / 1e9)
        };
        for (name, all, active) in [
            ("0.8b", 0.75, 0.75),
            ("2b", 1.9, 1.9),
            ("4b", 4.2, 4.2),
            ("9b", 9.0, 8.0),
            ("27b", 26.9, 25.6),
            ("35b-a3b", 34.7, 2.9),
            ("80b-a3b", 79.7, 3.6),
            ("122b-a10b", 122.0, 10.0),
            ("397b-a17b", 396.0, 17.0),
        ] {
            let found = parameters(name);
            for (found, expected) in found.iter().zip([all, active]) {
                assert!((found / expected - 1.0f64).abs() < 0.1, "{name}: {found} G, expected about {expected}");
            }
        }
    }

    /// Counted by hand: the shape "tiny" has 3 linear layers, 1 attention layer and a tied table of 248,320 rows.
    #[test]
    fn a_token_of_the_tiny_shape_reads_these_weights() {
        let h = 256;
        let linear = (2 * 2048 + 2048) * h + 2048 * h + 2 * 16 * h + h * 2048 + 3 * 512 * h;
        let attention = (2 * 4 * 256 + 2 * 2 * 256) * h + h * 4 * 256 + 3 * 512 * h;
        let matrices = (248_320 * h + 3 * linear + attention) as u64;
        // Norms, convolution, gates; A_log is f32, the others are bf16.
        let small = 3 * (2 * (2 * h + 6144 * 4 + 16 + 128) + 4 * 16) + 2 * (2 * h + 2 * 256) + 2 * h;
        for (bits, eighths) in [(4, 36), (8, 68)] {
            let made = synthetic("TINY", options(bits)).unwrap().checkpoint().unwrap();
            let (_, report) = Model::<Reference>::check(&made).unwrap();
            // Codes, and 2 bytes each of scale and bias for 64 weights: 4.5 or 8.5 bits a weight.
            assert_eq!(report.bytes_per_token, matrices * eighths / 64 + small as u64);
        }
    }

    #[test]
    fn an_unknown_shape_is_refused_with_those_that_are() {
        let text = synthetic("1b", options(4)).unwrap_err().to_string();
        assert!(text.contains("\"1b\"") && text.contains("0.8b, 2b, 4b"), "{text}");
    }
}
