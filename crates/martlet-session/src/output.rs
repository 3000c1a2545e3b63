//! From generated tokens to text: characters completed, reasoning told apart, stop strings watched for. No I/O.

use crate::Event;
use crate::stop::StopMatcher;
use martlet_chat::{Detokenizer, Event as Split, ThinkingSplitter};

/// The text side of one turn.
pub(crate) struct Output {
    /// None when the checkpoint has no tokenizer: then there is no text.
    detokenizer: Option<Detokenizer>,
    /// Of conversations.
    splitter: Option<ThinkingSplitter>,
    stop: StopMatcher,
    stopped: Option<String>,
    reasoning_tokens: usize,
}

impl Output {
    pub fn new(detokenizer: Option<Detokenizer>, splitter: Option<ThinkingSplitter>, stops: Vec<String>) -> Output {
        Output { detokenizer, splitter, stop: StopMatcher::new(stops), stopped: None, reasoning_tokens: 0 }
    }

    /// The stop string that ended the answer.
    pub fn stopped(&self) -> Option<&str> {
        self.stopped.as_deref()
    }

    pub fn reasoning_tokens(&self) -> usize {
        self.reasoning_tokens
    }

    /// Takes a token; gives what is certain by now.
    pub fn push(&mut self, token: u32, events: &mut Vec<Event>) {
        if self.splitter.as_ref().is_some_and(ThinkingSplitter::is_reasoning) {
            self.reasoning_tokens += 1;
        }
        if let Some(detokenizer) = &mut self.detokenizer {
            let piece = detokenizer.push(token).to_string();
            self.split(&piece, events);
        }
    }

    /// Ends the turn: what was held back is given out, unless a stop string ended the answer.
    pub fn finish(&mut self, events: &mut Vec<Event>) {
        if let Some(detokenizer) = &mut self.detokenizer {
            let piece = detokenizer.finish().to_string();
            self.split(&piece, events);
        }
        if let Some(splitter) = &mut self.splitter {
            let rest = splitter.finish();
            rest.into_iter().for_each(|part| self.part(part, events));
        }
        if self.stopped.is_none() {
            let rest = self.stop.finish();
            emit(rest, events);
        }
    }

    fn split(&mut self, piece: &str, events: &mut Vec<Event>) {
        match &mut self.splitter {
            Some(splitter) => {
                let parts = splitter.push(piece);
                parts.into_iter().for_each(|part| self.part(part, events));
            }
            None => self.answer(piece, events),
        }
    }

    fn part(&mut self, part: Split, events: &mut Vec<Event>) {
        match part {
            Split::Reasoning(text) if self.stopped.is_none() => events.push(Event::Reasoning(text)),
            Split::Reasoning(_) => {}
            Split::Text(text) => self.answer(&text, events),
        }
    }

    /// Text of the answer. Stop strings are watched for here alone: in thinking they mean nothing.
    fn answer(&mut self, text: &str, events: &mut Vec<Event>) {
        if self.stopped.is_some() {
            return;
        }
        let matched = self.stop.push(text);
        emit(matched.text, events);
        self.stopped = matched.stop;
    }
}

fn emit(text: String, events: &mut Vec<Event>) {
    if !text.is_empty() {
        events.push(Event::Text(text));
    }
}
