//! Who holds which page and which slot.

use std::collections::BTreeSet;

/// Numbers below a bound, given out lowest first so that equal runs use equal slots.
pub(crate) struct Numbers {
    free: BTreeSet<u32>,
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

/// KV pages, each with a count of its holders: sequences and entries of the prefix cache. The lowest free page is given
/// out first. At most `limit` pages are held at a time; the limit moves with the memory that is free.
pub(crate) struct Pages {
    holders: Vec<u32>,
    free: BTreeSet<u32>,
    /// Pages that were held since their memory last went back to the system.
    touched: BTreeSet<u32>,
    limit: usize,
}

impl Pages {
    pub fn new(total: usize) -> Pages {
        Pages { holders: vec![0; total], free: (0..total as u32).collect(), touched: BTreeSet::new(), limit: total }
    }

    pub fn total(&self) -> usize {
        self.holders.len()
    }

    pub fn held(&self) -> usize {
        self.total() - self.free.len()
    }

    /// Pages that may be held at a time.
    pub fn limit(&self) -> usize {
        self.limit
    }

    /// Pages that can be taken now.
    pub fn free(&self) -> usize {
        self.limit.saturating_sub(self.held())
    }

    /// Lets at most `limit` pages be held from now on. Pages that are held already stay.
    pub fn set_limit(&mut self, limit: usize) {
        self.limit = limit.min(self.total());
    }

    pub fn take(&mut self) -> Option<u32> {
        if self.free() == 0 {
            return None;
        }
        let page = self.free.pop_first()?;
        self.holders[page as usize] = 1;
        self.touched.insert(page);
        Some(page)
    }

    /// One more holder of a held page.
    pub fn share(&mut self, page: u32) {
        debug_assert!(self.holders[page as usize] > 0, "page {page} is free");
        self.holders[page as usize] += 1;
    }

    /// One holder less; the page is free when none is left.
    pub fn give(&mut self, page: u32) {
        let holders = &mut self.holders[page as usize];
        debug_assert!(*holders > 0, "page {page} was given back twice");
        *holders -= 1;
        if *holders == 0 {
            self.free.insert(page);
        }
    }

    /// Pages that take memory, held or not.
    pub fn touched(&self) -> usize {
        self.touched.len()
    }

    /// Free pages whose memory has not gone back to the system; each is named once.
    pub fn drain_idle(&mut self) -> Vec<u32> {
        let idle: Vec<u32> = self.touched.intersection(&self.free).copied().collect();
        idle.iter().for_each(|page| {
            self.touched.remove(page);
        });
        idle
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_is_free_when_its_last_holder_gives_it_back() {
        let mut pages = Pages::new(2);
        let page = pages.take().unwrap();
        pages.share(page);
        pages.give(page);
        assert_eq!(pages.held(), 1);
        assert_eq!(pages.drain_idle(), [0; 0], "it is held");
        pages.give(page);
        assert_eq!((pages.held(), pages.free(), pages.touched()), (0, 2, 1));
        assert_eq!((pages.drain_idle(), pages.drain_idle()), (vec![page], vec![]));
    }

    #[test]
    fn the_limit_counts_what_is_held() {
        let mut pages = Pages::new(4);
        let held = [pages.take().unwrap(), pages.take().unwrap()];
        pages.set_limit(2);
        assert_eq!((pages.free(), pages.take()), (0, None));
        pages.set_limit(1);
        pages.give(held[0]);
        assert_eq!(pages.take(), None, "the other one is as many as may be held");
        pages.set_limit(9);
        assert_eq!(pages.free(), 3);
    }
}
