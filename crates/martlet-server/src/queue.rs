//! How many turns may run and wait.

use crate::error::ApiError;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

/// Places for turns.
pub struct Queue {
    limit: usize,
    /// Turns that the engine runs at a time.
    width: usize,
    taken: AtomicUsize,
    /// A turn's usual time, in milliseconds: a moving average.
    usual: AtomicU64,
}

/// Some of the places; dropping it gives them back.
pub struct Places {
    queue: Arc<Queue>,
    taken: usize,
}

impl Queue {
    pub fn new(limit: usize, width: usize) -> Arc<Queue> {
        Arc::new(Queue { limit, width: width.max(1), taken: AtomicUsize::new(0), usual: AtomicU64::new(2000) })
    }

    /// Places for `wanted` turns, or 429 with the time after which to come again.
    pub fn enter(self: &Arc<Queue>, wanted: usize) -> Result<Places, ApiError> {
        let more = |taken: usize| taken.checked_add(wanted).filter(|sum| *sum <= self.limit);
        match self.taken.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more) {
            Ok(_) => Ok(Places { queue: self.clone(), taken: wanted }),
            Err(taken) => Err(ApiError::busy(
                format!("{taken} requests run or wait, as many as may ({}): try again later", self.limit),
                self.retry_after(taken),
            )),
        }
    }

    /// Turns that run or wait.
    pub fn taken(&self) -> usize {
        self.taken.load(Ordering::Relaxed)
    }

    /// A turn took so long.
    pub fn learn(&self, time: Duration) {
        let time = time.as_millis().min(u64::MAX.into()) as u64;
        let usual = self.usual.load(Ordering::Relaxed);
        self.usual.store(usual / 8 * 7 + time / 8, Ordering::Relaxed);
    }

    /// Seconds until a place should be free: those before one share the width.
    fn retry_after(&self, taken: usize) -> u64 {
        let round = self.usual.load(Ordering::Relaxed) / 1000;
        (round * (taken.min(self.width) as u64) / self.width as u64).clamp(1, 60)
    }
}

impl Drop for Places {
    fn drop(&mut self) {
        self.queue.taken.fetch_sub(self.taken, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_limited_and_come_back() {
        let queue = Queue::new(3, 1);
        let two = queue.enter(2).unwrap();
        let refused = queue.enter(2).err().unwrap();
        assert_eq!((refused.status.as_u16(), refused.retry_after), (429, Some(2)));
        assert_eq!(refused.message, "2 requests run or wait, as many as may (3): try again later");
        drop(two);
        assert_eq!(queue.taken(), 0);
        assert!(queue.enter(3).is_ok());
    }

    #[test]
    fn the_wait_follows_what_turns_took() {
        let queue = Queue::new(1, 1);
        (0..100).for_each(|_| queue.learn(Duration::from_secs(20)));
        let _one = queue.enter(1).unwrap();
        // Rounded down at each step, it does not come quite to 20.
        assert_eq!(queue.enter(1).err().unwrap().retry_after, Some(19));
    }
}
