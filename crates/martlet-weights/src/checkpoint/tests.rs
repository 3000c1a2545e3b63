//! The fixtures and the small model open, and all their tensors are what other tools see in them.

use super::*;
use crate::safetensors::{Tensor, to_bytes};
use martlet_tensor::scheme::{Encoded, encode};
use martlet_tensor::{Dtype, Float, Scheme};
use std::path::PathBuf;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn fixture(name: &str) -> Checkpoint {
    Checkpoint::open(&root().join("tests/fixtures").join(name)).unwrap()
}

const ALL: [&str; 8] = [
    "next-moe",
    "dense",
    "moe",
    "dense-mlx-q4",
    "dense-mlx-mxfp4",
    "dense-mlx-nvfp4",
    "moe-mlx-q4",
    "next-moe-mlx-mixed",
];

#[test]
fn every_tensor_resolves() {
    let fledgling = Checkpoint::open(&root().join("models/fledgling")).unwrap();
    let checkpoints = ALL.iter().map(|name| fixture(name)).chain([fledgling]);
    for (checkpoint, name) in checkpoints.zip(ALL.iter().chain(&["fledgling"])) {
        let mlx = name.contains("mlx");
        assert_eq!(checkpoint.layout(), if mlx { Layout::Mlx } else { Layout::Hf }, "{name}");
        for tensor in checkpoint.names() {
            let values = checkpoint.vector(tensor).unwrap();
            let shape = checkpoint.shape(tensor).unwrap();
            assert_eq!(values.len(), shape.iter().product::<usize>(), "{name} {tensor}");
            assert!(values.iter().all(|v| v.is_finite()), "{name} {tensor}");
            let matrix = checkpoint.matrix(tensor).unwrap();
            assert_eq!(matrix.rows() * matrix.cols(), values.len(), "{name} {tensor}");
        }
    }
}

#[test]
fn shapes_are_canonical() {
    let check = |checkpoint: &Checkpoint, name: &str, shape: &[usize]| {
        assert_eq!(checkpoint.shape(name), Some(shape), "{name}");
    };
    for name in ["moe", "moe-mlx-q4"] {
        let c = fixture(name);
        check(&c, "embed_tokens.weight", &[384, 64]);
        check(&c, "lm_head.weight", &[384, 64]);
        check(&c, "norm.weight", &[64]);
        check(&c, "layers.0.linear_attn.conv1d.weight", &[384, 4]);
        check(&c, "layers.0.linear_attn.A_log", &[8]);
        check(&c, "layers.1.mlp.experts.gate_proj.weight", &[16, 64, 64]);
        check(&c, "layers.3.mlp.experts.down_proj.weight", &[16, 64, 64]);
        check(&c, "layers.3.mlp.gate.weight", &[16, 64]);
        check(&c, "layers.3.self_attn.q_proj.weight", &[512, 64]);
        assert_eq!(c.has("mtp.fc.weight"), name == "moe");
        assert!(!c.has("layers.3.mlp.experts.gate_up_proj"));
    }
    for name in ["next-moe", "next-moe-mlx-mixed"] {
        let c = fixture(name);
        check(&c, "layers.0.linear_attn.in_proj_qkv.weight", &[256, 64]);
        check(&c, "layers.0.linear_attn.in_proj_z.weight", &[128, 64]);
        check(&c, "layers.0.linear_attn.in_proj_b.weight", &[4, 64]);
        check(&c, "layers.0.linear_attn.in_proj_a.weight", &[4, 64]);
        check(&c, "layers.5.mlp.experts.up_proj.weight", &[8, 64, 64]);
    }
}

