//! The cache as a whole, on real folders, with a clock that the tests move.

mod crash;
mod damage;
mod faults;
mod sharing;

use super::format::{LOCK_NAME, Name, segment_name};
use super::*;
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

const DAY: u64 = 86_400;
/// Bytes of a page and of a state in these tests.
const PAGE: usize = 1000;
const STATE: usize = 300;

/// A folder, a clock, and what was logged.
struct Bench {
    folder: tempfile::TempDir,
    now: Arc<AtomicU64>,
    lines: Arc<Mutex<Vec<String>>>,
}

impl Bench {
    fn new() -> Bench {
        let folder = tempfile::tempdir().unwrap();
        Bench { folder, now: Arc::new(AtomicU64::new(20_000 * DAY)), lines: Arc::default() }
    }

    fn dir(&self) -> PathBuf {
        self.folder.path().join("prefix")
    }

    fn options(&self) -> DiskOptions {
        let lines = self.lines.clone();
        let log: Log = Arc::new(move |line| lines.lock().unwrap().push(line.to_string()));
        let (bytes, daily_writes, queue_bytes) = (1 << 30, 1 << 40, 1 << 30);
        DiskOptions { dir: self.dir(), bytes, ttl: Duration::from_secs(7 * DAY), daily_writes, queue_bytes, log }
    }

    fn clock(&self) -> Clock {
        let now = self.now.clone();
        Arc::new(move || SystemTime::UNIX_EPOCH + Duration::from_secs(now.load(Ordering::Relaxed)))
    }

    fn set_clock(&self, seconds: u64) {
        self.now.store(seconds, Ordering::Relaxed);
    }

    fn open(&self) -> DiskCache {
        self.open_with(|_| {})
    }

    fn open_with(&self, change: impl FnOnce(&mut DiskOptions)) -> DiskCache {
        let mut options = self.options();
        change(&mut options);
        DiskCache::open(options, self.clock()).unwrap()
    }

    /// Lines since the last call.
    fn log(&self) -> Vec<String> {
        std::mem::take(&mut self.lines.lock().unwrap())
    }
}

fn key(n: u64) -> Key {
    let mut key = *blake3::hash(&n.to_le_bytes()).as_bytes();
    key[..8].copy_from_slice(&n.to_le_bytes());
    key
}

/// The number of a key.
fn number(key: &Key) -> u64 {
    u64::from_le_bytes(key[..8].try_into().unwrap())
}

/// Bytes that tell where they belong.
fn bytes(key: &Key, what: u64, length: usize) -> Vec<u8> {
    let mut bytes = vec![0; length];
    blake3::Hasher::new_keyed(key).update(&what.to_le_bytes()).finalize_xof().fill(&mut bytes);
    bytes
}

/// Tokens `start..end` of the sequence that `n` names, after segment `parent`.
fn segment(n: u64, parent: Option<u64>, start: u64, end: u64) -> Segment {
    let key_n = key(n);
    let pages = (start / 64..end.div_ceil(64)).map(|page| bytes(&key_n, page, PAGE)).collect();
    Segment { parent: parent.map(key), start, end, pages, state: bytes(&key_n, u64::MAX, STATE) }
}

/// Bytes of the file of such a segment.
fn size(start: u64, end: u64) -> u64 {
    (HEADER_BYTES + (end.div_ceil(64) - start / 64) as usize * PAGE + STATE) as u64
}

/// What a chain of (segment, start, end) restores to.
fn restored(chain: &[(u64, u64, u64)]) -> Restored {
    let mut pages = Vec::new();
    for &(n, start, end) in chain {
        pages.truncate((start / 64) as usize);
        pages.extend(segment(n, None, start, end).pages);
    }
    Restored { pages, state: bytes(&key(chain.last().unwrap().0), u64::MAX, STATE) }
}

fn load(cache: &DiskCache, n: u64) -> Option<Restored> {
    cache.load(key(n)).recv().expect("the reader answers")
}

