use super::*;
use std::path::{Path, PathBuf};

fn folder(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(name)
}

/// Everything that the checkpoint has, with a plausible use.
fn all_of(checkpoint: &Checkpoint) -> Vec<Expected> {
    let expected = |name: &str| {
        let shape = checkpoint.shape(name).unwrap().to_vec();
        let vector = shape.len() == 1 || name.contains("conv1d") || shape.len() > 3;
        let (kind, read) = match shape.len() {
            3 => (Kind::Experts, Read::Chosen { k: 4, of: shape[0] }),
            _ if vector => (Kind::Vector, Read::Every),
            _ => (Kind::Matrix, Read::Every),
        };
        let read = if name.starts_with("mtp.") { Read::Draft } else { read };
        Expected { name: name.to_string(), shape, kind, read }
    };
    checkpoint.names().map(expected).collect()
}

fn text(result: Result<Report, WeightsError>) -> String {
    result.unwrap_err().to_string()
}

#[test]
fn fledgling_adds_up() {
    let c = Checkpoint::open(&folder("models/fledgling")).unwrap();
    let mut expected = all_of(&c);
    expected.retain(|e| !e.name.starts_with("visual."));
    let report = c.check(&expected, &[("visual.", "text only"), ("lm_head.", "tied")]).unwrap();
    let count = |e: &Expected| e.shape.iter().product::<usize>() as u64;
    assert_eq!(report.parameters, expected.iter().map(count).sum::<u64>());
    assert_eq!(report.schemes.len(), 2, "bf16 and some f32");
    assert_eq!(report.schemes.iter().map(|s| s.weights).sum::<u64>(), report.parameters);
    assert_eq!(report.schemes.iter().map(|s| s.bytes).sum::<u64>(), report.bytes);
    assert_eq!(report.ignored.len(), 1);
    let ignored = &report.ignored[0];
    assert_eq!((ignored.reason.as_str(), ignored.names.len()), ("text only", 33));
    let data: u64 = 45_405_584;
    assert_eq!(report.bytes + ignored.bytes, data, "all bytes of the index's total_size");
    // 4 of 32 experts in each of 8 layers.
    let experts = 8 * 32 * 3 * 64 * 256;
    let trunk = report.parameters - report.draft_parameters;
    assert_eq!(report.active_parameters, trunk - experts + experts / 8);
    assert_eq!(report.unread_files, Vec::<String>::new());
    let json = serde_json::to_value(&report).unwrap();
    assert_eq!((json["layout"].as_str(), json["files"].as_array().map(Vec::len)), (Some("hf"), Some(3)));
}

#[test]
fn missing_unknown_and_misshapen_tensors_are_named() {
    let c = Checkpoint::open(&folder("tests/fixtures/moe")).unwrap();
    let all = all_of(&c);
    assert!(c.check(&all, &[]).is_ok());

    let mut more = all.clone();
    more.push(Expected { name: "layers.9.mlp.gate.weight".into(), ..all[0].clone() });
    let found = text(c.check(&more, &[]));
    assert!(found.contains("layers.9.mlp.gate.weight (model.safetensors): is missing"), "{found}");

    let fewer: Vec<_> = all.iter().filter(|e| e.name != "layers.1.mlp.gate.weight").cloned().collect();
    let found = text(c.check(&fewer, &[]));
    let name = "model.language_model.layers.1.mlp.gate.weight (model.safetensors)";
    assert!(found.contains(name) && found.contains("not a tensor of this model"), "{found}");
    assert!(c.check(&fewer, &[("layers.1.mlp.", "a test")]).is_ok());

    let mut other = all.clone();
    let e = other.iter_mut().find(|e| e.name == "layers.1.mlp.gate.weight").unwrap();
    e.shape = vec![32, 64];
    let found = text(c.check(&other, &[]));
    assert!(found.contains(name) && found.contains("has shape [16, 64], expected [32, 64]"), "{found}");

    let found = text(c.check(&[], &[]));
    assert_eq!(found.lines().count(), 6);
    assert!(found.ends_with(&format!("and {} more", all.len() - 5)), "{found}");
}

#[test]
fn a_packed_vector_is_refused() {
    let c = Checkpoint::open(&folder("tests/fixtures/moe-mlx-q4")).unwrap();
    let mut all = all_of(&c);
    assert!(c.check(&all, &[]).is_ok());
    let e = all.iter_mut().find(|e| e.name == "layers.1.mlp.gate.weight").unwrap();
    e.kind = Kind::Vector;
    let found = text(c.check(&all, &[]));
    let name = "language_model.model.layers.1.mlp.gate.weight (model.safetensors)";
    assert!(found.contains(name) && found.contains("affine8 g64 bf16, expected plain floats"), "{found}");
}
