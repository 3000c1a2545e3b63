//! What the fork and the join take from the system.

pub use std::sync::{Arc, Mutex, MutexGuard, atomic};
pub use std::thread;

use std::cell::UnsafeCell;
use std::time::{Duration, Instant};

/// How long a waiting thread spins before it yields, and how long it yields before it parks. The gap between two jobs
/// of one token is a few microseconds; a spin of this length survives it, and is short beside a scheduler's slice.
const SPIN: Duration = Duration::from_micros(40);
const YIELD: Duration = Duration::from_micros(200);

/// Waits a bounded time for `done`; whether it came.
pub fn spin(done: &impl Fn() -> bool) -> bool {
    for _ in 0..64 {
        if done() {
            return true;
        }
        std::hint::spin_loop();
    }
    let start = Instant::now();
    while start.elapsed() < SPIN {
        for _ in 0..16 {
            if done() {
                return true;
            }
            std::hint::spin_loop();
        }
    }
    while start.elapsed() < SPIN + YIELD {
        if done() {
            return true;
        }
        thread::yield_now();
    }
    false
}

/// A value that threads share by an agreement of their own.
pub struct Shielded<T>(UnsafeCell<T>);

impl<T: Copy> Shielded<T> {
    pub fn new(value: T) -> Shielded<T> {
        Shielded(UnsafeCell::new(value))
    }

    /// # Safety
    /// Nobody writes at the same time.
    pub unsafe fn get(&self) -> T {
        // SAFETY: as the caller promises.
        unsafe { *self.0.get() }
    }

    /// # Safety
    /// Nobody reads or writes at the same time.
    pub unsafe fn set(&self, value: T) {
        // SAFETY: as the caller promises.
        unsafe { *self.0.get() = value }
    }
}