fn store(cache: &DiskCache, n: u64, parent: Option<u64>, start: u64, end: u64) {
    cache.put(key(n), segment(n, parent, start, end));
    cache.flush();
}

/// 1: 0..100, 2 after it: 100..300, 3 after that: 300..320; 4 after 1: 100..128.
const CHAIN: [(u64, u64, u64); 3] = [(1, 0, 100), (2, 100, 300), (3, 300, 320)];

fn store_chain(cache: &DiskCache) {
    for (n, parent, start, end) in [(1, None, 0, 100), (2, Some(1), 100, 300), (3, Some(2), 300, 320)] {
        store(cache, n, parent, start, end);
    }
    store(cache, 4, Some(1), 100, 128);
}

fn path(dir: &Path, n: u64) -> PathBuf {
    dir.join(segment_name(&key(n)))
}

/// Names in the folder.
fn names(dir: &Path) -> Vec<std::ffi::OsString> {
    std::fs::read_dir(dir).unwrap().map(|e| e.unwrap().file_name()).collect()
}

fn count(dir: &Path, kind: fn(Name) -> bool) -> usize {
    names(dir).iter().filter(|name| kind(Name::of(name))).count()
}

fn temporaries(dir: &Path) -> usize {
    count(dir, |name| name == Name::Temporary)
}

fn folder_bytes(dir: &Path) -> u64 {
    let segments = names(dir).into_iter().filter(|name| matches!(Name::of(name), Name::Segment(_)));
    segments.map(|name| std::fs::metadata(dir.join(name)).unwrap().len()).sum()
}

#[test]
fn chains_come_back_and_after_a_restart_too() {
    let bench = Bench::new();
    let cache = bench.open();
    assert_eq!(load(&cache, 1), None);
    store_chain(&cache);
    for cache in [&cache, &bench.open()] {
        assert_eq!(cache.lengths(), [100, 128, 300, 320]);
        assert!(cache.contains(&key(3)) && !cache.contains(&key(9)));
        for length in 1..=3 {
            assert_eq!(load(cache, length), Some(restored(&CHAIN[..length as usize])));
        }
        assert_eq!(load(cache, 4), Some(restored(&[(1, 0, 100), (4, 100, 128)])));
    }
    let stats = cache.stats();
    assert_eq!((stats.entries, stats.stored, stats.hits, stats.misses), (4, 4, 4, 1));
    assert_eq!((stats.bytes, stats.written_today), (folder_bytes(&bench.dir()), stats.bytes));
    assert_eq!(bench.log(), [""; 0]);
}

#[test]
fn a_segment_needs_its_parent_and_its_shape() {
    let bench = Bench::new();
    let cache = bench.open();
    cache.put(key(2), segment(2, Some(1), 100, 300));
    cache.put(key(1), segment(1, None, 0, 100));
    cache.put(key(2), segment(2, Some(1), 101, 300));
    cache.put(key(5), Segment { pages: Vec::new(), ..segment(5, None, 0, 100) });
    cache.flush();
    let stats = cache.stats();
    assert_eq!((stats.entries, stats.stored, stats.dropped_unfit), (1, 1, 3));
    store(&cache, 2, Some(1), 100, 300);
    store(&cache, 2, Some(1), 100, 300);
    assert_eq!((cache.stats().entries, cache.stats().stored), (2, 2));
    assert!(bench.log().iter().all(|line| line.contains("a segment is not stored: ")));
}

#[test]
fn the_queue_is_bounded_and_put_never_waits() {
    let bench = Bench::new();
    let (release, gate) = mpsc::channel::<()>();
    let gate = Mutex::new(gate);
    let probe: Probe = Box::new(move |step, _| {
        if step == shared::Step::Sync {
            let _ = gate.lock().unwrap().recv();
        }
        Ok(())
    });
    let options = DiskOptions { queue_bytes: 3 * size(0, 64), ..bench.options() };
    let cache = DiskCache::open_probed(options, bench.clock(), probe).unwrap();
    for n in 0..5 {
        cache.put(key(n), segment(n, None, 0, 64));
    }
    let stats = cache.stats();
    assert_eq!((stats.dropped_queue, stats.queued_bytes, stats.stored), (2, 3 * size(0, 64), 0));
    drop(release);
    cache.flush();
    assert_eq!((cache.stats().stored, cache.stats().queued_bytes), (3, 0));
}

