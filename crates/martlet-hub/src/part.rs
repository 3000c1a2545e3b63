//! A file that is arriving: `NAME.part`, and beside it `NAME.part.progress`, which says what of it is there.
//!
//! The file has its full length from the start; it is cut into segments, each of which fills up from its beginning. The
//! progress file is a head and one number for each segment: bytes that are there. Bytes are written before the number that
//! counts them, so that after a kill at any point the numbers never say too much. (After a loss of power they may: then
//! the hash does not fit, and the file is fetched again.)

use crate::error::HubError;
use crate::listing::RemoteFile;
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

const MAGIC: &[u8; 8] = b"martprt1";
/// Magic, size of the file, size of a segment, hash as text padded with zeros.
const HEAD: usize = 8 + 8 + 8 + 64;

#[derive(Debug)]
pub(crate) struct Part {
    path: PathBuf,
    size: u64,
    segment: u64,
    /// Bytes that are there, for each segment.
    done: Vec<AtomicU64>,
    /// The file and its progress; `None` where all was there, and nothing needs to be written.
    files: Option<(File, File)>,
}

pub(crate) fn part_path(dir: &Path, name: &str) -> PathBuf {
    dir.join(format!("{name}.part"))
}

fn progress_path(part: &Path) -> PathBuf {
    part.with_added_extension("progress")
}

impl Part {
    /// Goes on with what is there of this very file, or begins anew.
    pub fn open(dir: &Path, file: &RemoteFile, segment: u64) -> Result<Part, HubError> {
        let path = part_path(dir, &file.name);
        if let Some(part) = Part::resume(&path, file) {
            return Ok(part);
        }
        // The progress file goes last: a part without one was whole.
        let size = |path: &Path| std::fs::metadata(path).ok().map(|m| m.len());
        if size(&path) == Some(file.size) && size(&progress_path(&path)).is_none() {
            return Ok(Part::complete(dir, file));
        }
        Part::create(path.clone(), file, segment).map_err(HubError::io(path))
    }

    /// A file that is there in full, though nobody has checked it.
    pub fn complete(dir: &Path, file: &RemoteFile) -> Part {
        let segment = file.size.max(1);
        let done = segments(file.size, segment).map(AtomicU64::new).collect();
        Part { path: part_path(dir, &file.name), size: file.size, segment, done, files: None }
    }

    fn resume(path: &Path, file: &RemoteFile) -> Option<Part> {
        let bytes = std::fs::read(progress_path(path)).ok()?;
        let (head, numbers) = bytes.split_at_checked(HEAD)?;
        let number = |bytes: &[u8]| u64::from_le_bytes(bytes.try_into().unwrap_or_default());
        let segment = number(&head[16..24]);
        if segment == 0 || head != self::head(file, segment) {
            return None;
        }
        let sizes: Vec<u64> = segments(file.size, segment).collect();
        let done: Vec<u64> = numbers.chunks_exact(8).map(number).collect();
        if numbers.len() != 8 * sizes.len() || done.iter().zip(&sizes).any(|(done, size)| done > size) {
            return None;
        }
        let data = OpenOptions::new().write(true).open(path).ok()?;
        if data.metadata().ok()?.len() != file.size {
            return None;
        }
        let progress = OpenOptions::new().write(true).open(progress_path(path)).ok()?;
        let done = done.into_iter().map(AtomicU64::new).collect();
        Some(Part { path: path.to_path_buf(), size: file.size, segment, done, files: Some((data, progress)) })
    }

    fn create(path: PathBuf, file: &RemoteFile, segment: u64) -> io::Result<Part> {
        // What is there may be a link into somebody's cache: it is replaced, never written to.
        let progress = progress_path(&path);
        for old in [&path, &progress] {
            match std::fs::remove_file(old) {
                Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(e),
                _ => {}
            }
        }
        let done: Vec<AtomicU64> = segments(file.size, segment).map(|_| AtomicU64::new(0)).collect();
        let mut bytes = head(file, segment);
        bytes.resize(HEAD + 8 * done.len(), 0);
        // Under its name only when it is whole.
        let begun = progress.with_added_extension("new");
        let mut out = File::create(&begun)?;
        out.write_all(&bytes)?;
        std::fs::rename(&begun, &progress)?;
        let data = File::create_new(&path)?;
        data.set_len(file.size)?;
        Ok(Part { path, size: file.size, segment, done, files: Some((data, out)) })
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    pub fn segments(&self) -> usize {
        self.done.len()
    }

    /// (first byte that is missing, byte after the last) of a segment.
    pub fn missing(&self, segment: usize) -> (u64, u64) {
        let start = segment as u64 * self.segment;
        (start + self.done[segment].load(Ordering::Acquire), (start + self.segment).min(self.size))
    }

    /// Adds bytes at the first missing one of a segment, no more than are missing.
    pub fn append(&self, segment: usize, bytes: &[u8]) -> Result<(), HubError> {
        let Some((data, progress)) = &self.files else { return Ok(()) };
        let (at, _) = self.missing(segment);
        let write = || {
            write_at(data, bytes, at)?;
            let done = self.done[segment].load(Ordering::Acquire) + bytes.len() as u64;
            write_at(progress, &done.to_le_bytes(), (HEAD + 8 * segment) as u64)?;
            self.done[segment].store(done, Ordering::Release);
            Ok(())
        };
        write().map_err(HubError::io(&self.path))
    }

    /// Bytes that are there from the beginning on, without a gap; `from` of them are known to be there.
    pub fn prefix(&self, from: u64) -> u64 {
        let mut end = from;
        for segment in (from / self.segment) as usize..self.done.len() {
            let (missing, to) = self.missing(segment);
            end = end.max(missing);
            if missing < to {
                break;
            }
        }
        end
    }

    pub fn bytes_done(&self) -> u64 {
        self.done.iter().map(|d| d.load(Ordering::Acquire)).sum()
    }

    /// Gives the file its name; its progress is no longer needed.
    pub fn finish(&self, to: &Path) -> Result<(), HubError> {
        std::fs::rename(&self.path, to).map_err(HubError::io(to))?;
        remove_progress(&self.path)
    }

    /// Deletes what has arrived.
    pub fn discard(&self) -> Result<(), HubError> {
        std::fs::remove_file(&self.path).map_err(HubError::io(&self.path))?;
        remove_progress(&self.path)
    }

    /// Takes a file that has its name already, to be checked again.
    pub fn reopen(dir: &Path, file: &RemoteFile) -> Result<(), HubError> {
        let (named, path) = (dir.join(&file.name), part_path(dir, &file.name));
        if std::fs::metadata(&named).is_ok_and(|m| m.len() == file.size) {
            remove_progress(&path)?;
            std::fs::rename(&named, &path).map_err(HubError::io(named))?;
        }
        Ok(())
    }
}

fn remove_progress(part: &Path) -> Result<(), HubError> {
    match std::fs::remove_file(progress_path(part)) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => Err(HubError::io(progress_path(part))(e)),
        _ => Ok(()),
    }
}

