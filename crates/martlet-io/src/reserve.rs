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
    pub fn release(&mut self, bytes: Range<usize>) {
        let page = page_size();
        let whole = bytes.start.next_multiple_of(page)..bytes.end / page * page;
        if whole.is_empty() || !drop_pages(&self.map, &whole) {
            self[bytes].fill(0);
            return;
        }
        self[bytes.start..whole.start].fill(0);
        self[whole.end..bytes.end].fill(0);
    }
}

/// Whether the system took the pages, so that they read as zeros.
#[cfg(target_os = "linux")]
#[allow(unsafe_code)]
fn drop_pages(map: &MmapMut, bytes: &Range<usize>) -> bool {
    // SAFETY: the map is private and anonymous, so its dropped pages read as zeros, which are valid bytes; the caller
    // holds the one reference to it.
    unsafe { map.unchecked_advise_range(memmap2::UncheckedAdvice::DontNeed, bytes.start, bytes.len()).is_ok() }
}

/// Elsewhere the same call may promise no zeros.
#[cfg(not(target_os = "linux"))]
fn drop_pages(_: &MmapMut, _: &Range<usize>) -> bool {
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
