//! Bytes that live as long as somebody uses them.

use std::fmt;
use std::ops::{Deref, Range};
use std::sync::Arc;

/// A part of bytes that never change: of a mapped file, or of the program. It keeps their owner alive, so that a device
/// may work on them without a copy after the checkpoint is closed.
#[derive(Clone)]
pub struct Shared {
    owner: Arc<dyn AsRef<[u8]> + Send + Sync>,
    range: Range<usize>,
}

impl Shared {
    /// All bytes of `owner`, which must always give the same ones.
    pub fn new(owner: Arc<dyn AsRef<[u8]> + Send + Sync>) -> Shared {
        let range = 0..(*owner).as_ref().len();
        Shared { owner, range }
    }

    /// `range` of these bytes; `None` where it is out of bounds.
    pub fn part(&self, range: Range<usize>) -> Option<Shared> {
        self.get(range.clone())?;
        let start = self.range.start;
        Some(Shared { owner: self.owner.clone(), range: start + range.start..start + range.end })
    }
}

impl Deref for Shared {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        &(*self.owner).as_ref()[self.range.clone()]
    }
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Shared({:?})", self.range)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_stay_inside_and_keep_their_owner() {
        let owner: Arc<dyn AsRef<[u8]> + Send + Sync> = Arc::new(vec![0u8, 1, 2, 3, 4, 5]);
        let all = Shared::new(owner.clone());
        let part = all.part(1..5).unwrap().part(1..3).unwrap();
        drop(all);
        assert_eq!(*part, [2, 3]);
        assert_eq!(Arc::strong_count(&owner), 2);
        assert!(part.part(1..3).is_none() && part.part(3..3).is_none());
    }
}
