use super::*;
use crate::safetensors::{Tensor, to_bytes};
use crate::{Layout, Limits};
use martlet_tensor::scheme::{Encoded, encode};
use martlet_tensor::{Dtype, Matrix, Part};
use std::path::PathBuf;

fn folder(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(name)
}

fn fixture(name: &str) -> Checkpoint {
    Checkpoint::open(&folder("tests/fixtures").join(name)).unwrap()
}

/// Opens files as the program does with those built into it.
fn reopen(files: &[(String, Vec<u8>)]) -> Checkpoint {
    let leak = |(name, bytes): &(String, Vec<u8>)| (name.clone(), &*Box::leak(bytes.clone().into_boxed_slice()));
    Checkpoint::from_files(files.iter().map(leak).collect()).unwrap()
}

fn affine(bits: u8, group: u16) -> Options {
    Options { bits, group, mode: Mode::Affine }
}

fn stored_names(files: &[(String, Vec<u8>)], file: &str) -> Vec<String> {
    let bytes = &files.iter().find(|(name, _)| name == file).unwrap().1;
    let tensors = crate::safetensors::read(bytes, &Limits::default()).unwrap();
    tensors.into_iter().map(|t| t.name).collect()
}

/// Every tensor of `quantised` is the one of `src` after encoding its rows; what is not packed is equal.
fn compare(src: &Checkpoint, quantised: &Checkpoint) {
    assert_eq!(quantised.layout(), Layout::Mlx);
    assert!(src.names().eq(quantised.names()));
    for name in src.names() {
        assert_eq!(src.shape(name), quantised.shape(name), "{name}");
        let scheme = quantised.stored(name).unwrap().scheme();
        let mut expected = src.vector(name).unwrap();
        if !matches!(scheme, Scheme::Dense(_)) {
            let cols = src.shape(name).unwrap().last().copied().unwrap();
            for row in expected.chunks_mut(cols) {
                let mut e = Encoded::default();
                encode(scheme, row, &mut e);
                let part = Part::new(1, &e.codes, &e.scales, &e.biases);
                row.copy_from_slice(&Matrix::new(scheme, cols, vec![part]).unwrap().dequantise());
            }
        }
        assert!(quantised.vector(name).unwrap() == expected, "{name}");
    }
}

#[test]
fn every_architecture_comes_back_as_its_encoded_rows() {
    for (name, options) in [
        ("dense", affine(4, 64)),
        ("moe", affine(3, 32)),
        ("next-moe", affine(6, 64)),
        ("moe", Options::new("mxfp4", None, None).unwrap()),
        ("next-moe", Options::new("nvfp4", None, None).unwrap()),
        ("dense", Options::new("mxfp8", None, None).unwrap()),
    ] {
        let src = fixture(name);
        let (files, summary) = quantise_in_memory(&src, options).unwrap();
        let back = reopen(&files);
        compare(&src, &back);
        assert!(summary.unfit.is_empty(), "{name}");
        assert!(summary.packed_weights > 20 * summary.plain_weights, "{name}");
        assert_eq!(back.file_bytes(), summary.bytes);
        let usual = options.scheme(Float::Bf16).unwrap();
        for tensor in back.names() {
            let scheme = back.stored(tensor).unwrap().scheme();
            let gate = tensor.ends_with("mlp.gate.weight") || tensor.ends_with("shared_expert_gate.weight");
            if gate {
                assert_eq!(scheme, Scheme::Affine { bits: 8, group: 64, scale: Float::Bf16 }, "{tensor}");
            } else if tensor.ends_with("_proj.weight") || tensor.ends_with("embed_tokens.weight") {
                assert_eq!(scheme, usual, "{tensor}");
            }
        }
    }
}

