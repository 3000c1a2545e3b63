//! The disk tier of the prefix cache: segments of sequences in files of a folder that processes may share. It knows
//! neither devices nor sequences: bytes in, bytes out.
//!
//! A segment is one file, named by its key. It is written to a temporary file, synced and renamed, so that a crash
//! leaves a whole segment or a leftover that is deleted; **nothing is given out whose checksums are not right**. The
//! folder's bytes, the age of its entries and the bytes written on a day are bounded. Whatever goes wrong is a miss, or
//! a segment that is not stored, with a line in the log.

mod allowance;
mod folder;
mod format;
mod index;
mod reader;
mod shared;
mod writer;

pub use format::{FormatError, HEADER_BYTES, Header, PAGE_TOKENS};
pub use reader::Verified;

use shared::{Job, Probe, Shared};
use std::fmt;
use std::io;
use std::path::PathBuf;
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, SystemTime};

/// Names a prefix: a hash of all that its bytes depend on, computed by the engine.
pub type Key = [u8; 32];
/// The time of day; it may jump.
pub type Clock = Arc<dyn Fn() -> SystemTime + Send + Sync>;
/// Takes one plain line.
pub type Log = Arc<dyn Fn(&str) + Send + Sync>;

/// A checkpoint of a sequence after `end` tokens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Segment {
    /// What it continues: a segment that ends at `start`. None where it begins the sequence (`start` is 0).
    pub parent: Option<Key>,
    pub start: u64,
    pub end: u64,
    /// The pages of 64 tokens with the numbers `start / 64` to below `end / 64`, rounded up; all of the same length.
    /// The first one replaces the parent's last one if `start` lies inside it.
    pub pages: Vec<Vec<u8>>,
    /// Opaque; only that of the last segment of a chain is needed.
    pub state: Vec<u8>,
}

/// A sequence up to the end of a segment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Restored {
    /// From the first token on.
    pub pages: Vec<Vec<u8>>,
    pub state: Vec<u8>,
}

#[derive(Clone)]
pub struct DiskOptions {
    pub dir: PathBuf,
    /// Most bytes of all segments together. What other processes are writing at the moment comes on top.
    pub bytes: u64,
    /// A segment that was not used for so long is deleted.
    pub ttl: Duration,
    /// Most bytes written on a day (UTC), by all processes together. Beyond half of them only segments of at least
    /// 1,024 new tokens are stored.
    pub daily_writes: u64,
    /// Most bytes that wait to be written; a segment that does not fit in is not stored.
    pub queue_bytes: u64,
    pub log: Log,
}

impl DiskOptions {
    /// To look after a folder: nothing is evicted, nothing grows old, nothing is stored.
    pub fn maintenance(dir: PathBuf, log: Log) -> DiskOptions {
        DiskOptions { dir, bytes: u64::MAX, ttl: Duration::MAX, daily_writes: 0, queue_bytes: 0, log }
    }
}

impl fmt::Debug for DiskOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let DiskOptions { dir, bytes, ttl, daily_writes, queue_bytes, log: _ } = self;
        let numbers = (bytes, ttl, daily_writes, queue_bytes);
        write!(f, "DiskOptions {{ {}, {numbers:?} }}", dir.display())
    }
}

/// Why a folder can not be used at all.
#[derive(Debug, thiserror::Error)]
pub enum DiskError {
    #[error("the prefix cache's folder {} can not be used: {source}", path.display())]
    Folder { path: PathBuf, source: io::Error },
    #[error("the prefix cache's lock {} can not be taken: {source}; another folder may do", path.display())]
    Lock { path: PathBuf, source: io::Error },
    #[error("no thread for the prefix cache: {0}")]
    Thread(io::Error),
}

/// What is stored, and what happened since the folder was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    pub entries: usize,
    pub bytes: u64,
    /// Files of a format version that this program does not know: left alone until all is cleared.
    pub other_versions: usize,
    pub other_version_bytes: u64,
    /// Seconds since 1970 of the longest unused entry.
    pub oldest_use: Option<u64>,
    /// Bytes written on this day, by all processes.
    pub written_today: u64,
    pub queued_bytes: u64,
    pub stored: u64,
    pub hits: u64,
    pub misses: u64,
    /// Segments that were deleted because a part of them was wrong.
    pub damaged: u64,
    pub evicted: u64,
    pub expired: u64,
    /// Segments not stored: too much was waiting already.
    pub dropped_queue: u64,
    /// Segments not stored: the day's bytes are spent.
    pub dropped_daily: u64,
    /// Segments not stored: the disk failed, or was left in peace after it had failed.
    pub dropped_failed: u64,
    /// Segments not stored: misshapen, without their parent, or larger than what may be evicted for them.
    pub dropped_unfit: u64,
}

