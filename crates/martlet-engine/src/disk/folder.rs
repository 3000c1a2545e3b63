//! The folder: its lock, what lies in it, and the few ways in which files come and go.
//!
//! Processes share it. Whoever adds, renames or deletes a file holds the lock for that moment, not while it writes the
//! bytes of a segment: those go to a temporary file, which its writer keeps locked, so that others see that it lives.

use super::format::{FormatError, HEADER_BYTES, Header, LOCK_NAME, Name, segment_name, temporary_name};
use super::{DiskError, Key};
use std::collections::HashMap;
use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

/// How often, and how far apart, the lock is tried: two seconds, some hundred times what it is ever held for.
const LOCK_TRIES: u32 = 400;
const LOCK_PAUSE: Duration = Duration::from_millis(5);

pub struct Folder {
    dir: PathBuf,
    /// None: nothing can be written here.
    lock: Option<Mutex<File>>,
}

/// The lock is held.
pub struct Held<'a> {
    pub file: MutexGuard<'a, File>,
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        let _ = self.file.unlock(); // closing the file would do it too
    }
}

/// What lies in the folder.
#[derive(Default)]
pub struct Listing {
    /// Length and time of change of each file with the name of a segment.
    pub segments: HashMap<Key, (u64, SystemTime)>,
    pub temporaries: Vec<PathBuf>,
    /// What is not ours, or is no plain file.
    pub skipped: Vec<String>,
}

/// Why a segment can not be had.
#[derive(Debug, thiserror::Error)]
pub enum Unreadable {
    #[error("it is gone")]
    Gone,
    #[error("it is another one than before")]
    Changed,
    #[error("{0}")]
    Format(#[from] FormatError),
    #[error("the checksum of its {0} is wrong")]
    Hash(&'static str),
    #[error("it is no plain file")]
    NoFile,
    #[error("no memory for {0} bytes")]
    Memory(u64),
    #[error("{0}")]
    Io(#[from] io::Error),
}

impl Unreadable {
    /// Whether the file itself is at fault, and reading it again would not help.
    pub fn is_damage(&self) -> bool {
        match self {
            Unreadable::Format(e) => !matches!(e, FormatError::Version(_)),
            Unreadable::Hash(_) => true,
            Unreadable::Io(e) => e.kind() == io::ErrorKind::UnexpectedEof,
            _ => false,
        }
    }

    /// Whether looking at the file again tells what is there now; other faults would only come back.
    pub fn is_final(&self) -> bool {
        self.is_damage() || matches!(self, Unreadable::Gone | Unreadable::Changed)
    }
}

impl Folder {
    /// Makes the folder if it is missing. One that can not be written is opened for reading.
    pub fn open(dir: &Path, log: &dyn Fn(&str)) -> Result<Folder, DiskError> {
        let error = |source| DiskError::Folder { path: dir.to_path_buf(), source };
        make_private(dir).map_err(error)?;
        let path = dir.join(LOCK_NAME);
        let lock = match open_lock(&path) {
            Ok(file) => Some(Mutex::new(file)),
            Err(e) if is_read_only(&e) => {
                log(&format!("{}: nothing can be stored here, what is there is used: {e}", dir.display()));
                None
            }
            Err(source) => return Err(DiskError::Lock { path, source }),
        };
        let folder = Folder { dir: dir.to_path_buf(), lock };
        if folder.lock.is_some() {
            folder.hold().map_err(|source| DiskError::Lock { path, source })?;
        }
        Ok(folder)
    }

    pub fn segment(&self, key: &Key) -> PathBuf {
        self.dir.join(segment_name(key))
    }

    pub fn is_writable(&self) -> bool {
        self.lock.is_some()
    }

    /// Waits, for a bounded time, until no other process changes the folder.
    pub fn hold(&self) -> io::Result<Held<'_>> {
        let lock = self.lock.as_ref().ok_or(io::ErrorKind::ReadOnlyFilesystem)?;
        let mut file = lock.lock().unwrap_or_else(PoisonError::into_inner);
        if was_deleted(&file) {
            // Somebody has removed the folder, or all in it, under our feet.
            make_private(&self.dir)?;
            *file = open_lock(&self.dir.join(LOCK_NAME))?;
        }
        for _ in 0..LOCK_TRIES {
            match file.try_lock() {
                Ok(()) => return Ok(Held { file }),
                Err(TryLockError::WouldBlock) => std::thread::sleep(LOCK_PAUSE),
                Err(TryLockError::Error(e)) => return Err(e),
            }
        }
        let seconds = (LOCK_TRIES * LOCK_PAUSE).as_secs();
        Err(io::Error::new(
            io::ErrorKind::TimedOut,
            format!("another process held {LOCK_NAME} for more than {seconds} s"),
        ))
    }

    pub fn list(&self) -> io::Result<Listing> {
        let mut listing = Listing::default();
        for entry in fs::read_dir(&self.dir)? {
            let entry = entry?;
            let name = entry.file_name();
            let kind = Name::of(&name);
            if kind == Name::Lock {
                continue;
            }
            // Without following links. What is gone by now was somebody's temporary file.
            match entry.metadata() {
                Err(e) if e.kind() == io::ErrorKind::NotFound => {}
                Ok(meta) if meta.is_file() && kind != Name::Other => match kind {
                    Name::Segment(key) => {
                        let changed = meta.modified().unwrap_or(SystemTime::UNIX_EPOCH);
                        listing.segments.insert(key, (meta.len(), changed));
                    }
                    _ => listing.temporaries.push(entry.path()),
                },
                _ => listing.skipped.push(format!("{name:?}")),
            }
        }
        listing.skipped.sort();
        Ok(listing)
    }

    /// Opens a segment and reads its header; the file then stands at the first page.
    pub fn open_segment(&self, key: &Key) -> Result<(File, Header), Unreadable> {
        let mut file = match open_plain(&self.segment(key), OpenOptions::new().read(true)) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Err(Unreadable::Gone),
            other => other?,
        };
        let meta = file.metadata()?;
        if !meta.is_file() {
            return Err(Unreadable::NoFile);
        }
        let mut bytes = Vec::with_capacity(HEADER_BYTES);
        Read::by_ref(&mut file).take(HEADER_BYTES as u64).read_to_end(&mut bytes)?;
        let header = Header::parse(&bytes, meta.len())?;
        match header.key == *key {
            true => Ok((file, header)),
            false => Err(FormatError::Header("another key than its name".into()).into()),
        }
    }

    /// A new temporary file, locked by us.
    pub fn create(&self, _held: &Held<'_>, key: &Key, number: u64) -> io::Result<(PathBuf, File)> {
        let path = self.dir.join(temporary_name(key, std::process::id(), number));
        let file = open_plain(&path, private(OpenOptions::new().write(true).create_new(true)))?;
        match file.try_lock() {
            Ok(()) => Ok((path, file)),
            Err(e) => {
                let _ = fs::remove_file(&path);
                Err(e.into())
            }
        }
    }

    /// Deletes temporary files whose writers are dead; how many.
    pub fn clean(&self, _held: &Held<'_>, listing: &Listing) -> usize {
        let dead = |path: &&PathBuf| {
            let file = open_plain(path, OpenOptions::new().read(true));
            file.is_ok_and(|f| f.try_lock().is_ok()) && fs::remove_file(path).is_ok()
        };
        listing.temporaries.iter().filter(dead).count()
    }

    /// Deletes a segment; one that is missing is fine.
    pub fn delete(&self, _held: &Held<'_>, key: &Key) -> io::Result<()> {
        match fs::remove_file(self.segment(key)) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => Err(e),
            _ => Ok(()),
        }
    }

