//! The thread that stores segments.

use super::allowance::Allowance;
use super::format::Header;
use super::shared::{Job, Shared, Step};
use super::{Key, Segment};
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::PathBuf;
use std::sync::PoisonError;
use std::time::Duration;

/// How often a folder that nobody writes to is looked through for what has grown old.
const SWEEP: Duration = Duration::from_secs(600);
/// After n failures in a row, 2^n - 1 segments are dropped before the disk is tried again; at most so many.
const LONGEST_PAUSE: u32 = 255;

/// Why a segment is not stored.
enum Refusal {
    /// Another process has stored it.
    Known,
    Daily,
    Unfit,
    Disk(io::Error),
}

impl From<io::Error> for Refusal {
    fn from(e: io::Error) -> Refusal {
        Refusal::Disk(e)
    }
}

enum Task {
    Store(Box<Job>),
    Sweep,
    Close,
}

/// Stores what is queued, until the cache is closed.
pub fn run(shared: &Shared) {
    let mut writer = Writer { shared, number: 0, failures: 0, refused_on: None };
    loop {
        match next(shared) {
            Task::Store(job) => writer.store(*job),
            Task::Sweep if shared.folder.is_writable() => writer.sweep(),
            Task::Sweep => {}
            Task::Close => return,
        }
        shared.lock().writing = None;
        shared.idle.notify_all();
    }
}

fn next(shared: &Shared) -> Task {
    let mut state = shared.lock();
    loop {
        if state.closing {
            return Task::Close;
        }
        if let Some(job) = state.queue.pop_front() {
            state.writing = Some((job.header.key, job.header.file_bytes()));
            return Task::Store(Box::new(job));
        }
        shared.idle.notify_all(); // the queue may have been emptied by others
        let (guard, wait) = shared.work.wait_timeout(state, SWEEP).unwrap_or_else(PoisonError::into_inner);
        state = guard;
        if wait.timed_out() && state.queue.is_empty() && !state.closing {
            return Task::Sweep;
        }
    }
}

struct Writer<'a> {
    shared: &'a Shared,
    /// Of temporary files.
    number: u64,
    /// In a row.
    failures: u32,
    /// The day on which the log has said that the day's bytes are spent.
    refused_on: Option<u64>,
}

/// A temporary file is deleted unless it was given its name.
struct Temporary {
    path: PathBuf,
    published: bool,
}

impl Drop for Temporary {
    fn drop(&mut self) {
        if !self.published {
            let _ = fs::remove_file(&self.path); // else the next one that opens the folder does it
        }
    }
}

impl Writer<'_> {
    fn store(&mut self, job: Job) {
        let key = job.header.key;
        let result = self.try_store(job);
        let mut state = self.shared.lock();
        match result {
            Ok(()) => {
                state.counts.stored += 1;
                self.failures = 0;
            }
            Err(Refusal::Known) => {}
            Err(Refusal::Unfit) => state.counts.dropped_unfit += 1,
            Err(Refusal::Daily) => {
                state.counts.dropped_daily += 1;
                let Allowance { day, written } = state.allowance;
                drop(state);
                if self.refused_on.replace(day) != Some(day) {
                    let daily = self.shared.options.daily_writes;
                    self.shared.log(&format!("{written} of {daily} bytes were written today: less is stored now"));
                }
            }
            Err(Refusal::Disk(e)) => {
                state.counts.dropped_failed += 1;
                self.failures += 1;
                state.pause = 1u32.checked_shl(self.failures).map_or(LONGEST_PAUSE, |n| (n - 1).min(LONGEST_PAUSE));
                drop(state);
                self.shared.log(&format!("{} is not stored: {e}", self.shared.folder.segment(&key).display()));
            }
        }
    }

    fn try_store(&mut self, job: Job) -> Result<(), Refusal> {
        let Job { mut header, segment } = job;
        let (mut temporary, mut file) = self.reserve(&header)?;
        header.hash(&segment);
        self.write(&mut file, &header, &segment)?;
        self.publish(&mut temporary, header)
    }

    /// Counts the bytes, makes room for them, and begins the file.
    fn reserve(&mut self, header: &Header) -> Result<(Temporary, File), Refusal> {
        let (shared, bytes) = (self.shared, header.file_bytes());
        let held = shared.folder.hold()?;
        shared.refresh(Some(&held))?;
        let allowance = Allowance::read(&held.file)?.at((shared.clock)());
        allowance.write(&held.file)?; // the day counts also where nothing is written
        shared.lock().allowance = allowance;
        if shared.lock().index.get(&header.key).is_some() {
            return Err(Refusal::Known);
        }
        if !shared.lock().index.accepts(header) {
            return Err(Refusal::Unfit);
        }
        if !allowance.admits(bytes, header.new_tokens(), shared.options.daily_writes) {
            return Err(Refusal::Daily);
        }
        if !shared.make_room(&held, bytes, header.parent.as_ref())? {
            return Err(Refusal::Unfit);
        }
        let allowance = Allowance { written: allowance.written + bytes, ..allowance };
        allowance.write(&held.file)?;
        shared.lock().allowance = allowance;
        loop {
            self.number += 1;
            match shared.folder.create(&held, &header.key, self.number) {
                // A process of the same number in another container may have taken the name.
                Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {}
                other => {
                    let (path, file) = other?;
                    return Ok((Temporary { path, published: false }, file));
                }
            }
        }
    }

    fn write(&self, file: &mut File, header: &Header, segment: &Segment) -> io::Result<()> {
        let encoded = header.encode();
        let pages = segment.pages.iter().map(Vec::as_slice);
        let parts = [encoded.as_slice()].into_iter().chain(pages).chain([segment.state.as_slice()]);
        let mut written = 0;
        for part in parts {
            (self.shared.probe)(Step::Write, written)?;
            file.write_all(part)?;
            written += part.len() as u64;
        }
        (self.shared.probe)(Step::Sync, written)?;
        let _ = file.set_modified((self.shared.clock)()); // else it counts as used when the system says
        file.sync_all()
    }

    /// Names the file, if what it continues is still there and nobody else has filled the room.
    fn publish(&self, temporary: &mut Temporary, header: Header) -> Result<(), Refusal> {
        let (shared, now) = (self.shared, self.shared.now());
        let (key, bytes): (Key, u64) = (header.key, header.file_bytes());
        let held = shared.folder.hold()?;
        shared.refresh(Some(&held))?;
        if shared.lock().index.get(&key).is_some() {
            return Err(Refusal::Known);
        }
        if !shared.lock().index.accepts(&header) || !shared.make_room(&held, bytes, header.parent.as_ref())? {
            return Err(Refusal::Unfit);
        }
        (shared.probe)(Step::Publish, bytes)?;
        shared.folder.publish(&held, &temporary.path, &key)?;
        temporary.published = true;
        shared.lock().index.insert(header, now);
        Ok(())
    }

    fn sweep(&self) {
        let swept = self.shared.folder.hold().and_then(|held| {
            self.shared.refresh(Some(&held))?;
            self.shared.make_room(&held, 0, None)
        });
        if let Err(e) = swept {
            self.shared.log(&format!("its folder can not be looked through: {e}"));
        }
    }
}
