//! The header of a GGUF file, and the text files made from its metadata.
//!
//!     cargo +nightly fuzz run gguf -- -max_total_time=120
#![no_main]

use libfuzzer_sys::fuzz_target;
use martlet_weights::{Limits, gguf};

fuzz_target!(|input: &[u8]| {
    examine(input);
    // Most inputs lack the magic and the version.
    examine(&[b"GGUF\x03\0\0\0", input].concat());
});

/// What is accepted must lie in the file.
fn examine(file: &[u8]) {
    let Ok(header) = gguf::read(file, &Limits::default()) else {
        return;
    };
    for t in &header.tensors {
        assert!(t.range.end <= file.len());
    }
    for name in ["tokenizer.json", "tokenizer_config.json", "generation_config.json", "chat_template.jinja"] {
        let _ = gguf::text_file(&header.metadata, name);
    }
}