/// The open folder, with a thread that writes and one that reads.
pub struct DiskCache {
    shared: Arc<Shared>,
    /// None once it is closing.
    loads: Option<Sender<(Key, Sender<Option<Restored>>)>>,
    threads: Vec<JoinHandle<()>>,
}

impl DiskCache {
    /// Opens a folder, made if it is missing: deletes what crashes left, and notes what is there.
    pub fn open(options: DiskOptions, clock: Clock) -> Result<DiskCache, DiskError> {
        DiskCache::open_probed(options, clock, Box::new(|_, _| Ok(())))
    }

    fn open_probed(options: DiskOptions, clock: Clock, probe: Probe) -> Result<DiskCache, DiskError> {
        let shared = Arc::new(Shared::open(options, clock, probe)?);
        let (loads, jobs) = mpsc::channel();
        let mut cache = DiskCache { shared, loads: Some(loads), threads: Vec::new() };
        let shared = cache.shared.clone();
        cache.spawn("prefix-write", move || writer::run(&shared))?;
        let shared = cache.shared.clone();
        cache.spawn("prefix-read", move || reader::run(&shared, &jobs))?;
        Ok(cache)
    }

    fn spawn(&mut self, name: &str, work: impl FnOnce() + Send + 'static) -> Result<(), DiskError> {
        let thread = std::thread::Builder::new().name(name.into()).spawn(work);
        self.threads.push(thread.map_err(DiskError::Thread)?);
        Ok(())
    }

    /// The distinct `end`s of what is stored, ascending: only prefixes of these lengths need be looked for.
    pub fn lengths(&self) -> Vec<u64> {
        self.shared.lock().index.lengths()
    }

    /// Whether a segment and all that it continues are stored, as far as is known without reading.
    pub fn contains(&self, key: &Key) -> bool {
        let (now, ttl) = (self.shared.now(), self.shared.options.ttl);
        self.shared.lock().index.get(key).is_some_and(|e| e.last_use.saturating_add(ttl.as_secs()) >= now)
    }

    /// Gives a segment to the writer, after its parent. Never waits; what can not be stored is dropped and counted.
    /// One that is stored already counts as used.
    pub fn put(&self, key: Key, segment: Segment) {
        match Header::shape(key, &segment) {
            Ok(header) => self.shared.enqueue(Job { header, segment }),
            Err(e) => {
                self.shared.lock().counts.dropped_unfit += 1;
                self.shared.log(&format!("a segment is not stored: {e}"));
            }
        }
    }

    /// Bytes that `put` would take now: a larger segment is dropped.
    pub fn room(&self) -> u64 {
        self.shared.options.queue_bytes.saturating_sub(self.shared.lock().queued_bytes())
    }

    /// Reads a segment and what it continues. The answer is `None` where any of it is missing, damaged or too old.
    pub fn load(&self, key: Key) -> Receiver<Option<Restored>> {
        let (answer, receiver) = mpsc::channel();
        if let Some(loads) = &self.loads {
            // Without a reader the receiver finds the channel closed.
            let _ = loads.send((key, answer));
        }
        receiver
    }

    /// Waits until all that was put is stored or dropped.
    pub fn flush(&self) {
        let mut state = self.shared.lock();
        while state.is_busy() {
            state = self.shared.idle.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    pub fn stats(&self) -> Stats {
        self.shared.stats()
    }

    /// Deletes every segment, also of unknown versions, and what waits to be stored. How many files, and their bytes.
    pub fn clear(&self) -> io::Result<(usize, u64)> {
        self.shared.lock().queue.clear();
        self.flush();
        self.shared.clear()
    }

    /// Reads everything, and deletes what is damaged. `progress` is told how many bytes are done, of how many.
    pub fn verify(&self, progress: &mut dyn FnMut(u64, u64)) -> Verified {
        reader::verify(&self.shared, progress)
    }
}

impl Drop for DiskCache {
    /// What is being written is finished, what waits is dropped: `flush` first to keep it.
    fn drop(&mut self) {
        self.loads = None;
        self.shared.close();
        for thread in self.threads.drain(..) {
            let _ = thread.join(); // it has nothing to say
        }
    }
}

#[cfg(test)]
mod tests;
