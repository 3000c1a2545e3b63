//! Memory for weights: zeroed, aligned to a page, and in huge pages where the system gives them.
//!
//! Weights are read from one end to the other for every token. With pages of 4 KiB the processor looks up an address,
//! and stops fetching ahead, every 64 lines; with pages of 2 MiB that costs nothing that can be measured.

use memmap2::MmapMut;
use std::io;
use std::ops::{Deref, DerefMut};

/// Bytes of a huge page on the machines that have them.
const HUGE: usize = 2 << 20;

/// A fixed number of bytes, at an address that is a multiple of 4096, zero at first.
#[derive(Debug)]
pub struct Arena {
    map: MmapMut,
    start: usize,
    len: usize,
}

impl Arena {
    /// Takes `len` bytes. Pages are taken from the system when they are first written.
    pub fn new(len: usize) -> io::Result<Arena> {
        let spare = if len >= HUGE { HUGE } else { 0 };
        let map = MmapMut::map_anon(len.saturating_add(spare).max(1))?;
        let start = if spare == 0 { 0 } else { map.as_ptr().align_offset(HUGE).min(spare) };
        let arena = Arena { map, start, len };
        arena.ask_for_huge_pages();
        Ok(arena)
    }

    /// For the whole ones only: a huge page that is used in part would cost memory. It is a wish, so a refusal is no
    /// error.
    fn ask_for_huge_pages(&self) {
        #[cfg(target_os = "linux")]
        if self.len >= HUGE {
            let whole = self.len / HUGE * HUGE;
            let _ = self.map.advise_range(memmap2::Advice::HugePage, self.start, whole);
        }
    }
}

impl Deref for Arena {
    type Target = [u8];

    #[inline(always)]
    fn deref(&self) -> &[u8] {
        &self.map[self.start..self.start + self.len]
    }
}

impl DerefMut for Arena {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.map[self.start..self.start + self.len]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_zero_aligned_and_writable() {
        for len in [0, 1, 4096, HUGE - 1, HUGE, 3 * HUGE + 5] {
            let mut arena = Arena::new(len).unwrap();
            assert_eq!((arena.len(), arena.as_ptr().align_offset(4096)), (len, 0));
            assert!(arena.iter().all(|b| *b == 0));
            arena.fill(7);
            assert!(arena.iter().all(|b| *b == 7));
            assert!(len < HUGE || arena.as_ptr().align_offset(HUGE) == 0);
        }
        assert!(Arena::new(usize::MAX).is_err());
    }
}
