//! Reading pieces of one large file straight from disk, many at a time.
//!
//! A disk gives its full speed only to a full queue. So a pool of threads reads, and each piece is cut into a few parts
//! that are read side by side: a handful of pieces fills the queue. The system's own cache is passed by where it lets us
//! (`O_DIRECT`): what is read lies in the caller's slots, and a second copy would cost the memory that we do not have.

use crate::disk::forget;
use crate::slots::{SLOT_ALIGN, Slot};
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Parts are at least so large: smaller reads do not reach a disk's speed.
const PART: usize = 256 << 10;
/// A piece is cut into at most so many parts.
const PARTS: usize = 4;

/// Why a piece is not there. Each kind names the file and the piece.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    #[error("can not open {}: {source}", path.display())]
    Open { path: PathBuf, source: io::Error },
    #[error("can not start a thread that reads {}: {source}", path.display())]
    Thread { path: PathBuf, source: io::Error },
    #[error("{}: reading {bytes} bytes at byte {offset} failed: {source}", path.display())]
    System { path: PathBuf, offset: u64, bytes: usize, source: io::Error },
    #[error("{}: reading {bytes} bytes at byte {offset}: the file ends at byte {end}", path.display())]
    Short { path: PathBuf, offset: u64, bytes: usize, end: u64 },
    #[error(
        "{}: the {bytes} bytes at byte {offset} are not what was written: their xxh3 is {found:016x}, expected {expected:016x}",
        path.display()
    )]
    Sum { path: PathBuf, offset: u64, bytes: usize, found: u64, expected: u64 },
}

/// A piece of the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    /// Given back with the bytes.
    pub ticket: u64,
    /// A multiple of [`SLOT_ALIGN`].
    pub offset: u64,
    /// So many bytes are asked for; up to [`SLOT_ALIGN`] they are read with what follows them in the file.
    pub bytes: usize,
    /// XXH3 (64 bits) that the bytes must have.
    pub xxh3: u64,
}

/// A piece that was asked for, and its slot.
#[derive(Debug)]
pub struct Done {
    pub ticket: u64,
    /// Its first bytes are the piece's, if `result` says so; else they can be anything.
    pub slot: Slot,
    pub result: Result<(), ReadError>,
}

/// A file and the threads that read it. Dropping it waits for the reads in flight.
pub struct Reader {
    shared: Arc<Shared>,
    /// `None` once no more pieces come.
    parts: Option<Sender<Part>>,
    done: Receiver<Done>,
    threads: Vec<JoinHandle<()>>,
}

struct Shared {
    path: PathBuf,
    file: File,
    /// The system's cache is passed by.
    direct: bool,
    busy: Mutex<Busy>,
}

/// How long anything was in flight.
struct Busy {
    pieces: usize,
    since: Instant,
    time: Duration,
}

/// A piece on its way. Whoever finishes the last of its parts holds the last reference.
struct Pending {
    piece: Piece,
    slot: Slot,
    failure: Mutex<Option<ReadError>>,
}

struct Part {
    pending: Arc<Pending>,
    range: Range<usize>,
}

impl Reader {
    /// Opens a file to be read by `threads` threads. Where the file system has no direct reads, it is read through the
    /// system's cache, which is asked to forget.
    pub fn open(path: &Path, threads: usize) -> Result<Reader, ReadError> {
        let (file, direct) = open(path).map_err(|source| ReadError::Open { path: path.to_path_buf(), source })?;
        let busy = Mutex::new(Busy { pieces: 0, since: Instant::now(), time: Duration::ZERO });
        let shared = Arc::new(Shared { path: path.to_path_buf(), file, direct, busy });
        let ((parts, jobs), (finished, done)) = (channel::<Part>(), channel());
        let jobs = Arc::new(Mutex::new(jobs));
        let mut reader = Reader { shared, parts: Some(parts), done, threads: Vec::new() };
        for i in 0..threads.max(1) {
            let (shared, jobs, finished) = (reader.shared.clone(), jobs.clone(), finished.clone());
            let thread = std::thread::Builder::new().name(format!("read {i}"));
            let thread = thread.spawn(move || shared.work(&jobs, &finished));
            reader.threads.push(thread.map_err(|source| ReadError::Thread { path: path.to_path_buf(), source })?);
        }
        Ok(reader)
    }

    /// Whether the system's cache is passed by.
    pub fn is_direct(&self) -> bool {
        self.shared.direct
    }

    /// Begins to read `piece` into `slot`, which must have room for it; [`Reader::next`] gives it back.
    pub fn submit(&self, piece: Piece, slot: Slot) {
        let whole = piece.bytes.next_multiple_of(SLOT_ALIGN);
        assert!(whole <= slot.len(), "{} bytes for a slot of {}", piece.bytes, slot.len());
        assert!(piece.offset.is_multiple_of(SLOT_ALIGN as u64), "a piece at byte {}", piece.offset);
        self.shared.busy().begin();
        let part = whole.div_ceil(PARTS).next_multiple_of(SLOT_ALIGN).max(PART);
        let pending = Arc::new(Pending { piece, slot, failure: Mutex::new(None) });
        let starts = (0..whole.max(1)).step_by(part);
        let all: Vec<Part> =
            starts.map(|at| Part { pending: pending.clone(), range: at..whole.min(at + part) }).collect();
        // The threads must see no reference but those of the parts.
        drop(pending);
        let parts = self.parts.as_ref().expect("only dropping takes it");
        for part in all {
            parts.send(part).expect("the threads wait as long as the reader lives");
        }
    }

