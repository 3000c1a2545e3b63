//! Sampling: one token from one row of logits, as a function of (seed, position, distribution) alone.
//!
//! In this order:
//! 1. log-probabilities that are reported: log softmax of the logits as the model gives them;
//! 2. `bias` is added; where a `mask` is given, tokens outside it are impossible;
//! 3. repetition penalty: tokens seen in prompt or answer: positive logits are divided by it, negative multiplied;
//! 4. presence and frequency penalty: tokens of the answer: logit -= presence + frequency * count;
//! 5. temperature 0: the largest logit, the lower id where two are equal. Otherwise logits are divided by it;
//! 6. top_k keeps the k largest (0: all), top_p the fewest whose probabilities sum to at least p (1: all), min_p those
//!    at least min_p times as probable as the best (0: all); each on what the former left, equal logits in id order;
//! 7. the token is the argmax of logit + Gumbel noise, the noise from a counter-based generator keyed by
//!    (seed, choice, position, token). So a draft that is drawn with the same noise is right exactly when plain
//!    sampling gives it, and the text for a seed does not depend on batches, drafts or caches.
//!
//! Odd rows: a NaN is impossible like minus infinity, plus infinity counts as the largest float. Where no token is
//! possible at all (a mask of zeros, a bias against all, a row of NaN), the result says so, and names the lowest token
//! that the mask allows, else token 0.
//!
//! Arithmetic: penalties in f32 as written above. With m the largest logit left, tokens are weighed by
//! d = (logit - m) / temperature in f32, which never overflows; their probabilities are in proportion to exp(d), summed
//! in f64; min_p keeps d >= ln(min_p); noise and its sum with d are f64. All of it is our own arithmetic
//! ([`martlet_tensor::math`]), so every machine draws the same token from the same logits.

mod noise;
mod rejection;
#[cfg(test)]
mod tests;

pub use rejection::{Odds, accept, odds};

use martlet_tensor::math;
use noise::Noise;
use std::borrow::Cow;

/// What a caller asks of sampling. Neutral values: temperature 1, top_k 0, top_p 1, min_p 0, penalties 0,
/// repetition 1.
#[derive(Clone, Debug, PartialEq)]
pub struct SampleParams {
    /// 0 = greedy.
    pub temperature: f32,
    pub top_k: u32,
    pub top_p: f32,
    pub min_p: f32,
    pub repetition_penalty: f32,
    pub presence_penalty: f32,
    pub frequency_penalty: f32,
    pub seed: u64,
    /// Which of several answers to one prompt this is: part of the noise's key.
    pub choice: u32,
}

impl SampleParams {
    /// Whether a token's chance depends on the tokens seen before.
    pub fn is_penalised(&self) -> bool {
        self.repetition_penalty != 1.0 || self.presence_penalty != 0.0 || self.frequency_penalty != 0.0
    }
}

/// One row to sample.
#[derive(Clone, Debug)]
pub struct SampleRow<'a> {
    pub params: &'a SampleParams,
    /// Index of the new token in its sequence.
    pub position: u64,
    /// Tokens seen so far: (token, times in the prompt, times in the answer), each token once.
    pub seen: &'a [(u32, u32, u32)],
    /// (token, addend), each token once.
    pub bias: &'a [(u32, f32)],
    /// Allowed tokens, one bit each, least significant first; `None` allows all.
    pub mask: Option<&'a [u32]>,
    /// Most probable tokens to report; `None`: no log-probabilities at all.
    pub logprobs: Option<usize>,
}

/// A sampled token.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Sampled {
    pub token: u32,
    /// No token was possible: `token` is none that anyone should read.
    pub impossible: bool,
    /// Natural log of the model's own probability of `token`, when log-probabilities were asked for. Minus infinity for
    /// a token that only a bias or a mask has made possible.
    pub logprob: Option<f32>,
    /// The most probable tokens with theirs, most probable first, the lower id first where two are equal. Tokens of
    /// probability 0 are not listed.
    pub top: Vec<(u32, f32)>,
}

