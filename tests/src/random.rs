//! Random checkpoints, made in memory from a seed.

use martlet_model::{expected_tensors, read_config};
use martlet_tensor::Float;
use martlet_weights::quantise::{Mode, Options, quantise_in_memory};
use martlet_weights::safetensors::{Tensor, to_bytes};
use martlet_weights::{Checkpoint, Kind};
use serde_json::{Value, json};

/// A small generator with good bits (splitmix64).
pub struct Rng(pub u64);

impl Rng {
    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Uniform below `n`.
    pub fn below(&mut self, n: usize) -> usize {
        (self.bits() % n as u64) as usize
    }

    /// Roughly normal: the sum of twelve uniform values.
    pub fn normal(&mut self) -> f32 {
        (0..12).map(|_| (self.bits() >> 40) as f32 / (1 << 24) as f32).sum::<f32>() - 6.0
    }

    pub fn ids(&mut self, count: usize, vocabulary: usize) -> Vec<u32> {
        (0..count).map(|_| self.below(vocabulary) as u32).collect()
    }
}

/// A dense config whose dimensions hit no round number.
pub fn dense_config() -> Value {
    json!({"model_type": "qwen3_5", "text_config": {
        "model_type": "qwen3_5_text", "hidden_size": 192, "intermediate_size": 320, "num_hidden_layers": 5,
        "layer_types": ["linear_attention", "full_attention", "linear_attention", "linear_attention", "full_attention"],
        "num_attention_heads": 6, "num_key_value_heads": 3, "head_dim": 64, "vocab_size": 347,
        "linear_num_key_heads": 3, "linear_num_value_heads": 6, "linear_key_head_dim": 48, "linear_value_head_dim": 32,
        "tie_word_embeddings": true, "max_position_embeddings": 8192,
        "rope_parameters": {"rope_type": "default", "rope_theta": 1e6, "partial_rotary_factor": 0.25}}})
}

/// A very small config with a draft head.
pub fn tiny_config() -> Value {
    json!({"model_type": "qwen3_5", "text_config": {
        "model_type": "qwen3_5_text", "hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 2,
        "layer_types": ["linear_attention", "full_attention"], "num_attention_heads": 1, "num_key_value_heads": 1,
        "head_dim": 64, "vocab_size": 24, "linear_num_key_heads": 1, "linear_num_value_heads": 1,
        "linear_key_head_dim": 32, "linear_value_head_dim": 32, "tie_word_embeddings": false,
        "max_position_embeddings": 8192, "mtp_num_hidden_layers": 1,
        "rope_parameters": {"rope_type": "default", "rope_theta": 1e6, "partial_rotary_factor": 0.25}}})
}

/// A sparse config with more experts than rows are likely to choose.
pub fn moe_config() -> Value {
    json!({"model_type": "qwen3_5_moe", "text_config": {
        "model_type": "qwen3_5_moe_text", "hidden_size": 128, "num_hidden_layers": 4, "full_attention_interval": 2,
        "num_attention_heads": 4, "num_key_value_heads": 1, "head_dim": 128, "vocab_size": 515,
        "linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 64, "linear_value_head_dim": 64,
        "num_experts": 24, "num_experts_per_tok": 5, "moe_intermediate_size": 64,
        "shared_expert_intermediate_size": 192, "tie_word_embeddings": false, "max_position_embeddings": 8192,
        "rope_parameters": {"rope_type": "default", "rope_theta": 1e7, "partial_rotary_factor": 0.25,
            "mrope_interleaved": true, "mrope_section": [6, 5, 5]}}})
}

/// A checkpoint of random weights in the Hugging Face layout of Qwen3.5, bf16.
pub fn checkpoint(config: &Value, seed: u64) -> Checkpoint {
    open(config, &tensors(config, seed))
}

