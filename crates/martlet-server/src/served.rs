//! What was done with one model, over all the times that it was in memory.

use crate::metrics::{Gauge, Histogram};
use martlet_session::{Outcome, Session, Stats};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Counts of one model.
#[derive(Default)]
pub struct Served {
    turns: Gauge,
    finished: Mutex<BTreeMap<&'static str, u64>>,
    pub prompt_tokens: AtomicU64,
    pub cached_tokens: AtomicU64,
    pub generated_tokens: AtomicU64,
    pub reasoning_tokens: AtomicU64,
    pub first_token: Histogram,
    pub per_token: Histogram,
    pub whole: Histogram,
    pub waiting: Histogram,
    /// What loading took.
    pub loading: Histogram,
    /// Counts of its engines that are gone.
    past: Mutex<Stats>,
    about: Mutex<About>,
}

/// What a model was like when it was opened last; all zero and empty before it is opened for the first time.
#[derive(Clone, Debug, Default)]
pub struct About {
    /// The checkpoint's name.
    pub root: String,
    pub architecture: String,
    /// How most weights are stored.
    pub scheme: String,
    pub device: &'static str,
    pub context: usize,
    pub sequences: usize,
    /// Whether it can be talked to.
    pub chat: bool,
    /// Bytes: all, weights, keys and values and states.
    pub budget: Option<u64>,
    pub weights: u64,
    pub pool: Option<u64>,
}

impl About {
    fn of(session: &Session) -> About {
        let plan = session.plan();
        About {
            root: session.name().to_string(),
            architecture: session.spec().model_type.to_string(),
            scheme: session.scheme().to_string(),
            device: session.device(),
            context: session.context(),
            sequences: plan.sequences,
            chat: session.text().is_some_and(|t| t.has_template()),
            budget: plan.memory,
            weights: plan.weights,
            pool: plan.pool,
        }
    }
}

/// How one turn went, as its thread saw it.
#[derive(Clone, Debug)]
pub struct Went {
    pub outcome: Outcome,
    /// From the request's beginning to its first token.
    pub first_token: Option<Duration>,
    pub whole: Duration,
}

/// Turns on their way, counted as long as it lives.
pub struct Turning(Arc<Served>, i64);

impl Drop for Turning {
    fn drop(&mut self) {
        self.0.turns.add(-self.1);
    }
}

impl Served {
    /// Counts turns that run or wait.
    pub fn begin(self: Arc<Self>, turns: usize) -> Turning {
        let turns = i64::try_from(turns).unwrap_or(i64::MAX);
        self.turns.add(turns);
        Turning(self, turns)
    }

    /// Turns that run or wait, also for the model.
    pub fn turns(&self) -> i64 {
        self.turns.value()
    }

    pub fn turn(&self, went: &Went) {
        let (usage, timings) = (&went.outcome.usage, &went.outcome.timings);
        *lock(&self.finished).entry(went.outcome.reason.as_str()).or_default() += 1;
        self.prompt_tokens.fetch_add(usage.prompt_tokens as u64, Ordering::Relaxed);
        self.cached_tokens.fetch_add(usage.cached_tokens as u64, Ordering::Relaxed);
        self.generated_tokens.fetch_add(usage.generated_tokens as u64, Ordering::Relaxed);
        self.reasoning_tokens.fetch_add(usage.reasoning_tokens as u64, Ordering::Relaxed);
        self.waiting.add(timings.queued);
        self.whole.add(went.whole);
        went.first_token.into_iter().for_each(|time| self.first_token.add(time));
        if timings.generated_tokens > 1 {
            self.per_token.add(timings.decode / (timings.generated_tokens as u32 - 1));
        }
    }

    pub fn failed(&self) {
        *lock(&self.finished).entry("error").or_default() += 1;
    }

    /// Takes note of a model that was opened.
    pub fn describe(&self, session: &Session) {
        *lock(&self.about) = About::of(session);
    }

    pub fn about(&self) -> About {
        lock(&self.about).clone()
    }

    /// Turns by how they ended.
    pub fn finished(&self) -> BTreeMap<&'static str, u64> {
        lock(&self.finished).clone()
    }

    /// Remembers what an engine has done that is about to go.
    pub fn keep(&self, stats: &Stats) {
        let mut past = lock(&self.past);
        *past = sum(&past, stats);
    }

    /// What engines of this model have done, the one included that runs.
    pub fn stats(&self, running: Option<&Stats>) -> Stats {
        let past = lock(&self.past);
        let idle = Stats::default();
        sum(&past, running.unwrap_or(&idle))
    }
}

/// Counts of both; the rest as it is now.
fn sum(past: &Stats, now: &Stats) -> Stats {
    let drafts = |a: martlet_session::DraftStats, b: martlet_session::DraftStats| martlet_session::DraftStats {
        drafted: a.drafted + b.drafted,
        accepted: a.accepted + b.accepted,
    };
    Stats {
        running: now.running,
        waiting: now.waiting,
        finished: past.finished + now.finished,
        cancelled: past.cancelled + now.cancelled,
        failed: past.failed + now.failed,
        prompt_tokens: past.prompt_tokens + now.prompt_tokens,
        cached_tokens: past.cached_tokens + now.cached_tokens,
        generated_tokens: past.generated_tokens + now.generated_tokens,
        mtp: drafts(past.mtp, now.mtp),
        suffix: drafts(past.suffix, now.suffix),
        preempted: past.preempted + now.preempted,
        cache: martlet_session::CacheStats {
            entries: now.cache.entries,
            state_bytes: now.cache.state_bytes,
            memory_hits: past.cache.memory_hits + now.cache.memory_hits,
            disk_hits: past.cache.disk_hits + now.cache.disk_hits,
            misses: past.cache.misses + now.cache.misses,
            evicted: past.cache.evicted + now.cache.evicted,
        },
        pages: now.pages,
        pages_limit: now.pages_limit,
        longest_gap: past.longest_gap.max(now.longest_gap),
        steps: past.steps + now.steps,
        step_time: past.step_time + now.step_time,
        device_time: past.device_time + now.device_time,
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_go_on_when_a_model_comes_back() {
        let served = Served::default();
        let first = Stats { steps: 3, running: 1, pages: 7, generated_tokens: 10, ..Stats::default() };
        assert_eq!(served.stats(Some(&first)), first);
        served.keep(&first);
        assert_eq!((served.stats(None).steps, served.stats(None).pages), (3, 0), "and hold nothing while it is away");
        let second = Stats { steps: 4, pages: 2, ..Stats::default() };
        let both = served.stats(Some(&second));
        assert_eq!((both.steps, both.pages, both.generated_tokens, both.running), (7, 2, 10, 0));
    }
}