/// A token that may be drawn.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Candidate {
    token: u32,
    logit: f32,
}

/// How [`weigh`] is called: a device has it compiled for its instruction set.
pub type Weigh = fn(&[f32], f32, f32, &mut [f32]);

/// Samples one row.
pub fn sample(logits: &[f32], row: &SampleRow<'_>) -> Sampled {
    sample_with(logits, row, weigh)
}

/// As [`sample`], with exponentials by `weigh`.
pub fn sample_with(logits: &[f32], row: &SampleRow<'_>, weigh: Weigh) -> Sampled {
    let adjusted = adjust(logits, row);
    let best = best(&adjusted);
    let token = match best {
        None => lowest_allowed(row.mask, logits.len()),
        Some(best) if row.params.temperature > 0.0 => draw(&adjusted, best, row, weigh),
        Some(best) => best.token,
    };
    Sampled { impossible: best.is_none(), ..finish(logits, row, token, weigh) }
}

/// A token with the log-probabilities that were asked for.
fn finish(logits: &[f32], row: &SampleRow<'_>, token: u32, weigh: Weigh) -> Sampled {
    let mut sampled = Sampled { token, ..Sampled::default() };
    if let Some(n) = row.logprobs {
        (sampled.logprob, sampled.top) = report(logits, token, n, weigh);
    }
    sampled
}

/// Logits after bias, mask and penalties: what the token is chosen by.
fn adjust<'a>(logits: &'a [f32], row: &SampleRow<'_>) -> Cow<'a, [f32]> {
    let p = row.params;
    let mut adjusted = Cow::Borrowed(logits);
    if !row.bias.is_empty() {
        let values = adjusted.to_mut();
        for &(token, addend) in row.bias {
            if let Some(logit) = values.get_mut(token as usize) {
                *logit += addend;
            }
        }
    }
    if let Some(mask) = row.mask {
        for (token, logit) in adjusted.to_mut().iter_mut().enumerate() {
            if !allows(mask, token) {
                *logit = f32::NEG_INFINITY;
            }
        }
    }
    if p.is_penalised() && !row.seen.is_empty() {
        let values = adjusted.to_mut();
        for &(token, _, answered) in row.seen {
            if let Some(logit) = values.get_mut(token as usize) {
                *logit = penalise(*logit, answered, p);
            }
        }
    }
    adjusted
}

/// The logit of a token that has been seen, `answered` times in the answer.
fn penalise(logit: f32, answered: u32, p: &SampleParams) -> f32 {
    let logit = if logit > 0.0 { logit / p.repetition_penalty } else { logit * p.repetition_penalty };
    if answered == 0 {
        return logit;
    }
    logit - (p.presence_penalty + p.frequency_penalty * answered as f32)
}

/// Whether a mask of allowed tokens (see [`SampleRow::mask`]) has this one.
pub fn allows(mask: &[u32], token: usize) -> bool {
    mask.get(token / 32).is_some_and(|bits| bits >> (token % 32) & 1 != 0)
}

fn lowest_allowed(mask: Option<&[u32]>, tokens: usize) -> u32 {
    let Some(mask) = mask else { return 0 };
    (0..tokens).find(|&t| allows(mask, t)).unwrap_or(0) as u32
}

/// The possible tokens in id order: neither minus infinity nor NaN.
fn possible(logits: &[f32]) -> impl Iterator<Item = Candidate> {
    let finite = |(token, &logit): (usize, &f32)| Candidate { token: token as u32, logit: logit.min(f32::MAX) };
    logits.iter().enumerate().filter(|(_, l)| **l > f32::NEG_INFINITY).map(finite)
}

