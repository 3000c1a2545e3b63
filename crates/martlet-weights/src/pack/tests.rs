use super::manifest::{Form, Manifest, Matrix, Stack, Sum, Tensor};
use super::*;
use crate::limits::Limits;
use crate::mutate::Random;
use crate::report::{Kind, Read};
use crate::safetensors::{Tensor as Raw, to_bytes};
use martlet_tensor::Float;
use std::path::PathBuf;

fn expected(name: &str, shape: &[usize], kind: Kind) -> Expected {
    Expected { name: name.into(), shape: shape.to_vec(), kind, read: Read::Every }
}

/// A model of a few tensors, not of any architecture, with experts and a vision tower.
fn source(dir: &Path) -> (Checkpoint, Vec<Expected>) {
    let mut n = 0;
    let mut floats = |name: &str, shape: &[usize]| {
        let len = shape.iter().product();
        let values: Vec<f32> = (0..len).map(|i| ((i * 7 + n) % 61) as f32 * 0.125 - 3.0).collect();
        n += 1;
        Raw::floats(name, Float::Bf16, shape, &values)
    };
    let layer = "model.language_model.layers.0";
    let tensors = [
        floats("lm_head.weight", &[37, 80]),
        floats(&format!("{layer}.linear_attn.conv1d.weight"), &[6, 1, 4]),
        floats("model.language_model.norm.weight", &[80]),
        floats(&format!("{layer}.mlp.gate.weight"), &[3, 80]),
        floats(&format!("{layer}.mlp.experts.gate_up_proj"), &[3, 40, 80]),
        floats(&format!("{layer}.mlp.experts.down_proj"), &[3, 80, 20]),
        floats("model.visual.patch_embed.proj.weight", &[5, 3, 2, 4, 4]),
        floats("model.language_model.unknown.weight", &[4]),
    ];
    std::fs::create_dir(dir).unwrap();
    std::fs::write(dir.join("model.safetensors"), to_bytes("pt", &tensors)).unwrap();
    std::fs::write(dir.join("config.json"), r#"{"model_type":"test"}"#).unwrap();
    std::fs::write(dir.join("tokenizer.json"), "{}").unwrap();
    let list = vec![
        expected("lm_head.weight", &[37, 80], Kind::Matrix),
        expected("layers.0.linear_attn.conv1d.weight", &[6, 4], Kind::Vector),
        expected("norm.weight", &[80], Kind::Vector),
        expected("layers.0.mlp.gate.weight", &[3, 80], Kind::Exact),
        expected("layers.0.mlp.experts.gate_proj.weight", &[3, 20, 80], Kind::Experts),
        expected("layers.0.mlp.experts.up_proj.weight", &[3, 20, 80], Kind::Experts),
        expected("layers.0.mlp.experts.down_proj.weight", &[3, 80, 20], Kind::Experts),
    ];
    (Checkpoint::open(dir).unwrap(), list)
}

/// A pack of it in a folder of its own.
fn packed() -> (tempfile::TempDir, PathBuf, Checkpoint, Vec<Expected>) {
    let dir = tempfile::tempdir().unwrap();
    let (src, list) = source(&dir.path().join("source"));
    let dst = dir.path().join("new/pack");
    let mut last = (0, 0);
    let summary = pack(&src, &list, &dst, None, &mut |done, total| last = (done, total)).unwrap();
    assert_eq!((last.0, summary.bytes), (last.1, last.1));
    assert_eq!(summary.left_out, ["unknown.weight"]);
    assert_eq!(std::fs::read_dir(dir.path().join("new")).unwrap().count(), 1, "nothing temporary is left");
    (dir, dst, src, list)
}

fn manifest_of(dst: &Path) -> Manifest {
    read(&std::fs::read(dst.join(MANIFEST_FILE)).unwrap(), &Limits::default()).unwrap()
}

#[test]
fn a_pack_holds_the_values_and_files_of_its_source() {
    let (dir, dst, src, list) = packed();
    let back = Checkpoint::open(&dst).unwrap();
    assert_eq!(back.layout(), crate::Layout::Pack);
    let report = back.check(&list, &[("visual.", "vision")]).unwrap();
    assert_eq!((report.tensors, report.ignored.len()), (list.len(), 1));
    for name in back.names() {
        assert_eq!(back.shape(name), src.shape(name), "{name}");
        let (found, expected) = (back.vector(name).unwrap(), src.vector(name).unwrap());
        assert_eq!(found, expected, "{name}");
    }
    for name in ["config.json", "tokenizer.json"] {
        assert_eq!(back.text_file(name).unwrap(), src.text_file(name).unwrap());
    }
    verify(&dst, &mut |_, _| {}).unwrap();
    let manifest = manifest_of(&dst);
    assert_eq!(manifest.source.path, dir.path().join("source").canonicalize().unwrap().display().to_string());
    let stack = &manifest.experts[0];
    assert_eq!((stack.xxh3.len(), stack.stride % BLOB_ALIGN, stack.bytes), (3, 0, (2 * 2 * 80 + 5 * 20) * 32));
    assert_eq!(manifest.tensors.iter().find(|t| t.name.contains("patch")).unwrap().form, Form::Plain);
    let again = pack(&Checkpoint::open(&dst).unwrap(), &list, &dir.path().join("x"), None, &mut |_, _| {});
    assert!(again.unwrap_err().to_string().contains("is a pack already"));
    assert_ne!(back.fingerprint(), src.fingerprint());
    assert_eq!(back.fingerprint(), Checkpoint::open(&dst).unwrap().fingerprint());
}

#[test]
fn what_is_missing_or_cut_is_named_with_the_command_that_helps() {
    let (_dir, dst, ..) = packed();
    let error = || Checkpoint::open(&dst).unwrap_err().to_string();
    for name in [EXPERTS_FILE, "tokenizer.json", WEIGHTS_FILE] {
        let away = dst.join("away");
        std::fs::rename(dst.join(name), &away).unwrap();
        let text = error();
        assert!(text.contains(name) && text.contains("is missing") && text.contains("martlet pack "), "{text}");
        std::fs::rename(&away, dst.join(name)).unwrap();
    }
    let path = dst.join(WEIGHTS_FILE);
    let bytes = std::fs::read(&path).unwrap();
    std::fs::write(&path, &bytes[..bytes.len() - 1]).unwrap();
    let (found, expected) = (format!("has {} bytes", bytes.len() - 1), format!("says {}", bytes.len()));
    let text = error();
    assert!(text.contains(&found) && text.contains(&expected) && text.contains("martlet pack "), "{text}");
    std::fs::write(&path, &bytes).unwrap();
    std::fs::remove_file(dst.join(MANIFEST_FILE)).unwrap();
    assert!(error().contains("manifest.json: is missing: the pack was never finished"), "{}", error());
}

#[test]
fn a_changed_byte_is_found_by_verify() {
    let (_dir, dst, ..) = packed();
    for name in [WEIGHTS_FILE, EXPERTS_FILE, "tokenizer.json"] {
        let path = dst.join(name);
        let bytes = std::fs::read(&path).unwrap();
        let mut changed = bytes.clone();
        changed[1] ^= 4;
        std::fs::write(&path, &changed).unwrap();
        let text = verify(&dst, &mut |_, _| {}).unwrap_err().to_string();
        assert!(text.contains(name) && text.contains("at byte 0 is not what was written"), "{text}");
        std::fs::write(&path, &bytes).unwrap();
    }
    verify(&dst, &mut |_, _| {}).unwrap();
}

#[test]
fn another_layout_is_refused_with_the_command_that_makes_a_new_pack() {
    let later = br#"{"format": "martlet pack", "layout": 7, "source": {"path": "/m/Q 4B", "x": 1}, "new": [1]}"#;
    let text = read(later, &Limits::default()).unwrap_err().to_string();
    assert!(text.contains("layout 7") && text.ends_with("martlet pack \"/m/Q 4B\" NEW_FOLDER"), "{text}");
    let other = read(br#"{"format": "x", "layout": 0}"#, &Limits::default()).unwrap_err().to_string();
    assert!(other.contains("something else"), "{other}");
    let small = Limits { json_bytes: 3, ..Limits::default() };
    assert!(matches!(read(later, &small), Err(ManifestError::Limit { .. })));
}

/// Each change is one that could make a reader allocate, overflow, or read what it should not.
#[test]
fn hostile_numbers_are_refused_by_field() {
    let (_dir, dst, ..) = packed();
    let whole = manifest_of(&dst);
    let refused = |field: &str, change: &dyn Fn(&mut Manifest)| {
        let mut manifest = whole.clone();
        change(&mut manifest);
        let text = match read(&serde_json::to_vec(&manifest).unwrap(), &Limits::default()) {
            Ok(_) => panic!("{field}: accepted"),
            Err(e) => e.to_string(),
        };
        assert!(text.contains(&format!("is damaged: {field}")) && text.contains("martlet pack "), "{field}: {text}");
    };
    let tensor = |f: fn(&mut Tensor)| move |m: &mut Manifest| f(&mut m.tensors[0]);
    let stack = |f: fn(&mut Stack)| move |m: &mut Manifest| f(&mut m.experts[0]);
    let gate = |f: fn(&mut Matrix)| move |m: &mut Manifest| f(&mut m.experts[0].gate);
    refused("weights.blake3", &|m| m.weights.bytes = u64::MAX);
    refused("weights.blake3", &|m| m.weights.blake3.clear());
    refused("tensors[0].shape", &tensor(|t| t.shape = vec![usize::MAX, usize::MAX]));
    refused("tensors[0].shape", &tensor(|t| t.shape = vec![1; 9]));
    refused("tensors[0].shape", &tensor(|t| t.shape = vec![0, 80]));
    refused("tensors[0].shape", &tensor(|t| t.shape = vec![37, 10, 8]));
    refused("tensors[0].shape", &tensor(|t| t.shape = vec![1 << 40, 1 << 22]));
    refused("tensors[0].bytes", &tensor(|t| t.bytes = u64::MAX));
    refused("tensors[0].offset", &tensor(|t| t.offset = u64::MAX - 63));
    refused("tensors[0].offset", &tensor(|t| t.offset = 4));
    refused("tensors[0].form", &tensor(|t| (t.form, t.scheme) = (Form::Plain, martlet_tensor::Scheme::Mxfp4)));
    refused("tensors[1].name", &|m| m.tensors[1].name = m.tensors[0].name.clone());
    refused("experts[0].name", &|m| m.tensors[0].name = "layers.0.mlp.experts.up_proj.weight".into());
    refused("experts[0].blake3", &stack(|s| s.xxh3.push(Sum(1))));
    refused("experts[0].blake3", &stack(|s| (s.xxh3, s.blake3) = (Vec::new(), Vec::new())));
    refused("experts[0].stride", &stack(|s| s.stride = u64::MAX));
    refused("experts[0].stride", &stack(|s| s.stride = u64::MAX - (BLOB_ALIGN - 1)));
    refused("experts[0].stride", &stack(|s| s.bytes = s.stride + 1));
    refused("experts[0].offset", &stack(|s| s.offset = BLOB_ALIGN));
    refused("experts[0].gate.bytes", &gate(|g| g.bytes += 1));
    refused("experts[0].gate.offset", &gate(|g| g.offset = u64::MAX - 63));
    refused("experts[0].gate.shape", &gate(|g| g.shape = [0, 80]));
    refused("texts[0].name", &|m| m.texts[0].name = "../config.json".into());
}

#[test]
fn random_damage_never_panics_and_never_reaches_outside() {
    let (_dir, dst, ..) = packed();
    let path = dst.join(MANIFEST_FILE);
    let seed = std::fs::read(&path).unwrap();
    let (mut random, mut accepted) = (Random::new(5), 0);
    for _ in 0..3000 {
        let bytes = random.mutate(&seed);
        if read(&bytes, &Limits::default()).is_err() {
            continue;
        }
        std::fs::write(&path, &bytes).unwrap();
        let Ok(checkpoint) = Checkpoint::open(&dst) else { continue };
        accepted += 1;
        for name in checkpoint.names() {
            // Values or an error, but no panic.
            let _ = checkpoint.vector(name);
        }
    }
    assert!(accepted > 0, "some changes are harmless, a name for instance");
}
