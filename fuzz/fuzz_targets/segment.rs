//! The header of a segment of the prefix cache. The input is tried as it is, and with the checksum, magic and version
//! of a true one, which no fuzzer would guess; the first eight bytes say how long the file is.
//!
//!     cargo +nightly fuzz run segment -- -max_total_time=120
#![no_main]

use libfuzzer_sys::fuzz_target;
use martlet_engine::disk::{HEADER_BYTES, Header};

fuzz_target!(|input: &[u8]| {
    let Some((length, rest)) = input.split_first_chunk() else {
        return;
    };
    let length = u64::from_le_bytes(*length);
    examine(rest, length);
    if let Some(mut header) = rest.first_chunk::<HEADER_BYTES>().copied() {
        header[..12].copy_from_slice(b"martlet\x1a\x01\0\0\0");
        header[208..].fill(0);
        let hash = blake3::hash(&header[..176]);
        header[176..208].copy_from_slice(hash.as_bytes());
        examine(&header, length);
        // And as long as it says, as far as that can be said.
        let number = |at: usize| u64::from_le_bytes(header[at..at + 8].try_into().expect("eight bytes"));
        let pages = number(88).div_ceil(64).wrapping_sub(number(80) / 64);
        examine(&header, pages.wrapping_mul(number(96)).wrapping_add(number(104)).wrapping_add(HEADER_BYTES as u64));
    }
});

/// What is accepted is bounded, is as long as the file, and is written as it was read.
fn examine(file: &[u8], length: u64) {
    let Ok(header) = Header::parse(file, length) else {
        return;
    };
    assert!(header.start < header.end && header.page_count() >= 1 && header.page_bytes >= 1);
    assert!(header.page_count() <= header.end / 64 + 1 && header.parent.is_some() == (header.start > 0));
    let parts = u128::from(header.page_count()) * u128::from(header.page_bytes) + u128::from(header.state_bytes);
    assert_eq!(parts + HEADER_BYTES as u128, u128::from(length));
    assert_eq!(header.encode(), file[..HEADER_BYTES]);
}
