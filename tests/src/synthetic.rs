//! Checkpoints of random weights in the shapes of released models, written to disk tensor by tensor: for speed and
//! memory, which do not depend on the values. Their text is noise, their routers choose evenly, and no draft is right.

use crate::random::Rng;
use martlet_model::{expected_tensors, read_config};
use martlet_tensor::{Dtype, Float};
use martlet_weights::{Kind, safetensors};
use serde_json::{Value, json};
use std::io::{self, BufWriter, Write};
use std::path::Path;

/// Weights share a scale and a bias in groups of so many.
const GROUP: usize = 64;

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

const SHAPES: [Shape; 7] = [
    dense("tiny", 4, 256, 512, [4, 2, 16], true),
    dense("0.8b", 24, 1024, 3584, [8, 2, 16], true),
    dense("2b", 24, 2048, 6144, [8, 2, 16], true),
    dense("4b", 32, 2560, 9216, [16, 4, 32], true),
    dense("9b", 32, 4096, 12288, [16, 4, 32], false),
    // The dimensions of 35b-a3b with fewer layers and experts, for machines that can not hold it.
    sparse("moe-small", 12, 64),
    sparse("35b-a3b", 40, 256),
];

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

const fn sparse(name: &'static str, layers: usize, experts: usize) -> Shape {
    let experts = Some((experts, 8));
    Shape { name, layers, hidden: 2048, width: 512, heads: 16, kv_heads: 2, value_heads: 32, experts, tied: false }
}

/// Names of the shapes.
pub fn names() -> Vec<&'static str> {
    SHAPES.iter().map(|s| s.name).collect()
}

/// config.json of a shape; `None` for an unknown name.
pub fn config(name: &str) -> Option<Value> {
    let s = SHAPES.iter().find(|s| s.name == name)?;
    let kind = if s.experts.is_some() { "qwen3_5_moe" } else { "qwen3_5" };
    let mut text = json!({
        "model_type": format!("{kind}_text"), "hidden_size": s.hidden, "num_hidden_layers": s.layers,
        "full_attention_interval": 4, "num_attention_heads": s.heads, "num_key_value_heads": s.kv_heads,
        "head_dim": 256, "vocab_size": 248_320, "linear_num_key_heads": 16, "linear_num_value_heads": s.value_heads,
        "linear_key_head_dim": 128, "linear_value_head_dim": 128, "tie_word_embeddings": s.tied,
        "max_position_embeddings": 262_144, "mtp_num_hidden_layers": 1,
        "rope_parameters": {"rope_type": "default", "rope_theta": 1e7, "partial_rotary_factor": 0.25,
            "mrope_interleaved": true, "mrope_section": [11, 11, 10]}});
    let own = match s.experts {
        None => json!({"intermediate_size": s.width}),
        Some((experts, chosen)) => json!({"num_experts": experts, "num_experts_per_tok": chosen,
            "moe_intermediate_size": s.width, "shared_expert_intermediate_size": s.width}),
    };
    text.as_object_mut()?.extend(own.as_object()?.clone());
    let packed = json!({"group_size": GROUP, "bits": 4, "mode": "affine"});
    Some(json!({"model_type": kind, "text_config": text, "quantization": packed, "quantization_config": packed}))
}

/// One tensor of the file.
struct Tensor {
    name: String,
    dtype: Dtype,
    shape: Vec<usize>,
    fill: Fill,
}

enum Fill {
    /// Random bits: packed codes.
    Bits,
    /// The same value everywhere.
    Same(f32),
    /// Around a value, by at most a deviation.
    Around(f32, f32),
}

/// Writes config.json and model.safetensors (4 bits in groups of 64, draft head included) to the folder `dir`. Holds one
/// piece of a tensor at a time.
pub fn write(name: &str, seed: u64, dir: &Path) -> io::Result<()> {
    let config = config(name)
        .ok_or_else(|| io::Error::other(format!("no shape is called {name}; known are {}", names().join(", "))))?;
    std::fs::create_dir_all(dir)?;
    let tensors = tensors(&config);
    let mut file = BufWriter::with_capacity(1 << 20, std::fs::File::create(dir.join("model.safetensors"))?);
    let list = tensors.iter().map(|t| (t.name.as_str(), t.dtype, t.shape.as_slice()));
    file.write_all(&safetensors::header("mlx", list))?;
    let mut rng = Rng(seed);
    for tensor in &tensors {
        fill(tensor, &mut rng, &mut file)?;
    }
    file.into_inner().map_err(|e| e.into_error())?.sync_all()?;
    std::fs::write(dir.join("config.json"), config.to_string())
}

