//! The header of a safetensors file. The first byte of the input says how many bytes of data follow the header, so
//! that most inputs get past the length; the whole input is tried as a file too.
//!
//!     cargo +nightly fuzz run safetensors -- -dict=fuzz/json.dict -max_total_time=120
#![no_main]

use libfuzzer_sys::fuzz_target;
use martlet_weights::{Limits, safetensors};

fuzz_target!(|input: &[u8]| {
    examine(input);
    if let Some((&data, header)) = input.split_first() {
        let mut file = (header.len() as u64).to_le_bytes().to_vec();
        file.extend(header);
        file.resize(file.len() + data as usize, 0);
        examine(&file);
    }
});

/// What is accepted must fill the file exactly.
fn examine(file: &[u8]) {
    let Ok(tensors) = safetensors::read(file, &Limits::default()) else {
        return;
    };
    let header: [u8; 8] = file[..8].try_into().expect("an accepted file has a length");
    let mut end = 8 + u64::from_le_bytes(header) as usize;
    for t in &tensors {
        assert_eq!(t.range.start, end);
        assert_eq!(t.range.len(), t.shape.iter().product::<usize>() * t.dtype.size());
        end = t.range.end;
    }
    assert_eq!(end, file.len());
}
