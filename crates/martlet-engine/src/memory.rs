//! One budget in bytes for KV pages and kept states, which gives way when the machine needs the memory.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Tells the bytes of memory that are (free, in all); `None` where nobody knows.
pub type FreeMemory = Arc<dyn Fn() -> Option<(u64, u64)> + Send + Sync>;

/// How often free memory is looked at.
pub(crate) const PERIOD: Duration = Duration::from_millis(500);

/// The budget and its present limit.
pub(crate) struct Budget {
    /// Bytes in the best case.
    most: u64,
    limit: u64,
    /// What the caller allows at present; see [`crate::Engine::set_memory`].
    asked: Arc<AtomicU64>,
    free: Option<FreeMemory>,
    looked: Instant,
}

impl Budget {
    pub fn new(most: u64, asked: Arc<AtomicU64>, free: Option<FreeMemory>) -> Budget {
        Budget { most, limit: most, asked, free, looked: Instant::now() }
    }

    /// Bytes that may be held now.
    pub fn limit(&self) -> u64 {
        self.limit.min(self.asked.load(Ordering::Relaxed))
    }

    /// Looks at the machine's free memory when it is time; `used` bytes are held. True when the limit moved.
    pub fn look(&mut self, now: Instant, used: u64) -> bool {
        if now - self.looked < PERIOD {
            return false;
        }
        self.looked = now;
        let Some((free, total)) = self.free.as_ref().and_then(|free| free()) else { return false };
        let before = self.limit;
        self.limit = adjust(self.limit, self.most, used, free, total);
        self.limit != before
    }
}

/// The new limit: below a thirty-second of the memory free, what is missing to a sixteenth is given back; above an
/// eighth, a quarter of what is beyond it is taken again.
fn adjust(limit: u64, most: u64, used: u64, free: u64, total: u64) -> u64 {
    let (low, aim, high) = (total / 32, total / 16, total / 8);
    if free < low {
        return used.min(limit).saturating_sub(aim - free);
    }
    if free > high {
        return limit.saturating_add((free - high) / 4).min(most);
    }
    limit
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIB: u64 = 1 << 30;

    #[test]
    fn gives_way_under_pressure_and_grows_back() {
        let (most, total) = (8 * GIB, 32 * GIB);
        let pressed = adjust(most, most, 6 * GIB, GIB / 2, total);
        assert_eq!(pressed, 6 * GIB - 3 * GIB / 2, "a sixteenth is 2 GiB, half a GiB is free");
        assert_eq!(adjust(pressed, most, pressed, 3 * GIB, total), pressed, "neither low nor high");
        assert_eq!(adjust(pressed, most, pressed, 12 * GIB, total), pressed + 2 * GIB);
        assert_eq!(adjust(most, most, 0, 30 * GIB, total), most);
        assert_eq!(adjust(GIB, most, GIB / 4, 0, total), 0);
    }

    #[test]
    fn the_caller_can_ask_for_less() {
        let asked = Arc::new(AtomicU64::new(u64::MAX));
        let budget = Budget::new(100, asked.clone(), None);
        assert_eq!(budget.limit(), 100);
        asked.store(40, Ordering::Relaxed);
        assert_eq!(budget.limit(), 40);
    }
}
