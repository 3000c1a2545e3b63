//! Equal buffers in one piece of memory, in huge pages where the system has them.

use crate::Arena;
use std::io;
use std::ops::{Deref, DerefMut, Range};

/// Slots begin at multiples of this, as direct reads want it. Their size is rounded up to it.
pub const SLOT_ALIGN: usize = 4096;

/// One of the buffers. It lies still in memory, so that it can be handed from thread to thread while a file is read
/// into it; nobody else has its bytes. Dropping all slots gives the memory back.
#[derive(Debug)]
pub struct Slot(Arena);

impl Slot {
    /// `count` slots of `bytes` bytes each, rounded up to [`SLOT_ALIGN`]. They are zero, and take memory when they are
    /// first written. Fails where the system does not have so much address space.
    pub fn many(count: usize, bytes: usize) -> io::Result<Vec<Slot>> {
        let too_many = || io::Error::from(io::ErrorKind::OutOfMemory);
        let bytes = bytes.checked_next_multiple_of(SLOT_ALIGN).ok_or_else(too_many)?;
        let mut all = Arena::unreserved(bytes.checked_mul(count).ok_or_else(too_many)?)?;
        Ok((0..count).map(|_| Slot(all.split_to(bytes))).collect())
    }

    /// Makes the bytes zero and, on Linux, gives the memory back. It is taken again when the slot is written.
    pub fn release(&mut self) {
        self.0.release();
    }

    /// Has the system give the slot its memory now. The bytes stay what they are.
    pub fn touch(&mut self) {
        self.0.touch();
    }

    /// Bytes `part` of the slot, for a thread that writes them while others write other parts.
    ///
    /// # Safety
    /// Until the returned slice is gone nobody may look at these bytes in any other way.
    #[allow(unsafe_code)]
    #[allow(clippy::mut_from_ref)]
    pub(crate) unsafe fn part_mut(&self, part: Range<usize>) -> &mut [u8] {
        // SAFETY: as this function's caller promises.
        unsafe { self.0.part_mut(part) }
    }
}

impl Deref for Slot {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        &self.0
    }
}

impl DerefMut for Slot {
    #[inline]
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.0
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
        assert!(slots[1].iter().all(|b| *b == 0));
        slots.iter_mut().for_each(Slot::touch);
        assert!(slots[1].iter().all(|b| *b == 0));
        assert!(slots[0].iter().all(|b| *b == 1) && slots[2].iter().all(|b| *b == 3));
        assert!(Slot::many(usize::MAX, 4096).is_err() && Slot::many(2, usize::MAX).is_err());
        assert!(Slot::many(0, 4096).unwrap().is_empty());
    }
}
