//! A name for what a checkpoint computes, to tell states that were stored for another one.

use crate::checkpoint::Checkpoint;
use crate::folder::Bytes;
use std::path::Path;
use std::time::UNIX_EPOCH;

/// Files up to this size are read whole.
const WHOLE: usize = 64 << 20;
/// Of larger ones so many samples of so many bytes, the first and the last bytes among them.
const SAMPLES: usize = 512;
const SAMPLE: usize = 4096;

impl Checkpoint {
    /// 32 bytes that differ where weights, config or tokenizer differ. Of large files samples are read, at even distances,
    /// and size and time of change count too, so that a file changed in place has another name; so has a copy of it.
    /// Of a pack the manifest is read, which has digests of everything else.
    pub fn fingerprint(&self) -> [u8; 32] {
        let mut hasher = blake3::Hasher::new_derive_key("martlet checkpoint 1");
        let mut add = |part: &[u8]| {
            hasher.update(&(part.len() as u64).to_le_bytes());
            hasher.update(part);
        };
        add(self.config().to_string().as_bytes());
        add(&[u8::from(self.mtp_norm_shift())]);
        for name in ["tokenizer.json", "chat_template.jinja", "tokenizer_config.json"] {
            // A file that can not be read is none here; whoever needs it says so.
            add(&self.text_file(name).ok().flatten().unwrap_or_default());
        }
        if let Some(manifest) = self.pack_digest() {
            // It holds the digests of all weights.
            add(b"pack");
            add(manifest.as_bytes());
            return *hasher.finalize().as_bytes();
        }
        for file in &self.source.files {
            add(file.name.as_bytes());
            let bytes = file.bytes.get();
            add(&(file.bytes.len() as u64).to_le_bytes());
            if bytes.len() <= WHOLE {
                add(bytes);
                continue;
            }
            if let Bytes::Mapped(map) = &file.bytes {
                add(&changed(map.path()).to_le_bytes());
            }
            let last = bytes.len() - SAMPLE;
            for i in 0..SAMPLES {
                let at = (last as u128 * i as u128 / (SAMPLES - 1) as u128) as usize;
                add(&bytes[at..at + SAMPLE]);
            }
        }
        *hasher.finalize().as_bytes()
    }
}

/// Nanoseconds since 1970 of the last change; 0 where the system does not say.
fn changed(path: &Path) -> u128 {
    let time = std::fs::metadata(path).and_then(|m| m.modified()).ok();
    time.and_then(|t| t.duration_since(UNIX_EPOCH).ok()).map_or(0, |d| d.as_nanos())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::safetensors::{Tensor, to_bytes};
    use martlet_tensor::Float;

    fn folder(config: &str, value: f32, len: usize) -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        let mut values = vec![0.25; len];
        values[len / 2] = value;
        let norm = Tensor::floats("model.norm.weight", Float::F32, &[len], &values);
        // The layout is told by a convolution.
        let conv = Tensor::floats("model.layers.0.linear_attn.conv1d.weight", Float::F32, &[2, 1, 4], &[0.5; 8]);
        std::fs::write(dir.path().join("model.safetensors"), to_bytes("pt", &[norm, conv])).unwrap();
        std::fs::write(dir.path().join("config.json"), config).unwrap();
        dir
    }

    fn of(dir: &tempfile::TempDir) -> [u8; 32] {
        Checkpoint::open(dir.path()).unwrap().fingerprint()
    }

    #[test]
    fn equal_files_have_equal_names_and_others_do_not() {
        let config = r#"{"model_type":"qwen3_5"}"#;
        let one = folder(config, 1.0, 64);
        assert_eq!(of(&one), of(&folder(config, 1.0, 64)), "the place does not matter");
        assert_ne!(of(&one), of(&folder(config, 1.5, 64)), "one weight");
        assert_ne!(of(&one), of(&folder(r#"{"model_type":"qwen3_5","x":1}"#, 1.0, 64)));
        let before = of(&one);
        std::fs::write(one.path().join("tokenizer.json"), "{}").unwrap();
        assert_ne!(of(&one), before, "a tokenizer");
    }

    #[test]
    fn a_large_file_is_sampled_and_dated() {
        let large = folder(r#"{"model_type":"qwen3_5"}"#, 1.0, (WHOLE / 4) + 1000);
        let before = of(&large);
        assert_eq!(before, of(&large));
        let path = large.path().join("model.safetensors");
        let file = std::fs::File::options().write(true).open(path).unwrap();
        file.set_modified(UNIX_EPOCH + std::time::Duration::from_secs(1_000_000)).unwrap();
        assert_ne!(before, of(&large));
    }
}
