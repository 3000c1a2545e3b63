//! Many f32 at an address that is a multiple of a cache line, in huge pages where there are enough of them.
//!
//! The allocator puts large blocks 16 bytes behind a page, so that every vector of 64 bytes would lie in two lines.
#![allow(unsafe_code)]

use martlet_device::DeviceError;
use martlet_io::Arena;
use std::ops::{Deref, DerefMut};

/// A fixed number of values, zero at first. Memory is taken from the system when they are first written.
pub struct Floats(Arena);

impl Floats {
    /// `len` zeros, or the error that says there is no memory for `what`.
    pub fn new(what: &'static str, len: usize) -> Result<Floats, DeviceError> {
        let bytes = len.saturating_mul(4);
        let no_memory = |_| DeviceError::Memory { device: crate::NAME, what, bytes };
        Ok(Floats(Arena::new(bytes).map_err(no_memory)?))
    }
}

impl Deref for Floats {
    type Target = [f32];

    #[inline(always)]
    fn deref(&self) -> &[f32] {
        // SAFETY: the arena is aligned to a page and holds whole values; any four bytes are an f32.
        unsafe { std::slice::from_raw_parts(self.0.as_ptr().cast(), self.0.len() / 4) }
    }
}

impl DerefMut for Floats {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut [f32] {
        // SAFETY: as above; the borrow of `self` keeps the slice the only one.
        unsafe { std::slice::from_raw_parts_mut(self.0.as_mut_ptr().cast(), self.0.len() / 4) }
    }
}
