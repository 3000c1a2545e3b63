//! Which experts the next layer may choose, and whether it pays to read them before it did.
//!
//! A guess is what the next layer's router makes of this layer's hidden state. How often guesses of a layer and rank are
//! right is counted, where a count is worth half after some rows; experts are read ahead only where that is often enough.
//! Guesses cost a small product, so they are made only now and then while none of them is good enough, or while the disk
//! has no time to spare.

use martlet_device::Routes;
use std::collections::VecDeque;
use std::str::FromStr;
use std::time::Duration;

/// Rows after which a count is worth half.
const HALF: f64 = 64.0;
/// Guesses of a layer and rank that must have been counted; while there are fewer, those of all layers count.
const LEAST_COUNTS: f64 = 8.0;
/// Of a rank's guesses, the share that must be right. A wrong read takes the disk's time where a right one saves as much;
/// but part of it falls into time in which the disk would have had nothing to do.
const LEAST_PRECISION: f64 = 0.5;
/// Of a token's time, the share in which needed experts are being read and above which none are read ahead.
const MOST_BUSY: f64 = 0.95;
/// While nothing is read ahead, guesses are made for one of so many tokens.
const RARELY: u64 = 16;

/// Whether experts are read before their router has chosen them. It changes no text.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LookAhead {
    /// Where guesses are good enough and the disk has time.
    #[default]
    Auto,
    /// Never.
    Off,
    /// All that are guessed, right or wrong: to measure.
    Always,
}

impl LookAhead {
    /// The names of all kinds.
    pub const NAMES: [&str; 3] = ["auto", "off", "always"];
}

impl FromStr for LookAhead {
    type Err = String;

    fn from_str(text: &str) -> Result<LookAhead, String> {
        match text {
            "auto" => Ok(LookAhead::Auto),
            "off" => Ok(LookAhead::Off),
            "always" => Ok(LookAhead::Always),
            _ => Err(format!("\"{text}\" is no way to look ahead; known are {}", LookAhead::NAMES.join(", "))),
        }
    }
}

/// Guesses of one layer at a time, and how good they are.
pub struct Guesses {
    mode: LookAhead,
    /// Of each layer and rank of its router, and of all layers.
    counts: Vec<Vec<Count>>,
    all: Vec<Count>,
    layer: u32,
    /// Experts of `layer` that are not in memory, with their best rank, best first.
    guessed: Vec<(u32, usize)>,
    /// Those of them that are still to be read.
    queue: VecDeque<u32>,
    tokens: u64,
    /// Share of the latest tokens' time in which needed experts were being read.
    busy: f64,
    /// Whether guesses are wanted of this token; whether the latest for which they were had any that was good enough.
    guessing: bool,
    good: bool,
}

#[derive(Clone, Copy, Default)]
struct Count {
    right: f64,
    all: f64,
}

/// How guesses of a layer turned out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Outcome {
    /// Experts that were guessed, and those of them that were chosen.
    pub guessed: u64,
    pub right: u64,
}

impl Guesses {
    /// For so many layers.
    pub fn new(mode: LookAhead, layers: usize) -> Guesses {
        Guesses {
            mode,
            counts: vec![Vec::new(); layers],
            all: Vec::new(),
            layer: 0,
            guessed: Vec::new(),
            queue: VecDeque::new(),
            tokens: 0,
            busy: 0.0,
            guessing: false,
            good: true,
        }
    }

    /// A step of few rows begins; the one before took `time`, of which experts that it needed were being read for `reading`.
    pub fn token(&mut self, time: Duration, reading: Duration) {
        let share = reading.as_secs_f64() / time.as_secs_f64().max(1e-9);
        self.busy += (share.min(1.0) - self.busy) / 16.0;
        self.tokens += 1;
        self.guessing = match self.mode {
            LookAhead::Off => false,
            LookAhead::Always => true,
            LookAhead::Auto => (self.good && self.busy < MOST_BUSY) || self.tokens.is_multiple_of(RARELY),
        };
        self.good &= !self.guessing;
    }

    /// Whether guesses are wanted for the layers of this step.
    pub fn guessing(&self) -> bool {
        self.guessing
    }

    /// Takes the guesses for a layer: choices of which `missing` says that they are not in memory.
    pub fn guess(&mut self, layer: u32, routes: &Routes, missing: impl Fn(u32) -> bool) {
        self.forget();
        self.layer = layer;
        for rank in 0..routes.chosen {
            for &expert in routes.experts.iter().skip(rank).step_by(routes.chosen) {
                if missing(expert) && self.guessed.iter().all(|(e, _)| *e != expert) {
                    self.guessed.push((expert, rank));
                }
            }
        }
        let known = |counts: &[Count], rank: usize| counts.get(rank).copied().filter(|c| c.all >= LEAST_COUNTS);
        let count = |rank| known(&self.counts[layer as usize], rank).or_else(|| known(&self.all, rank));
        let good = |rank: usize| count(rank).is_some_and(|c| c.right >= c.all * LEAST_PRECISION);
        let pays = |rank: usize| self.mode == LookAhead::Always || (good(rank) && self.busy < MOST_BUSY);
        self.queue.extend(self.guessed.iter().filter(|(_, rank)| pays(*rank)).map(|(e, _)| *e));
        let any = self.guessed.iter().any(|(_, rank)| good(*rank));
        self.good |= any;
    }