#[test]
fn joint_projections_are_cut_by_key_head() {
    let c = fixture("next-moe");
    let module = |name: &str| {
        let m = c.modules.iter().find(|m| m.name == name).unwrap();
        m.matrix(&c.source).unwrap()
    };
    let joint = module("layers.0.linear_attn.in_proj_qkvz.weight");
    let qkv = c.matrix("layers.0.linear_attn.in_proj_qkv.weight").unwrap();
    let z = c.matrix("layers.0.linear_attn.in_proj_z.weight").unwrap();
    // Two key heads of 32, each with two value heads of 32: q 0..32, k 32..64, v 64..128, z 128..192, and again.
    for (whole, part, range) in [
        (&qkv, 0, 0..32),
        (&qkv, 32, 192..224),
        (&qkv, 64, 32..64),
        (&qkv, 96, 224..256),
        (&qkv, 128, 64..128),
        (&qkv, 192, 256..320),
        (&z, 0, 128..192),
        (&z, 64, 320..384),
    ] {
        let expected = joint.slice(range.clone()).dequantise();
        assert_eq!(whole.slice(part..part + range.len()).dequantise(), expected, "{range:?}");
    }
    let joint = module("layers.0.linear_attn.in_proj_ba.weight");
    let b = c.matrix("layers.0.linear_attn.in_proj_b.weight").unwrap().dequantise();
    assert_eq!(b[..128], joint.slice(0..2).dequantise());
    assert_eq!(b[128..], joint.slice(4..6).dequantise());
}

#[test]
fn experts_are_the_rows_of_the_packed_tensor() {
    let c = fixture("moe");
    let packed = c.modules.iter().find(|m| m.name == "layers.0.mlp.experts.gate_up_proj").unwrap();
    let packed = packed.matrix(&c.source).unwrap();
    let gate = c.matrix("layers.0.mlp.experts.gate_proj.weight").unwrap();
    let up = c.matrix("layers.0.mlp.experts.up_proj.weight").unwrap();
    for e in [0, 7, 15] {
        let (a, b) = (e * 128, e * 128 + 64);
        assert_eq!(gate.slice(e * 64..e * 64 + 64).dequantise(), packed.slice(a..b).dequantise());
        assert_eq!(up.slice(e * 64..e * 64 + 64).dequantise(), packed.slice(b..b + 64).dequantise());
    }
}

#[test]
fn norms_are_multipliers_in_both_layouts() {
    let (hf, mlx) = (fixture("moe"), fixture("moe-mlx-q4"));
    for name in ["norm.weight", "layers.3.self_attn.q_norm.weight", "layers.0.input_layernorm.weight"] {
        for (a, b) in hf.vector(name).unwrap().iter().zip(mlx.vector(name).unwrap()) {
            // MLX has added 1 in bf16.
            assert!((a - b).abs() < 0.01, "{name} {a} {b}");
        }
    }
    let name = "layers.0.linear_attn.norm.weight";
    assert_eq!(hf.vector(name).unwrap(), mlx.vector(name).unwrap());
    let name = "layers.0.linear_attn.conv1d.weight";
    assert_eq!(hf.vector(name).unwrap(), mlx.vector(name).unwrap());
}

#[test]
fn the_convention_of_mtp_norms_can_be_set() {
    let mut c = fixture("moe");
    let (mtp, trunk) = ("mtp.pre_fc_norm_hidden.weight", "norm.weight");
    let (shifted, norm) = (c.vector(mtp).unwrap(), c.vector(trunk).unwrap());
    c.set_mtp_norm_shift(false);
    let plain = c.vector(mtp).unwrap();
    assert!(shifted.iter().zip(plain).all(|(a, b)| *a == 1.0 + b));
    assert_eq!(c.vector(trunk).unwrap(), norm);
}

#[test]
fn settings_in_config_name_modules() {
    let c = fixture("next-moe-mlx-mixed");
    let bits = |name: &str| match c.matrix(name).unwrap().scheme() {
        Scheme::Affine { bits, group: 64, .. } => bits,
        other => panic!("{name}: {other}"),
    };
    assert_eq!(bits("layers.0.mlp.experts.gate_proj.weight"), 2);
    assert_eq!(bits("layers.0.mlp.experts.down_proj.weight"), 3);
    assert_eq!(bits("layers.3.self_attn.q_proj.weight"), 5);
    assert_eq!(bits("layers.0.mlp.gate.weight"), 8);
    assert_eq!(bits("layers.0.linear_attn.in_proj_qkv.weight"), 4);
    assert_eq!(bits("lm_head.weight"), 6);
}