#[test]
fn the_budget_is_kept_and_what_is_needed_stays() {
    let bench = Bench::new();
    let budget = 3 * size(0, 64);
    let cache = bench.open_with(|o| o.bytes = budget);
    for n in 0..10 {
        bench.set_clock(20_000 * DAY + 3600 * n);
        store(&cache, n, None, 0, 64);
        assert!(folder_bytes(&bench.dir()) <= budget);
    }
    assert_eq!((cache.stats().entries, cache.stats().evicted), (3, 7));
    assert!((7..10).all(|n| cache.contains(&key(n))), "the last ones stay");
    // A use keeps an entry.
    bench.set_clock(20_000 * DAY + 3600 * 11);
    assert!(load(&cache, 7).is_some());
    store(&cache, 10, None, 0, 64);
    assert!(cache.contains(&key(7)) && !cache.contains(&key(8)));
    // 11 continues 7, and needs the room of 9 and 10.
    store(&cache, 11, Some(7), 64, 128);
    store(&cache, 12, Some(11), 128, 192);
    assert_eq!(load(&cache, 12), Some(restored(&[(7, 0, 64), (11, 64, 128), (12, 128, 192)])));
    store(&cache, 13, Some(12), 192, 256);
    assert!(!cache.contains(&key(13)), "what it continues leaves no room");
    store(&cache, 14, None, 0, 640);
    assert_eq!((cache.stats().dropped_unfit, cache.stats().entries), (2, 3));
    // A smaller budget from now on.
    drop(cache);
    let cache = bench.open_with(|o| o.bytes = budget - 1);
    assert_eq!(cache.lengths(), [64, 128]);
    assert!(folder_bytes(&bench.dir()) < budget);
}

#[test]
fn what_is_not_used_for_long_is_deleted() {
    let bench = Bench::new();
    let cache = bench.open();
    store_chain(&cache);
    bench.set_clock(20_006 * DAY);
    assert!(load(&cache, 2).is_some(), "this is a use of 1 too");
    bench.set_clock(20_007 * DAY + 1);
    assert!(!cache.contains(&key(3)) && cache.contains(&key(2)) && cache.contains(&key(1)));
    assert_eq!(load(&cache, 3), None);
    drop(cache);
    let cache = bench.open();
    assert_eq!((cache.lengths(), cache.stats().expired), (vec![100, 300], 2));
    bench.set_clock(20_013 * DAY + 1);
    store(&cache, 9, None, 0, 64);
    assert_eq!((cache.lengths(), count(&bench.dir(), |n| matches!(n, Name::Segment(_)))), (vec![64], 1));
}

#[test]
fn the_days_bytes_are_bounded_across_restarts() {
    let bench = Bench::new();
    let long = size(0, 1024);
    let change = |o: &mut DiskOptions| o.daily_writes = 4 * long;
    let cache = bench.open_with(change);
    (0..2).for_each(|n| store(&cache, n, None, 0, 1024));
    store(&cache, 2, None, 0, 64);
    assert_eq!(cache.stats().stored, 3, "until half is spent everything goes in");
    store(&cache, 3, None, 0, 64);
    store(&cache, 4, None, 0, 1024);
    store(&cache, 5, None, 0, 1024);
    assert_eq!((cache.stats().stored, cache.stats().dropped_daily), (4, 2));
    drop(cache);
    let cache = bench.open_with(change);
    assert_eq!(cache.stats().written_today, 3 * long + size(0, 64));
    store(&cache, 5, None, 0, 1024);
    assert_eq!(cache.stats().dropped_daily, 1);
    assert_eq!(bench.log().len(), 2, "one line for each start");
    bench.set_clock(20_001 * DAY);
    assert_eq!(cache.stats().written_today, 0);
    store(&cache, 5, None, 0, 1024);
    assert!(cache.contains(&key(5)));
}

