//! How fast the prefix cache's disk tier stores and loads: `cargo run --release -p martlet-engine --example disk_speed
//! -- FOLDER`. A folder inside it is made and deleted. Segments have 64 pages of 1.3 MB and a state of 60 MB, as a
//! 35B-A3B model has them for 4,096 tokens. Loads are from the system's page cache where memory allows.

use martlet_engine::disk::{DiskCache, DiskOptions, Segment};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

const PAGE: usize = 1_300_000;
const PAGES: u64 = 64;
const STATE: usize = 60_000_000;
const ROUNDS: u8 = 5;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let parent = std::env::args_os().nth(1).ok_or("a folder is expected")?;
    let dir = Path::new(&parent).join("martlet-disk-speed");
    let (bytes, ttl) = (u64::MAX, Duration::MAX);
    let log = Arc::new(|line: &str| eprintln!("{line}"));
    let options = DiskOptions { dir: dir.clone(), bytes, ttl, daily_writes: bytes, queue_bytes: bytes, log };
    let cache = DiskCache::open(options, Arc::new(SystemTime::now))?;
    let mut times = [Vec::new(), Vec::new()];
    for round in 0..ROUNDS {
        let pages = (0..PAGES).map(|page| vec![page as u8 ^ round; PAGE]).collect();
        let segment = Segment { parent: None, start: 0, end: 64 * PAGES, pages, state: vec![round; STATE] };
        let begin = Instant::now();
        cache.put([round; 32], segment);
        cache.flush();
        times[0].push(begin.elapsed());
        let begin = Instant::now();
        let restored = cache.load([round; 32]).recv()?.ok_or("a segment is missing")?;
        times[1].push(begin.elapsed());
        assert_eq!((restored.pages.len() as u64, restored.state.len()), (PAGES, STATE));
    }
    let megabytes = (PAGE as f64 * PAGES as f64 + STATE as f64) / 1e6;
    for (what, mut times) in ["put + flush", "load"].into_iter().zip(times) {
        times.sort();
        let median = times[times.len() / 2].as_secs_f64();
        println!("{what}: {megabytes:.0} MB in {:.0} ms, {:.0} MB/s", median * 1e3, megabytes / median);
    }
    drop(cache);
    std::fs::remove_dir_all(dir)?;
    Ok(())
}
