//! What others may know and ask of the experts while a step may be running.

use crate::trace::Trace;
use martlet_io::Supply;
use std::ops::RangeInclusive;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

/// What was done so far. Counts only grow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct StreamStats {
    /// Experts that slots may hold, and that lie there.
    pub slots: u64,
    pub held: u64,
    /// Experts that layers of steps needed, each once for all rows; those of them that were there; those that were read.
    pub needed: u64,
    pub hits: u64,
    pub reads: u64,
    /// What came from disk, needed or not.
    pub bytes_read: u64,
    /// Where the next layer's choices were guessed: experts read because they were chosen and not there; experts guessed that
    /// were not there; those of the latter that were then chosen.
    pub guess_missing: u64,
    pub guesses: u64,
    pub guesses_right: u64,
    /// Reads that began before the router had chosen, and those of them that it then chose; bytes of the others.
    pub ahead: u64,
    pub ahead_used: u64,
    pub bytes_wasted: u64,
    /// For how long anything was being read, and for how long there was nothing to do but wait for it.
    pub busy: Duration,
    pub waited: Duration,
}

impl StreamStats {
    /// Of experts read where the next layer's choices had been guessed, the share that was; `None` where there were none.
    pub fn recall(&self) -> Option<f64> {
        (self.guess_missing > 0).then(|| self.guesses_right as f64 / self.guess_missing as f64)
    }

    /// Of experts guessed that were not there, the share that was then chosen; `None` where there were none.
    pub fn precision(&self) -> Option<f64> {
        (self.guesses > 0).then(|| self.guesses_right as f64 / self.guesses as f64)
    }

    /// The same with the guesses of another run.
    pub fn with_guesses(self, other: &StreamStats) -> StreamStats {
        StreamStats {
            guess_missing: self.guess_missing + other.guess_missing,
            guesses: self.guesses + other.guesses,
            guesses_right: self.guesses_right + other.guesses_right,
            ..self
        }
    }

    /// What was done since `before`; slots as they are now.
    pub fn since(&self, before: &StreamStats) -> StreamStats {
        StreamStats {
            slots: self.slots,
            held: self.held,
            needed: self.needed - before.needed,
            hits: self.hits - before.hits,
            reads: self.reads - before.reads,
            bytes_read: self.bytes_read - before.bytes_read,
            guess_missing: self.guess_missing - before.guess_missing,
            guesses: self.guesses - before.guesses,
            guesses_right: self.guesses_right - before.guesses_right,
            ahead: self.ahead - before.ahead,
            ahead_used: self.ahead_used - before.ahead_used,
            bytes_wasted: self.bytes_wasted - before.bytes_wasted,
            busy: self.busy - before.busy,
            waited: self.waited - before.waited,
        }
    }
}

/// What others may know and ask while the experts belong to an engine's thread.
pub struct Control {
    stats: Mutex<StreamStats>,
    /// What routers choose, while somebody wants to know.
    trace: Mutex<Option<Trace>>,
    /// Slots that keep experts, as they come and go.
    supply: Supply,
    /// Bytes of a slot.
    slot_bytes: u64,
    /// Slots that keep nothing: there are always so many.
    passing: usize,
    /// Slots at least and at most, and as many as may be now.
    bounds: RangeInclusive<usize>,
    slots: AtomicUsize,
}

impl Control {
    /// All of `supply`'s slots, beside `passing` others, may be used; `bounds`: so many of all of them.
    pub(crate) fn new(supply: Supply, slot_bytes: u64, passing: usize, bounds: RangeInclusive<usize>) -> Control {
        let stats = Mutex::new(StreamStats { slots: *bounds.end() as u64, ..StreamStats::default() });
        let slots = AtomicUsize::new(*bounds.end());
        supply.allow(bounds.end() - passing);
        Control { stats, trace: Mutex::default(), supply, slot_bytes, passing, bounds, slots }
    }

    /// Slots that keep experts may be so many now.
    pub(crate) fn kept(&self) -> usize {
        self.slots.load(Ordering::Relaxed) - self.passing
    }

    pub(crate) fn supply(&self) -> &Supply {
        &self.supply
    }

    pub(crate) fn publish(&self, now: StreamStats) {
        if let Ok(mut stats) = self.stats.lock() {
            *stats = now;
        }
    }

    /// What was done as of the latest layer.
    pub fn stats(&self) -> StreamStats {
        self.stats.lock().map(|s| *s).unwrap_or_default()
    }

    /// Begins to record what routers choose; what was recorded before is forgotten.
    pub fn record(&self) {
        *self.trace() = Some(Trace::default());
    }

    /// Ends recording, and gives what was recorded.
    pub fn recorded(&self) -> Trace {
        self.trace().take().unwrap_or_default()
    }

    pub(crate) fn trace(&self) -> MutexGuard<'_, Option<Trace>> {
        self.trace.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// Lets slots take at most so many bytes from the next layer on, but none that is free gets memory any more from now on:
    /// never more than at the start, nor fewer than are needed to go on. Results never change.
    pub fn set_bytes(&self, bytes: u64) {
        let asked = usize::try_from(bytes / self.slot_bytes).unwrap_or(usize::MAX);
        let slots = asked.clamp(*self.bounds.start(), *self.bounds.end());
        self.slots.store(slots, Ordering::Relaxed);
        self.supply.allow(slots - self.passing);
    }
}
