//! One request on its way: tokens, counts, and where its events go.

use crate::admit::Request;
use crate::events::{EngineError, Event, Finish, Timings, TokenEvent};
use crate::runner::SeqState;
use crate::schedule::Waiting;
use martlet_device::sampling::{SampleParams, SampleRow, Sampled};
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::Sender;
use std::time::Instant;

/// A request that was admitted.
pub(crate) struct Sequence {
    request: Request,
    params: SampleParams,
    /// Prompt and answer.
    tokens: Vec<u32>,
    /// Tokens in all at which the answer ends.
    limit: usize,
    pub state: Option<SeqState>,
    seen: Seen,
    events: Sender<Event>,
    cancelled: Arc<AtomicBool>,
    admitted: Instant,
    started: Option<Instant>,
    first_token: Option<Instant>,
    generated: usize,
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
        let penalised = params.repetition_penalty != 1.0 || params.presence_penalty != 0.0;
        if penalised || params.frequency_penalty != 0.0 {
            request.prompt.iter().for_each(|t| seen.add(*t, true));
        }
        let wanted = request.max_tokens.map_or(context, |n| request.prompt.len().saturating_add(n));
        Sequence {
            tokens: request.prompt.clone(),
            limit: wanted.min(context),
            params,
            state: None,
            seen,
            events,
            cancelled,
            admitted: Instant::now(),
            started: None,
            first_token: None,
            generated: 0,
            request,
        }
    }

    pub fn is_cancelled(&self) -> bool {
        self.cancelled.load(Ordering::Relaxed)
    }

    fn computed(&self) -> usize {
        self.state.as_ref().map_or(0, SeqState::len)
    }

    pub fn waiting(&self) -> Waiting {
        let pending = self.tokens.len() - self.computed();
        Waiting { pending, decoding: self.generated > 0 }
    }

    /// The state and the next `rows` tokens to compute, and whether the last of them is the last one known.
    pub fn next_rows(&mut self, rows: usize) -> (&mut SeqState, &[u32], bool) {
        self.started.get_or_insert_with(Instant::now);
        let from = self.computed();
        let last = from + rows == self.tokens.len();
        let state = self.state.as_mut().expect("a sequence is opened before its first step");
        (state, &self.tokens[from..from + rows], last)
    }

    pub fn sample_row(&self) -> SampleRow<'_> {
        SampleRow {
            params: &self.params,
            position: self.tokens.len() as u64,
            seen: &self.seen.counts,
            bias: &self.request.logit_bias,
            mask: None,
            logprobs: self.request.logprobs,
        }
    }

    /// Tells how far the prompt is; the caller may have gone.
    pub fn report_prefill(&self) {
        let total = self.request.prompt.len();
        let _ = self.events.send(Event::Prefill { done: self.computed().min(total), total });
    }

    /// Takes a sampled token; says whether and why the answer ends.
    pub fn take(&mut self, sampled: Sampled) -> Option<Result<Finish, EngineError>> {
        let Sampled { token, logprob, top, impossible } = sampled;
        if impossible {
            let position = self.tokens.len();
            return Some(Err(EngineError::Impossible { position }));
        }
        self.first_token.get_or_insert_with(Instant::now);
        self.generated += 1;
        if self.request.stop.contains(&token) {
            let _ = self.events.send(Event::End(TokenEvent { id: token, logprob, top }));
            return Some(Ok(Finish::Stop(token)));
        }
        self.tokens.push(token);
        self.seen.add(token, false);
        let gone = self.events.send(Event::Token(TokenEvent { id: token, logprob, top })).is_err();
        match (gone, self.tokens.len() >= self.limit) {
            (true, _) => Some(Ok(Finish::Cancelled)),
            (_, true) => Some(Ok(Finish::Length)),
            _ => None,
        }
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
        let started = self.started.unwrap_or(now);
        let first = self.first_token.unwrap_or(now);
        Timings {
            prompt_tokens: self.request.prompt.len(),
            generated_tokens: self.generated,
            queued: started - self.admitted,
            prefill: first - started,
            decode: now - first,
            seed: self.params.seed,
        }
    }
}