#[test]
fn clock_jumps_neither_free_bytes_nor_stop_the_cache() {
    let bench = Bench::new();
    let cache = bench.open_with(|o| o.daily_writes = size(0, 1024));
    let spent = |n| {
        store(&cache, n, None, 0, 1024);
        !cache.contains(&key(n))
    };
    assert!(!spent(0) && spent(1));
    bench.set_clock(19_999 * DAY);
    assert!(spent(2));
    bench.set_clock(20_000 * DAY);
    assert!(spent(3), "a day back and forth is no new day");
    bench.set_clock(0);
    assert!(spent(4), "nor is a clock that was lost");
    // Years ahead, and back: it goes on on the next day.
    bench.set_clock(40_000 * DAY);
    assert!(!spent(5));
    bench.set_clock(20_000 * DAY);
    assert!(spent(6));
    bench.set_clock(20_001 * DAY);
    assert!(!spent(7));
    drop(cache);
    // What seems to be used in the future grows old from now on.
    bench.set_clock(10_000 * DAY);
    let cache = bench.open();
    assert!(cache.contains(&key(7)));
    assert_eq!(cache.stats().oldest_use, Some(10_000 * DAY));
    bench.set_clock(10_008 * DAY);
    assert!(!cache.contains(&key(7)));
    for time in [SystemTime::UNIX_EPOCH - Duration::from_secs(1 << 40), SystemTime::UNIX_EPOCH + Duration::MAX / 4] {
        let clock: Clock = Arc::new(move || time);
        let cache = DiskCache::open(bench.options(), clock).unwrap();
        store(&cache, 8, None, 0, 64);
        assert!(load(&cache, 8).is_some());
    }
}

#[test]
fn clear_takes_what_is_ours_and_nothing_else() {
    let bench = Bench::new();
    let cache = bench.open();
    store_chain(&cache);
    std::fs::write(bench.dir().join("notes.txt"), "mine").unwrap();
    std::fs::create_dir(path(&bench.dir(), 77)).unwrap();
    let total = folder_bytes(&bench.dir()) - std::fs::metadata(path(&bench.dir(), 77)).unwrap().len();
    assert_eq!(cache.clear().unwrap(), (4, total));
    assert_eq!((cache.lengths(), load(&cache, 1)), (vec![], None));
    let mut left = names(&bench.dir());
    left.sort();
    let folder = segment_name(&key(77));
    assert_eq!(left.len(), 3);
    assert!(left.contains(&LOCK_NAME.into()) && left.contains(&"notes.txt".into()) && left.contains(&folder.into()));
    assert_eq!(cache.stats().written_today, total, "what was written stays written");
    store(&cache, 1, None, 0, 100);
    assert_eq!(load(&cache, 1), Some(restored(&CHAIN[..1])));
}

#[test]
fn a_folder_that_is_taken_away_is_made_again() {
    let bench = Bench::new();
    let cache = bench.open();
    store_chain(&cache);
    std::fs::remove_dir_all(bench.dir()).unwrap();
    assert_eq!(load(&cache, 3), None);
    store(&cache, 9, None, 0, 64);
    assert_eq!((cache.lengths(), load(&cache, 9)), (vec![64], Some(restored(&[(9, 0, 64)]))));
}

#[cfg(unix)]
#[test]
fn nobody_else_can_read_it() {
    use std::os::unix::fs::PermissionsExt;
    let bench = Bench::new();
    store(&bench.open(), 1, None, 0, 64);
    let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(&bench.dir()), 0o700);
    assert_eq!((mode(&path(&bench.dir(), 1)), mode(&bench.dir().join(LOCK_NAME))), (0o600, 0o600));
}
