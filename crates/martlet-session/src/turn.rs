//! One answer on its way: engine events in, text and tokens out.

use crate::output::Output;
use crate::repeat::RepeatGuard;
use crate::{Answer, Event, FinishReason, Outcome, SessionError, TurnOptions, Usage};
use martlet_chat::{Detokenizer, OutputParser};
use martlet_engine::{Event as EngineEvent, Finish, Handle, Timings};
use std::collections::VecDeque;

/// A turn that was begun; its events come from the iterator, the last one is [`Event::Finished`] or an error. Dropping
/// it cancels the turn.
pub struct Turn {
    handle: Handle,
    prompt_ids: Vec<u32>,
    output: Output,
    guard: RepeatGuard,
    repeats: bool,
    report_tokens: bool,
    generated: usize,
    ready: VecDeque<Event>,
    done: bool,
}

impl Turn {
    pub(crate) fn new(
        handle: Handle,
        prompt_ids: Vec<u32>,
        detokenizer: Option<Detokenizer>,
        parser: Option<OutputParser>,
        options: &TurnOptions,
    ) -> Turn {
        Turn {
            handle,
            prompt_ids,
            output: Output::new(detokenizer, parser, options.stop.clone(), options.single_tool_call),
            guard: RepeatGuard::new(options.loop_guard),
            repeats: false,
            report_tokens: options.tokens,
            generated: 0,
            ready: VecDeque::new(),
            done: false,
        }
    }

    /// The prompt as the model reads it.
    pub fn prompt_ids(&self) -> &[u32] {
        &self.prompt_ids
    }

    /// Ends the turn after the step in flight; its `Finished` follows.
    pub fn cancel(&self) {
        self.handle.cancel();
    }

    /// A way to cancel from another thread, a signal handler say.
    pub fn canceller(&self) -> impl Fn() + Send + Sync + Clone + 'static {
        self.handle.canceller()
    }

    /// Waits for the end, and gives the whole answer.
    pub fn answer(self) -> Result<Answer, SessionError> {
        let mut answer = Answer::default();
        for event in self {
            answer.add(event?);
        }
        Ok(answer)
    }

    fn take(&mut self, event: EngineEvent) -> Result<(), SessionError> {
        match event {
            EngineEvent::Prefill { done, total } => self.ready.push_back(Event::Prefill { done, total }),
            // What comes later was computed before the cancellation arrived, and is no part of the answer.
            EngineEvent::Token(_) | EngineEvent::End(_) if self.is_over() => {}
            EngineEvent::End(token) => {
                self.generated += 1;
                if self.report_tokens {
                    self.ready.push_back(Event::Token(token));
                }
            }
            EngineEvent::Token(token) => {
                self.generated += 1;
                let mut events = Vec::new();
                self.repeats = self.guard.push(token.id, self.output.is_reasoning());
                self.output.push(token.id, &mut events);
                if self.report_tokens {
                    self.ready.push_back(Event::Token(token));
                }
                self.ready.extend(events);
                if self.is_over() {
                    self.handle.cancel();
                }
            }
            EngineEvent::Finished { reason, timings } => self.finish(reason, timings),
            EngineEvent::Failed(e) => {
                self.done = true;
                return Err(e.into());
            }
        }
        Ok(())
    }

    /// Nothing that may still come belongs to the answer.
    fn is_over(&self) -> bool {
        self.repeats || self.output.is_over()
    }

    fn finish(&mut self, reason: Finish, timings: Timings) {
        self.done = true;
        let mut events = Vec::new();
        let was_over = self.is_over();
        self.output.finish(!matches!(reason, Finish::Stop(_)), &mut events);
        self.ready.extend(events);
        let reason = match (self.output.stopped(), reason) {
            _ if self.repeats => FinishReason::Repetition,
            (Some(stop), _) => FinishReason::StopString(stop.to_string()),
            _ if was_over => FinishReason::ToolCalls,
            (_, Finish::Stop(_)) if self.output.calls() > 0 => FinishReason::ToolCalls,
            (_, Finish::Stop(token)) => FinishReason::EndToken(token),
            (_, Finish::Length) => FinishReason::Length,
            (_, Finish::Cancelled) => FinishReason::Cancelled,
            (_, Finish::Deadline) => FinishReason::Deadline,
        };
        let usage = Usage {
            prompt_tokens: self.prompt_ids.len(),
            cached_tokens: timings.cached_tokens,
            generated_tokens: self.generated,
            reasoning_tokens: self.output.reasoning_tokens(),
            drafted_tokens: timings.drafted_tokens,
            accepted_tokens: timings.accepted_tokens,
        };
        self.ready.push_back(Event::Finished(Outcome { reason, usage, timings }));
    }
}

impl Iterator for Turn {
    type Item = Result<Event, SessionError>;

    /// The next event; blocks.
    fn next(&mut self) -> Option<Self::Item> {
        loop {
            if let Some(event) = self.ready.pop_front() {
                return Some(Ok(event));
            }
            if self.done {
                return None;
            }
            if let Err(e) = self.take(self.handle.next()) {
                return Some(Err(e));
            }
        }
    }
}