/// The largest logit, the lower id where two are equal. Two quick passes: the largest value in vector lanes, then where
/// it is.
fn best(logits: &[f32]) -> Option<Candidate> {
    let larger = |max: f32, l: f32| if l > max { l } else { max }; // a NaN is never larger
    let mut lanes = [f32::NEG_INFINITY; 16];
    let chunks = logits.chunks_exact(lanes.len());
    let rest = chunks.remainder();
    for chunk in chunks {
        for l in 0..lanes.len() {
            lanes[l] = larger(lanes[l], chunk[l]);
        }
    }
    let max = lanes.iter().chain(rest).fold(f32::NEG_INFINITY, |max, &l| larger(max, l));
    if max == f32::NEG_INFINITY {
        return None;
    }
    let logit = max.min(f32::MAX);
    let token = logits.iter().position(|&l| l >= logit)? as u32;
    Some(Candidate { token, logit })
}

impl Candidate {
    /// Smaller for larger logits, and for lower ids among equals. Whole numbers sort several times faster than pairs.
    fn rank(self) -> u64 {
        let bits = (self.logit + 0.0).to_bits(); // -0 and 0 are equal
        // In the order of the floats: negative ones backwards and below the others.
        let ascending = if bits >> 31 == 0 { bits | 1 << 31 } else { !bits };
        u64::from(!ascending) << 32 | u64::from(self.token)
    }

    fn of_rank(rank: u64) -> Candidate {
        let ascending = !((rank >> 32) as u32);
        let bits = if ascending >> 31 == 0 { !ascending } else { ascending & !(1 << 31) };
        Candidate { token: rank as u32, logit: f32::from_bits(bits) }
    }
}

/// The first `n` in order of rank: largest first, lower ids first among equals. One pass that looks at blocks; what was
/// kept is cut back when it is twice `n`.
fn first_ranked(logits: &[f32], n: usize) -> Vec<Candidate> {
    const BLOCK: usize = 32;
    let mut kept: Vec<u64> = Vec::new();
    let mut least = f32::NEG_INFINITY; // later tokens must exceed it: an equal one has a higher id and loses
    for (block, logits) in logits.chunks(BLOCK).enumerate() {
        if logits.iter().fold(0, |any, l| any | u32::from(*l > least)) == 0 {
            continue;
        }
        for c in possible(logits).filter(|c| c.logit > least) {
            kept.push(Candidate { token: c.token + (block * BLOCK) as u32, ..c }.rank());
        }
        if kept.len() >= n.saturating_mul(2).max(64) {
            least = Candidate::of_rank(*kept.select_nth_unstable(n - 1).1).logit;
            kept.truncate(n);
        }
    }
    kept.sort_unstable();
    kept.truncate(n);
    kept.into_iter().map(Candidate::of_rank).collect()
}

/// y = exp((x - max) / temperature), and 0 for what is impossible.
#[inline(always)]
pub fn weigh(x: &[f32], max: f32, temperature: f32, y: &mut [f32]) {
    for (y, &x) in y.iter_mut().zip(x) {
        let d = (if x < f32::MAX { x } else { f32::MAX } - max) / temperature;
        *y = if x > f32::NEG_INFINITY { math::exp(d) } else { 0.0 };
    }
}

/// Values for which exponentials are computed at a time.
const CHUNK: usize = 256;

/// The sum over all possible tokens, in id order in f64, of exp((logit - max) / temperature).
fn total(logits: &[f32], max: f32, temperature: f32, weigh: Weigh) -> f64 {
    let (mut sum, mut e) = (0.0, [0.0; CHUNK]);
    for logits in logits.chunks(CHUNK) {
        weigh(logits, max, temperature, &mut e);
        e[..logits.len()].iter().for_each(|e| sum += f64::from(*e));
    }
    sum
}

/// Filters, then the argmax of weight and noise. `best` is always among what the filters leave.
fn draw(logits: &[f32], best: Candidate, row: &SampleRow<'_>, weigh: Weigh) -> u32 {
    let p = row.params;
    let noise = Noise::new(p.seed, p.choice, row.position);
    let (mut token, mut score) = (best.token, f64::NEG_INFINITY);
    filter(logits, best, p, weigh, |c| {
        let d = f64::from((c.logit - best.logit) / p.temperature);
        if d + noise.at_most(c.token) < score {
            return; // most tokens: their noise need not be known
        }
        let s = d + noise.gumbel(c.token);
        if s > score || (s == score && c.token < token) {
            (token, score) = (c.token, s);
        }
    });
    token
}

