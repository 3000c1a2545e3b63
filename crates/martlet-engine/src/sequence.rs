//! One request on its way: tokens, counts, drafts, and where its events go.

use crate::admit::{Priority, Request};
use crate::constraint::Constraint;
use crate::disk::{Key, Restored};
use crate::draft::policy::{Acceptance, Class};
use crate::draft::{Accept, Drafts, Suffix};
use crate::events::{EngineError, Event, Finish, Timings, TokenEvent};
use crate::runner::SeqState;
use crate::schedule::Want;
use martlet_device::sampling::{self, SampleParams, SampleRow, Sampled};
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender};
use std::time::{Duration, Instant};

/// A request that was admitted.
pub(crate) struct Sequence {
    pub request: Request,
    params: SampleParams,
    /// Prompt and answer.
    pub tokens: Vec<u32>,
    /// Tokens in all at which the answer ends.
    limit: usize,
    /// The stop token that ended the answer.
    stopped: Option<u32>,
    pub state: Option<SeqState>,
    seen: Seen,
    constraint: Option<Box<dyn Constraint>>,
    /// What the constraint allows at each place that the step checks; empty without one.
    masks: Vec<Option<Vec<u32>>>,
    /// To be checked in the next step.
    pub drafts: Drafts,
    pub suffix: Suffix,
    pub accept: Accept,
    pub acceptance: Acceptance,
    /// Lengths at which its state is to be kept, ascending.
    pub keep_points: Vec<usize>,
    /// Length of the entry of the prefix cache that is the longest on its path.
    pub kept: usize,
    /// Its longest prefix on disk.
    pub stored: Option<(Key, usize)>,
    pub loading: Loading,
    events: Sender<Event>,
    cancelled: Arc<AtomicBool>,
    clock: Clock,
    pub counts: Counts,
}

/// A prefix on its way from disk.
pub(crate) enum Loading {
    NotAsked,
    Asked {
        key: Key,
        len: usize,
        answer: Receiver<Option<Restored>>,
    },
    Came,
    /// It could not be read, or there was no room for it.
    Missed,
}

/// Numbers for [`Timings`].
#[derive(Default)]
pub(crate) struct Counts {
    pub cached: usize,
    pub generated: usize,
    pub drafted: usize,
    pub accepted: usize,
}

struct Clock {
    admitted: Instant,
    started: Option<Instant>,
    first_token: Option<Instant>,
    latest_token: Option<Instant>,
}

/// How often each token occurred, for penalties.
#[derive(Default)]
struct Seen {
    /// (token, times in the prompt, times in the answer)
    counts: Vec<(u32, u32, u32)>,
    place: HashMap<u32, usize>,
}

impl Seen {
    fn add(&mut self, token: u32, in_prompt: bool) {
        let at = *self.place.entry(token).or_insert_with(|| {
            self.counts.push((token, 0, 0));
            self.counts.len() - 1
        });
        let (_, prompt, answer) = &mut self.counts[at];
        *(if in_prompt { prompt } else { answer }) += 1;
    }

    /// Counts a token of the answer in `counts`, which are these with more tokens behind them.
    fn add_to(&self, counts: &mut Vec<(u32, u32, u32)>, token: u32) {
        let new = self.counts.len();
        let at = self.place.get(&token).copied();
        let at = at.or_else(|| counts[new..].iter().position(|c| c.0 == token).map(|i| new + i));
        match at {
            Some(at) => counts[at].2 += 1,
            None => counts.push((token, 0, 1)),
        }
    }
}

/// What the sampler has to know for one place that is checked.
pub(crate) struct Checked {
    position: u64,
    /// Counts as [`Seen`] has them; `None`: as the sequence has seen so far.
    seen: Option<Vec<(u32, u32, u32)>>,
    pub mask: Option<Vec<u32>>,
}

/// What a sequence took of the tokens that were sampled for it.
#[derive(Default)]
pub(crate) struct Taken {
    /// The tokens, a stop token included.
    pub tokens: Vec<u32>,
    /// Drafts that are part of the sequence now.
    pub accepted: usize,
    /// Whose drafts were checked, how many, and how many were right (a stop token included).
    pub class: Class,
    pub drafted: usize,
    pub right: usize,
    pub end: Option<Result<Finish, EngineError>>,
}