/// The tensors of such a checkpoint, to be changed before they are opened.
pub fn tensors(config: &Value, seed: u64) -> Vec<Tensor> {
    let spec = read_config(config).expect("config");
    let mut rng = Rng(seed);
    let mut list = Vec::new();
    let mut gate_up: Vec<f32> = Vec::new();
    let text = config.get("text_config").unwrap_or(config);
    for t in expected_tensors(&spec, text["mtp_num_hidden_layers"] == 1) {
        let (name, shape) = (t.name.as_str(), t.shape.as_slice());
        let count: usize = shape.iter().product();
        let values: Vec<f32> = (0..count).map(|_| value(&mut rng, name, shape)).collect();
        let outside = name == "lm_head.weight" || name.starts_with("mtp.");
        let source = if outside { name.into() } else { format!("model.language_model.{name}") };
        if t.kind == Kind::Experts && name.ends_with("gate_proj.weight") {
            gate_up = values; // joined with up below, as these checkpoints pack them
        } else if t.kind == Kind::Experts && name.ends_with("up_proj.weight") {
            let [e, out, inner] = shape[..] else { panic!("{shape:?}") };
            let pairs = gate_up.chunks(out * inner).zip(values.chunks(out * inner));
            let joined: Vec<f32> = pairs.flat_map(|(g, u)| g.iter().chain(u).copied()).collect();
            let source = source.replace("up_proj.weight", "gate_up_proj");
            list.push(Tensor::floats(source, Float::Bf16, &[e, 2 * out, inner], &joined));
        } else if t.kind == Kind::Experts {
            list.push(Tensor::floats(source.trim_end_matches(".weight"), Float::Bf16, shape, &values));
        } else if name.ends_with("conv1d.weight") {
            list.push(Tensor::floats(source, Float::Bf16, &[shape[0], 1, shape[1]], &values));
        } else {
            let keep = name.ends_with("A_log") || name.ends_with("linear_attn.norm.weight");
            list.push(Tensor::floats(source, if keep { Float::F32 } else { Float::Bf16 }, shape, &values));
        }
    }
    list
}

/// Opens tensors as a checkpoint in one file. The bytes live as long as the process: tests are short.
pub fn open(config: &Value, tensors: &[Tensor]) -> Checkpoint {
    let leak = |bytes: Vec<u8>| -> &'static [u8] { Box::leak(bytes.into_boxed_slice()) };
    let files = vec![
        ("config.json".to_string(), leak(config.to_string().into_bytes())),
        ("model.safetensors".to_string(), leak(to_bytes("pt", tensors))),
    ];
    Checkpoint::from_files(files).unwrap_or_else(|e| panic!("{e}"))
}

fn value(rng: &mut Rng, name: &str, shape: &[usize]) -> f32 {
    let x = rng.normal();
    match name {
        n if n.ends_with("A_log") => 0.5 + 0.6 * x,
        n if n.ends_with("dt_bias") => 0.7 * x,
        n if n.ends_with("linear_attn.norm.weight") => 1.0 + 0.2 * x,
        n if n.ends_with("conv1d.weight") || n == "embed_tokens.weight" => 0.5 * x,
        n if n.contains("norm") => 0.2 * x,
        n if n.ends_with("mlp.gate.weight") => 2.0 * x / (shape[1] as f32).sqrt(),
        _ => 1.3 * x / (shape[shape.len() - 1] as f32).sqrt(),
    }
}

/// A checkpoint quantised by the project's own encoder, kept in memory.
pub fn quantised(source: &Checkpoint, bits: u8, group: u16) -> Checkpoint {
    packed(source, Options { bits, group, mode: Mode::Affine })
}

/// `source` packed in memory.
pub fn packed(source: &Checkpoint, options: Options) -> Checkpoint {
    let (files, _) = quantise_in_memory(source, options).unwrap_or_else(|e| panic!("{e}"));
    let leak = |bytes: Vec<u8>| -> &'static [u8] { Box::leak(bytes.into_boxed_slice()) };
    Checkpoint::from_files(files.into_iter().map(|(name, bytes)| (name, leak(bytes))).collect())
        .unwrap_or_else(|e| panic!("{e}"))
}
