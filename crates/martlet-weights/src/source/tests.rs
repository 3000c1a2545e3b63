//! Folders whose files do not fit together.

use crate::safetensors::{Tensor, to_bytes};
use crate::{Checkpoint, Layout};
use martlet_tensor::Float;
use std::path::Path;

fn conv(layer: usize) -> Tensor {
    let name = format!("model.language_model.layers.{layer}.linear_attn.conv1d.weight");
    Tensor::floats(name, Float::Bf16, &[2, 1, 4], &[0.5; 8])
}

fn norm(name: &str) -> Tensor {
    Tensor::floats(name, Float::Bf16, &[4], &[0.25; 4])
}

/// A folder of two shards, changed by `edit`, and the error of opening it.
fn error(edit: impl FnOnce(&Path)) -> String {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path();
    let norm = norm("model.language_model.norm.weight");
    std::fs::write(path.join("one.safetensors"), to_bytes("pt", &[conv(0)])).unwrap();
    std::fs::write(path.join("two.safetensors"), to_bytes("pt", &[conv(1), norm])).unwrap();
    index(path, "one.safetensors", "two.safetensors");
    std::fs::write(path.join("config.json"), "{}").unwrap();
    edit(path);
    match Checkpoint::open(path) {
        Ok(c) => format!("opened: {:?}, {:?}", c.layout(), c.names().collect::<Vec<_>>()),
        Err(e) => e.to_string(),
    }
}

/// An index whose first tensor is in `first`, the others in `second`.
fn index(path: &Path, first: &str, second: &str) {
    let name = |layer: usize| conv(layer).name;
    let map = serde_json::json!({
        name(0): first, name(1): second, "model.language_model.norm.weight": second
    });
    let text = serde_json::json!({"metadata": {}, "weight_map": map}).to_string();
    std::fs::write(path.join("model.safetensors.index.json"), text).unwrap();
}

#[test]
fn the_folder_itself_opens() {
    let found = error(|_| ());
    assert!(found.starts_with("opened: Hf") && found.contains("layers.1.linear_attn.conv1d"), "{found}");
}

#[test]
fn a_draft_head_beside_the_shards_is_taken_up() {
    let found =
        error(|path| std::fs::write(path.join("mtp.safetensors"), to_bytes("pt", &[norm("mtp.norm.weight")])).unwrap());
    assert!(found.starts_with("opened") && found.contains("mtp.norm.weight"), "{found}");
    let twice = norm("model.language_model.norm.weight");
    let found = error(|path| std::fs::write(path.join("mtp.safetensors"), to_bytes("pt", &[twice])).unwrap());
    let name = "model.language_model.norm.weight (mtp.safetensors)";
    assert!(found.contains(name) && found.contains("also in two.safetensors"), "{found}");
}

#[test]
fn a_missing_shard_is_named() {
    let found = error(|path| std::fs::remove_file(path.join("two.safetensors")).unwrap());
    assert!(found.contains("two.safetensors is missing") && found.contains("index.json"), "{found}");
    assert!(found.contains("layers.1.linear_attn.conv1d.weight"), "{found}");
}

#[test]
fn an_index_can_not_leave_the_folder() {
    let found = error(|path| index(path, "../one.safetensors", "two.safetensors"));
    assert!(found.contains("../one.safetensors") && found.contains("layers.0.linear_attn"), "{found}");
    assert!(found.contains("index.json"), "{found}");
}

#[test]
fn index_and_shards_must_agree() {
    let found = error(|path| index(path, "two.safetensors", "two.safetensors"));
    let name = conv(0).name;
    assert!(found.contains(&format!("{name} (two.safetensors): is listed in the index, but")), "{found}");
    let found = error(|path| {
        let bytes = to_bytes("pt", &[conv(0), norm("model.language_model.more.weight")]);
        std::fs::write(path.join("one.safetensors"), bytes).unwrap();
    });
    assert!(found.contains("more.weight (one.safetensors): is not listed"), "{found}");
    let found = error(|path| {
        let bytes = to_bytes("pt", &[conv(0), conv(1)]);
        std::fs::write(path.join("one.safetensors"), bytes).unwrap();
    });
    assert!(found.contains("the index says that it is in two.safetensors"), "{found}");
}

#[test]
fn damaged_files_are_named() {
    let cut = |path: &Path| {
        let file = path.join("two.safetensors");
        let bytes = std::fs::read(&file).unwrap();
        std::fs::write(file, &bytes[..bytes.len() - 3]).unwrap();
    };
    let found = error(cut);
    assert!(found.contains("two.safetensors") && found.contains("norm.weight"), "{found}");
    let found = error(|path| std::fs::write(path.join("one.safetensors"), (1u64 << 60).to_le_bytes()).unwrap());
    assert!(found.contains("one.safetensors") && found.contains("1152921504606846976"), "{found}");
    for (file, text) in [("config.json", "{"), ("model.safetensors.index.json", "[]")] {
        let found = error(|path| std::fs::write(path.join(file), text).unwrap());
        assert!(found.contains(file), "{found}");
    }
    let found = error(|path| std::fs::remove_file(path.join("config.json")).unwrap());
    assert!(found.contains("config.json: is missing"), "{found}");
    let found = error(|path| std::fs::remove_file(path.join("model.safetensors.index.json")).unwrap());
    assert!(found.contains("neither model.safetensors nor model.safetensors.index.json"), "{found}");
}

#[test]
fn paths_that_are_no_checkpoint() {
    let open = |path: &Path| Checkpoint::open(path).unwrap_err().to_string();
    assert!(open(Path::new("no/such/folder")).contains("no/such/folder: no such file"));
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("other.bin");
    std::fs::write(&file, b"").unwrap();
    assert!(open(&file).contains("other.bin: is no checkpoint"));
    let single = dir.path().join("single.safetensors");
    std::fs::write(&single, to_bytes("pt", &[conv(0)])).unwrap();
    assert!(open(&single).contains("config.json: is missing"));
    std::fs::write(dir.path().join("config.json"), "{}").unwrap();
    assert_eq!(Checkpoint::open(&single).unwrap().layout(), Layout::Hf);
    assert!(open(dir.path()).contains("neither"));
}
