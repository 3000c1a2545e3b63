//! Address space that costs memory only where it is written, and gives it back.

use memmap2::{MmapMut, MmapOptions};
use std::io;
use std::ops::{Deref, DerefMut, Range};

/// Zeroed bytes at an address that is a multiple of 4096. More may be asked for than the machine has: a page of the
/// system is taken when it is first written, and goes back with [`Reserve::release`].
#[derive(Debug)]
pub struct Reserve {
    map: MmapMut,
    len: usize,
}

impl Reserve {
    /// `len` bytes. Fails where the system is set to promise no more than it has.
    pub fn new(len: usize) -> io::Result<Reserve> {
        let map = MmapOptions::new().len(len.max(1)).no_reserve_swap().map_anon()?;
        // A huge page would be taken as a whole by the first byte written. It is a wish, so a refusal is no error.
        #[cfg(target_os = "linux")]
        let _ = map.advise(memmap2::Advice::NoHugePage);
        Ok(Reserve { map, len })
    }

    /// Makes the bytes zero and gives the system's pages that lie wholly among them back.
    #[allow(unsafe_code)]
    pub fn release(&mut self, bytes: Range<usize>) {
        // SAFETY: the map is private and anonymous.
        unsafe { release(&mut self[bytes]) }
    }
}

/// Makes the bytes zero and gives the system's pages that lie wholly among them back.
///
/// # Safety
/// They lie in a private anonymous map, so that dropped pages read as zeros.
#[allow(unsafe_code)]
pub(crate) unsafe fn release(bytes: &mut [u8]) {
    let (page, len) = (page_size(), bytes.len());
    // From the first border of pages to the last.
    let start = (bytes.as_ptr() as usize).wrapping_neg() % page;
    let whole = start..len.saturating_sub((bytes.as_ptr() as usize + len) % page);
    if whole.is_empty() || !drop_pages(&mut bytes[whole.clone()]) {
        return bytes.fill(0);
    }
    bytes[..whole.start].fill(0);
    bytes[whole.end..].fill(0);
}

/// Whether the system took the pages, so that they read as zeros.
#[cfg(target_os = "linux")]
#[allow(unsafe_code)]
fn drop_pages(pages: &mut [u8]) -> bool {
    // SAFETY: whole pages of a private anonymous map, as the one caller promises: zeros are valid bytes, and it holds the
    // one reference to them.
    unsafe { libc::madvise(pages.as_mut_ptr().cast(), pages.len(), libc::MADV_DONTNEED) == 0 }
}

/// Elsewhere the same call may promise no zeros.
#[cfg(not(target_os = "linux"))]
fn drop_pages(_: &mut [u8]) -> bool {
    false
}

#[allow(unsafe_code)]
fn page_size() -> usize {
    // SAFETY: sysconf only reads its argument.
    let size = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    usize::try_from(size).unwrap_or(1 << 16).max(1)
}

impl Deref for Reserve {
    type Target = [u8];

    #[inline(always)]
    fn deref(&self) -> &[u8] {
        &self.map[..self.len]
    }
}

impl DerefMut for Reserve {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.map[..self.len]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn released_bytes_are_zero_and_the_rest_stays() {
        let len = 5 * page_size() + 7;
        let mut bytes = Reserve::new(len).unwrap();
        assert!(bytes.len() == len && bytes.iter().all(|b| *b == 0));
        let page = page_size();
        for range in [0..0, 3..9, page..2 * page, 5..2 * page, page - 1..4 * page + 1, 2 * page..len, 0..len] {
            bytes.fill(7);
            bytes.release(range.clone());
            assert!(bytes.iter().enumerate().all(|(i, b)| *b == if range.contains(&i) { 0 } else { 7 }), "{range:?}");
        }
        assert!(Reserve::new(usize::MAX).is_err() && Reserve::new(0).unwrap().is_empty());
    }
}