fn tensors(config: &Value) -> Vec<Tensor> {
    let spec = read_config(config).unwrap_or_else(|e| panic!("{e}"));
    let mut list = Vec::new();
    for t in expected_tensors(&spec, true) {
        let name = t.name.replace(".mlp.experts.", ".mlp.switch_mlp.");
        let name = match name.as_str() {
            n if n.starts_with("mtp.") => name,
            n if n.starts_with("lm_head.") => format!("language_model.{name}"),
            _ => format!("language_model.model.{name}"),
        };
        let mut add = |name: String, dtype, shape: &[usize], fill| {
            list.push(Tensor { name, dtype, shape: shape.to_vec(), fill });
        };
        if t.kind == Kind::Vector {
            let (dtype, fill) = match t.name.as_str() {
                n if n.ends_with("A_log") => (Dtype::F32, Fill::Around(0.5, 0.5)),
                n if n.ends_with("dt_bias") => (Dtype::Bf16, Fill::Around(0.0, 0.7)),
                n if n.ends_with("conv1d.weight") => (Dtype::Bf16, Fill::Around(0.0, 0.5)),
                _ => (Dtype::Bf16, Fill::Around(1.0, 0.2)),
            };
            let conv = t.name.ends_with("conv1d.weight");
            let shape = if conv { [&t.shape[..], &[1]].concat() } else { t.shape.clone() };
            add(name, dtype, &shape, fill);
            continue;
        }
        // Codes 0 to 15 around 7.5, deviation 4.6: weights of deviation 1 / sqrt(inputs).
        let (inputs, rows) = (t.shape[t.shape.len() - 1], &t.shape[..t.shape.len() - 1]);
        let scale = 1.0 / (4.6 * (inputs as f32).sqrt());
        let module = name.trim_end_matches(".weight");
        let of = |cols: usize| [rows, &[cols]].concat();
        add(format!("{module}.weight"), Dtype::U32, &of(inputs / 8), Fill::Bits);
        add(format!("{module}.scales"), Dtype::Bf16, &of(inputs / GROUP), Fill::Same(scale));
        add(format!("{module}.biases"), Dtype::Bf16, &of(inputs / GROUP), Fill::Same(-7.5 * scale));
    }
    list
}

fn fill(tensor: &Tensor, rng: &mut Rng, out: &mut impl Write) -> io::Result<()> {
    let count: usize = tensor.shape.iter().product();
    let float = if tensor.dtype == Dtype::F32 { Float::F32 } else { Float::Bf16 };
    let mut bytes = Vec::new();
    match tensor.fill {
        Fill::Bits => {
            for _ in 0..count.div_ceil(2) {
                bytes.clear();
                bytes.extend(rng.bits().to_le_bytes());
                out.write_all(&bytes)?;
            }
            // Two codes' words at a time: every packed tensor has an even number of them.
            debug_assert!(count.is_multiple_of(2));
        }
        Fill::Same(value) => {
            float.put(value, &mut bytes);
            let bytes = bytes.repeat(count);
            out.write_all(&bytes)?;
        }
        Fill::Around(middle, deviation) => {
            for _ in 0..count {
                float.put(middle + deviation * (2.0 * (rng.bits() >> 40) as f32 / (1 << 24) as f32 - 1.0), &mut bytes);
            }
            out.write_all(&bytes)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use martlet_device::reference::Reference;
    use martlet_model::Model;
    use martlet_weights::Checkpoint;

    #[test]
    fn every_shape_has_a_config_that_is_read() {
        for name in names() {
            let spec = read_config(&config(name).unwrap()).unwrap_or_else(|e| panic!("{name}: {e}"));
            assert_eq!(spec.layers.len() % 4, 0, "{name}");
        }
        assert!(config("1b").is_none());
    }

    #[test]
    fn what_is_written_is_a_whole_checkpoint() {
        let dir = tempfile::tempdir().unwrap();
        write("tiny", 1, dir.path()).unwrap();
        let (spec, report) = Model::<Reference>::check(&Checkpoint::open(dir.path()).unwrap()).unwrap();
        assert_eq!((spec.hidden, spec.vocabulary), (256, 248_320));
        assert!(report.tensors > 50 && report.draft_parameters > 0);
    }
}
