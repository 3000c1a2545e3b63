//! How fast this machine reads memory: the bound of everything that reads each weight once.
//!
//! Threads read slices of their own, each in four streams, as products with weights do, and ask for lines some bytes ahead.
//! How far ahead is best is the machine's property: several distances are tried, and the fastest is measured again.

use crate::Arena;
use std::io;
use std::sync::Barrier;
use std::time::{Duration, Instant};

/// Bytes that are read in a pass, at most: no cache holds them.
pub const ENOUGH: usize = 1 << 30;

/// A cache line.
const LINE: usize = 64;
/// Streams of a thread.
const STREAMS: usize = 4;
/// Bytes ahead that are tried; 0: nothing is asked for.
const AHEAD: [usize; 6] = [0, 1 << 10, 2 << 10, 4 << 10, 8 << 10, 16 << 10];
/// Passes over the memory for each distance, and at the end with the best.
const TRIES: usize = 3;
const ROUNDS: usize = 7;

/// Bytes a second that `threads` threads read together: the median of several passes over `bytes` bytes in huge pages.
/// Takes about a second. Fails when the memory can not be had.
pub fn read_bandwidth(threads: usize, bytes: usize) -> io::Result<f64> {
    let threads = threads.max(1);
    let each = (bytes / threads).next_multiple_of(LINE * STREAMS);
    let mut arenas = (0..threads).map(|_| Arena::new(each)).collect::<io::Result<Vec<_>>>()?;
    // Pages belong to the memory next to the core that writes them first.
    std::thread::scope(|s| {
        for arena in &mut arenas {
            s.spawn(|| arena.fill(1));
        }
    });
    let rate = |ahead, passes| median(passes_of(&arenas, ahead, passes)).map(|t| (each * threads) as f64 / t);
    let best = AHEAD.into_iter().filter_map(|ahead| Some((ahead, rate(ahead, TRIES)?)));
    let best = best.max_by(|a, b| a.1.total_cmp(&b.1)).map_or(0, |(ahead, _)| ahead);
    rate(best, ROUNDS).ok_or_else(|| io::Error::other("no time passed while memory was read"))
}

/// Seconds of each pass, from the first thread's start to the last one's end.
fn passes_of(arenas: &[Arena], ahead: usize, passes: usize) -> Vec<f64> {
    let barrier = Barrier::new(arenas.len());
    let read = |arena: &Arena| {
        let time = |_| {
            barrier.wait();
            let started = Instant::now();
            std::hint::black_box(read(arena, ahead));
            (started, Instant::now())
        };
        (0..passes).map(time).collect::<Vec<_>>()
    };
    let times: Vec<Vec<(Instant, Instant)>> = std::thread::scope(|s| {
        let threads: Vec<_> = arenas.iter().map(|arena| s.spawn(move || read(arena))).collect();
        threads.into_iter().filter_map(|t| t.join().ok()).collect()
    });
    let pass = |i: usize| {
        let first = times.iter().map(|t| t[i].0).min()?;
        let last = times.iter().map(|t| t[i].1).max()?;
        Some(last.duration_since(first)).filter(|d| *d > Duration::ZERO).map(|d| d.as_secs_f64())
    };
    (0..passes).filter_map(pass).collect()
}

fn median(mut values: Vec<f64>) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied()
}

/// Reads all of `bytes` once.
fn read(bytes: &[u8], ahead: usize) -> u64 {
    #[cfg(target_arch = "x86_64")]
    if is_x86_feature_detected!("avx2") {
        return read_avx2(bytes, ahead);
    }
    streams(bytes, ahead)
}

#[cfg(target_arch = "x86_64")]
#[allow(unsafe_code)]
fn read_avx2(bytes: &[u8], ahead: usize) -> u64 {
    #[target_feature(enable = "avx2")]
    fn compiled(bytes: &[u8], ahead: usize) -> u64 {
        streams(bytes, ahead)
    }
    // SAFETY: the caller has looked whether the machine has AVX2.
    unsafe { compiled(bytes, ahead) }
}

#[inline(always)]
fn streams(bytes: &[u8], ahead: usize) -> u64 {
    let lines = bytes.as_chunks::<LINE>().0;
    let each = lines.len() / STREAMS;
    let mut sums = [[0u64; LINE / 8]; STREAMS];
    for i in 0..each {
        for (s, sum) in sums.iter_mut().enumerate() {
            let line = &lines[s * each + i];
            if ahead > 0 {
                ask_for(line, ahead);
            }
            for (sum, word) in sum.iter_mut().zip(line.as_chunks::<8>().0) {
                *sum |= u64::from_ne_bytes(*word);
            }
        }
    }
    sums.iter().flatten().fold(0, |all, s| all | s)
}

/// Has the line that lies so many bytes ahead fetched.
#[inline(always)]
#[allow(unsafe_code)]
fn ask_for(line: &[u8; LINE], ahead: usize) {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        // SAFETY: a prefetch reads nothing and does not fault, wherever it points.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(line.as_ptr().wrapping_add(ahead).cast()) };
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = (line, ahead);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_is_read() {
        let mut bytes = vec![0u8; LINE * STREAMS * 5];
        assert_eq!(read(&bytes, 1 << 10), 0);
        for at in [0, 7, LINE * 5 + 1, bytes.len() / 2, bytes.len() - 1] {
            bytes[at] = 8;
            assert_ne!(read(&bytes, 0), 0, "byte {at}");
            assert_eq!(read(&bytes, 0), streams(&bytes, 4096));
            bytes[at] = 0;
        }
    }

    #[test]
    fn a_rate_comes_out() {
        let rate = read_bandwidth(2, 8 << 20).unwrap();
        assert!(rate.is_finite() && rate > 0.0, "{rate}");
        assert_eq!(median(vec![3.0, 1.0, 2.0]), Some(2.0));
        assert_eq!(median(Vec::new()), None);
    }
}
