//! Equal buffers in one piece of memory, in huge pages where the system has them.

use memmap2::{MmapMut, MmapOptions};
use std::io;
use std::ops::{Deref, DerefMut, Range};
use std::sync::Arc;

/// Slots begin at multiples of this, as direct reads want it. Their size is rounded up to it.
pub const SLOT_ALIGN: usize = 4096;

/// One of the buffers. It lies still in memory, so that it can be handed from thread to thread while a file is read
/// into it; nobody else has its bytes. Dropping all slots gives the memory back.
#[derive(Debug)]
pub struct Slot {
    memory: Arc<MmapMut>,
    range: Range<usize>,
}

impl Slot {
    /// `count` slots of `bytes` bytes each, rounded up to [`SLOT_ALIGN`]. They are zero, and take memory when they are
    /// first written. Fails where the system does not have so much address space.
    pub fn many(count: usize, bytes: usize) -> io::Result<Vec<Slot>> {
        let too_many = || io::Error::from(io::ErrorKind::OutOfMemory);
        let bytes = bytes.checked_next_multiple_of(SLOT_ALIGN).ok_or_else(too_many)?;
        let all = bytes.checked_mul(count).ok_or_else(too_many)?;
        let map = MmapOptions::new().len(all.max(1)).no_reserve_swap().map_anon()?;
        // A wish: a refusal costs a little speed.
        #[cfg(target_os = "linux")]
        let _ = map.advise(memmap2::Advice::HugePage);
        let memory = Arc::new(map);
        Ok((0..count).map(|i| Slot { memory: memory.clone(), range: i * bytes..(i + 1) * bytes }).collect())
    }

    /// Gives the memory back to the system; the bytes are zero then. It is taken again when the slot is written.
    #[cfg(target_os = "linux")]
    #[allow(unsafe_code)]
    pub fn release(&mut self) {
        let advice = memmap2::UncheckedAdvice::DontNeed;
        // SAFETY: the map is private and anonymous, so dropped pages read as zeros, which are valid bytes; this slot is
        // whole pages of 4096 bytes that nobody else looks at. Where pages are larger the call is refused.
        let _ = unsafe { self.memory.unchecked_advise_range(advice, self.range.start, self.range.len()) };
    }

    /// Other systems promise no zeros, and keep the memory.
    #[cfg(not(target_os = "linux"))]
    pub fn release(&mut self) {}

    /// Bytes `part` of the slot, for a thread that writes them while others write other parts.
    ///
    /// # Safety
    /// Until the returned slice is gone nobody may look at these bytes in any other way.
    #[allow(unsafe_code)]
    #[allow(clippy::mut_from_ref)]
    pub(crate) unsafe fn part_mut(&self, part: Range<usize>) -> &mut [u8] {
        assert!(part.start <= part.end && part.end <= self.range.len(), "{part:?} of {} bytes", self.range.len());
        let start = self.memory.as_ptr().wrapping_add(self.range.start + part.start).cast_mut();
        // SAFETY: inside the map by the assertion, and the slots' ranges do not overlap; the caller promises that no
        // other reference to these bytes is used meanwhile.
        unsafe { std::slice::from_raw_parts_mut(start, part.len()) }
    }
}

impl Deref for Slot {
    type Target = [u8];

    #[inline]
    #[allow(unsafe_code)]
    fn deref(&self) -> &[u8] {
        let start = self.memory.as_ptr().wrapping_add(self.range.start);
        // SAFETY: inside the map; only this slot has these bytes, and they are written through `&mut self` or, by
        // `part_mut`'s contract, while nobody looks at them. A slice of the whole map would cover other slots' bytes.
        unsafe { std::slice::from_raw_parts(start, self.range.len()) }
    }
}

impl DerefMut for Slot {
    #[inline]
    #[allow(unsafe_code)]
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: `&mut self` is the only way to these bytes.
        unsafe { self.part_mut(0..self.range.len()) }
    }
}

impl AsRef<[u8]> for Slot {
    #[inline]
    fn as_ref(&self) -> &[u8] {
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_are_aligned_apart_and_give_their_memory_back() {
        let mut slots = Slot::many(3, 5000).unwrap();
        for (i, slot) in slots.iter_mut().enumerate() {
            assert_eq!((slot.len(), slot.as_ptr().align_offset(SLOT_ALIGN)), (8192, 0));
            assert!(slot.iter().all(|b| *b == 0));
            slot.fill(i as u8 + 1);
        }
        assert!(slots.iter().enumerate().all(|(i, s)| s.iter().all(|b| *b == i as u8 + 1)));
        slots[1].release();
        if cfg!(target_os = "linux") {
            assert!(slots[1].iter().all(|b| *b == 0));
        }
        assert!(slots[0].iter().all(|b| *b == 1) && slots[2].iter().all(|b| *b == 3));
        assert!(Slot::many(usize::MAX, 4096).is_err() && Slot::many(2, usize::MAX).is_err());
        assert!(Slot::many(0, 4096).unwrap().is_empty());
    }
}
