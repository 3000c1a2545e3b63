//! Files of a snapshot into a folder: several connections bring segments, and one thread follows behind them with the
//! hash, so that a file is read again while it is still in memory.
//!
//! A file has the name `NAME.part` until its hash is right. The files get their names in their order, so that the last of
//! them says that all are there.

use crate::digest::Hasher;
use crate::error::HubError;
use crate::http::{Trouble, begins_right, content_range, not_a_page, number, retry};
use crate::listing::{RemoteFile, Snapshot};
use crate::part::{Part, part_path};
use crate::{Hub, HubOptions};
use std::collections::VecDeque;
use std::fs::File;
use std::io::Read;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use ureq::http::header::CONTENT_LENGTH;

/// Smallest segment: below this, requests cost more than what they bring.
pub const MIN_SEGMENT: u64 = 64 << 10;
/// Bytes that are written at a time. A kill loses at most so many for each connection.
const BUFFER: usize = 256 << 10;
/// First bytes of a file by which it is judged.
const JUDGED: usize = 9;
/// Bytes that are hashed at a time.
const HASHED: usize = 1 << 20;
/// Times that a file may arrive with a wrong hash.
const SPOILED: u32 = 3;
/// How often progress is told, and how long a thread may not notice that there is work.
const TICK: Duration = Duration::from_millis(50);

/// How far it is; numbers of bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FetchProgress {
    /// There, of all files.
    pub done: u64,
    /// Of these, found here at the start.
    pub found: u64,
    /// Of all files.
    pub total: u64,
    /// Hashed, in the file whose turn it is, and in all before it.
    pub checked: u64,
}

/// One run of [`Hub::fetch`], as its threads share it.
struct Job<'a> {
    hub: &'a Hub,
    snapshot: &'a Snapshot,
    dir: &'a Path,
    items: Vec<Item<'a>>,
    state: Mutex<State>,
    changed: Condvar,
    over: AtomicBool,
    checked: AtomicU64,
}

struct Item<'a> {
    file: &'a RemoteFile,
    part: Mutex<Arc<Part>>,
    /// Where the hub sends us for this file, until that link expires.
    link: Mutex<Option<String>>,
    /// The server sends this file only from its beginning: one connection at a time.
    whole: AtomicBool,
}

struct State {
    /// For each item: segments that nobody is bringing, and how many are being brought.
    queues: Vec<(VecDeque<usize>, usize)>,
    /// The server has asked for silence until then.
    silence: Option<Instant>,
    failed: Option<HubError>,
}

impl Hub {
    /// Brings `files` of a snapshot into `dir`, in this order; what is there of them is kept, anything else in `dir` but
    /// hidden files is deleted. Fails before it begins where the disk has no room for them and for `more` bytes that the
    /// caller will need there. `progress` is called many times a second.
    pub fn fetch(
        &self,
        snapshot: &Snapshot,
        files: &[RemoteFile],
        dir: &Path,
        more: u64,
        progress: &mut dyn FnMut(FetchProgress),
    ) -> Result<FetchProgress, HubError> {
        self.tidy(dir, files)?;
        let mut step = |now| {
            progress(now);
            true
        };
        self.fetch_some(snapshot, files, dir, more, &mut step)
    }

    /// The same, and nothing in `dir` is deleted. `progress` says whether to go on.
    pub fn fetch_some(
        &self,
        snapshot: &Snapshot,
        files: &[RemoteFile],
        dir: &Path,
        more: u64,
        progress: &mut dyn FnMut(FetchProgress) -> bool,
    ) -> Result<FetchProgress, HubError> {
        let items = files.iter().map(|file| self.item(snapshot, file, dir)).collect::<Result<Vec<_>, _>>()?;
        let job = Job::new(self, snapshot, dir, items);
        let total = files.iter().map(|f| f.size).sum();
        let found = job.done();
        has_room(dir, total - found, more)?;
        if self.options.offline && found < total {
            return Err(HubError::Offline { repository: snapshot.repository.clone() });
        }
        let now = || FetchProgress { done: job.done(), found, total, checked: job.checked.load(Ordering::Relaxed) };
        std::thread::scope(|scope| {
            let connections = self.options.connections.max(1);
            for _ in 0..if found < total { connections } else { 1 } {
                scope.spawn(|| job.work());
            }
            scope.spawn(|| job.check());
            while !job.over.load(Ordering::Acquire) {
                if !progress(now()) {
                    job.end(Some(HubError::Stopped));
                }
                let _ = job.changed.wait_timeout(job.lock(), TICK);
            }
        });
        let ended = now();
        match job.lock().failed.take() {
            Some(error) => Err(error),
            None => {
                progress(ended);
                Ok(ended)
            }
        }
    }