/// All tensors of a fixture as they are stored.
fn stored_tensors(checkpoint: &Checkpoint) -> Vec<Tensor> {
    let tensor = |(i, t): (usize, &crate::source::Raw)| Tensor {
        name: t.name.clone(),
        dtype: t.dtype,
        shape: t.shape.clone(),
        bytes: checkpoint.source.bytes(i).to_vec(),
    };
    checkpoint.source.tensors.iter().enumerate().map(tensor).collect()
}

/// MLX shards with a draft head in a file of its own, experts that differ from what config.json says of the rest, and
/// a vision tower: what people publish.
#[test]
fn checkpoints_put_together_from_others_open() {
    let (mlx, hf) = (fixture("moe-mlx-q4"), fixture("moe"));
    let mut model = stored_tensors(&mlx);
    // The experts of layer 1 again, in groups of 32 with F16 scales; config.json does not name them.
    let name = "layers.1.mlp.experts.up_proj.weight";
    let scheme = Scheme::Affine { bits: 4, group: 32, scale: Float::F16 };
    let mut e = Encoded::default();
    hf.vector(name).unwrap().chunks(64).for_each(|row| encode(scheme, row, &mut e));
    let module = "language_model.model.layers.1.mlp.switch_mlp.up_proj";
    for t in &mut model {
        let (dtype, shape, bytes) = match t.name.strip_prefix(module) {
            Some(".weight") => (Dtype::U32, [16, 64, 8], &e.codes),
            Some(".scales") => (Dtype::F16, [16, 64, 2], &e.scales),
            Some(".biases") => (Dtype::F16, [16, 64, 2], &e.biases),
            _ => continue,
        };
        (t.dtype, t.shape, t.bytes) = (dtype, shape.to_vec(), bytes.clone());
    }
    let kernel: Vec<f32> = (0..2 * 2 * 4 * 4 * 3).map(|i| i as f32).collect();
    model.push(Tensor::floats("vision_tower.patch_embed.proj.weight", Float::F16, &[2, 2, 4, 4, 3], &kernel));
    let mut draft = stored_tensors(&hf);
    draft.retain(|t| t.name.starts_with("mtp."));

    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("model.safetensors"), to_bytes("mlx", &model)).unwrap();
    std::fs::write(dir.path().join("mtp.safetensors"), to_bytes("pt", &draft)).unwrap();
    std::fs::write(dir.path().join("config.json"), mlx.config().to_string()).unwrap();
    let mut c = Checkpoint::open(dir.path()).unwrap();
    assert_eq!(c.layout(), Layout::Mlx);
    assert_eq!(c.matrix(name).unwrap().scheme(), scheme);
    assert_eq!(c.shape(name), Some(&[16, 64, 64][..]));
    // [O, T, P, P, C] comes as [O, C, T, P, P].
    let kernel = "visual.patch_embed.proj.weight";
    assert_eq!(c.shape(kernel), Some(&[2, 3, 2, 4, 4][..]));
    assert_eq!(c.vector(kernel).unwrap()[..3], [0.0, 3.0, 6.0]);
    // The draft head in the Hugging Face convention, once it is told so.
    let norm = "mtp.layers.0.self_attn.q_norm.weight";
    assert_ne!(c.vector(norm).unwrap(), hf.vector(norm).unwrap());
    c.set_mtp_norm_shift(true);
    for name in hf.names().filter(|n| n.starts_with("mtp.")) {
        assert_eq!(c.vector(name).unwrap(), hf.vector(name).unwrap(), "{name}");
    }
}
