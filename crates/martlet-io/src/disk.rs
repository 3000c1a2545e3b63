//! How fast files come from disk.

use std::fs::File;
use std::io::{self, Read, Write};
use std::ops::Range;
use std::path::Path;
use std::time::{Duration, Instant};

/// Bytes asked for at a time.
const BLOCK: usize = 4 << 20;

/// What reading a file took.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileRead {
    pub bytes: u64,
    pub time: Duration,
}

impl FileRead {
    pub fn bytes_per_second(&self) -> f64 {
        self.bytes as f64 / self.time.as_secs_f64().max(1e-9)
    }
}

/// Reads at most `limit` bytes of a file from its beginning, after asking the system to forget what it has in memory of it.
/// A system that does not forget (the file is mapped by a program, or lies in memory anyway) shows as a speed beyond any disk.
pub fn read_file(path: &Path, limit: u64) -> io::Result<FileRead> {
    let mut file = File::open(path)?;
    forget(&file, 0..0);
    let mut block = vec![0; BLOCK];
    let (started, mut bytes) = (Instant::now(), 0);
    while bytes < limit {
        let wanted = (limit - bytes).min(BLOCK as u64) as usize;
        match file.read(&mut block[..wanted]) {
            Ok(0) => break,
            Ok(n) => bytes += n as u64,
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
    Ok(FileRead { bytes, time: started.elapsed() })
}

/// Fills a new file with `bytes` bytes that do not compress, down to the disk.
pub fn write_file(path: &Path, bytes: u64) -> io::Result<()> {
    let mut state = 1u64;
    let mut block = Vec::with_capacity(BLOCK);
    while block.len() < BLOCK {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        block.extend((state >> 24).to_le_bytes().iter().take(4));
    }
    let mut file = File::create_new(path)?;
    let mut left = bytes;
    while left > 0 {
        let n = left.min(BLOCK as u64);
        file.write_all(&block[..n as usize])?;
        left -= n;
    }
    file.sync_all()
}

/// Bytes that this user may still write to the disk that holds `path` (a folder or file that is there); `None` where the
/// system does not say.
#[cfg(unix)]
#[allow(unsafe_code)]
pub fn free(path: &Path) -> Option<u64> {
    use std::os::unix::ffi::OsStrExt;
    let name = std::ffi::CString::new(path.as_os_str().as_bytes()).ok()?;
    let mut found = std::mem::MaybeUninit::<libc::statvfs>::uninit();
    // SAFETY: `name` ends with a zero, and `found` has room for the answer.
    if unsafe { libc::statvfs(name.as_ptr(), found.as_mut_ptr()) } != 0 {
        return None;
    }
    // SAFETY: the call succeeded, so it has filled `found`.
    let found = unsafe { found.assume_init() };
    // The fields' types differ between systems.
    #[allow(clippy::unnecessary_cast)]
    (found.f_bavail as u64).checked_mul(found.f_frsize as u64)
}

#[cfg(not(unix))]
pub fn free(_path: &Path) -> Option<u64> {
    None
}

/// Asks the system to forget what it has in memory of these bytes of a file; 0..0 means all. A wish: where it is not
/// granted, the file comes from memory.
#[cfg(any(target_os = "linux", target_os = "android", target_os = "freebsd"))]
#[allow(unsafe_code)]
pub(crate) fn forget(file: &File, bytes: Range<u64>) {
    use std::os::fd::AsRawFd;
    let (start, len) = (bytes.start as libc::off_t, (bytes.end - bytes.start) as libc::off_t);
    // SAFETY: the descriptor is open for as long as `file` lives.
    unsafe { libc::posix_fadvise(file.as_raw_fd(), start, len, libc::POSIX_FADV_DONTNEED) };
}

#[cfg(target_vendor = "apple")]
#[allow(unsafe_code)]
pub(crate) fn forget(file: &File, _: Range<u64>) {
    use std::os::fd::AsRawFd;
    // SAFETY: the descriptor is open for as long as `file` lives; the command takes an int.
    unsafe { libc::fcntl(file.as_raw_fd(), libc::F_NOCACHE, 1) };
}

#[cfg(not(any(target_os = "linux", target_os = "android", target_os = "freebsd", target_vendor = "apple")))]
pub(crate) fn forget(_: &File, _: Range<u64>) {}

#[cfg(test)]
mod tests {
    use super::*;

    #[cfg(unix)]
    #[test]
    fn the_disk_says_what_is_free() {
        let dir = tempfile::tempdir().unwrap();
        assert!(free(dir.path()).unwrap() > 0);
        assert_eq!(free(&dir.path().join("none")), None);
    }

    #[test]
    fn a_file_is_read_to_its_end_or_to_the_limit() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("large");
        let len = BLOCK as u64 + 1000;
        write_file(&path, len).unwrap();
        assert_eq!(std::fs::metadata(&path).unwrap().len(), len);
        let all = read_file(&path, u64::MAX).unwrap();
        assert_eq!(all.bytes, len);
        assert!(all.bytes_per_second() > 0.0);
        assert_eq!(read_file(&path, 77).unwrap().bytes, 77);
        assert!(write_file(&path, 1).is_err(), "what is there is left alone");
        assert!(read_file(&dir.path().join("none"), 1).is_err());
        let two = FileRead { bytes: 10, time: Duration::from_secs(5) };
        assert_eq!(two.bytes_per_second(), 2.0);
    }
}
