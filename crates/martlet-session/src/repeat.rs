//! Does a model repeat itself?
//!
//! Two signs, both over token ids, each costing the same for every token:
//!
//! - *A short loop*: the last tokens repeat with a period of at most 64, at least 16 times and over at least 400 tokens.
//! - *A long loop*: of the last 4096 runs of 32 tokens at most a quarter are different ones, so that what is said
//!   returns word for word, about four times, after up to a thousand tokens.
//!
//! Tables, lists and code do neither: their rows have names and numbers in them, which sets the period back and makes
//! every run of 32 tokens another one.

use crate::LoopGuard;
use std::collections::{HashMap, VecDeque};

/// Longest period of a short loop.
const PERIODS: usize = 64;
const SHORT_REPEATS: usize = 16;
const SHORT_STRETCH: usize = 400;
/// Tokens of a run, and runs that are compared.
const RUN: usize = 32;
const RUNS: usize = 4096;
/// Of so many runs one is new: a loop.
const RUNS_PER_NEW_ONE: usize = 4;
/// Any odd number with many bits.
const FACTOR: u64 = 0x9e37_79b9_7f4a_7c15;

/// Watches one turn.
#[derive(Debug)]
pub(crate) struct RepeatGuard {
    options: LoopGuard,
    reasoning: bool,
    /// The latest tokens: as many as the longest period, or as a run.
    last: VecDeque<u32>,
    /// For each period from 1, so many tokens in a row were equal to the one a period before.
    equal: [usize; PERIODS],
    /// The hash of the latest run.
    hash: u64,
    /// Hashes of the runs that are compared, and how often each is among them.
    runs: VecDeque<u64>,
    counts: HashMap<u64, u32>,
}

impl RepeatGuard {
    pub fn new(options: LoopGuard) -> RepeatGuard {
        RepeatGuard {
            options,
            reasoning: false,
            last: VecDeque::new(),
            equal: [0; PERIODS],
            hash: 0,
            runs: VecDeque::new(),
            counts: HashMap::new(),
        }
    }

    /// Takes the next token, of thinking or of the answer; whether it repeats where that is looked for.
    pub fn push(&mut self, token: u32, reasoning: bool) -> bool {
        if reasoning != self.reasoning {
            *self = RepeatGuard { reasoning, ..RepeatGuard::new(self.options) };
        }
        if !(if reasoning { self.options.thinking } else { self.options.answer }) {
            return false;
        }
        let short = self.is_short_loop(token);
        let long = self.is_long_loop(token);
        if self.last.len() == PERIODS {
            self.last.pop_back();
        }
        self.last.push_front(token);
        short || long
    }

    fn is_short_loop(&mut self, token: u32) -> bool {
        let mut found = false;
        for (i, before) in self.last.iter().enumerate() {
            let (period, equal) = (i + 1, &mut self.equal[i]);
            *equal = if *before == token { *equal + 1 } else { 0 };
            let stretch = *equal + period;
            found |= *equal > 0 && stretch >= SHORT_STRETCH.max(period * SHORT_REPEATS);
        }
        found
    }

    fn is_long_loop(&mut self, token: u32) -> bool {
        // The weight of a run's first token is FACTOR^(RUN - 1): a token that leaves is taken off with it.
        let first_weight = (1..RUN).fold(1u64, |w, _| w.wrapping_mul(FACTOR));
        let leaving = self.last.get(RUN - 1).map_or(0, |t| term(*t).wrapping_mul(first_weight));
        self.hash = self.hash.wrapping_sub(leaving).wrapping_mul(FACTOR).wrapping_add(term(token));
        if self.last.len() < RUN {
            return false;
        }
        self.runs.push_back(self.hash);
        *self.counts.entry(self.hash).or_default() += 1;
        if self.runs.len() > RUNS
            && let Some(old) = self.runs.pop_front()
            && let Some(count) = self.counts.get_mut(&old)
        {
            *count -= 1;
            if *count == 0 {
                self.counts.remove(&old);
            }
        }
        self.runs.len() == RUNS && self.counts.len() * RUNS_PER_NEW_ONE <= RUNS
    }
}

/// A token as a number whose bits are spread.
fn term(token: u32) -> u64 {
    let x = (u64::from(token) + 1).wrapping_mul(FACTOR);
    x ^ (x >> 29)
}

#[cfg(test)]
mod tests;