/// Shows every candidate that top-k, top-p and min-p leave, each once, `best` among them.
fn filter(logits: &[f32], best: Candidate, p: &SampleParams, weigh: Weigh, mut show: impl FnMut(Candidate)) {
    let weight = |c: &Candidate| (c.logit - best.logit) / p.temperature;
    let enough = |kept: &[Candidate], target| nucleus(kept, target, best.logit, p.temperature, weigh);
    let least = if p.min_p > 0.0 { math::ln64(f64::from(p.min_p)).min(0.0) } else { f64::NEG_INFINITY };
    let mut f = |c: Candidate| {
        if f64::from(weight(&c)) >= least {
            show(c);
        }
    };
    match p.top_k as usize {
        k if k > 0 && k < logits.len() => {
            let mut kept = first_ranked(logits, k);
            if p.top_p < 1.0 {
                let kept_logits: Vec<f32> = kept.iter().map(|c| c.logit).collect();
                let target = f64::from(p.top_p) * total(&kept_logits, best.logit, p.temperature, weigh);
                kept.truncate(enough(&kept, target).unwrap_or(kept.len()));
            }
            kept.into_iter().for_each(f);
        }
        _ if p.top_p < 1.0 => {
            let target = f64::from(p.top_p) * total(logits, best.logit, p.temperature, weigh);
            // Mostly a few dozen suffice: rank that many, and eight times as many where they do not.
            let mut n = 64;
            loop {
                let mut kept = first_ranked(logits, n);
                let enough = enough(&kept, target);
                if enough.is_some() || kept.len() < n {
                    kept.truncate(enough.unwrap_or(kept.len()));
                    break kept.into_iter().for_each(f);
                }
                n = n.saturating_mul(8);
            }
        }
        _ => {
            f(best); // it leaves the others little room
            possible(logits).filter(|c| c.token != best.token).for_each(f);
        }
    }
}

/// The fewest candidates, in their order, whose probabilities sum to at least `target`; `None` where all do not.
fn nucleus(ranked: &[Candidate], target: f64, max: f32, temperature: f32, weigh: Weigh) -> Option<usize> {
    let (mut sum, mut logits, mut e) = (0.0, [0.0; CHUNK], [0.0; CHUNK]);
    for (chunk, ranked) in ranked.chunks(CHUNK).enumerate() {
        logits.iter_mut().zip(ranked).for_each(|(l, c)| *l = c.logit);
        weigh(&logits[..ranked.len()], max, temperature, &mut e);
        for i in 0..ranked.len() {
            sum += f64::from(e[i]);
            if sum >= target {
                return Some(chunk * CHUNK + i + 1);
            }
        }
    }
    None
}

/// Log-probabilities of the model's own distribution: of `token`, and of the `n` most probable tokens.
fn report(logits: &[f32], token: u32, n: usize, weigh: Weigh) -> (Option<f32>, Vec<(u32, f32)>) {
    let Some(best) = best(logits) else {
        return (Some(f32::NEG_INFINITY), Vec::new());
    };
    let below = |c: Candidate| c.logit - best.logit;
    let log_sum = math::ln64(total(logits, best.logit, 1.0, weigh));
    let logprob = |c: Candidate| (f64::from(below(c)) - log_sum) as f32;
    let own = possible(&logits[token as usize..][..1]).next().map(logprob);
    let top = match n {
        0 => Vec::new(),
        _ => first_ranked(logits, n),
    };
    let top = top.into_iter().map(|c| (c.token, logprob(c)));
    (Some(own.unwrap_or(f32::NEG_INFINITY)), top.collect())
}
