//! What the threads share, and how the index and the folder are kept alike.

use super::allowance::{Allowance, seconds};
use super::folder::{Folder, Held, Listing, Unreadable};
use super::format::{FormatError, Header};
use super::index::Index;
use super::{Clock, DiskError, DiskOptions, Key, Segment, Stats};
use std::collections::{HashSet, VecDeque};
use std::io;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

/// What the writer is about to do with a temporary file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    Write,
    Sync,
    Publish,
}

/// Asked before each step, with the bytes written so far: tests let disks fail here.
pub type Probe = Box<dyn Fn(Step, u64) -> io::Result<()> + Send + Sync>;

/// A segment to be stored; its header has no checksums yet.
pub struct Job {
    pub header: Header,
    pub segment: Segment,
}

/// **Nobody does I/O while this is locked.**
#[derive(Default)]
pub struct State {
    pub index: Index,
    pub queue: VecDeque<Job>,
    /// What the writer works at: key and bytes.
    pub writing: Option<(Key, u64)>,
    pub closing: bool,
    /// Entries, bytes and what waits are filled in when they are asked for.
    pub counts: Stats,
    pub allowance: Allowance,
    /// How many segments are dropped before the disk, which has failed, is tried again.
    pub pause: u32,
    /// What can not be read and was said to be so.
    left_alone: HashSet<Key>,
}

impl State {
    pub fn is_busy(&self) -> bool {
        !self.queue.is_empty() || self.writing.is_some()
    }

    pub fn queued_bytes(&self) -> u64 {
        let writing = self.writing.map_or(0, |(_, bytes)| bytes);
        self.queue.iter().map(|job| job.header.file_bytes()).sum::<u64>() + writing
    }

    fn is_coming(&self, key: &Key) -> bool {
        self.queue.iter().any(|job| job.header.key == *key) || self.writing.is_some_and(|(k, _)| k == *key)
    }
}

pub struct Shared {
    pub options: DiskOptions,
    pub clock: Clock,
    pub probe: Probe,
    pub folder: Folder,
    state: Mutex<State>,
    /// The writer has something to do.
    pub work: Condvar,
    /// The writer has nothing to do.
    pub idle: Condvar,
}

impl Shared {
    pub fn open(options: DiskOptions, clock: Clock, probe: Probe) -> Result<Shared, DiskError> {
        let log = options.log.clone();
        let folder = Folder::open(&options.dir, &move |line| log(&format!("prefix cache: {line}")))?;
        let (state, work, idle) = Default::default();
        let shared = Shared { options, clock, probe, folder, state, work, idle };
        let error = |source| DiskError::Folder { path: shared.options.dir.clone(), source };
        match shared.folder.is_writable() {
            true => {
                let held = shared.folder.hold().map_err(error)?;
                let listing = shared.refresh(Some(&held)).map_err(error)?;
                shared.tell_skipped(&listing.skipped);
                shared.lock().allowance = Allowance::read(&held.file).map_err(error)?;
                if let Err(e) = shared.make_room(&held, 0, None) {
                    shared.log(&format!("what is too old or too much can not be deleted: {e}"));
                }
            }
            false => shared.tell_skipped(&shared.refresh(None).map_err(error)?.skipped),
        }
        Ok(shared)
    }

    fn tell_skipped(&self, names: &[String]) {
        const SHOWN: usize = 5;
        if let Some(shown) = names.get(..names.len().min(SHOWN)).filter(|s| !s.is_empty()) {
            let more = if names.len() > SHOWN { ", ..." } else { "" };
            self.log(&format!("{} things in its folder are not its own: {}{more}", names.len(), shown.join(", ")));
        }
    }

    pub fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn log(&self, line: &str) {
        (self.options.log)(&format!("prefix cache: {line}"));
    }

    /// Seconds since 1970.
    pub fn now(&self) -> u64 {
        seconds((self.clock)())
    }

    pub fn close(&self) {
        let mut state = self.lock();
        state.closing = true;
        state.queue.clear();
        self.work.notify_all();
    }

    pub fn enqueue(&self, job: Job) {
        let (key, now) = (job.header.key, self.now());
        let mut state = self.lock();
        if state.index.get(&key).is_some() || state.is_coming(&key) {
            state.index.touch(&key, now);
            return;
        }
        let known = |parent: &Key| state.index.get(parent).is_some() || state.is_coming(parent);
        if !job.header.parent.as_ref().is_none_or(known) {
            state.counts.dropped_unfit += 1;
        } else if !self.folder.is_writable() || state.pause > 0 {
            state.pause = state.pause.saturating_sub(1);
            state.counts.dropped_failed += 1;
        } else if state.queued_bytes() + job.header.file_bytes() > self.options.queue_bytes {
            state.counts.dropped_queue += 1;
        } else {
            state.queue.push_back(job);
            self.work.notify_all();
        }
    }

