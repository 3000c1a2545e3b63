//! Runs of a session, and what they took.

use crate::exit::Interrupted;
use crate::terminal::Progress;
use martlet_session::{Event, FinishReason, Prompt, Sampling, Session, SessionError, StreamStats, TurnOptions};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

/// Runs turns and shows how far the measuring is.
pub struct Meter<'a> {
    pub session: &'a Session,
    progress: Progress,
    /// Tokens computed so far, and in all.
    done: AtomicU64,
    total: u64,
    stop: Stop,
    random: u64,
}

/// Ends what runs, and all that would follow.
#[derive(Clone, Default)]
pub struct Stop(Arc<Stopping>);

type Cancel = Box<dyn Fn() + Send>;

#[derive(Default)]
struct Stopping {
    stopped: AtomicBool,
    running: Mutex<Vec<Cancel>>,
}

/// What a turn took.
#[derive(Clone, Debug, Default)]
pub struct Run {
    /// The tokens that were generated.
    pub tokens: Vec<u32>,
    /// Of the prompt, from the cache.
    pub cached: usize,
    /// Seconds to the first token, and from there to the last.
    pub first: f64,
    pub decode: f64,
    /// When each token came.
    pub times: Vec<Instant>,
    /// Experts read up to the first token, and from there to the last; `None` where all are in memory.
    pub first_read: Option<StreamStats>,
    pub decode_read: Option<StreamStats>,
}

impl Stop {
    pub fn stop(&self) {
        let running = self.running();
        self.0.stopped.store(true, Ordering::Relaxed);
        running.iter().for_each(|cancel| cancel());
    }

    pub fn is_stopped(&self) -> bool {
        self.0.stopped.load(Ordering::Relaxed)
    }

    /// What has begun, and is ended too.
    pub fn watch(&self, cancel: impl Fn() + Send + 'static) {
        let mut running = self.running();
        // Stopped just before.
        if self.is_stopped() {
            cancel();
        }
        running.push(Box::new(cancel));
    }

    fn running(&self) -> std::sync::MutexGuard<'_, Vec<Cancel>> {
        self.0.running.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<'a> Meter<'a> {
    /// For `total` tokens in all.
    pub fn new(session: &'a Session, progress: Progress, total: u64, seed: u64, stop: Stop) -> Meter<'a> {
        Meter { session, progress, done: AtomicU64::new(0), total: total.max(1), stop, random: seed }
    }

    /// Token ids that no other prompt has.
    pub fn ids(&mut self, count: usize) -> Vec<u32> {
        let vocabulary = self.session.spec().vocabulary.max(1) as u64;
        let mut next = || {
            self.random = self.random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            ((self.random >> 33) % vocabulary) as u32
        };
        (0..count).map(|_| next()).collect()
    }

    /// One turn that generates exactly `tokens` tokens. [`Interrupted`] where somebody stopped it.
    pub fn run(&self, prompt: &[u32], tokens: usize) -> anyhow::Result<Run> {
        self.watched(prompt, tokens, &|| ())
    }

    /// The same; `began` is called when the first token has come.
    pub fn watched(&self, prompt: &[u32], tokens: usize, began: &dyn Fn()) -> anyhow::Result<Run> {
        let turn = self.start(prompt, tokens)?;
        let before = self.done.load(Ordering::Relaxed);
        let (mut run, mut end) = (Run::default(), None);
        let read_before = self.session.stream_stats();
        let mut read_first = None;
        for event in turn {
            match event? {
                Event::Prefill { done, .. } => self.progress.set(before + done as u64, self.total),
                Event::Token(token) => {
                    if run.tokens.is_empty() {
                        began();
                        read_first = self.session.stream_stats();
                    }
                    run.tokens.push(token.id);
                    run.times.push(Instant::now());
                    self.progress.set(before + (prompt.len() + run.tokens.len()) as u64, self.total);
                }
                Event::Finished(outcome) => end = Some(outcome),
                _ => {}
            }
        }
        self.done.fetch_add((prompt.len() + tokens) as u64, Ordering::Relaxed);
        match end {
            Some(outcome) if outcome.reason == FinishReason::Length => {
                let timings = &outcome.timings;
                let since = |before: Option<StreamStats>, now: Option<StreamStats>| Some(now?.since(&before?));
                run.first_read = since(read_before, read_first);
                run.decode_read = since(read_first, self.session.stream_stats());
                run.cached = timings.cached_tokens;
                run.first = (timings.queued + timings.prefill).as_secs_f64();
                run.decode = timings.decode.as_secs_f64();
                Ok(run)
            }
            _ if self.stop.is_stopped() => Err(Interrupted.into()),
            end => {
                let reason = end.map_or("nothing", |o| o.reason.as_str());
                Err(anyhow::anyhow!("a run ended with {reason} before {tokens} tokens were generated"))
            }
        }
    }

    /// Turns side by side; seconds of a step that gives each of them a token, while all decode.
    pub fn together(&self, prompts: &[Vec<u32>], tokens: usize) -> anyhow::Result<f64> {
        let runs: Vec<Run> = std::thread::scope(|s| {
            let threads: Vec<_> = prompts.iter().map(|p| s.spawn(|| self.run(p, tokens))).collect();
            let joined = threads.into_iter().map(|t| t.join().map_err(|_| anyhow::anyhow!("a thread died"))?);
            joined.collect::<anyhow::Result<_>>()
        })?;
        step_seconds(&runs).ok_or_else(|| anyhow::anyhow!("the sequences did not run side by side: use more tokens"))
    }

    fn start(&self, prompt: &[u32], tokens: usize) -> anyhow::Result<martlet_session::Turn> {
        let options = TurnOptions {
            sampling: Sampling { temperature: Some(0.0), ..Sampling::default() },
            max_tokens: Some(tokens),
            ignore_eos: true,
            tokens: true,
            ..TurnOptions::default()
        };
        let turn = self.session.start(&Prompt::Ids(prompt.to_vec()), &options).map_err(|e: SessionError| {
            anyhow::Error::from(e).context(format!("a prompt of {} tokens and {tokens} more", prompt.len()))
        })?;
        self.stop.watch(turn.canceller());
        Ok(turn)
    }
}

/// Seconds between two tokens of each run, from the moment that all have begun to the one in which the first has ended.
fn step_seconds(runs: &[Run]) -> Option<f64> {
    let from = *runs.iter().filter_map(|r| r.times.first()).max()?;
    let to = *runs.iter().filter_map(|r| r.times.last()).min()?;
    let steps =
        runs.iter().flat_map(|r| &r.times).filter(|t| **t > from && **t <= to).count() as f64 / runs.len() as f64;
    let seconds = to.checked_duration_since(from)?.as_secs_f64();
    (steps > 0.0 && seconds > 0.0).then(|| seconds / steps)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn a_step_is_counted_while_all_decode() {
        let start = Instant::now();
        let at = |ms: &[u64]| Run {
            times: ms.iter().map(|ms| start + Duration::from_millis(*ms)).collect(),
            ..Run::default()
        };
        // All decode from 30 to 60 ms: three steps of 10 ms.
        let runs = [at(&[0, 10, 20, 30, 40, 50, 60]), at(&[30, 40, 50, 60, 70])];
        assert!((step_seconds(&runs).unwrap() - 0.01).abs() < 1e-9);
        assert_eq!(step_seconds(&[at(&[0, 10]), at(&[20, 30])]), None, "one after the other");
        assert_eq!(step_seconds(&[]), None);
    }
}
