//! What the engine has done so far, for statistics lines and metrics.

use std::time::Duration;

/// A snapshot. Counts only grow; the rest is as of the latest step.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Stats {
    pub running: usize,
    pub waiting: usize,
    pub finished: u64,
    pub cancelled: u64,
    pub failed: u64,
    /// Tokens of prompts computed; of prompts taken from the cache; of answers.
    pub prompt_tokens: u64,
    pub cached_tokens: u64,
    pub generated_tokens: u64,
    pub mtp: DraftStats,
    pub suffix: DraftStats,
    /// Sequences that gave their room to others and were computed again.
    pub preempted: u64,
    pub cache: CacheStats,
    /// KV pages held by sequences and the cache, and as many as may be.
    pub pages: usize,
    pub pages_limit: usize,
    /// Longest time between two tokens of one answer.
    pub longest_gap: Duration,
    pub steps: u64,
    /// Time spent in steps, and what of it the device computed or sampled.
    pub step_time: Duration,
    pub device_time: Duration,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DraftStats {
    pub drafted: u64,
    pub accepted: u64,
}

impl DraftStats {
    pub(crate) fn add(&mut self, drafted: usize, accepted: usize) {
        self.drafted += drafted as u64;
        self.accepted += accepted as u64;
    }
}

/// The prefix cache in memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CacheStats {
    pub entries: usize,
    /// Bytes of recurrent states; its pages are among [`Stats::pages`].
    pub state_bytes: u64,
    /// Requests that found a prefix in memory, on disk, and nowhere.
    pub memory_hits: u64,
    pub disk_hits: u64,
    pub misses: u64,
    pub evicted: u64,
}
