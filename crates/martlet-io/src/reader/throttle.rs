//! A disk slower than the one at hand, for trying what it would give.

use super::{Busy, Done};
use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// Holds pieces back until a disk of so many bytes a second would have given them, one after another in the order in which
/// they were asked for.
pub(super) struct Throttle {
    rate: f64,
    /// When the disk would be done with all that was asked for.
    done: Instant,
    /// When the next pieces to come are due.
    due: VecDeque<Instant>,
    /// Pieces that are there and wait for their time.
    held: VecDeque<(Instant, Done)>,
    busy: Busy,
}

impl Throttle {
    /// `rate`: bytes a second, at least 1.
    pub fn new(rate: u64) -> Throttle {
        let (due, held) = (VecDeque::new(), VecDeque::new());
        Throttle { rate: rate.max(1) as f64, done: Instant::now(), due, held, busy: Busy::new() }
    }

    /// So many bytes were asked for.
    pub fn asked(&mut self, bytes: usize) {
        // A century stands for ever, and can be added to any time.
        let takes = (bytes as f64 / self.rate).min(3e9);
        self.done = self.done.max(Instant::now()) + Duration::from_secs_f64(takes);
        self.due.push_back(self.done);
        self.busy.begin();
    }

    /// A piece is there.
    pub fn came(&mut self, done: Done) {
        let due = self.due.pop_front().unwrap_or_else(Instant::now);
        self.held.push_back((due, done));
    }

    /// For how long to hold the next piece; `None`: none is there.
    pub fn rest(&self) -> Option<Duration> {
        self.held.front().map(|(due, _)| due.saturating_duration_since(Instant::now()))
    }

    /// The next piece, if its time has come.
    pub fn pop(&mut self) -> Option<Done> {
        let (_, done) = self.held.pop_front_if(|(due, _)| *due <= Instant::now())?;
        self.busy.end();
        Some(done)
    }

    /// For how long anything was being read so far.
    pub fn busy(&self) -> Duration {
        self.busy.time()
    }
}