    /// Deletes what is in `dir` beside `files` and hidden files: what is left of other revisions.
    pub fn tidy(&self, dir: &Path, files: &[RemoteFile]) -> Result<(), HubError> {
        std::fs::create_dir_all(dir).map_err(HubError::io(dir))?;
        tidy(dir, files)
    }

    /// What there is of a file, here or in the cache.
    fn item<'a>(&self, snapshot: &Snapshot, file: &'a RemoteFile, dir: &Path) -> Result<Item<'a>, HubError> {
        Part::reopen(dir, file)?;
        let HubOptions { segment, .. } = self.options;
        let path = part_path(dir, &file.name);
        if !path.exists()
            && let Some(cached) = self.cached(snapshot, file)
        {
            // A link, dead or alive, may be left of an earlier run.
            let _ = std::fs::remove_file(&path);
            link(&cached, &path).map_err(HubError::io(&path))?;
        }
        let part = Part::open(dir, file, segment.max(MIN_SEGMENT))?;
        let (link, whole) = (Mutex::new(None), AtomicBool::new(false));
        Ok(Item { file, part: Mutex::new(Arc::new(part)), link, whole })
    }
}

/// The file under a second name: it takes no room, and must never be written to.
pub fn link(from: &Path, to: &Path) -> std::io::Result<()> {
    std::fs::hard_link(from, to).or_else(|_| symlink(from, to))
}

#[cfg(unix)]
fn symlink(from: &Path, to: &Path) -> std::io::Result<()> {
    std::os::unix::fs::symlink(from, to)
}

#[cfg(windows)]
fn symlink(from: &Path, to: &Path) -> std::io::Result<()> {
    std::os::windows::fs::symlink_file(from, to)
}

/// Deletes files of other revisions.
fn tidy(dir: &Path, files: &[RemoteFile]) -> Result<(), HubError> {
    for entry in std::fs::read_dir(dir).map_err(HubError::io(dir))? {
        let entry = entry.map_err(HubError::io(dir))?;
        let name = entry.file_name();
        let name = name.to_string_lossy();
        let bare = name.strip_suffix(".progress").unwrap_or(&name);
        let bare = bare.strip_suffix(".part").unwrap_or(bare);
        if name.starts_with('.') || files.iter().any(|f| f.name == bare || f.name == *name) {
            continue;
        }
        if entry.file_type().is_ok_and(|kind| !kind.is_dir()) {
            std::fs::remove_file(entry.path()).map_err(HubError::io(entry.path()))?;
        }
    }
    Ok(())
}

/// Fails where the disk of `dir` has no room for so many bytes to be fetched, and for so many of a pack.
pub fn has_room(dir: &Path, missing: u64, more: u64) -> Result<(), HubError> {
    let needed = missing.saturating_add(more);
    match martlet_io::disk::free(dir) {
        Some(free) if free < needed => {
            let what = format!("{:.1} GB to fetch, {:.1} GB for the pack", missing as f64 / 1e9, more as f64 / 1e9);
            Err(HubError::NoRoom { dir: dir.to_path_buf(), needed, free, what })
        }
        _ => Ok(()),
    }
}

