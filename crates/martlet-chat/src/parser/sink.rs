//! Where events go: white space waits until it is clear what it belongs to, and pieces that belong together are joined.

use super::{Event, MAX_SPACE, look::is_space};

#[derive(Clone, Debug, Default)]
pub(super) struct Sink {
    /// White space that is text if text follows.
    gap: String,
    /// The last character of the text.
    last: Option<char>,
    has_text: bool,
    has_thought: bool,
    /// There was more white space than is held back: it is given out as it comes.
    flowing: bool,
    /// No text came since the last call.
    after_call: bool,
    /// Calls that were begun.
    calls: usize,
    /// The open call has arguments.
    has_arguments: bool,
}

impl Sink {
    /// Thinking or text. White space at its end waits: all of it where calls may follow, newlines in thinking anyway.
    pub fn say(&mut self, reasoning: bool, text: &str, calls: bool, out: &mut Vec<Event>) {
        let waits = |c: char| if calls { is_space(c) } else { reasoning && c == '\n' };
        let end = text.trim_end_matches(waits).len();
        if end > 0 {
            self.flowing = false;
            // White space behind a call divides it from earlier text, if there is any.
            if self.after_call && !self.has_text {
                self.gap.clear();
            }
            self.after_call = false;
            self.flush(reasoning, out);
            emit(reasoning, &text[..end], out);
            if !reasoning {
                self.has_text = true;
                self.last = text[..end].chars().next_back();
            }
        }
        self.add_gap(&text[end..]);
        if self.flowing || self.gap.len() > MAX_SPACE {
            self.flowing = true;
            self.flush(reasoning, out);
        }
    }

    pub fn add_gap(&mut self, space: &str) {
        self.gap.push_str(space);
    }

    pub fn take_gap(&mut self) -> String {
        self.flowing = false;
        std::mem::take(&mut self.gap)
    }

    /// The white space that waits is part of what was said.
    pub fn flush(&mut self, reasoning: bool, out: &mut Vec<Event>) {
        let gap = std::mem::take(&mut self.gap);
        if !gap.is_empty() {
            emit(reasoning, &gap, out);
            self.last = None;
        }
    }

    /// Newlines before the closing tag are its frame.
    pub fn close_reasoning(&mut self, out: &mut Vec<Event>) {
        let gap = self.take_gap();
        emit(true, gap.trim_end_matches('\n'), out);
        self.has_thought = true;
    }

    pub fn has_thought(&self) -> bool {
        self.has_thought
    }

    /// The text ends with a quotation mark that may open.
    pub fn is_quoting(&self) -> bool {
        self.gap.is_empty() && self.last.is_some_and(|c| matches!(c, '`' | '"' | '\''))
    }

    /// What looked like calls is thinking: it is as if there had been none.
    pub fn leave_calls(&mut self) {
        self.take_gap();
        self.calls = 0;
        self.after_call = false;
    }

    /// At the end of an answer.
    pub fn finish_text(&mut self, out: &mut Vec<Event>) {
        if self.has_text || self.calls == 0 {
            self.flush(false, out);
        }
    }

    /// White space before a call is no text.
    pub fn begin_call(&mut self, name: String, out: &mut Vec<Event>) {
        self.take_gap();
        out.push(Event::Call { index: self.calls, name });
        self.calls += 1;
        self.has_arguments = false;
    }

    pub fn is_first_argument(&self) -> bool {
        !self.has_arguments
    }

    /// A piece of the arguments of the open call, without the outer brackets.
    pub fn arguments(&mut self, piece: &str, out: &mut Vec<Event>) {
        if !piece.is_empty() {
            self.has_arguments = true;
            self.piece(piece, out);
        }
    }

    pub fn end_call(&mut self, out: &mut Vec<Event>) {
        self.after_call = true;
        self.piece(if self.has_arguments { "}" } else { "{}" }, out);
        out.push(Event::CallEnd { index: self.calls.saturating_sub(1) });
    }

    /// All arguments of the call that was just begun.
    pub fn whole_arguments(&mut self, json: String, out: &mut Vec<Event>) {
        self.after_call = true;
        let index = self.calls.saturating_sub(1);
        out.push(Event::Arguments { index, piece: json });
        out.push(Event::CallEnd { index });
    }

    fn piece(&self, text: &str, out: &mut Vec<Event>) {
        let current = self.calls.saturating_sub(1);
        match out.last_mut() {
            Some(Event::Arguments { index, piece }) if *index == current => piece.push_str(text),
            _ => out.push(Event::Arguments { index: current, piece: text.to_string() }),
        }
    }
}

fn emit(reasoning: bool, text: &str, out: &mut Vec<Event>) {
    if text.is_empty() {
        return;
    }
    match (out.last_mut(), reasoning) {
        (Some(Event::Reasoning(said)), true) | (Some(Event::Text(said)), false) => said.push_str(text),
        (_, true) => out.push(Event::Reasoning(text.to_string())),
        (_, false) => out.push(Event::Text(text.to_string())),
    }
}
