//! Read-only maps of whole files.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

/// A file mapped for reading. Pages come from disk when they are first touched and can be dropped again by the system.
#[derive(Debug)]
pub struct Map {
    path: PathBuf,
    map: memmap2::Mmap,
}

/// Why a file could not be mapped, or a slice of it not be had.
#[derive(Debug, thiserror::Error)]
pub enum MapError {
    #[error("can not open {}: {source}", path.display())]
    Open { path: PathBuf, source: io::Error },
    #[error("can not map {}: {source}", path.display())]
    Map { path: PathBuf, source: io::Error },
    #[error("{}: bytes {start} to {end} were asked for, the file has {len}", path.display())]
    Range { path: PathBuf, start: u64, end: u64, len: u64 },
}

impl Map {
    /// Maps the file at `path`. A folder, or a file that can not be read, is an error that names it.
    pub fn open(path: &Path) -> Result<Map, MapError> {
        let open = |source| MapError::Open { path: path.to_path_buf(), source };
        let file = File::open(path).map_err(open)?;
        if file.metadata().map_err(open)?.is_dir() {
            return Err(open(io::Error::from(io::ErrorKind::IsADirectory)));
        }
        let map = map_file(&file).map_err(|source| MapError::Map { path: path.to_path_buf(), source })?;
        Ok(Map { path: path.to_path_buf(), map })
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The whole file.
    pub fn bytes(&self) -> &[u8] {
        &self.map
    }

    /// Asks the system to read the whole file into memory from now on, in the background. A wish: a refusal costs time
    /// when pages are first touched.
    pub fn will_need(&self) {
        #[cfg(unix)]
        let _ = self.map.advise(memmap2::Advice::WillNeed);
    }

    /// `len` bytes from `start`, or an error that names the file and both ends.
    pub fn slice(&self, start: u64, len: u64) -> Result<&[u8], MapError> {
        let end = start.checked_add(len);
        let part = end.and_then(|end| {
            let (start, end) = (usize::try_from(start).ok()?, usize::try_from(end).ok()?);
            self.map.get(start..end)
        });
        part.ok_or_else(|| MapError::Range {
            path: self.path.clone(),
            start,
            end: end.unwrap_or(u64::MAX),
            len: self.map.len() as u64,
        })
    }
}

/// The whole file.
impl AsRef<[u8]> for Map {
    fn as_ref(&self) -> &[u8] {
        self.bytes()
    }
}

#[allow(unsafe_code)]
fn map_file(file: &File) -> io::Result<memmap2::Mmap> {
    // SAFETY: the map is read-only and private to this process. Another process could still change or cut the file
    // under us: weights are read as plain numbers, for which every bit pattern is valid, and a cut file ends the
    // process with SIGBUS. Files that are replaced by renaming, as this project writes them, keep their old bytes.
    unsafe { memmap2::Mmap::map(file) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slices_stay_inside_and_errors_name_the_file() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("abc.bin");
        std::fs::write(&path, b"0123456789").unwrap();
        let map = Map::open(&path).unwrap();
        assert_eq!(map.slice(3, 4).unwrap(), b"3456");
        assert_eq!(map.slice(10, 0).unwrap(), b"");
        for (start, len) in [(8, 3), (11, 0), (u64::MAX, 2), (0, u64::MAX)] {
            let text = map.slice(start, len).unwrap_err().to_string();
            assert!(text.contains("abc.bin") && text.contains("has 10"), "{text}");
        }
    }

    #[test]
    fn missing_files_folders_and_empty_files() {
        let dir = tempfile::tempdir().unwrap();
        let text = Map::open(&dir.path().join("none")).unwrap_err().to_string();
        assert!(text.contains("none"), "{text}");
        assert!(Map::open(dir.path()).is_err());
        let empty = dir.path().join("empty");
        std::fs::write(&empty, b"").unwrap();
        assert_eq!(Map::open(&empty).unwrap().bytes(), b"");
    }
}
