//! Reading pieces of one large file straight from disk, many at a time.
//!
//! A disk gives its full speed only to a full queue. So each piece is cut into a few parts that are read side by side: a
//! handful of pieces fills the queue. The system's own cache is passed by where it lets us (`O_DIRECT`): what is read lies
//! in the caller's slots, and a second copy would cost the memory that we do not have.
//!
//! Two ways: Linux is given many reads by one call and thread (`ring`, io_uring); where it has or allows none of that, and
//! on other systems, a pool of threads reads (`threads`).

#[cfg(target_os = "linux")]
mod ring;
mod threads;
mod throttle;

use crate::disk::FileRead;
use crate::slots::{SLOT_ALIGN, Slot};
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
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
    /// XXH3 (64 bits) that the bytes must have; `None`: anything is right.
    pub xxh3: Option<u64>,
}

/// A piece that was asked for, and its slot.
#[derive(Debug)]
pub struct Done {
    pub ticket: u64,
    /// Its first bytes are the piece's, if `result` says so; else they can be anything.
    pub slot: Slot,
    pub result: Result<(), ReadError>,
}

/// A file that is read in pieces. Dropping it waits for the reads in flight.
pub struct Reader {
    file: Arc<Opened>,
    way: Way,
    throttle: Option<throttle::Throttle>,
}

enum Way {
    #[cfg(target_os = "linux")]
    Ring(Box<ring::Ring>),
    Threads(threads::Threads),
}

/// The file, and what both ways do with it.
struct Opened {
    path: PathBuf,
    file: File,
    /// The system's cache is passed by.
    direct: bool,
}

/// How long anything was in flight.
struct Busy {
    pieces: usize,
    since: Instant,
    time: Duration,
}

impl Reader {
    /// Opens a file. Where the system has no io_uring, `threads` threads read it. Where the file system has no direct
    /// reads, it is read through the system's cache, which is asked to forget.
    pub fn open(path: &Path, threads: usize) -> Result<Reader, ReadError> {
        let file = Opened::new(path)?;
        // Reads through the system's cache would run in threads of the system, as many as it likes.
        #[cfg(target_os = "linux")]
        if file.direct
            && let Ok(ring) = ring::Ring::new(file.clone())
        {
            return Ok(Reader { file, way: Way::Ring(Box::new(ring)), throttle: None });
        }
        Reader::threads(file, threads)
    }

    /// As [`Reader::open`], always with threads.
    pub fn with_threads(path: &Path, threads: usize) -> Result<Reader, ReadError> {
        Reader::threads(Opened::new(path)?, threads)
    }

    fn threads(file: Arc<Opened>, threads: usize) -> Result<Reader, ReadError> {
        let way = Way::Threads(threads::Threads::new(file.clone(), threads)?);
        Ok(Reader { file, way, throttle: None })
    }

    /// From now on gives at most so many bytes a second, as a slower disk would. Nothing may be in flight.
    pub fn limit(&mut self, bytes_per_second: u64) {
        self.throttle = Some(throttle::Throttle::new(bytes_per_second));
    }

    /// Whether the system's cache is passed by.
    pub fn is_direct(&self) -> bool {
        self.file.direct
    }

    /// How the file is read: "io_uring" or "threads".
    pub fn way(&self) -> &'static str {
        match &self.way {
            #[cfg(target_os = "linux")]
            Way::Ring(_) => "io_uring",
            Way::Threads(_) => "threads",
        }
    }

    /// Begins to read `piece` into `slot`, which must have room for it; [`Reader::wait`] gives it back.
    pub fn submit(&mut self, piece: Piece, slot: Slot) {
        let whole = piece.bytes.next_multiple_of(SLOT_ALIGN);
        assert!(whole <= slot.len(), "{} bytes for a slot of {}", piece.bytes, slot.len());
        assert!(piece.offset.is_multiple_of(SLOT_ALIGN as u64), "a piece at byte {}", piece.offset);
        self.throttle.iter_mut().for_each(|t| t.asked(piece.bytes));
        match &mut self.way {
            #[cfg(target_os = "linux")]
            Way::Ring(ring) => ring.submit(piece, slot),
            Way::Threads(threads) => threads.submit(piece, slot),
        }
    }

    /// The next piece that is there, in any order; waits for it. There must be one in flight.
    pub fn wait(&mut self) -> Done {
        loop {
            if let Some(done) = self.throttle.as_mut().and_then(|t| t.pop()) {
                return done;
            }
            if let Some(rest) = self.throttle.as_ref().and_then(|t| t.rest()) {
                std::thread::sleep(rest);
                continue;
            }
            let done = match &mut self.way {
                #[cfg(target_os = "linux")]
                Way::Ring(ring) => ring.wait(),
                Way::Threads(threads) => threads.wait(),
            };
            match &mut self.throttle {
                Some(throttle) => throttle.came(done),
                None => return done,
            }
        }
    }

    /// The next piece, if it is there already.
    pub fn poll(&mut self) -> Option<Done> {
        loop {
            let done = match &mut self.way {
                #[cfg(target_os = "linux")]
                Way::Ring(ring) => ring.poll(),
                Way::Threads(threads) => threads.poll(),
            };
            match (&mut self.throttle, done) {
                (None, done) => return done,
                (Some(throttle), Some(done)) => throttle.came(done),
                (Some(throttle), None) => return throttle.pop(),
            }
        }
    }

    /// For how long anything was being read so far. What is there counts until it is taken with io_uring.
    pub fn busy(&self) -> Duration {
        if let Some(throttle) = &self.throttle {
            return throttle.busy();
        }
        match &self.way {
            #[cfg(target_os = "linux")]
            Way::Ring(ring) => ring.busy(),
            Way::Threads(threads) => threads.busy(),
        }
    }
}

