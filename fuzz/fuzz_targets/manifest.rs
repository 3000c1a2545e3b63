//! The manifest of a pack. What is accepted must be consistent: every tensor inside its file, every number of digests
//! right.
//!
//!     cargo +nightly fuzz run manifest -- -dict=fuzz/json.dict -max_total_time=120
#![no_main]

use libfuzzer_sys::fuzz_target;
use martlet_weights::Limits;
use martlet_weights::pack::{BLOB_ALIGN, CHUNK, read};

fuzz_target!(|input: &[u8]| {
    let Ok(manifest) = read(input, &Limits::default()) else { return };
    assert_eq!(manifest.weights.blake3.len() as u64, manifest.weights.bytes.div_ceil(CHUNK));
    for t in &manifest.tensors {
        assert!(t.offset + t.bytes <= manifest.weights.bytes && t.bytes > 0);
    }
    for stack in &manifest.experts {
        assert!(stack.offset + stack.stride * stack.xxh3.len() as u64 <= manifest.experts_bytes);
        assert!(stack.bytes <= stack.stride && stack.stride % BLOB_ALIGN == 0);
        for m in [&stack.gate, &stack.up, &stack.down] {
            assert!(m.offset + m.bytes <= stack.bytes && m.bytes > 0);
        }
    }
});