#[test]
fn names_and_files_are_those_of_mlx() {
    let (files, _) = quantise_in_memory(&fixture("moe"), affine(4, 64)).unwrap();
    let names = stored_names(&files, "model.safetensors");
    for name in [
        "language_model.model.embed_tokens.scales",
        "language_model.lm_head.weight",
        "language_model.model.norm.weight",
        "language_model.model.layers.0.mlp.switch_mlp.down_proj.biases",
        "language_model.model.layers.0.linear_attn.conv1d.weight",
        "language_model.model.layers.3.self_attn.q_proj.weight",
    ] {
        assert!(names.iter().any(|n| n == name), "{name}");
    }
    assert!(names.iter().all(|n| !n.starts_with("mtp.")));
    let draft = stored_names(&files, "mtp.safetensors");
    assert!(draft.iter().all(|n| n.starts_with("mtp.")) && draft.iter().any(|n| n == "mtp.fc.scales"));

    let (files, _) = quantise_in_memory(&fixture("next-moe"), affine(4, 64)).unwrap();
    let names = stored_names(&files, "model.safetensors");
    let layer = "model.layers.0.linear_attn.in_proj_";
    let joint: Vec<_> = names.iter().filter_map(|n| n.strip_prefix(layer)?.strip_suffix(".weight")).collect();
    assert_eq!(joint, ["ba", "qkvz"]);
    assert!(names.iter().any(|n| n == "lm_head.weight"));

    let config = &files.iter().find(|(name, _)| name == "config.json").unwrap().1;
    let config: serde_json::Value = serde_json::from_slice(config).unwrap();
    let q = &config["quantization"];
    assert_eq!((&q["bits"], &q["group_size"], &q["mode"]), (&4.into(), &64.into(), &"affine".into()));
    assert_eq!(q["model.layers.0.mlp.gate"]["bits"], 8);
    assert_eq!(q, &config["quantization_config"]);
    assert_eq!(config["model_type"], "qwen3_next");
}

#[test]
fn fledgling_keeps_its_vision_tower_and_files() {
    let src = Checkpoint::open(&folder("models/fledgling")).unwrap();
    let dir = tempfile::tempdir().unwrap();
    let dst = dir.path().join("new/fledgling-4bit");
    let mut last = (0, 0);
    let summary = quantise(&src, &dst, Options::default(), &mut |done, total| last = (done, total)).unwrap();
    assert_eq!((last.0, last.0), (last.1, summary.packed_weights + summary.plain_weights));
    let back = Checkpoint::open(&dst).unwrap();
    compare(&src, &back);
    for name in ["tokenizer.json", "chat_template.jinja", "generation_config.json", "preprocessor_config.json"] {
        assert_eq!(src.text_file(name).unwrap(), back.text_file(name).unwrap(), "{name}");
        assert!(summary.files.iter().any(|f| f == name));
    }
    let vision = back.stored("visual.patch_embed.proj.weight").unwrap();
    assert_eq!((vision.rows(), vision.scheme()), (128, Scheme::Dense(Float::Bf16)));
    assert!(back.matrix("visual.patch_embed.proj.weight").is_err());
    let siblings: Vec<_> = std::fs::read_dir(dst.parent().unwrap()).unwrap().collect();
    assert_eq!(siblings.len(), 1, "nothing temporary is left");

    let full = quantise(&src, &dst, Options::default(), &mut |_, _| {}).unwrap_err().to_string();
    assert!(full.contains("fledgling-4bit") && full.contains("not empty"), "{full}");
    let file = dst.join("config.json");
    assert!(quantise(&src, &file, Options::default(), &mut |_, _| {}).unwrap_err().to_string().contains("no folder"));
}

#[test]
fn a_wide_group_leaves_narrow_matrices_plain() {
    let src = fixture("moe");
    let (files, summary) = quantise_in_memory(&src, affine(4, 128)).unwrap();
    let back = reopen(&files);
    compare(&src, &back);
    assert!(summary.unfit.iter().any(|n| n == "layers.0.mlp.experts.gate_proj.weight"), "{:?}", summary.unfit);
    let scheme = |name: &str| back.matrix(name).unwrap().scheme();
    assert_eq!(scheme("layers.0.mlp.experts.gate_proj.weight"), Scheme::Dense(Float::Bf16));
    assert_eq!(scheme("layers.0.linear_attn.out_proj.weight").bits(), 4);
    let module = "language_model.model.layers.0.mlp.switch_mlp.gate_proj";
    assert_eq!(back.config()["quantization"][module], false);
}

