//! Bounds on what outside files may make us do. Every size read from a file is compared with these, and with the
//! length of the file itself, before anything is allocated.

/// Most dimensions of one tensor; the largest real one (a vision tower's patch embedding) has 5.
pub const MAX_DIMENSIONS: usize = 8;

/// Limits of the parsers. Each one ends in an ordinary error that names the file.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Bytes of the header of a safetensors or GGUF file; it is parsed into about five times its size. One of safetensors takes some 130 bytes for
    /// each tensor: this allows 800,000 tensors a file.
    pub header_bytes: u64,
    /// Bytes of model.safetensors.index.json and of config.json, read whole.
    pub json_bytes: u64,
    /// Values in the metadata of a GGUF file, elements of arrays counted each: some 32 bytes of memory for each. A
    /// vocabulary of 250,000 tokens takes 750,000.
    pub metadata_values: u64,
    /// Bytes of other text files (tokenizer.json), read whole.
    pub text_bytes: u64,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits { header_bytes: 100_000_000, json_bytes: 100_000_000, metadata_values: 1 << 22, text_bytes: 1 << 30 }
    }
}
