//! A folder beside the destination that takes its name when all is written, and goes away when it is not.
//!
//! Its writer holds a lock on it for as long as it lives, so that whoever comes later can tell what a killed writer left
//! (nobody holds the lock) from what is being written.

use crate::error::WeightsError;
use std::fs::{File, TryLockError};
use std::io::{Error, ErrorKind};
use std::path::{Path, PathBuf};

pub(crate) struct Staging {
    path: PathBuf,
    dst: PathBuf,
    /// None where the system locks no folders.
    _lock: Option<File>,
}

/// Names of such folders, without the number of their process.
fn hidden(name: &str) -> String {
    format!(".{name}.partial-")
}

impl Staging {
    /// Deletes what killed writers left for `dst`, and makes a new folder.
    pub fn new(dst: &Path) -> Result<Staging, WeightsError> {
        let error = |e: Error| WeightsError::file(dst.display().to_string(), e);
        if let Ok(mut entries) = std::fs::read_dir(dst) {
            if entries.next().is_some() {
                let text = "is there and not empty; name a new folder";
                return Err(WeightsError::file(dst.display().to_string(), text));
            }
        } else if dst.exists() {
            return Err(WeightsError::file(dst.display().to_string(), "is there and no folder"));
        }
        let Some(name) = dst.file_name() else {
            return Err(WeightsError::file(dst.display().to_string(), "is no name for a new folder"));
        };
        let (parent, hidden) = (parent(dst), hidden(&name.to_string_lossy()));
        std::fs::create_dir_all(parent).map_err(error)?;
        clean(parent, &hidden);
        let path = parent.join(format!("{hidden}{}", std::process::id()));
        let lock = create_locked(&path).map_err(|e| WeightsError::file(path.display().to_string(), e))?;
        Ok(Staging { path, dst: dst.to_path_buf(), _lock: lock })
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Fails where the disk has no room for so many bytes.
    pub fn has_room(&self, bytes: u64) -> Result<(), WeightsError> {
        match martlet_io::disk::free(&self.path) {
            Some(free) if free < bytes => {
                let text = format!("needs {bytes} bytes, and the disk has {free} left");
                Err(WeightsError::file(self.dst.display().to_string(), text))
            }
            _ => Ok(()),
        }
    }

    pub fn finish(self) -> Result<(), WeightsError> {
        // An empty folder of that name gives way; a full one makes the renaming fail.
        let _ = std::fs::remove_dir(&self.dst);
        sync(&self.path);
        std::fs::rename(&self.path, &self.dst).map_err(|e| WeightsError::file(self.dst.display().to_string(), e))?;
        sync(parent(&self.dst));
        Ok(())
    }
}

impl Drop for Staging {
    fn drop(&mut self) {
        // Nothing is left of this name after a success; after a failure the error that is reported counts.
        let _ = std::fs::remove_dir_all(&self.path);
    }
}

pub(crate) fn parent(path: &Path) -> &Path {
    path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// Deletes the folders that nobody holds. One that can not be deleted is left: it is in nobody's way.
fn clean(parent: &Path, hidden: &str) {
    let Ok(entries) = std::fs::read_dir(parent) else { return };
    for entry in entries.flatten() {
        let name = entry.file_name();
        let number = name.to_str().and_then(|n| n.strip_prefix(hidden));
        let ours = number.is_some_and(|n| !n.is_empty() && n.bytes().all(|b| b.is_ascii_digit()));
        if ours && File::open(entry.path()).is_ok_and(|folder| folder.try_lock().is_ok()) {
            let _ = std::fs::remove_dir_all(entry.path());
        }
    }
}

/// Makes a folder and locks it. Between the two, another process may take it for a killed writer's and delete it: then it
/// is made again.
fn create_locked(path: &Path) -> Result<Option<File>, Error> {
    for _ in 0..10 {
        std::fs::create_dir(path)?;
        let folder = match File::open(path) {
            Ok(folder) => folder,
            Err(e) if e.kind() == ErrorKind::NotFound => continue,
            // Windows opens no folders.
            Err(_) => return Ok(None),
        };
        match folder.try_lock() {
            Ok(()) if path.exists() => return Ok(Some(folder)),
            Ok(()) | Err(TryLockError::WouldBlock) => {
                // Whoever holds it is deleting it.
                let _ = std::fs::remove_dir_all(path);
            }
            Err(TryLockError::Error(_)) => return Ok(None),
        }
    }
    Err(Error::other("is deleted again and again by another process"))
}

/// Writes a folder's list of names to the disk. Where the system refuses, a loss of power may undo the last renaming:
/// all or nothing is there even so.
pub(crate) fn sync(dir: &Path) {
    let _ = File::open(dir).and_then(|dir| dir.sync_all());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_killed_writers_left_is_deleted_and_nothing_else() {
        let dir = tempfile::tempdir().unwrap();
        let here = |name: &str| dir.path().join(name);
        for name in [".new.partial-1", ".new.partial-2", ".new.partial-x", ".other.partial-1", ".new"] {
            std::fs::create_dir(here(name)).unwrap();
            std::fs::write(here(name).join("weights.bin"), "half").unwrap();
        }
        let living = File::open(here(".new.partial-2")).unwrap();
        living.lock().unwrap();
        let staging = Staging::new(&here("new")).unwrap();
        assert!(!here(".new.partial-1").exists());
        for name in [".new.partial-2", ".new.partial-x", ".other.partial-1", ".new"] {
            assert!(here(name).join("weights.bin").exists(), "{name}");
        }
        let error = Staging::new(&here("new")).err().expect("this process writes it already").to_string();
        assert!(error.contains("partial-"), "{error}");
        staging.finish().unwrap();
        assert!(here("new").is_dir());
    }

    #[test]
    fn a_full_disk_is_told_before() {
        let dir = tempfile::tempdir().unwrap();
        let staging = Staging::new(&dir.path().join("new")).unwrap();
        staging.has_room(0).unwrap();
        let error = staging.has_room(u64::MAX).unwrap_err().to_string();
        assert!(error.contains("needs 18446744073709551615 bytes, and the disk has "), "{error}");
    }
}