#[test]
fn shards_are_filled_and_the_index_follows() {
    let src = fixture("moe");
    let plan = Plan::new(&src, affine(4, 64), 200_000).unwrap();
    let mut files = Vec::new();
    write_plan(&src, &plan, &mut Output::Memory(&mut files), &mut |_, _| {}).unwrap();
    let shards: Vec<_> =
        files.iter().filter(|(n, _)| n.starts_with("model-")).map(|(n, b)| (n.as_str(), b.len())).collect();
    assert!(shards.len() > 2 && shards.iter().all(|(_, len)| *len < 220_000), "{shards:?}");
    assert_eq!(shards[0].0, format!("model-00001-of-{:05}.safetensors", shards.len()));
    compare(&src, &reopen(&files));
}

#[test]
fn packed_sources_and_wrong_options_are_refused() {
    let text = quantise_in_memory(&fixture("dense-mlx-q4"), affine(3, 64)).unwrap_err().to_string();
    assert!(text.contains("language_model.model") && text.contains("affine4 g64 bf16 already"), "{text}");
    for (bits, group) in [(7, 64), (4, 48), (0, 64), (9, 32)] {
        let text = quantise_in_memory(&fixture("dense"), affine(bits, group)).unwrap_err().to_string();
        assert!(text.contains(&format!("no {bits} bits in groups of {group}")), "{text}");
    }
    assert!(Options::new("nvfp4", Some(8), None).is_err());
    assert!(Options::new("gguf", None, None).unwrap_err().to_string().contains("gguf"));
}

#[test]
fn a_failure_leaves_no_folder() {
    let dir = tempfile::tempdir().unwrap();
    let src = dir.path().join("src");
    std::fs::create_dir(&src).unwrap();
    let mut values = vec![0.5; 128];
    values[70] = f32::NAN;
    let tensors = [
        Tensor::floats("model.layers.0.linear_attn.conv1d.weight", Float::F32, &[2, 1, 4], &[1.0; 8]),
        Tensor::floats("lm_head.weight", Float::F32, &[2, 64], &values),
    ];
    std::fs::write(src.join("model.safetensors"), to_bytes("pt", &tensors)).unwrap();
    std::fs::write(src.join("config.json"), "{}").unwrap();
    let src = Checkpoint::open(&src).unwrap();
    let dst = dir.path().join("dst");
    let text = quantise(&src, &dst, Options::default(), &mut |_, _| {}).unwrap_err().to_string();
    assert!(text.contains("lm_head.weight (model.safetensors)") && text.contains("no finite number"), "{text}");
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1);
}

#[test]
fn fp8_sources_are_widened() {
    let floats = |name: &str, shape: &[usize], values: &[f32]| Tensor::floats(name, Float::Bf16, shape, values);
    let codes = Tensor {
        name: "lm_head.weight".into(),
        dtype: Dtype::F8E4m3,
        shape: vec![130, 192],
        bytes: (0..130 * 192).map(|i| (i * 7 % 120) as u8).collect(),
    };
    let tensors = [
        floats("model.layers.0.linear_attn.conv1d.weight", &[2, 1, 4], &[1.0; 8]),
        floats("lm_head.weight_scale_inv", &[2, 2], &[1.0, 0.5, 2.0, 4.0]),
        codes,
    ];
    let config = br#"{"quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]}}"#;
    let src =
        reopen(&[("model.safetensors".into(), to_bytes("pt", &tensors)), ("config.json".into(), config.to_vec())]);
    let (files, _) = quantise_in_memory(&src, affine(8, 64)).unwrap();
    let back = reopen(&files);
    compare(&src, &back);
    assert_eq!(back.config()["quantization_config"].get("quant_method"), None);
}
