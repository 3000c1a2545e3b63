//! model.safetensors.index.json: whatever it says, shards stay in the folder.
//!
//!     cargo +nightly fuzz run index -- -dict=fuzz/json.dict -max_total_time=120
#![no_main]

use libfuzzer_sys::fuzz_target;
use martlet_weights::{Limits, index};
use std::path::{Component, Path};

fuzz_target!(|input: &[u8]| {
    let Ok(map) = index::parse(input, &Limits::default()) else {
        return;
    };
    for shard in map.values() {
        let parts: Vec<_> = Path::new(shard).components().collect();
        assert!(matches!(parts.as_slice(), [Component::Normal(_)]) && !shard.contains(['/', '\\']));
    }
});