impl<'a> Job<'a> {
    fn new(hub: &'a Hub, snapshot: &'a Snapshot, dir: &'a Path, items: Vec<Item<'a>>) -> Job<'a> {
        let queues = items.iter().map(|item| (missing(&item.part()), 0)).collect();
        let state = Mutex::new(State { queues, silence: None, failed: None });
        let (over, checked) = (AtomicBool::new(false), AtomicU64::new(0));
        Job { hub, snapshot, dir, items, state, changed: Condvar::new(), over, checked }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn done(&self) -> u64 {
        self.items.iter().map(|item| item.part().bytes_done()).sum()
    }

    fn end(&self, failed: Option<HubError>) {
        let mut state = self.lock();
        state.failed = state.failed.take().or(failed);
        self.over.store(true, Ordering::Release);
        drop(state);
        self.changed.notify_all();
    }

    fn is_over(&self) -> bool {
        self.over.load(Ordering::Acquire)
    }

    /// A connection: brings segments until all files are there.
    fn work(&self) {
        let mut buffer = vec![0; BUFFER];
        while let Some((i, segment)) = self.claim() {
            let brought = self.bring(&self.items[i], segment, &mut buffer);
            let mut state = self.lock();
            state.queues[i].1 -= 1;
            match brought {
                Ok(true) => {}
                Ok(false) => state.queues[i].0.push_front(segment),
                Err(e) => {
                    drop(state);
                    return self.end(Some(e));
                }
            }
            drop(state);
            self.changed.notify_all();
        }
    }