    /// Makes the index what the folder is, which other processes change too; deletes what nobody can use. Without the
    /// lock nothing is deleted.
    pub fn refresh(&self, held: Option<&Held<'_>>) -> io::Result<Listing> {
        let listing = self.folder.list()?;
        if let Some(cleaned) = held.map(|held| self.folder.clean(held, &listing)).filter(|&n| n > 0) {
            self.log(&format!("{cleaned} unfinished files of a process that has ended were deleted"));
        }
        let unknown = self.forget_changed(&listing);
        let (mut headers, mut unread) = (Vec::new(), false);
        let (mut other_versions, mut other_version_bytes) = (0, 0);
        for key in unknown {
            match self.folder.open_segment(&key) {
                Ok((_, header)) => headers.push(header),
                Err(Unreadable::Format(FormatError::Version(_))) => {
                    other_versions += 1;
                    other_version_bytes += listing.segments[&key].0;
                }
                Err(e) if e.is_damage() => self.discard_file(held, &key, &e),
                Err(Unreadable::Gone) => {}
                Err(e) => {
                    unread = true;
                    if self.lock().left_alone.insert(key) {
                        self.log(&format!("{} is left alone: {e}", self.folder.segment(&key).display()));
                    }
                }
            }
        }
        headers.sort_by_key(|h| h.end); // parents first
        let orphans = self.learn(headers, &listing);
        {
            let mut state = self.lock();
            state.counts.other_versions = other_versions;
            state.counts.other_version_bytes = other_version_bytes;
        }
        // What could not be read may be a parent.
        if let Some(held) = held.filter(|_| !unread && !orphans.is_empty()) {
            let end = match self.delete(held, &orphans) {
                Ok(()) => "were deleted".to_string(),
                Err(e) => format!("can not be deleted ({e})"),
            };
            self.log(&format!("{} segments {end}: what they continue is gone", orphans.len()));
        }
        Ok(listing)
    }

    /// Drops from the index what is gone or has another length; notes uses by others. Names not in the index.
    fn forget_changed(&self, listing: &Listing) -> Vec<Key> {
        let mut state = self.lock();
        let is_there = |h: &Header| listing.segments.get(&h.key).is_some_and(|&(bytes, _)| bytes == h.file_bytes());
        let changed = state.index.entries().map(|e| &e.header).filter(|h| !is_there(h)).map(|h| h.key);
        let changed: Vec<Key> = changed.collect();
        state.index.remove(&changed);
        for (key, &(_, used)) in &listing.segments {
            state.index.touch(key, seconds(used));
        }
        listing.segments.keys().filter(|key| state.index.get(key).is_none()).copied().collect()
    }

    /// Adds to the index what continues it; the rest comes back.
    fn learn(&self, headers: Vec<Header>, listing: &Listing) -> Vec<Header> {
        let now = self.now();
        let mut state = self.lock();
        let used = |header: &Header| listing.segments.get(&header.key).map_or(0, |&(_, used)| seconds(used));
        let orphans = headers.into_iter().filter(|h| !state.index.insert(h.clone(), used(h))).collect();
        state.index.clamp(now);
        orphans
    }

    /// Deletes what is too old, and then the least worthy until `bytes` more fit in, though not `keep` and what it
    /// continues; whether they do.
    pub fn make_room(&self, held: &Held<'_>, bytes: u64, keep: Option<&Key>) -> io::Result<bool> {
        let now = self.now();
        let (expired, evicted) = {
            let mut state = self.lock();
            let expired = state.index.expire(now.saturating_sub(self.options.ttl.as_secs()));
            let left = self.options.bytes.checked_sub(bytes);
            let evicted = left.and_then(|left| state.index.evict(left, keep, now));
            state.counts.expired += expired.len() as u64;
            state.counts.evicted += evicted.as_ref().map_or(0, Vec::len) as u64;
            (expired, evicted)
        };
        self.delete(held, &expired)?;
        self.delete(held, evicted.as_deref().unwrap_or_default())?;
        Ok(evicted.is_some())
    }

    /// Deletes the files of what has left the index: all that can be, then the first error.
    fn delete(&self, held: &Held<'_>, gone: &[Header]) -> io::Result<()> {
        let results: Vec<_> = gone.iter().map(|h| self.folder.delete(held, &h.key)).collect();
        results.into_iter().collect()
    }

    /// A file whose header is wrong: nothing in the index needs it.
    fn discard_file(&self, held: Option<&Held<'_>>, key: &Key, why: &Unreadable) {
        let deleted = held.is_some_and(|held| self.folder.delete(held, key).is_ok());
        let end = if deleted { "was deleted" } else { "is not used" };
        self.lock().counts.damaged += 1;
        self.log(&format!("{} {end}: {why}", self.folder.segment(key).display()));
    }

    /// An entry that could not be read is a miss from now on, as is what depends on it.
    pub fn discard(&self, key: &Key, why: &Unreadable) {
        if self.lock().index.remove(&[*key]).is_empty() {
            return; // another thread saw to it
        }
        let held = self.folder.hold().ok();
        if why.is_damage() {
            self.discard_file(held.as_ref(), key, why);
        } else {
            self.log(&format!("{} is not used: {why}", self.folder.segment(key).display()));
        }
        // Others may have stored anew what continued it; what really depends on it goes now.
        if let Some(Err(e)) = held.filter(|_| why.is_final()).map(|held| self.refresh(Some(&held))) {
            self.log(&format!("its folder can not be looked through: {e}"));
        }
    }

    pub fn stats(&self) -> Stats {
        let now = (self.clock)();
        let state = self.lock();
        Stats {
            entries: state.index.len(),
            bytes: state.index.bytes(),
            oldest_use: state.index.oldest_use(),
            written_today: state.allowance.at(now).written,
            queued_bytes: state.queued_bytes(),
            ..state.counts
        }
    }

    /// Deletes all segments and leftovers.
    pub fn clear(&self) -> io::Result<(usize, u64)> {
        let held = self.folder.hold()?;
        let listing = self.folder.list()?;
        let mut files = self.folder.clean(&held, &listing);
        let mut bytes = 0;
        let mut state = self.lock();
        state.index.clear();
        (state.counts.other_versions, state.counts.other_version_bytes) = (0, 0);
        drop(state);
        for (key, (length, _)) in &listing.segments {
            self.folder.delete(&held, key)?;
            files += 1;
            bytes += length;
        }
        Ok((files, bytes))
    }
}