    /// The next expert to be read ahead, and its layer.
    pub fn next(&mut self) -> Option<(u32, u32)> {
        self.queue.pop_front().map(|e| (self.layer, e))
    }

    /// A layer's choices are known, in order: counts how good its guesses were. What was not read yet is not read ahead any
    /// more. `None` where there was no guess for this layer.
    pub fn settle(&mut self, layer: u32, chosen: &[u32]) -> Option<Outcome> {
        let asked = self.layer == layer && layer > 0;
        let guessed = std::mem::take(&mut self.guessed);
        self.forget();
        if !asked {
            return None;
        }
        let mut outcome = Outcome::default();
        for (expert, rank) in guessed {
            let right = chosen.binary_search(&expert).is_ok();
            for counts in [&mut self.counts[layer as usize], &mut self.all] {
                counts.resize(counts.len().max(rank + 1), Count::default());
                counts[rank].add(right);
            }
            outcome.guessed += 1;
            outcome.right += u64::from(right);
        }
        Some(outcome)
    }

    /// Drops all guesses.
    pub fn forget(&mut self) {
        self.layer = 0;
        self.guessed.clear();
        self.queue.clear();
    }
}

impl Count {
    fn add(&mut self, right: bool) {
        let keep = (-1.0 / HALF).exp2();
        (self.right, self.all) = (self.right * keep + f64::from(u8::from(right)), self.all * keep + 1.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn routes(experts: &[u32]) -> Routes {
        Routes { chosen: 2, experts: experts.to_vec(), weights: vec![0.0; experts.len()] }
    }

    fn queued(guesses: &mut Guesses) -> Vec<u32> {
        std::iter::from_fn(|| guesses.next().map(|(_, e)| e)).collect()
    }

    /// Tokens whose first guess is right and whose second is wrong.
    fn learn(guesses: &mut Guesses, tokens: u32) {
        for _ in 0..tokens {
            guesses.guess(1, &routes(&[4, 7]), |_| true);
            assert_eq!(guesses.settle(1, &[1, 4]), Some(Outcome { guessed: 2, right: 1 }));
        }
    }

    #[test]
    fn only_ranks_that_were_right_are_read_ahead() {
        let mut guesses = Guesses::new(LookAhead::Auto, 3);
        guesses.guess(1, &routes(&[4, 7]), |_| true);
        assert!(queued(&mut guesses).is_empty(), "nothing is known yet");
        learn(&mut guesses, 9);
        guesses.guess(1, &routes(&[5, 7, 2, 4]), |e| e != 5);
        assert_eq!(queued(&mut guesses), [2], "the first of each row, where it is missing");
        guesses.guess(2, &routes(&[4, 7]), |_| true);
        assert_eq!(queued(&mut guesses), [4], "a layer of which nothing is known goes by the others");
        // It was right long ago.
        for _ in 0..100 {
            guesses.guess(1, &routes(&[4, 7]), |_| true);
            guesses.settle(1, &[]);
        }
        guesses.guess(1, &routes(&[4, 7]), |_| true);
        assert!(queued(&mut guesses).is_empty());
        let mut always = Guesses::new(LookAhead::Always, 2);
        always.guess(1, &routes(&[4, 7, 7, 1]), |_| true);
        assert_eq!(queued(&mut always), [4, 7, 1], "best ranks first, each once");
    }

    #[test]
    fn what_was_not_begun_ends_with_the_choice() {
        let mut guesses = Guesses::new(LookAhead::Always, 3);
        guesses.guess(1, &routes(&[4, 7]), |_| true);
        assert_eq!(guesses.next(), Some((1, 4)));
        assert_eq!(guesses.settle(2, &[7]), None, "another layer came");
        assert_eq!((guesses.next(), guesses.settle(1, &[7])), (None, None));
    }

    #[test]
    fn a_disk_without_idle_time_and_bad_guesses_switch_it_off() {
        let (second, tenth) = (Duration::from_secs(1), Duration::from_millis(100));
        let mut guesses = Guesses::new(LookAhead::Auto, 2);
        let rate = |guesses: &mut Guesses, reading| {
            let tokens = (0..160).map(|_| {
                guesses.token(second, reading);
                let asked = guesses.guessing();
                if asked {
                    learn(guesses, 1);
                }
                u32::from(asked)
            });
            tokens.sum::<u32>()
        };
        // Nothing is trusted before some guesses were counted.
        let first = rate(&mut guesses, tenth);
        assert!((10..160).contains(&first), "{first}");
        assert_eq!(rate(&mut guesses, tenth), 160, "always, since guesses are right");
        let busy = rate(&mut guesses, second);
        assert!((10..100).contains(&busy), "the disk is busy with what is needed: {busy}");
        let idle = rate(&mut guesses, tenth);
        assert!(idle > 140, "and has time again: {idle}");
        for _ in 0..200 {
            guesses.token(second, tenth);
            guesses.guess(1, &routes(&[4, 7]), |_| true);
            guesses.settle(1, &[]);
        }
        let wrong = (0..160).filter(|_| {
            guesses.token(second, tenth);
            guesses.guessing()
        });
        assert_eq!(wrong.count(), 10, "guesses are wrong");
    }
}