impl Sequence {
    pub fn new(
        request: Request,
        params: SampleParams,
        context: usize,
        events: Sender<Event>,
        cancelled: Arc<AtomicBool>,
    ) -> Sequence {
        let mut seen = Seen::default();
        if params.is_penalised() {
            request.prompt.iter().for_each(|t| seen.add(*t, true));
        }
        let wanted = request.max_tokens.map_or(context, |n| request.prompt.len().saturating_add(n));
        Sequence {
            tokens: request.prompt.clone(),
            limit: wanted.min(context),
            stopped: None,
            params,
            state: None,
            seen,
            constraint: request.constraint.as_ref().map(|c| c.start()),
            masks: Vec::new(),
            drafts: Drafts::default(),
            suffix: Suffix::default(),
            accept: Accept::Same,
            acceptance: Acceptance::default(),
            keep_points: Vec::new(),
            kept: 0,
            stored: None,
            loading: Loading::NotAsked,
            events,
            cancelled,
            clock: Clock { admitted: Instant::now(), started: None, first_token: None, latest_token: None },
            counts: Counts::default(),
            request,
        }
    }

    pub fn is_cancelled(&self) -> bool {
        self.cancelled.load(Ordering::Relaxed)
    }

    pub fn is_late(&self, now: Instant) -> bool {
        self.request.deadline.is_some_and(|d| now >= d)
    }

    /// Interactive requests go first; what has waited long enough is served like them.
    pub fn rank(&self, now: Instant) -> u8 {
        const AGED: Duration = Duration::from_secs(30);
        u8::from(self.request.priority == Priority::Background && now - self.clock.admitted < AGED)
    }

    pub fn computed(&self) -> usize {
        self.state.as_ref().map_or(0, SeqState::len)
    }

    /// The prompt (or what has to be computed again after its room was given away) is done.
    pub fn is_decoding(&self) -> bool {
        self.counts.generated > 0 && self.tokens.len() - self.computed() == 1
    }

    /// Room for so many more tokens before the answer is as long as it may be.
    pub fn tokens_left(&self) -> usize {
        self.limit - self.tokens.len()
    }

    pub fn state_mut(&mut self) -> &mut SeqState {
        self.state.as_mut().expect("a sequence is opened before its first step")
    }

    /// Rows that it wants in the next step, up to where its state is to be kept.
    pub fn want(&self, now: Instant) -> Want {
        let computed = self.computed();
        let pending = self.tokens.len() - computed;
        let border = self.keep_points.iter().find(|p| **p > computed).map_or(usize::MAX, |p| p - computed);
        let decoding = self.is_decoding();
        let rows = if decoding { 1 + self.drafts.tokens.len() } else { pending.min(border) };
        Want { rows, decoding, rank: self.rank(now) }
    }

    /// Settles for at most `rows` rows: drafts beyond them, and drafts that the constraint forbids, are dropped. Gives the
    /// rows, and whether the last known token is among them.
    pub fn prepare(&mut self, rows: usize) -> (usize, bool) {
        self.clock.started.get_or_insert_with(Instant::now);
        if self.is_decoding() {
            self.drafts.tokens.truncate(rows - 1);
        } else {
            self.drafts = Drafts::default();
        }
        let last = self.is_decoding() || self.computed() + rows == self.tokens.len();
        if last {
            self.drop_forbidden();
        }
        (if self.is_decoding() { 1 + self.drafts.tokens.len() } else { rows }, last)
    }

    /// Whether tokens are drawn before it is asked what the constraint allows. The largest of all scores is that of the
    /// allowed ones if its token is allowed; with top-k, top-p or min-p it is not known which scores count.
    fn draws_first(&self) -> bool {
        let SampleParams { temperature, top_k, top_p, min_p, .. } = self.params;
        self.constraint.is_some() && (temperature == 0.0 || (top_k == 0 && top_p >= 1.0 && min_p <= 0.0))
    }

    /// The first of the tokens that were drawn at the places of [`Sequence::checked`] that counts and is forbidden: its
    /// place, and what the constraint allows there.
    pub fn forbidden(&mut self, sampled: &[Sampled], checks: &[Checked]) -> Option<(usize, Vec<u32>)> {
        if !self.draws_first() {
            return None;
        }
        let (constraint, mut taken) = (self.constraint.as_mut()?, 0);
        let found = loop {
            let Sampled { token, impossible, .. } = sampled[taken];
            if checks[taken].mask.is_none() && !impossible && !constraint.allows(token) {
                break constraint.mask().map(|mask| (taken, mask));
            }
            let goes_on = self.drafts.tokens.get(taken) == Some(&token) && !self.request.stop.contains(&token);
            if impossible || !goes_on {
                break None;
            }
            constraint.advance(token);
            taken += 1;
        };
        constraint.rollback(taken);
        found
    }