fn segments(size: u64, segment: u64) -> impl Iterator<Item = u64> {
    (0..size.div_ceil(segment)).map(move |i| segment.min(size - i * segment))
}

fn head(file: &RemoteFile, segment: u64) -> Vec<u8> {
    let mut head = MAGIC.to_vec();
    head.extend(file.size.to_le_bytes());
    head.extend(segment.to_le_bytes());
    head.extend(file.digest.to_string().bytes());
    head.resize(HEAD, 0);
    head
}

#[cfg(unix)]
fn write_at(file: &File, bytes: &[u8], at: u64) -> io::Result<()> {
    std::os::unix::fs::FileExt::write_all_at(file, bytes, at)
}

#[cfg(windows)]
fn write_at(file: &File, mut bytes: &[u8], mut at: u64) -> io::Result<()> {
    while !bytes.is_empty() {
        match std::os::windows::fs::FileExt::seek_write(file, bytes, at)? {
            0 => return Err(io::ErrorKind::WriteZero.into()),
            n => (bytes, at) = (&bytes[n..], at + n as u64),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::digest::Digest;

    fn file(size: u64) -> RemoteFile {
        RemoteFile { name: "a".into(), size, digest: Digest::Sha256([7; 32]) }
    }

    #[test]
    fn what_is_there_is_found_again_and_only_for_the_same_file() {
        let dir = tempfile::tempdir().unwrap();
        let part = Part::open(dir.path(), &file(25), 10).unwrap();
        assert_eq!((part.segments(), part.prefix(0), part.missing(2)), (3, 0, (20, 25)));
        part.append(1, b"0123456789").unwrap();
        part.append(0, b"abc").unwrap();
        assert_eq!((part.prefix(0), part.bytes_done()), (3, 13));
        drop(part);
        let part = Part::open(dir.path(), &file(25), 4).unwrap();
        assert_eq!((part.segments(), part.prefix(0), part.missing(0)), (3, 3, (3, 10)), "in the segments of then");
        part.append(0, b"defghij").unwrap();
        assert_eq!(part.prefix(3), 20);
        part.append(2, b"ABCDE").unwrap();
        assert_eq!((part.prefix(20), part.prefix(0)), (25, 25));
        part.finish(&dir.path().join("a")).unwrap();
        assert_eq!(std::fs::read(dir.path().join("a")).unwrap(), b"abcdefghij0123456789ABCDE");
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1);

        Part::open(dir.path(), &file(25), 10).unwrap().append(0, b"abc").unwrap();
        let other = RemoteFile { digest: Digest::Sha256([8; 32]), ..file(25) };
        assert_eq!(Part::open(dir.path(), &other, 10).unwrap().bytes_done(), 0, "another hash");
        std::fs::rename(dir.path().join("a.part"), dir.path().join("a")).unwrap();
        Part::reopen(dir.path(), &file(25)).unwrap();
        assert_eq!(Part::open(dir.path(), &file(25), 10).unwrap().bytes_done(), 25, "whole, and to be checked");
        std::fs::remove_file(dir.path().join("a.part")).unwrap();
        for damage in ["", "x", &"x".repeat(200)] {
            Part::open(dir.path(), &file(25), 10).unwrap().append(0, b"abc").unwrap();
            std::fs::write(dir.path().join("a.part.progress"), damage).unwrap();
            assert_eq!(Part::open(dir.path(), &file(25), 10).unwrap().bytes_done(), 0, "{damage}");
        }
        Part::open(dir.path(), &file(25), 10).unwrap().append(0, b"abc").unwrap();
        std::fs::write(dir.path().join("a.part"), "short").unwrap();
        assert_eq!(Part::open(dir.path(), &file(25), 10).unwrap().bytes_done(), 0, "a file of another length");
    }

    #[test]
    fn no_bytes_and_complete_files() {
        let dir = tempfile::tempdir().unwrap();
        let part = Part::open(dir.path(), &file(0), 10).unwrap();
        assert_eq!((part.segments(), part.prefix(0)), (0, 0));
        let part = Part::complete(dir.path(), &file(33));
        assert_eq!((part.segments(), part.prefix(0), part.bytes_done()), (1, 33, 33));
    }
}