    /// Gives a complete temporary file its name, for good.
    pub fn publish(&self, _held: &Held<'_>, temporary: &Path, key: &Key) -> io::Result<()> {
        fs::rename(temporary, self.segment(key))?;
        match cfg!(unix) {
            true => File::open(&self.dir)?.sync_all(),
            false => Ok(()),
        }
    }

    /// The time of change of a segment is when it was last used, so that a restart knows it.
    pub fn touch(&self, key: &Key, now: SystemTime) {
        // Where that fails it only looks older than it is.
        if self.is_writable()
            && let Ok(file) = open_plain(&self.segment(key), OpenOptions::new().write(true))
        {
            let _ = file.set_modified(now);
        }
    }
}

/// What stored conversations are made of is for their owner alone.
fn make_private(dir: &Path) -> io::Result<()> {
    let mut builder = fs::DirBuilder::new();
    builder.recursive(true);
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
    builder.create(dir)
}

fn private(options: &mut OpenOptions) -> &mut OpenOptions {
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(options, 0o600);
    options
}

/// Opens without following a link, and without waiting for the other end of a pipe.
fn open_plain(path: &Path, options: &mut OpenOptions) -> io::Result<File> {
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::custom_flags(options, libc::O_NOFOLLOW | libc::O_NONBLOCK);
    options.open(path)
}

fn open_lock(path: &Path) -> io::Result<File> {
    let file = open_plain(path, private(OpenOptions::new().read(true).write(true).create(true).truncate(false)))?;
    match file.metadata()?.is_file() {
        true => Ok(file),
        false => Err(io::Error::other("it is no plain file")),
    }
}

fn is_read_only(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem)
}

#[cfg(unix)]
fn was_deleted(file: &File) -> bool {
    use std::os::unix::fs::MetadataExt;
    file.metadata().is_ok_and(|meta| meta.nlink() == 0)
}

/// Elsewhere an open file can not be deleted.
#[cfg(not(unix))]
fn was_deleted(_file: &File) -> bool {
    false
}
