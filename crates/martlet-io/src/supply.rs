//! Slots whose memory was taken from the system before anybody reads into them.
//!
//! The system clears memory when it is first touched, at a gigabyte a second or less on some machines: slower than a disk
//! reads. A thread of its own does that ahead, slot after slot, so that the thread which hands over reads does not wait.

use crate::slots::Slot;
use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::thread::JoinHandle;

/// Slots in a fixed order. No more memory is taken than [`Supply::allow`] says; dropping it ends the thread, after the slot
/// that it is at.
pub struct Supply {
    shared: Arc<Shared>,
    /// `None` where slots are given as they are.
    thread: Option<JoinHandle<()>>,
}

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    /// The last is the next.
    untouched: Vec<Slot>,
    /// The first is the next.
    ready: VecDeque<Slot>,
    /// Slots that were taken, and how many may be in all.
    taken: usize,
    allowed: usize,
    ended: bool,
}

impl Supply {
    /// None is touched before it is allowed. Where no thread can be had, or huge pages are so large that one slot
    /// would take the memory of many, slots are given untouched.
    pub fn new(mut slots: Vec<Slot>) -> Supply {
        slots.reverse();
        let state = Mutex::new(State { untouched: slots, ..State::default() });
        let shared = Arc::new(Shared { state, changed: Condvar::new() });
        let works = shared.clone();
        let thread = std::thread::Builder::new().name("touch".into());
        let thread = touching_pays().then(|| thread.spawn(move || works.touch()).ok()).flatten();
        Supply { shared, thread }
    }

    /// Lets so many slots be ready or taken. Where that is fewer than before, what is ready gives its memory back at once.
    pub fn allow(&self, count: usize) {
        let mut state = self.shared.state();
        state.allowed = count;
        while state.ready.len() > state.wanted()
            && let Some(slot) = state.ready.pop_back()
        {
            state.take_back(slot);
        }
        self.shared.changed.notify_one();
    }

    /// The next slot, if it is ready and allowed. Never waits.
    pub fn take(&self) -> Option<Slot> {
        let mut state = self.shared.state();
        if state.wanted() == 0 {
            return None;
        }
        let next = if self.thread.is_some() { state.ready.pop_front() } else { state.untouched.pop() };
        state.taken += usize::from(next.is_some());
        next
    }

    /// Takes a slot back that was taken last: its memory goes to the system, and it is the next to be touched.
    pub fn give_back(&self, slot: Slot) {
        let mut state = self.shared.state();
        state.taken -= 1;
        state.take_back(slot);
        self.shared.changed.notify_one();
    }
}

impl Drop for Supply {
    fn drop(&mut self) {
        self.shared.state().ended = true;
        self.shared.changed.notify_one();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl State {
    /// Slots that may be ready.
    fn wanted(&self) -> usize {
        self.allowed.saturating_sub(self.taken)
    }

    fn take_back(&mut self, mut slot: Slot) {
        slot.release();
        self.untouched.push(slot);
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        // Nothing that holds it can panic.
        self.state.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// What the thread does until it is ended.
    fn touch(&self) {
        let mut state = self.state();
        while !state.ended {
            let next = if state.ready.len() < state.wanted() { state.untouched.pop() } else { None };
            let Some(mut slot) = next else {
                state = self.changed.wait(state).unwrap_or_else(|e| e.into_inner());
                continue;
            };
            drop(state);
            slot.touch();
            state = self.state();
            // It may not be wanted any more.
            match state.ready.len() < state.wanted() {
                true => state.ready.push_back(slot),
                false => state.take_back(slot),
            }
        }
    }
}

/// Whether the system takes about as much memory as is touched. With base pages of 64 KiB a huge page has 512 MiB.
fn touching_pays() -> bool {
    const MOST: u64 = 2 << 20;
    let size = std::fs::read_to_string("/sys/kernel/mm/transparent_hugepage/hpage_pmd_size");
    size.ok().and_then(|s| s.trim().parse::<u64>().ok()).is_none_or(|bytes| bytes <= MOST)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::{Duration, Instant};

    const BYTES: usize = 8192;

    fn supply(slots: usize) -> Supply {
        Supply::new(Slot::many(slots, BYTES).unwrap())
    }

    fn next(supply: &Supply) -> Slot {
        let started = Instant::now();
        loop {
            if let Some(slot) = supply.take() {
                return slot;
            }
            assert!(started.elapsed() < Duration::from_secs(10), "no slot comes");
            std::thread::yield_now();
        }
    }

    #[test]
    fn slots_come_in_order_and_as_many_as_are_wanted() {
        let supply = supply(5);
        assert!(supply.take().is_none(), "none is allowed");
        supply.allow(3);
        let slots: Vec<Slot> = (0..3).map(|_| next(&supply)).collect();
        let from = slots[0].as_ptr() as usize;
        assert!(slots.iter().enumerate().all(|(i, s)| s.as_ptr() as usize == from + i * BYTES), "in order");
        std::thread::sleep(Duration::from_millis(20));
        assert!(supply.take().is_none(), "three were allowed");
        supply.allow(9);
        assert_eq!((next(&supply).len(), next(&supply).len()), (BYTES, BYTES));
        std::thread::sleep(Duration::from_millis(20));
        assert!(supply.take().is_none(), "there were five");
    }

    #[test]
    fn what_is_not_allowed_any_more_gives_its_memory_back() {
        let supply = supply(4);
        supply.allow(1);
        let mut first = next(&supply);
        first.fill(7);
        let at = first.as_ptr();
        supply.give_back(first);
        supply.allow(4);
        std::thread::sleep(Duration::from_millis(20));
        supply.allow(1);
        assert!(supply.shared.state().ready.len() <= 1);
        let again = next(&supply);
        assert!(again.as_ptr() == at && again.iter().all(|b| *b == 0), "it is the next, and empty");
        assert!(supply.take().is_none());
        supply.allow(4);
        let others: Vec<Slot> = (0..3).map(|_| next(&supply)).collect();
        assert!(others.iter().all(|s| s.as_ptr() > at && s.iter().all(|b| *b == 0)));
        supply.allow(2);
        others.into_iter().rev().take(2).for_each(|s| supply.give_back(s));
        std::thread::sleep(Duration::from_millis(20));
        assert!(supply.take().is_none(), "two are out");
    }

    #[test]
    fn without_a_thread_slots_are_given_as_they_are() {
        let mut supply = supply(2);
        supply.shared.state().ended = true;
        supply.shared.changed.notify_one();
        supply.thread.take().expect("a thread can be had here").join().unwrap();
        supply.allow(1);
        assert!(supply.take().is_some() && supply.take().is_none());
    }
}
