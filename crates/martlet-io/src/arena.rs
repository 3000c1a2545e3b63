//! Memory for weights: zeroed, aligned to a page, and in huge pages where the system gives them.
//!
//! Weights are read from one end to the other for every token. With pages of 4 KiB the processor looks up an address,
//! and stops fetching ahead, every 64 lines; with pages of 2 MiB that costs nothing that can be measured.
#![allow(unsafe_code)]

use memmap2::{MmapMut, MmapOptions, MmapRaw};
use std::io;
use std::ops::{Deref, DerefMut, Range};
use std::sync::Arc;

/// Bytes of a huge page on the machines that have them.
const HUGE: usize = 2 << 20;
/// No system has smaller pages.
const PAGE: usize = 4096;

/// A fixed number of bytes, at an address that is a multiple of 4096, zero at first.
#[derive(Debug)]
pub struct Arena {
    /// Shared with the arenas that were split off. No byte of it belongs to two.
    map: Arc<MmapRaw>,
    start: usize,
    len: usize,
}

impl Arena {
    /// Takes `len` bytes. Pages are taken from the system when they are first written.
    pub fn new(len: usize) -> io::Result<Arena> {
        Arena::mapped(len, &MmapOptions::new())
    }

    /// As [`Arena::new`], of which the system need not have so much: who takes less of it may ask for more.
    pub(crate) fn unreserved(len: usize) -> io::Result<Arena> {
        Arena::mapped(len, MmapOptions::new().no_reserve_swap())
    }

    fn mapped(len: usize, options: &MmapOptions) -> io::Result<Arena> {
        let spare = if len >= HUGE { HUGE } else { 0 };
        let map = options.clone().len(len.saturating_add(spare).max(1)).map_anon()?;
        let start = if spare == 0 { 0 } else { map.as_ptr().align_offset(HUGE).min(spare) };
        ask_for_huge_pages(&map, start, len);
        Ok(Arena { map: Arc::new(MmapRaw::from(map)), start, len })
    }

    /// Takes the first `len` bytes off, which keep their address; the rest begins behind them. The memory goes back to the
    /// system when both are dropped. Panics where there are fewer.
    pub fn split_to(&mut self, len: usize) -> Arena {
        assert!(len <= self.len, "{len} bytes of an arena of {}", self.len);
        let first = Arena { map: self.map.clone(), start: self.start, len };
        (self.start, self.len) = (self.start + len, self.len - len);
        first
    }

    /// Makes the bytes zero and gives the system's pages that lie wholly among them back. They are taken again when they
    /// are written.
    pub(crate) fn release(&mut self) {
        // SAFETY: the map is private and anonymous.
        unsafe { crate::reserve::release(self) }
    }

    /// Has the system give the bytes their memory now, instead of when they are first written. They stay what they are.
    pub(crate) fn touch(&mut self) {
        // A page is taken by one byte that is written. Linux has a call for that (MADV_POPULATE_WRITE), but while it runs
        // no thread can map anything: opening a model took three seconds longer beside it.
        self.chunks_mut(PAGE).for_each(|page| page[0] = std::hint::black_box(page[0]));
    }

    /// Bytes `part`, for a thread that writes them while others write other parts.
    ///
    /// # Safety
    /// Until the returned slice is gone nobody may look at these bytes in any other way.
    #[allow(clippy::mut_from_ref)]
    pub(crate) unsafe fn part_mut(&self, part: Range<usize>) -> &mut [u8] {
        assert!(part.start <= part.end && part.end <= self.len, "{part:?} of {} bytes", self.len);
        // SAFETY: inside the map by the assertion, and arenas do not overlap; the caller promises that no other reference
        // to these bytes is used meanwhile.
        unsafe { std::slice::from_raw_parts_mut(self.map.as_mut_ptr().add(self.start + part.start), part.len()) }
    }
}

/// For the whole ones only: a huge page that is used in part would cost memory. It is a wish, so a refusal is no error.
#[cfg_attr(not(target_os = "linux"), allow(unused_variables))]
fn ask_for_huge_pages(map: &MmapMut, start: usize, len: usize) {
    #[cfg(target_os = "linux")]
    if len >= HUGE {
        let _ = map.advise_range(memmap2::Advice::HugePage, start, len / HUGE * HUGE);
    }
}

impl Deref for Arena {
    type Target = [u8];

    #[inline(always)]
    fn deref(&self) -> &[u8] {
        // SAFETY: the bytes lie in the mapping, which this arena holds; they are its own, so nobody writes them.
        unsafe { std::slice::from_raw_parts(self.map.as_ptr().add(self.start), self.len) }
    }
}

impl DerefMut for Arena {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: `&mut self` is the only way to these bytes.
        unsafe { self.part_mut(0..self.len) }
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

    #[test]
    fn parts_are_apart_and_outlive_each_other() {
        let mut rest = Arena::new(3 * HUGE).unwrap();
        let at = rest.as_ptr();
        let (mut a, mut b) = (rest.split_to(100), rest.split_to(HUGE));
        assert_eq!((a.as_ptr(), b.as_ptr(), rest.len()), (at, at.wrapping_add(100), 2 * HUGE - 100));
        a.fill(1);
        b.fill(2);
        rest.fill(3);
        drop(a);
        // Neither begins nor ends with a page.
        let mut c = b.split_to(HUGE / 2);
        c.release();
        assert!(c.iter().all(|v| *v == 0));
        assert!(b.iter().all(|v| *v == 2) && rest.iter().all(|v| *v == 3));
        drop(rest);
        assert!(b.iter().all(|v| *v == 2));
        let refused = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| b.split_to(HUGE + 1)));
        assert!(refused.is_err());
    }
}
