//! Free page and slot numbers.

/// Numbers below a bound, given out lowest first so that equal runs use equal pages.
pub(crate) struct Numbers {
    free: std::collections::BTreeSet<u32>,
    total: usize,
}

impl Numbers {
    pub fn new(total: usize) -> Numbers {
        Numbers { free: (0..total as u32).collect(), total }
    }

    pub fn take(&mut self) -> Option<u32> {
        self.free.pop_first()
    }

    pub fn give(&mut self, number: u32) {
        debug_assert!((number as usize) < self.total);
        let fresh = self.free.insert(number);
        debug_assert!(fresh, "number {number} was given back twice");
    }

    pub fn free(&self) -> usize {
        self.free.len()
    }

    pub fn total(&self) -> usize {
        self.total
    }
}
