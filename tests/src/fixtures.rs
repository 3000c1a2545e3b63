//! The oracle's checkpoints with the outputs that the reference implementations gave.

use martlet_weights::Checkpoint;
use safetensors::SafeTensors;
use std::path::PathBuf;

/// Folder of a fixture in `tests/fixtures`.
pub fn path(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("fixtures").join(name)
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
