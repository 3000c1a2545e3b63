//! Read-only maps of whole files.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

/// A touched page brings its neighbours of a window of this size along, where they are in the system's cache.
#[cfg(target_os = "linux")]
const AROUND: usize = 64 << 10;

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

impl Map {
    /// Takes the pages of `part`, a slice of this map, out of the process's memory: it is done with. They come back from
    /// the file when they are touched again. A slice of anything else, or a system that does not do this, is left alone.
    pub fn release(&self, part: &[u8]) {
        let start = (part.as_ptr() as usize).checked_sub(self.map.as_ptr() as usize);
        if let Some(start) = start.filter(|start| *start <= self.map.len() && part.len() <= self.map.len() - start) {
            self.release_range(start, part.len());
        }
    }

    #[cfg(target_os = "linux")]
    #[allow(unsafe_code)]
    fn release_range(&self, start: usize, len: usize) {
        if len == 0 {
            return;
        }
        let (first, last) = (start / AROUND * AROUND, (start + len).next_multiple_of(AROUND).min(self.map.len()));
        // SAFETY: the map is of a file and never written, so that a dropped page holds the same bytes when it is read again.
        // It is a wish: a refusal only leaves the pages where they are.
        let _ = unsafe { self.map.unchecked_advise_range(memmap2::UncheckedAdvice::DontNeed, first, last - first) };
    }

    #[cfg(not(target_os = "linux"))]
    fn release_range(&self, _: usize, _: usize) {}
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
    #[cfg(target_os = "linux")]
    fn released_pages_leave_memory_and_come_back() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("pages.bin");
        let bytes: Vec<u8> = (0..4 << 20).map(|i| (i / 4096) as u8).collect();
        std::fs::write(&path, &bytes).unwrap();
        let map = Map::open(&path).unwrap();
        // Of this map alone: other tests run beside it.
        let resident = || {
            let maps = std::fs::read_to_string("/proc/self/smaps").unwrap();
            let own = maps.split(path.to_str().unwrap()).nth(1).unwrap();
            let line = own.lines().find(|l| l.starts_with("Rss:")).unwrap();
            line.split_whitespace().nth(1).unwrap().parse::<usize>().unwrap() << 10
        };
        assert!(map.bytes() == bytes && resident() == bytes.len());
        map.release(&bytes);
        map.release(&map.bytes()[7..7]);
        assert_eq!(resident(), bytes.len());
        // Where the system maps huge pages of the file, it drops such a page as a whole.
        map.release(&map.bytes()[1 << 20..3 << 20]);
        assert!(resident() <= 2 << 20);
        assert_eq!(map.bytes(), bytes);
        map.release(map.bytes());
        assert_eq!(resident(), 0);
        assert_eq!(map.bytes(), bytes);
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