    /// The next segment that nobody brings; none when all is over.
    fn claim(&self) -> Option<(usize, usize)> {
        let mut state = self.lock();
        loop {
            if self.is_over() {
                return None;
            }
            for (i, (queue, running)) in state.queues.iter_mut().enumerate() {
                let alone = !self.items[i].whole.load(Ordering::Acquire) || *running == 0;
                if let Some(segment) = queue.pop_front_if(|_| alone) {
                    *running += 1;
                    return Some((i, segment));
                }
            }
            // A file that arrives damaged is queued again, so nobody leaves before the end.
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Brings a segment. False: it must be asked for in another way. Gives up when nothing has come so many times in a row.
    fn bring(&self, item: &Item<'_>, segment: usize, buffer: &mut [u8]) -> Result<bool, HubError> {
        let (timing, part) = (self.hub.client.timing, item.part());
        let mut failures = 0;
        loop {
            let (from, to) = part.missing(segment);
            if from == to || self.is_over() {
                return Ok(true);
            }
            self.keep_silence();
            let whole = item.whole.load(Ordering::Acquire);
            let before = part.bytes_done();
            let tried = match whole {
                true => self.whole(item, &part, buffer),
                false => self.range(item, &part, segment, buffer),
            };
            let (what, after, attempts) = match tried {
                Ok(()) => return Ok(whole || !item.whole.load(Ordering::Acquire)),
                Err(Trouble::Fatal(e)) => return Err(e),
                Err(Trouble::Expired { what }) => {
                    *lock(&item.link) = None;
                    (what, None, timing.attempts)
                }
                Err(Trouble::Retry { what, after, attempts }) => {
                    // The link may lead to a machine that is broken.
                    *lock(&item.link) = None;
                    (what, after, attempts.min(timing.attempts))
                }
            };
            failures = if part.bytes_done() > before { 1 } else { failures + 1 };
            if failures >= attempts {
                let url = self.hub.client.file_url(self.snapshot, item.file);
                return Err(HubError::Transport { url, what, attempts: failures });
            }
            let wait = timing.wait(failures, after);
            match after {
                // It is all connections that the server wants to hear less of.
                Some(_) => self.lock().silence = Some(Instant::now() + wait),
                None => self.sleep(wait),
            }
        }
    }

    fn keep_silence(&self) {
        loop {
            let left = self.lock().silence.and_then(|until| until.checked_duration_since(Instant::now()));
            match left.filter(|_| !self.is_over()) {
                Some(left) => self.sleep(left),
                None => return,
            }
        }
    }

    /// Ends early when all is over.
    fn sleep(&self, time: Duration) {
        let until = Instant::now() + time;
        let mut state = self.lock();
        while let Some(left) = until.checked_duration_since(Instant::now()).filter(|_| !self.is_over()) {
            state = self.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Asks for what is missing of a segment. A server that sends whole files alone is noted as such.
    fn range(&self, item: &Item<'_>, part: &Part, segment: usize, buffer: &mut [u8]) -> Result<(), Trouble> {
        let (from, to) = part.missing(segment);
        let mut answer = self.ask(item, Some((from, to)))?;
        match answer.status {
            206 => match content_range(&answer.headers) {
                Some((f, t, size)) if (f, size) == (from, item.file.size) && t <= to => {}
                Some((f, t, size)) => {
                    let all = item.file.size;
                    let text = format!("bytes {from} to {to} of {all} were asked for, {f} to {t} of {size} have come");
                    return Err(retry(text));
                }
                None => return Err(retry("a part of the file has come, and it is not said which".into())),
            },
            200 if (from, to) != (0, item.file.size) => {
                item.whole.store(true, Ordering::Release);
                return Ok(());
            }
            _ => has_length(&answer, item.file.size)?,
        }
        if let Some(length) = number(&answer.headers, CONTENT_LENGTH).filter(|n| *n != to - from) {
            return Err(retry(format!("{} bytes were asked for, {length} have come", to - from)));
        }
        self.copy(item, part, segment, &mut answer.body, buffer)
    }

    /// Asks for the file from its beginning, and takes what is missing.
    fn whole(&self, item: &Item<'_>, part: &Part, buffer: &mut [u8]) -> Result<(), Trouble> {
        let mut answer = self.ask(item, None)?;
        has_length(&answer, item.file.size)?;
        let mut at = 0;
        for segment in 0..part.segments() {
            let (from, to) = part.missing(segment);
            if from == to {
                continue;
            }
            while at < from && !self.is_over() {
                let most = buffer.len().min((from - at) as usize);
                at += read(&mut answer.body, &mut buffer[..most])? as u64;
            }
            self.copy(item, part, segment, &mut answer.body, buffer)?;
            at = to;
        }
        Ok(())
    }

    fn ask(&self, item: &Item<'_>, range: Option<(u64, u64)>) -> Result<crate::http::Answer, Trouble> {
        let client = &self.hub.client;
        let known = lock(&item.link).clone();
        let url = known.unwrap_or_else(|| client.file_url(self.snapshot, item.file));
        let answer = client.get(&url, range)?;
        not_a_page(&answer.headers)?;
        *lock(&item.link) = Some(answer.url.to_string());
        Ok(answer)
    }

    /// Writes what is missing of a segment. What has come before an error is kept.
    fn copy(
        &self,
        item: &Item<'_>,
        part: &Part,
        segment: usize,
        body: &mut dyn Read,
        buffer: &mut [u8],
    ) -> Result<(), Trouble> {
        let timing = self.hub.client.timing;
        let (mut window, mut in_window) = (Instant::now(), 0);
        loop {
            let (from, to) = part.missing(segment);
            let wanted = buffer.len().min((to - from) as usize);
            if wanted == 0 || self.is_over() {
                return Ok(());
            }
            let (mut filled, mut trouble) = (0, None);
            while filled < wanted && trouble.is_none() {
                match read(body, &mut buffer[filled..wanted]) {
                    Ok(n) => (filled, in_window) = (filled + n, in_window + n as u64),
                    Err(e) => trouble = Some(e),
                }
                if window.elapsed() >= timing.stall {
                    if in_window < timing.least {
                        trouble = trouble.or_else(|| Some(retry("the file comes too slowly".into())));
                    }
                    (window, in_window) = (Instant::now(), 0);
                }
            }
            // Too few to tell what they are: they come again.
            let unclear = from == 0 && filled < JUDGED.min(wanted);
            if filled > 0 && !unclear {
                if from == 0 {
                    begins_right(&item.file.name, &buffer[..filled])?;
                }
                part.append(segment, &buffer[..filled]).map_err(Trouble::Fatal)?;
                self.changed.notify_all();
            }
            if let Some(trouble) = trouble {
                return Err(trouble);
            }
        }
    }

    /// Hashes the files, one after the other, as they arrive, and gives them their names.
    fn check(&self) {
        let mut before = 0;
        for (i, item) in self.items.iter().enumerate() {
            let mut spoiled = 0;
            loop {
                match self.check_one(item, before) {
                    Ok(None) if self.is_over() => return,
                    Ok(None) => break,
                    Ok(Some(found)) => {
                        spoiled += 1;
                        if let Err(e) = self.again(i, spoiled, found) {
                            return self.end(Some(e));
                        }
                    }
                    Err(e) => return self.end(Some(e)),
                }
            }
            before += item.file.size;
        }
        self.end(None);
    }

    /// None: the file is right and has its name (or all is over). Else the hash that it has.
    fn check_one(&self, item: &Item<'_>, before: u64) -> Result<Option<crate::Digest>, HubError> {
        let (part, size) = (item.part(), item.file.size);
        let mut file = File::open(part.path()).map_err(HubError::io(part.path()))?;
        let mut hasher = Hasher::new(&item.file.digest, size);
        let mut buffer = vec![0; HASHED];
        let mut at = 0;
        while at < size {
            let ready = part.prefix(at);
            if self.is_over() {
                return Ok(None);
            }
            if ready == at {
                let _ = self.changed.wait_timeout(self.lock(), TICK);
                continue;
            }
            let wanted = buffer.len().min((ready - at) as usize);
            file.read_exact(&mut buffer[..wanted]).map_err(HubError::io(part.path()))?;
            hasher.update(&buffer[..wanted]);
            at += wanted as u64;
            self.checked.store(before + at, Ordering::Relaxed);
        }
        let found = hasher.finish();
        if found != item.file.digest {
            return Ok(Some(found));
        }
        part.finish(&self.dir.join(&item.file.name))?;
        Ok(None)
    }

    /// Throws a file away and queues it again, unless that was done too often.
    fn again(&self, i: usize, spoiled: u32, found: crate::Digest) -> Result<(), HubError> {
        let item = &self.items[i];
        let part = item.part();
        part.discard()?;
        if spoiled >= SPOILED {
            let (found, expected) = (found.to_string(), item.file.digest.to_string());
            return Err(HubError::Digest { file: item.file.name.clone(), found, expected, times: spoiled });
        }
        if self.hub.options.offline {
            return Err(HubError::Offline { repository: self.snapshot.repository.clone() });
        }
        let part = Part::open(self.dir, item.file, self.hub.options.segment.max(MIN_SEGMENT))?;
        let queue = missing(&part);
        *lock(&item.part) = Arc::new(part);
        *lock(&item.link) = None;
        self.lock().queues[i].0 = queue;
        self.changed.notify_all();
        Ok(())
    }
}

impl Item<'_> {
    fn part(&self) -> Arc<Part> {
        lock(&self.part).clone()
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Segments that are not there in full.
fn missing(part: &Part) -> VecDeque<usize> {
    let gap = |segment: &usize| {
        let (from, to) = part.missing(*segment);
        from < to
    };
    (0..part.segments()).filter(gap).collect()
}

/// At least a byte.
fn read(body: &mut dyn Read, buffer: &mut [u8]) -> Result<usize, Trouble> {
    match body.read(buffer) {
        Ok(0) => Err(retry("the file has ended too early".into())),
        Ok(n) => Ok(n),
        Err(e) => Err(retry(format!("the connection broke: {e}"))),
    }
}

fn has_length(answer: &crate::http::Answer, size: u64) -> Result<(), Trouble> {
    match number(&answer.headers, CONTENT_LENGTH).filter(|n| *n != size) {
        Some(length) => Err(retry(format!("the file has {size} bytes, {length} have come"))),
        None => Ok(()),
    }
}
