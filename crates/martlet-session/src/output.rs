//! From generated tokens to text: characters completed, thinking and tool calls told apart, stop strings watched for. No
//! I/O.

use crate::Event;
use crate::stop::StopMatcher;
use martlet_chat::{Detokenizer, Event as Parsed, OutputParser};

/// The text side of one turn.
pub(crate) struct Output {
    /// None when the checkpoint has no tokenizer: then there is no text.
    detokenizer: Option<Detokenizer>,
    /// Of conversations.
    parser: Option<OutputParser>,
    stop: StopMatcher,
    stopped: Option<String>,
    /// The first complete call is the end.
    single_call: bool,
    /// Complete calls.
    calls: usize,
    reasoning_tokens: usize,
}

impl Output {
    pub fn new(
        detokenizer: Option<Detokenizer>,
        parser: Option<OutputParser>,
        stops: Vec<String>,
        single_call: bool,
    ) -> Output {
        let stop = StopMatcher::new(stops);
        Output { detokenizer, parser, stop, stopped: None, single_call, calls: 0, reasoning_tokens: 0 }
    }

    /// The stop string that ended the answer.
    pub fn stopped(&self) -> Option<&str> {
        self.stopped.as_deref()
    }

    /// Nothing that may still come belongs to the answer.
    pub fn is_over(&self) -> bool {
        self.stopped.is_some() || (self.single_call && self.calls > 0)
    }

    pub fn calls(&self) -> usize {
        self.calls
    }

    pub fn reasoning_tokens(&self) -> usize {
        self.reasoning_tokens
    }

    pub fn is_reasoning(&self) -> bool {
        self.parser.as_ref().is_some_and(OutputParser::is_reasoning)
    }

    /// Takes a token; gives what is certain by now.
    pub fn push(&mut self, token: u32, events: &mut Vec<Event>) {
        let was_reasoning = self.is_reasoning();
        if let Some(detokenizer) = &mut self.detokenizer {
            let piece = detokenizer.push(token).to_string();
            self.take(&piece, events);
        }
        // The token that closes the thinking is none of it.
        self.reasoning_tokens += usize::from(was_reasoning && self.is_reasoning());
    }

    /// Ends the turn: what was held back is given out, unless the answer is over. `truncated`: the model did not end it.
    pub fn finish(&mut self, truncated: bool, events: &mut Vec<Event>) {
        if let Some(detokenizer) = &mut self.detokenizer {
            let piece = detokenizer.finish().to_string();
            self.take(&piece, events);
        }
        if let Some(parser) = &mut self.parser {
            let rest = parser.finish(truncated);
            rest.into_iter().for_each(|part| self.part(part, events));
        }
        if !self.is_over() {
            text(self.stop.finish(), events);
        }
    }

    fn take(&mut self, piece: &str, events: &mut Vec<Event>) {
        match &mut self.parser {
            Some(parser) => {
                let parts = parser.push(piece);
                parts.into_iter().for_each(|part| self.part(part, events));
            }
            None => self.answer(piece, events),
        }
    }

    fn part(&mut self, part: Parsed, events: &mut Vec<Event>) {
        if self.is_over() {
            return;
        }
        match part {
            Parsed::Reasoning(text) => events.push(Event::Reasoning(text)),
            Parsed::Text(text) => self.answer(&text, events),
            Parsed::Call { index, name } => {
                // A stop string does not reach across a call.
                text(self.stop.finish(), events);
                events.push(Event::ToolCall { index, name });
            }
            Parsed::Arguments { index, piece } => events.push(Event::ToolArguments { index, piece }),
            Parsed::CallEnd { index } => {
                self.calls += 1;
                events.push(Event::ToolCallEnd { index });
            }
        }
    }

    /// Text of the answer. Stop strings are watched for here alone: in thinking and in calls they mean nothing.
    fn answer(&mut self, piece: &str, events: &mut Vec<Event>) {
        if self.is_over() {
            return;
        }
        let matched = self.stop.push(piece);
        text(matched.text, events);
        self.stopped = matched.stop;
    }
}

fn text(text: String, events: &mut Vec<Event>) {
    if !text.is_empty() {
        events.push(Event::Text(text));
    }
}

#[cfg(test)]
mod tests;