    /// The next piece that is there, in any order; waits for it. There must be one in flight.
    pub fn next(&self) -> Done {
        self.done.recv().expect("a thread that reads does not end by itself")
    }

    /// The next piece, if it is there already.
    pub fn try_next(&self) -> Option<Done> {
        self.done.try_recv().ok()
    }

    /// For how long anything was being read so far.
    pub fn busy(&self) -> Duration {
        let busy = self.shared.busy();
        busy.time + if busy.pieces > 0 { busy.since.elapsed() } else { Duration::ZERO }
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        self.parts = None;
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

impl Busy {
    fn begin(&mut self) {
        if self.pieces == 0 {
            self.since = Instant::now();
        }
        self.pieces += 1;
    }

    fn end(&mut self) {
        self.pieces -= 1;
        if self.pieces == 0 {
            self.time += self.since.elapsed();
        }
    }
}

impl Shared {
    fn busy(&self) -> MutexGuard<'_, Busy> {
        // Nothing that holds it can panic.
        self.busy.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// What a thread does until no more parts come.
    fn work(&self, jobs: &Mutex<Receiver<Part>>, finished: &Sender<Done>) {
        loop {
            let job = jobs.lock().unwrap_or_else(|e| e.into_inner()).recv();
            let Ok(Part { pending, range }) = job else { return };
            if let Err(e) = self.read(&pending, range) {
                pending.failure.lock().unwrap_or_else(|e| e.into_inner()).get_or_insert(e);
            }
            // The last of the parts: the piece is whole.
            if let Some(pending) = Arc::into_inner(pending) {
                let done = self.finish(pending);
                self.busy().end();
                // Nobody listens when the reader is being dropped.
                let _ = finished.send(done);
            }
        }
    }

    /// Reads a part.
    #[allow(unsafe_code)]
    fn read(&self, pending: &Pending, range: Range<usize>) -> Result<(), ReadError> {
        let Piece { offset, bytes, .. } = pending.piece;
        let path = || self.path.clone();
        // SAFETY: the parts of a piece do not overlap, and the slot is looked at when all of them are done.
        let buffer = unsafe { pending.slot.part_mut(range.clone()) };
        let (start, mut read) = (offset + range.start as u64, 0);
        while read < buffer.len() {
            match self.file.read_at(&mut buffer[read..], start + read as u64) {
                // A direct read that ends between two blocks ends with the file.
                Ok(n)
                    if n == 0 || (self.direct && !(read + n).is_multiple_of(SLOT_ALIGN) && read + n < buffer.len()) =>
                {
                    // Where reading stopped is not where the file ends if the read began behind it.
                    let stopped = start + (read + n) as u64;
                    let end = self.file.metadata().map_or(stopped, |m| m.len());
                    // What fills the last block up need not be there.
                    let enough = range.start + read + n >= bytes;
                    return if enough { Ok(()) } else { Err(ReadError::Short { path: path(), offset, bytes, end }) };
                }
                Ok(n) => read += n,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(source) => return Err(ReadError::System { path: path(), offset, bytes, source }),
            }
        }
        if !self.direct {
            forget(&self.file, start..start + buffer.len() as u64);
        }
        Ok(())
    }

    /// Looks at what was read.
    fn finish(&self, pending: Pending) -> Done {
        let Pending { piece: Piece { ticket, offset, bytes, xxh3: expected }, slot, failure } = pending;
        let result = match failure.into_inner().unwrap_or_else(|e| e.into_inner()) {
            Some(e) => Err(e),
            None => match xxhash_rust::xxh3::xxh3_64(&slot[..bytes]) {
                found if found == expected => Ok(()),
                found => Err(ReadError::Sum { path: self.path.clone(), offset, bytes, found, expected }),
            },
        };
        Done { ticket, slot, result }
    }
}

/// The file, and whether reads of it pass the system's cache by.
#[cfg(any(target_os = "linux", target_os = "android"))]
fn open(path: &Path) -> io::Result<(File, bool)> {
    use std::os::unix::fs::OpenOptionsExt;
    let plain = File::open(path)?;
    if plain.metadata()?.is_dir() {
        return Err(io::ErrorKind::IsADirectory.into());
    }
    let direct = std::fs::OpenOptions::new().read(true).custom_flags(libc::O_DIRECT).open(path);
    // Some file systems refuse at the open, others at the first read.
    let Ok(direct) = direct else { return Ok((plain, false)) };
    let mut probe = Slot::many(1, SLOT_ALIGN)?;
    match direct.read_at(&mut probe[0], 0) {
        Ok(_) => Ok((direct, true)),
        Err(_) => Ok((plain, false)),
    }
}

/// The file, and whether reads of it pass the system's cache by.
#[cfg(not(any(target_os = "linux", target_os = "android")))]
fn open(path: &Path) -> io::Result<(File, bool)> {
    let file = File::open(path)?;
    if file.metadata()?.is_dir() {
        return Err(io::ErrorKind::IsADirectory.into());
    }
    forget(&file, 0..0);
    Ok((file, false))
}

#[cfg(test)]
mod tests;
