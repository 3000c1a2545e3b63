//! What freed blocks leave behind: measured on the whole process, and so alone in one.
#![cfg(all(target_os = "linux", target_env = "gnu"))]

use martlet_io::memory::return_freed_blocks;
use std::hint::black_box;

/// Resident bytes of this process.
fn resident() -> u64 {
    let text = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = text.lines().find_map(|l| l.strip_prefix("VmRSS:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() << 10
}

/// Every second block of many is freed, when others of their size were freed before.
#[test]
fn freed_blocks_go_back_though_others_between_them_live_on() {
    const BLOCK: usize = 2 << 20;
    return_freed_blocks();
    drop(black_box(vec![1u8; BLOCK]));
    let mut blocks: Vec<Vec<u8>> = (0..128).map(|_| black_box(vec![1u8; BLOCK])).collect();
    let full = resident();
    let mut n = 0;
    blocks.retain(|_| {
        n += 1;
        n % 2 == 0
    });
    let back = full.saturating_sub(resident());
    assert!(back > 100 << 20, "of 128 MiB that were freed {back} bytes went back");
    assert_eq!(blocks.len(), 64);
}