/// The best that a file gives to reads of `bytes` bytes at places all over it, `reads` of them in flight: the fastest of a
/// few passes over `total` bytes each.
pub fn speed(path: &Path, bytes: usize, reads: usize, total: u64) -> Result<FileRead, ReadError> {
    const PASSES: u64 = 3;
    let mut reader = Reader::open(path, reads)?;
    let failed = |source| ReadError::Open { path: path.to_path_buf(), source };
    let len = reader.file.file.metadata().map_err(failed)?.len();
    let bytes = bytes.clamp(1, len.max(1) as usize);
    let places = (len / bytes as u64).max(1);
    let count = (total / bytes as u64).clamp(1, 1 << 20);
    let mut random = 1u64;
    let mut pass = || {
        let mut slots = Slot::many(reads.max(1), bytes).map_err(failed)?;
        // Memory is taken before the clock runs.
        slots.iter_mut().for_each(|slot| slot.fill(1));
        let (started, mut asked, mut done) = (Instant::now(), 0, 0);
        while done < count {
            while asked < count
                && let Some(slot) = slots.pop()
            {
                random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                let place = (random >> 24) % places * bytes as u64;
                let offset = place / SLOT_ALIGN as u64 * SLOT_ALIGN as u64;
                reader.submit(Piece { ticket: 0, offset, bytes, xxh3: None }, slot);
                asked += 1;
            }
            let next = reader.wait();
            next.result?;
            slots.push(next.slot);
            done += 1;
        }
        Ok(FileRead { bytes: count * bytes as u64, time: started.elapsed() })
    };
    let mut best: Option<FileRead> = None;
    for _ in 0..PASSES {
        let read = pass()?;
        best = Some(best.map_or(read, |b| if read.time < b.time { read } else { b }));
    }
    Ok(best.expect("there is at least one pass"))
}

/// The parts of a piece, in whole blocks.
fn parts(piece: &Piece) -> impl Iterator<Item = Range<usize>> {
    let whole = piece.bytes.next_multiple_of(SLOT_ALIGN);
    let part = whole.div_ceil(PARTS).next_multiple_of(SLOT_ALIGN).max(PART);
    (0..whole.max(1)).step_by(part).map(move |at| at..whole.min(at + part))
}

impl Busy {
    fn new() -> Busy {
        Busy { pieces: 0, since: Instant::now(), time: Duration::ZERO }
    }

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

    fn time(&self) -> Duration {
        self.time + if self.pieces > 0 { self.since.elapsed() } else { Duration::ZERO }
    }
}

impl Opened {
    fn new(path: &Path) -> Result<Arc<Opened>, ReadError> {
        let (file, direct) = open(path).map_err(|source| ReadError::Open { path: path.to_path_buf(), source })?;
        Ok(Arc::new(Opened { path: path.to_path_buf(), file, direct }))
    }

    /// Whether a part that has `read` of its bytes gets no more: the file ends here.
    fn ends(&self, range: &Range<usize>, read: usize, now: usize) -> bool {
        // A direct read that ends between two blocks ends with the file.
        now == 0 || (self.direct && !read.is_multiple_of(SLOT_ALIGN) && read < range.len())
    }

    /// What it means that the file ended after `read` bytes of a part.
    fn ended(&self, piece: &Piece, range: &Range<usize>, read: usize) -> Result<(), ReadError> {
        let &Piece { offset, bytes, .. } = piece;
        // What fills the last block up need not be there.
        if range.start + read >= bytes {
            return Ok(());
        }
        // Where reading stopped is not where the file ends if the read began behind it.
        let stopped = offset + (range.start + read) as u64;
        let end = self.file.metadata().map_or(stopped, |m| m.len());
        Err(ReadError::Short { path: self.path.clone(), offset, bytes, end })
    }

    fn failed(&self, piece: &Piece, source: io::Error) -> ReadError {
        ReadError::System { path: self.path.clone(), offset: piece.offset, bytes: piece.bytes, source }
    }

    /// Looks at what was read.
    fn finish(&self, piece: Piece, slot: Slot, failure: Option<ReadError>) -> Done {
        let Piece { ticket, offset, bytes, xxh3 } = piece;
        let check = |expected: u64| match xxhash_rust::xxh3::xxh3_64(&slot[..bytes]) {
            found if found == expected => Ok(()),
            found => Err(ReadError::Sum { path: self.path.clone(), offset, bytes, found, expected }),
        };
        let result = match failure {
            Some(e) => Err(e),
            None => xxh3.map_or(Ok(()), check),
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
    crate::disk::forget(&file, 0..0);
    Ok((file, false))
}

#[cfg(test)]
mod tests;