    /// Cuts the drafts before the first that the constraint forbids, and notes what it allows at each place that is left,
    /// unless tokens are drawn first.
    fn drop_forbidden(&mut self) {
        self.masks.clear();
        let draws_first = self.draws_first();
        let (Some(constraint), drafts) = (&mut self.constraint, &mut self.drafts.tokens) else { return };
        let mut right = 0;
        loop {
            let next = drafts.get(right).copied();
            let next = if draws_first {
                next.filter(|t| constraint.allows(*t))
            } else {
                let mask = constraint.mask();
                let next = next.filter(|t| mask.as_ref().is_none_or(|m| sampling::allows(m, *t as usize)));
                self.masks.push(mask);
                next
            };
            let Some(draft) = next else { break };
            constraint.advance(draft);
            right += 1;
        }
        constraint.rollback(right);
        drafts.truncate(right);
    }

    /// The tokens of the next `rows` rows, drafts included.
    pub fn next_tokens(&self, rows: usize) -> Vec<u32> {
        self.tokens[self.computed()..].iter().chain(&self.drafts.tokens).take(rows).copied().collect()
    }

    /// The first row that the draft head has not seen, and the token behind each of those rows; a stop token is one.
    pub fn behind(&self) -> (usize, Vec<u32>) {
        let start = self.state.as_ref().map_or(0, |s| s.held.start);
        let known = self.tokens.iter().chain(&self.stopped);
        (start, known.skip(start + 1).take(self.computed() - start).copied().collect())
    }

    /// What the sampler needs to check the drafts: for the token after the known ones, and after each draft.
    pub fn checked(&mut self) -> Vec<Checked> {
        let mut masks = std::mem::take(&mut self.masks).into_iter();
        let mut rows = Vec::with_capacity(1 + self.drafts.tokens.len());
        let mut seen = None;
        for i in 0..=self.drafts.tokens.len() {
            if i > 0 && self.params.is_penalised() {
                let counts = seen.get_or_insert_with(|| self.seen.counts.clone());
                self.seen.add_to(counts, self.drafts.tokens[i - 1]);
            }
            let position = (self.tokens.len() + i) as u64;
            rows.push(Checked { position, seen: seen.clone(), mask: masks.next().flatten() });
        }
        rows
    }

    pub fn sample_row<'a>(&'a self, checked: &'a Checked) -> SampleRow<'a> {
        SampleRow {
            params: &self.params,
            position: checked.position,
            seen: checked.seen.as_ref().unwrap_or(&self.seen.counts),
            bias: &self.request.logit_bias,
            mask: checked.mask.as_deref(),
            logprobs: self.request.logprobs,
        }
    }

