//! Checkpoints that say the same in another way give the same bits; what they lack is lacking by choice.

use martlet_device::KvScheme;
use martlet_device::reference::Reference;
use martlet_model::{ModelError, read_config};
use martlet_tests::fixtures::{self, Expected};
use martlet_tests::{prefill_and_decode, random, runner};
use martlet_weights::Checkpoint;
use martlet_weights::safetensors::{Tensor, to_bytes};
use serde_json::{Value, json};
use std::path::Path;

fn config(name: &str) -> Value {
    let text = std::fs::read_to_string(fixtures::path(name).join("config.json")).expect("fixture");
    serde_json::from_str(&text).expect("fixture")
}

/// The tensors of a fixture, in the file's order.
fn tensors(name: &str) -> Vec<Tensor> {
    let bytes = std::fs::read(fixtures::path(name).join("model.safetensors")).expect("fixture");
    let all = safetensors::SafeTensors::deserialize(&bytes).expect("fixture");
    let dtype = |d| match d {
        safetensors::Dtype::F32 => martlet_tensor::Dtype::F32,
        safetensors::Dtype::BF16 => martlet_tensor::Dtype::Bf16,
        other => panic!("{other:?}"),
    };
    let tensor = |(name, t): (String, safetensors::tensor::TensorView<'_>)| Tensor {
        name,
        dtype: dtype(t.dtype()),
        shape: t.shape().to_vec(),
        bytes: t.data().to_vec(),
    };
    all.tensors().into_iter().map(tensor).collect()
}

/// Bits of the logits over a fixture's prompt.
fn logits(checkpoint: &Checkpoint, name: &str) -> Vec<u32> {
    let ids = Expected::open(name).ids("input_ids");
    let mut runner = runner(Reference::new(), checkpoint, KvScheme::F32, ids.len());
    prefill_and_decode(&mut runner, &ids, ids.len(), 1).0.into_iter().map(f32::to_bits).collect()
}

fn write(folder: &Path, config: &Value, files: &[(&str, &[Tensor])]) {
    std::fs::write(folder.join("config.json"), config.to_string()).unwrap();
    let mut map = serde_json::Map::new();
    for (file, tensors) in files {
        std::fs::write(folder.join(file), to_bytes("pt", tensors)).unwrap();
        map.extend(tensors.iter().map(|t| (t.name.clone(), json!(file))));
    }
    if files.len() > 1 {
        let index = json!({"metadata": {}, "weight_map": map});
        std::fs::write(folder.join("model.safetensors.index.json"), index.to_string()).unwrap();
    }
}

#[test]
fn order_and_shards_do_not_matter() {
    for name in ["next-moe", "moe"] {
        let plain = logits(&fixtures::checkpoint(name), name);
        let mut list = tensors(name);
        let mut rng = random::Rng(5);
        for i in (1..list.len()).rev() {
            list.swap(i, rng.below(i + 1));
        }
        let shuffled = random::open(&config(name), &list);
        assert!(logits(&shuffled, name) == plain, "{name}: shuffled");

        let folder = tempfile::tempdir().unwrap();
        let (a, b) = list.split_at(list.len() / 3);
        write(
            folder.path(),
            &config(name),
            &[("model-00001-of-00002.safetensors", a), ("model-00002-of-00002.safetensors", b)],
        );
        let sharded = Checkpoint::open(folder.path()).unwrap();
        assert!(logits(&sharded, name) == plain, "{name}: in two shards");
    }
}

#[test]
fn a_checkpoint_without_a_draft_head_runs() {
    let name = "dense"; // tied, too
    let list: Vec<Tensor> = tensors(name).into_iter().filter(|t| !t.name.starts_with("mtp.")).collect();
    let checkpoint = random::open(&config(name), &list);
    let mut runner = runner(Reference::new(), &checkpoint, KvScheme::F32, 83);
    assert!(!runner.has_mtp());
    let ids = Expected::open(name).ids("input_ids");
    let (_, tokens, _) = prefill_and_decode(&mut runner, &ids, 83, 12);
    assert_eq!(tokens, Expected::open(name).ids("greedy_tokens"));
    let mut seq = runner.open().unwrap();
    let input = martlet_engine::DraftInput { seq: &mut seq, start: 0, tokens: &[1], outputs: 1 };
    let error = runner.draft(&mut [input], martlet_engine::Hidden::Step).unwrap_err().to_string();
    assert!(error.contains("draft"), "{error}");
}

