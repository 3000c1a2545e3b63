//! What this process has of the memory. A single test, since others in the same process would have a part in it.
#![cfg(target_os = "linux")]

use martlet_io::Reserve;
use martlet_io::memory::{forget_peak, peak_resident};

const MIB: usize = 1 << 20;

/// In MiB.
fn resident() -> usize {
    let text = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = text.lines().find_map(|l| l.strip_prefix("VmRSS:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<usize>().unwrap() / 1024
}

#[test]
fn memory_is_taken_when_written_and_given_back() {
    let mut bytes = Reserve::new(100 << 30).expect("more than the machine has");
    let before = resident();
    for at in [0, 50 << 30] {
        bytes[at..at + 128 * MIB].fill(1);
    }
    let taken = |range: std::ops::Range<usize>| {
        let now = resident();
        assert!(range.contains(&(now - before)), "{before} MiB, now {now}");
    };
    taken(250..262);
    bytes.release((50 << 30) + 100..(50 << 30) + 128 * MIB);
    taken(122..134);
    bytes.release(0..128 * MIB);
    taken(0..6);
    assert_eq!(bytes[MIB], 0);

    let peak = || peak_resident().unwrap() as usize / MIB;
    assert!(peak() >= before + 250);
    // Where the system lets a process forget.
    if forget_peak() {
        assert!(peak() < before + 50, "{} MiB", peak());
    }
}