    /// How the next draft is drawn: as plain sampling would, with the same noise. Penalties count without the drafts
    /// before it and constraints not at all; that costs acceptance, never a result.
    pub fn draft_row(&self) -> SampleRow<'_> {
        SampleRow {
            params: &self.params,
            position: (self.tokens.len() + self.drafts.tokens.len()) as u64,
            seen: &self.seen.counts,
            bias: &self.request.logit_bias,
            mask: None,
            logprobs: None,
        }
    }

    pub fn add_draft(&mut self, token: u32) {
        self.drafts.tokens.push(token);
    }

    /// Whether its drafts are accepted by rejection sampling. Not under a constraint: forbidden drafts are dropped unseen, so
    /// that those left were not drawn from the head's distribution.
    pub fn rejects(&self) -> bool {
        self.accept == Accept::Rejection && self.params.temperature > 0.0 && self.constraint.is_none()
    }

    /// The tokens at the places of [`Sequence::checked`] by rejection sampling; `logits` [places, vocabulary].
    pub fn reject(&self, checks: &[Checked], logits: &[f32]) -> Vec<Sampled> {
        let rows = logits.chunks(logits.len() / checks.len());
        let drafts = &self.drafts;
        let draw = |(i, (check, logits)): (usize, (&Checked, &[f32]))| match drafts.tokens.get(i) {
            Some(draft) => sampling::accept(logits, &self.sample_row(check), *draft, drafts.odds.get(i)),
            None => sampling::sample(logits, &self.sample_row(check)),
        };
        checks.iter().zip(rows).enumerate().map(draw).collect()
    }

    /// Tells how far the prompt is; the caller may have gone.
    pub fn report_prefill(&self) {
        let total = self.request.prompt.len();
        if self.counts.generated == 0 {
            let _ = self.events.send(Event::Prefill { done: self.computed().min(total), total });
        }
    }

    /// Takes the tokens that were sampled at the places of [`Sequence::checked`], as far as the drafts before them were
    /// right.
    pub fn take(&mut self, sampled: Vec<Sampled>) -> Taken {
        let Drafts { tokens: drafts, class, .. } = std::mem::take(&mut self.drafts);
        let before = self.tokens.len();
        let mut taken = Taken { class, drafted: drafts.len(), ..Taken::default() };
        for (i, sampled) in sampled.into_iter().enumerate() {
            let token = sampled.token;
            taken.end = self.take_one(sampled);
            taken.tokens.push(token);
            let is_draft = drafts.get(i) == Some(&token);
            taken.right += usize::from(is_draft);
            if taken.end.is_some() || !is_draft {
                break;
            }
        }
        taken.accepted = taken.right.min(self.tokens.len() - before);
        if taken.drafted > 0 {
            self.acceptance.add(class, taken.drafted, taken.right, 32.0);
            self.counts.drafted += taken.drafted;
            self.counts.accepted += taken.right;
        }
        taken
    }

    fn take_one(&mut self, sampled: Sampled) -> Option<Result<Finish, EngineError>> {
        let Sampled { token, logprob, top, impossible } = sampled;
        if impossible {
            let position = self.tokens.len();
            return Some(Err(EngineError::Impossible { position }));
        }
        let now = Instant::now();
        self.clock.first_token.get_or_insert(now);
        self.clock.latest_token = Some(now);
        self.counts.generated += 1;
        if self.request.stop.contains(&token) {
            self.stopped = Some(token);
            let _ = self.events.send(Event::End(TokenEvent { id: token, logprob, top }));
            return Some(Ok(Finish::Stop(token)));
        }
        self.tokens.push(token);
        self.seen.add(token, false);
        if let Some(constraint) = &mut self.constraint {
            constraint.advance(token);
        }
        let gone = self.events.send(Event::Token(TokenEvent { id: token, logprob, top })).is_err();
        match (gone, self.tokens.len() >= self.limit) {
            (true, _) => Some(Ok(Finish::Cancelled)),
            (_, true) => Some(Ok(Finish::Length)),
            _ => None,
        }
    }

    /// When its latest token came, while it is in the midst of its answer.
    pub fn latest_token(&self) -> Option<Instant> {
        self.clock.latest_token
    }

    /// The last event.
    pub fn finish(&self, event: Result<Finish, EngineError>) {
        let _ = self.events.send(match event {
            Ok(reason) => Event::Finished { reason, timings: self.timings() },
            Err(e) => Event::Failed(e),
        });
    }

    fn timings(&self) -> Timings {
        let now = Instant::now();
        let started = self.clock.started.unwrap_or(now);
        let first = self.clock.first_token.unwrap_or(now);
        Timings {
            prompt_tokens: self.request.prompt.len(),
            cached_tokens: self.counts.cached,
            generated_tokens: self.counts.generated,
            drafted_tokens: self.counts.drafted,
            accepted_tokens: self.counts.accepted,
            queued: started - self.clock.admitted,
            prefill: first - started,
            decode: self.clock.latest_token.unwrap_or(now) - first,
            seed: self.params.seed,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn background_requests_age_and_interactive_ones_need_not() {
        let rank = |priority, waited| {
            let request = Request { prompt: vec![1], priority, ..Request::default() };
            let params = request.sampling.resolve().unwrap();
            let s = Sequence::new(request, params, 8, std::sync::mpsc::channel().0, Arc::default());
            s.rank(s.clock.admitted + Duration::from_secs(waited))
        };
        assert_eq!([0, 29, 30, 999].map(|s| rank(Priority::Background, s)), [1, 1, 0, 0]);
        assert_eq!([0, 999].map(|s| rank(Priority::Interactive, s)), [0, 0]);
    }
}
