//! The oracle's checkpoints with the outputs that the reference implementations gave.

use martlet_weights::Checkpoint;
use safetensors::SafeTensors;
use std::io::Write as _;
use std::path::PathBuf;

/// Folder of a fixture in `tests/fixtures`.
pub fn path(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("fixtures").join(name)
}

/// A path below the project's root.
pub fn project(path: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("..").join(path)
}

/// Prompts of real conversations with fledgling (text alone), by name.
pub fn prompts() -> Vec<(String, Vec<u32>)> {
    let index = json("tests/fixtures/fledgling-golden/index.json");
    let names = index["cases"].as_array().expect("cases").iter().filter_map(|c| c["name"].as_str());
    let text = names.filter(|n| !n.contains("vision") && !n.contains("_4000"));
    text.map(|name| {
        let case = json(&format!("tests/fixtures/fledgling-golden/{name}.json"));
        let ids = case["prompt_ids"].as_array().expect("ids").iter().filter_map(|v| v.as_u64());
        (name.to_string(), ids.map(|id| id as u32).collect())
    })
    .collect()
}

/// A JSON file below the project's root.
pub fn json(path: &str) -> serde_json::Value {
    let path = project(path);
    let bytes = std::fs::read(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    serde_json::from_slice(&bytes).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

/// Prepared data, or `None` with a loud word about what was not run. With MARTLET_REQUIRE_TEST_DATA=1 that is a failure.
pub fn prepared(what: &str, path: PathBuf) -> Option<PathBuf> {
    if path.exists() {
        return Some(path);
    }
    let message = format!("NOT RUN: {what}: {} is not there; tools/prepare-test-data.sh makes it", path.display());
    assert!(std::env::var_os("MARTLET_REQUIRE_TEST_DATA").is_none_or(|v| v != "1"), "{message}");
    // Past the test runner, which swallows what a passing test prints.
    let _ = writeln!(std::io::stderr(), "{message}");
    None
}

/// Folder of the small trained model, full precision.
pub fn fledgling() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../models/fledgling")
}

pub fn checkpoint(name: &str) -> Checkpoint {
    Checkpoint::open(&path(name)).unwrap_or_else(|e| panic!("{name}: {e}"))
}

/// The tensors of an `expected.safetensors`, read by another parser than the one under test.
pub struct Expected {
    bytes: Vec<u8>,
}

impl Expected {
    pub fn open(fixture: &str) -> Expected {
        Expected { bytes: std::fs::read(path(fixture).join("expected.safetensors")).expect("fixture") }
    }

    fn tensor<T>(&self, name: &str, get: impl Fn(safetensors::tensor::TensorView<'_>) -> T) -> T {
        let all = SafeTensors::deserialize(&self.bytes).expect("fixture");
        get(all.tensor(name).unwrap_or_else(|e| panic!("{name}: {e}")))
    }

    pub fn has(&self, name: &str) -> bool {
        SafeTensors::deserialize(&self.bytes).expect("fixture").tensor(name).is_ok()
    }

    pub fn f32(&self, name: &str) -> Vec<f32> {
        self.tensor(name, |t| {
            assert_eq!(t.dtype(), safetensors::Dtype::F32, "{name}");
            t.data().chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect()
        })
    }

    /// Integers of any width.
    pub fn ids(&self, name: &str) -> Vec<u32> {
        self.tensor(name, |t| {
            let size = t.data().len() / t.shape().iter().product::<usize>();
            t.data().chunks_exact(size).map(|b| u32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect()
        })
    }
}
