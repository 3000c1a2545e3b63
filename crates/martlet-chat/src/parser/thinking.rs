//! Reasoning and answer told apart while they stream.
//!
//! The family writes `<think>\nREASONING\n</think>\n\nANSWER`; with thinking on, the prompt already holds `<think>\n`.
//! The newlines of this frame belong to neither part. Tool calls are left in the text as they are. The events depend
//! on the text alone, not on how it was cut into pieces.

const OPEN: &str = "<think>";
const CLOSE: &str = "</think>";
/// Bytes of white space after which an opening tag is no longer expected.
const MAX_LEADING_SPACE: usize = 64;

/// A stretch of output. Texts are never empty.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    Reasoning(String),
    Text(String),
}

/// Whether a rendered prompt ends inside a thinking block, so that the answer begins with reasoning.
pub fn prompt_opens_thinking(prompt: &str) -> bool {
    prompt.trim_end().ends_with(OPEN)
}

/// Splits the output of one turn.
#[derive(Clone, Debug)]
pub struct ThinkingSplitter {
    state: State,
    /// Text that may be part of a tag or of the frame around one.
    held: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Nothing but white space so far: the answer may begin with `<think>`.
    Start,
    /// Right after the opening tag.
    ReasoningStart,
    Reasoning,
    /// Right after the closing tag.
    TextStart,
    Text,
}

impl ThinkingSplitter {
    /// `prompt_opens_thinking`: see the function of that name.
    pub fn new(prompt_opens_thinking: bool) -> ThinkingSplitter {
        let state = if prompt_opens_thinking { State::ReasoningStart } else { State::Start };
        ThinkingSplitter { state, held: String::new() }
    }

    /// Whether the output so far ends inside reasoning.
    pub fn is_reasoning(&self) -> bool {
        matches!(self.state, State::ReasoningStart | State::Reasoning)
    }

    /// Takes the next piece; gives what is certain by now.
    pub fn push(&mut self, piece: &str) -> Vec<Event> {
        self.held.push_str(piece);
        let mut events = Vec::new();
        while self.step(&mut events) {}
        events
    }

    /// Ends the turn: what was held back is text like any other.
    pub fn finish(&mut self) -> Vec<Event> {
        let rest = std::mem::take(&mut self.held);
        let mut events = Vec::new();
        let reasoning = self.is_reasoning();
        emit(&mut events, reasoning, &rest);
        events
    }

    /// Moves on by one state or stretch; false when more text is needed.
    fn step(&mut self, events: &mut Vec<Event>) -> bool {
        match self.state {
            State::Start => {
                let visible = self.held.trim_start();
                if self.held.len() - visible.len() > MAX_LEADING_SPACE {
                    self.state = State::Text;
                } else if let Some(rest) = visible.strip_prefix(OPEN) {
                    self.held = rest.to_string();
                    self.state = State::ReasoningStart;
                } else if OPEN.starts_with(visible) {
                    return false;
                } else {
                    self.state = State::Text;
                }
                true
            }
            State::ReasoningStart => {
                if self.held.is_empty() {
                    return false;
                }
                if self.held.starts_with('\n') {
                    self.held.remove(0);
                }
                self.state = State::Reasoning;
                true
            }
            State::Reasoning => {
                if let Some(at) = self.held.find(CLOSE) {
                    emit(events, true, self.held[..at].trim_end_matches('\n'));
                    self.held.drain(..at + CLOSE.len());
                    self.state = State::TextStart;
                    return true;
                }
                let certain = self.held.len() - partial_tag(&self.held, CLOSE);
                let certain = self.held[..certain].trim_end_matches('\n').len();
                emit(events, true, &self.held[..certain]);
                self.held.drain(..certain);
                false
            }
            State::TextStart => {
                let frame = self.held.len() - self.held.trim_start_matches('\n').len();
                self.held.drain(..frame);
                if self.held.is_empty() {
                    return false;
                }
                self.state = State::Text;
                true
            }
            State::Text => {
                emit(events, false, &self.held);
                self.held.clear();
                false
            }
        }
    }
}

fn emit(events: &mut Vec<Event>, reasoning: bool, text: &str) {
    if !text.is_empty() {
        events.push(if reasoning { Event::Reasoning(text.to_string()) } else { Event::Text(text.to_string()) });
    }
}

/// Bytes at the end of `text` that begin `tag` without completing it.
fn partial_tag(text: &str, tag: &str) -> usize {
    (1..tag.len()).rev().find(|&n| text.ends_with(&tag[..n])).unwrap_or(0)
}

#[cfg(test)]
mod tests;