/// A head of its own that equals the embedding gives what the tied one gives; a head beside `tie_word_embeddings` is
/// known and left alone.
#[test]
fn tied_and_untied_heads() {
    let name = "dense";
    let plain = logits(&fixtures::checkpoint(name), name);
    let mut list = tensors(name);
    let embedding = list.iter().find(|t| t.name.ends_with("embed_tokens.weight")).expect("embedding").clone();
    list.push(Tensor { name: "lm_head.weight".into(), ..embedding });
    let mut untied = config(name);
    untied["text_config"]["tie_word_embeddings"] = json!(false);
    untied["tie_word_embeddings"] = json!(false);
    assert!(logits(&random::open(&untied, &list), name) == plain);

    list.last_mut().expect("head").bytes.fill(0);
    assert!(logits(&random::open(&config(name), &list), name) == plain, "an ignored head changed the logits");
}

#[test]
fn router_weights_are_renormalised_unless_next_says_no() {
    let name = "next-moe";
    let plain = logits(&fixtures::checkpoint(name), name);
    let mut silent = config(name);
    silent.as_object_mut().expect("object").remove("norm_topk_prob");
    assert!(logits(&random::open(&silent, &tensors(name)), name) == plain);
    silent["norm_topk_prob"] = json!(false);
    assert!(logits(&random::open(&silent, &tensors(name)), name) != plain);

    let mut moe = config("moe");
    moe["text_config"]["norm_topk_prob"] = json!(false);
    let error = read_config(&moe).unwrap_err().to_string();
    assert!(error.contains("text_config.norm_topk_prob is false"), "{error}");
}

/// Text-only exports of the wrapped models: the inner config at the top, the prefix without `language_model`.
#[test]
fn text_only_exports_are_the_same_model() {
    for name in ["dense", "moe"] {
        let plain = logits(&fixtures::checkpoint(name), name);
        let inner = config(name)["text_config"].clone();
        let renamed = |t: Tensor| Tensor { name: t.name.replace("model.language_model.", "model."), ..t };
        let list: Vec<Tensor> = tensors(name).into_iter().map(renamed).collect();
        assert!(logits(&random::open(&inner, &list), name) == plain, "{name}");
    }
}

#[test]
fn configs_that_would_change_the_maths_are_refused_by_name() {
    let refused = |name: &str, key: &str, value: Value, expected: &str| {
        let mut c = config(name);
        let place = if c["text_config"].is_object() { &mut c["text_config"] } else { &mut c };
        place[key] = value;
        let error = read_config(&c).unwrap_err().to_string();
        assert!(error.contains(expected), "{error}\nshould contain {expected}");
    };
    refused("dense", "hidden_act", json!("gelu"), "text_config.hidden_act is \"gelu\"");
    refused("dense", "attention_bias", json!(true), "attention_bias is true");
    refused("dense", "attn_output_gate", json!(false), "attn_output_gate is false");
    refused("dense", "some_new_gate", json!("cosine"), "some_new_gate (\"cosine\") is unknown");
    refused("next-moe", "rope_scaling", json!({"type": "yarn", "factor": 4.0}), "rope_parameters.type is \"yarn\"");
    refused("next-moe", "num_experts_per_tok", json!(9), "more than num_experts = 8");
    refused("moe", "mtp_num_hidden_layers", json!(2), "mtp_num_hidden_layers is not 0 or 1");
    refused("dense", "layer_types", json!(["full_attention"]), "names 1 layers, but num_hidden_layers is 8");
    refused("dense", "num_key_value_heads", json!(4), "does not divide num_attention_heads = 6");
    refused("dense", "hidden_size", json!(-5), "hidden_size is -5");
    refused("dense", "vocab_size", json!(null), "vocab_size is missing");
    refused("dense", "rms_norm_eps", json!(-1e-6), "rms_norm_eps is -0.000001, expected a number above 0");
    refused("next-moe", "rope_theta", json!(0), "rope_theta is 0, expected a number above 0");

    let error = read_config(&json!({"model_type": "qwen4_exp"})).unwrap_err();
    assert!(matches!(&error, ModelError::ModelType { found, .. } if found == "qwen4_exp"), "{error}");
    assert!(error.to_string().contains("qwen3_next, qwen3_5, qwen3_5_moe"), "{error}");
    // Off means off, whatever the key.
    let mut c = config("dense");
    c["text_config"]["some_new_gate"] = json!(false);
    assert!(read_config(&c).is_ok());
}
