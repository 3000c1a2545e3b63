//! What the model writes, taken apart while it streams: thinking, tool calls and text. Pieces in, events out, no I/O.
//!
//! ```text
//! THINKING                                     the prompt may hold the opening tag already
//! </think>
//!
//! TEXT
//!
//! <tool_call>                                  <tool_call>
//! <function=NAME>                              {"name": "NAME", "arguments": {...}}
//! <parameter=KEY>                        or    </tool_call>
//! VALUE
//! </parameter>
//! </function>
//! </tool_call>
//! ```
//!
//! **The events depend on the text alone, not on how it was cut into pieces** (but for how adjacent pieces of one thing
//! are cut). Nothing that a model writes is an error, and time is linear in its length. What was decided:
//!
//! *Thinking.* The first `</think>` ends it, wherever it stands; later ones are not shown unless they are quoted. The
//! newlines around the tags belong to neither part.
//!
//! *Calls* are calls only of declared tools that may be called; anything else is text, to the byte. `<function=NAME>` is
//! a call without `<tool_call>` too, if a parameter, an object or the end of the function follows. White space around
//! calls is no text.
//!
//! *Values.* One newline at each end of a value is its frame, all else is the value. `</parameter>` ends it only where,
//! after white space, `<parameter=KEY>` or `</function>` follows, or the end of the output; `</function>` and
//! `</tool_call>` in a row end it without `</parameter>` only where the output ends too, or another call follows. What
//! type a value has is said by the tool's schema, see [`types`]. Of two values with one key the first counts.
//!
//! *Calls inside thinking* are drafts: thinking, to the byte, if thinking is closed later. If the model ends its answer
//! without closing it, the last complete calls that stand together are taken as calls.
//!
//! *Ends.* If the model ended its answer inside a call, the call is taken as if it had been closed, except in thinking.
//! If the answer was cut, a call whose beginning was given out gets no [`Event::CallEnd`]: its arguments so far are the
//! beginning of a JSON object. Of the JSON form nothing is given out before its end, so that a cut one is text.
//!
//! *What is held back*: at most some 1200 bytes that may be a tag with what must follow it; up to [`MAX_SPACE`] bytes of
//! white space in text; a value that is no string until its end, since it may turn out not to be what was declared; a
//! call of the JSON form, and calls inside thinking, until they are decided.

mod json;
mod look;
mod sink;
pub mod types;
mod value;

use crate::ToolChoice;
use json::Scan;
use look::{End, Look, Miss, Open};
use serde_json::Value as Json;
use sink::Sink;
use std::sync::Arc;
use types::Tools;
use value::Value;

const THINK: &str = "<think>";
const THINK_END: &str = "</think>";
const CALL_END: &str = "</tool_call>";
const FUNCTION_END: &str = "</function>";
const PARAMETER: &str = "<parameter=";
const PARAMETER_END: &str = "</parameter>";
/// Most bytes of white space between the tags of a call, or held back in text.
pub const MAX_SPACE: usize = 256;
/// Bytes of white space after which an opening think tag is no longer expected.
const MAX_LEADING_SPACE: usize = 64;

/// A stretch of output. Texts and pieces are never empty.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    Reasoning(String),
    Text(String),
    /// A call begins. `index` counts the calls of the answer from 0.
    Call {
        index: usize,
        name: String,
    },
    /// The next piece of a call's arguments: together they are one JSON object.
    Arguments {
        index: usize,
        piece: String,
    },
    /// The call is complete.
    CallEnd {
        index: usize,
    },
}

/// Whether a rendered prompt ends inside a thinking block, so that the answer begins with reasoning.
pub fn prompt_opens_thinking(prompt: &str) -> bool {
    prompt.trim_end().ends_with(THINK)
}

/// Takes the output of one turn apart.
#[derive(Clone, Debug)]
pub struct OutputParser {
    tools: Arc<Tools>,
    state: State,
    /// Output that may be needed again; what lies before `at` is done with.
    held: String,
    at: usize,
    /// Where a call in the JSON form began: until it is complete, it may be text.
    mark: usize,
    /// Calls inside thinking that are not yet decided.
    draft: Option<Draft>,
    /// The latest draft that was followed by more thinking.
    drafted: Vec<Event>,
    end: End,
    sink: Sink,
}

#[derive(Clone, Debug)]
enum State {
    /// Nothing but white space so far: the answer may begin with `<think>`.
    Start,
    /// Right after the opening tag.
    ReasoningStart,
    Reasoning,
    /// Right after the closing tag.
    TextStart,
    Text,
    /// Between the parameters of a function.
    Body(Call),
    Value(Call, Value),
    /// Inside a JSON object: a whole call, or the arguments of a function.
    Json(Option<usize>, Scan),
    /// Behind a call.
    AfterCall,
}

/// An open call.
#[derive(Clone, Debug)]
struct Call {
    tool: usize,
    /// Keys that have their value.
    keys: Vec<String>,
}

#[derive(Clone, Debug)]
struct Draft {
    /// Where it begins in the held output.
    start: usize,
    /// White space before it.
    gap: String,
    events: Vec<Event>,
    /// Where in the held output to look for a closing think tag.
    scanned: usize,
}

impl OutputParser {
    /// `opens_thinking`: the prompt ends inside thinking. `tools`: declarations as in [`crate::Conversation::tools`].
    pub fn new(opens_thinking: bool, tools: &[Json], choice: &ToolChoice) -> OutputParser {
        OutputParser {
            tools: Arc::new(Tools::new(tools, choice)),
            state: if opens_thinking { State::ReasoningStart } else { State::Start },
            held: String::new(),
            at: 0,
            mark: 0,
            draft: None,
            drafted: Vec::new(),
            end: End::Open,
            sink: Sink::default(),
        }
    }

    /// Whether the output so far ends inside reasoning.
    pub fn is_reasoning(&self) -> bool {
        self.draft.is_some() || matches!(self.state, State::ReasoningStart | State::Reasoning)
    }

    /// Takes the next piece; gives what is certain by now.
    pub fn push(&mut self, piece: &str) -> Vec<Event> {
        self.held.push_str(piece);
        let mut out = Vec::new();
        self.run(&mut out);
        out
    }

    /// Ends the turn. `truncated`: it was cut (by a limit, a cancellation), not ended by the model.
    pub fn finish(&mut self, truncated: bool) -> Vec<Event> {
        let mut out = Vec::new();
        self.end = if truncated { End::Cut } else { End::Natural };
        let inside = matches!(self.state, State::Body(_) | State::Value(..) | State::Json(..));
        if !(truncated && inside) {
            self.run(&mut out);
        }
        match (self.draft.is_some(), std::mem::replace(&mut self.state, State::Text)) {
            (true, State::AfterCall) if !truncated => {
                self.drafted = self.draft.take().map(|d| d.events).unwrap_or_default();
            }
            (true, _) => {
                self.release(self.held.len(), &mut out);
                self.sink.flush(true, &mut out);
            }
            (false, State::Value(call, value)) if !truncated => {
                self.end_value(call, value, &mut out);
                self.sink.end_call(&mut out);
            }
            (false, State::Body(_)) if !truncated => self.sink.end_call(&mut out),
            (false, State::Body(_) | State::Value(..)) => {}
            (false, State::Json(tool, scan)) => {
                self.at = self.held.len();
                if truncated || !self.take_json(tool, &scan, &mut out) {
                    self.sink.say(false, &self.held[self.mark..], true, &mut out);
                    self.sink.finish_text(&mut out);
                }
            }
            (false, State::Reasoning) => self.sink.flush(true, &mut out),
            (false, State::AfterCall) => {}
            (false, _) => self.sink.finish_text(&mut out),
        }
        if !truncated {
            out.append(&mut self.drafted);
        }
        self.held.clear();
        self.at = 0;
        out
    }

    fn run(&mut self, out: &mut Vec<Event>) {
        while self.step(out) {}
        let json = matches!(self.state, State::Json(..));
        let keep = self.draft.as_ref().map_or(if json { self.mark } else { self.at }, |d| d.start);
        if keep > 0 {
            self.held.drain(..keep);
            self.at -= keep;
            self.mark = self.mark.saturating_sub(keep);
            if let Some(draft) = &mut self.draft {
                draft.start = 0;
                draft.scanned -= keep;
            }
        }
    }

    /// Moves on by one stretch; false when more output is needed.
    fn step(&mut self, out: &mut Vec<Event>) -> bool {
        let Some(limit) = self.limit(out) else { return true };
        match &self.state {
            State::Start => self.start(limit),
            State::ReasoningStart => self.reasoning_start(limit),
            State::Reasoning => self.outside(true, limit, out),
            State::TextStart => self.text_start(limit),
            State::Text => self.outside(false, limit, out),
            State::Body(_) => self.body(limit, out),
            State::Value(..) => self.value(limit, out),
            State::Json(..) => self.json(limit, out),
            State::AfterCall => self.after_call(limit, out),
        }
    }

    /// How far the held output may be read. In a draft that is up to what may be a closing think tag; `None`: there is
    /// one, so that the draft is thinking like any other.
    fn limit(&mut self, out: &mut Vec<Event>) -> Option<usize> {
        let Some(draft) = &mut self.draft else { return Some(self.held.len()) };
        let from = draft.scanned.max(self.at);
        if let Some(found) = self.held[from..].find(THINK_END) {
            self.release(from + found, out);
            return None;
        }
        let partial = if self.end == End::Open { partial(&self.held[from..], THINK_END) } else { 0 };
        let limit = self.held.len() - partial;
        draft.scanned = limit;
        Some(limit)
    }

    fn look(&self, limit: usize) -> Look<'_> {
        Look::new(&self.held[self.at..limit], self.end)
    }

    fn start(&mut self, limit: usize) -> bool {
        let tail = &self.held[self.at..limit];
        let space = tail.len() - tail.trim_start().len();
        let mut look = Look::new(&tail[space..], self.end);
        let (opening, closing) = (look.tag(THINK), look.clone().tag(THINK_END));
        match (opening, closing) {
            (Ok(()), _) if space <= MAX_LEADING_SPACE => {
                self.at += space + THINK.len();
                self.state = State::ReasoningStart;
            }
            // Thinking is off, and closed once more.
            (_, Ok(())) if space <= MAX_LEADING_SPACE => {
                self.at += space + THINK_END.len();
                self.state = State::TextStart;
            }
            (Err(Miss::More), _) | (_, Err(Miss::More)) if space <= MAX_LEADING_SPACE => return false,
            _ => self.state = State::Text,
        }
        true
    }

    /// One newline belongs to the opening tag, and so does the same tag written again.
    fn reasoning_start(&mut self, limit: usize) -> bool {
        let mut look = self.look(limit);
        let again = look.tag(THINK);
        match (again, self.held[self.at..limit].chars().next()) {
            (Ok(()), _) => self.at += THINK.len(),
            (Err(Miss::More), _) | (_, None) => return false,
            (_, Some('\n')) => {
                let mut look = Look::new(&self.held[self.at + 1..limit], self.end);
                match look.tag(THINK) {
                    Err(Miss::More) => return false,
                    Ok(()) => self.at += 1 + THINK.len(),
                    Err(Miss::No) => {
                        self.at += 1;
                        self.state = State::Reasoning;
                    }
                }
            }
            _ => self.state = State::Reasoning,
        }
        true
    }

    fn text_start(&mut self, limit: usize) -> bool {
        let tail = &self.held[self.at..limit];
        self.at += tail.len() - tail.trim_start_matches('\n').len();
        if self.at == limit {
            return false;
        }
        self.state = State::Text;
        true
    }

    /// Thinking or text.
    fn outside(&mut self, reasoning: bool, limit: usize, out: &mut Vec<Event>) -> bool {
        let tail = &self.held[self.at..limit];
        match tail.find('<') {
            None => {
                self.sink.say(reasoning, tail, !self.tools.is_empty(), out);
                self.at = limit;
                return false;
            }
            Some(0) => {}
            Some(n) => {
                self.sink.say(reasoning, &tail[..n], !self.tools.is_empty(), out);
                self.at += n;
                return true;
            }
        }
        let closing = self.look(limit).tag(THINK_END);
        let opening = self.look(limit).open(&self.tools);
        match (closing, opening) {
            (Ok(()), _) => self.close_thinking(reasoning, out),
            (_, Ok(open)) => self.begin(open, reasoning, out),
            (Err(Miss::More), _) | (_, Err(Miss::More)) => return false,
            _ => {
                self.sink.say(reasoning, "<", !self.tools.is_empty(), out);
                self.at += 1;
            }
        }
        true
    }

    fn close_thinking(&mut self, reasoning: bool, out: &mut Vec<Event>) {
        self.at += THINK_END.len();
        if reasoning {
            self.sink.close_reasoning(out);
            self.drafted.clear();
            self.state = State::TextStart;
        } else if !self.sink.has_thought() || self.sink.is_quoting() {
            self.sink.say(false, THINK_END, !self.tools.is_empty(), out);
        }
    }

    /// Enters a call.
    fn begin(&mut self, open: Open, reasoning: bool, out: &mut Vec<Event>) {
        if reasoning {
            let gap = self.sink.take_gap();
            self.draft = Some(Draft { start: self.at, gap, events: Vec::new(), scanned: self.at });
        }
        self.mark = self.at;
        self.at += open.bytes;
        self.state = match (open.tool, open.json) {
            (tool, true) => State::Json(tool, Scan::default()),
            (None, false) => State::Text,
            (Some(tool), false) => {
                let name = self.tools.name(tool).to_string();
                self.events(out, |sink, out| sink.begin_call(name, out));
                State::Body(Call { tool, keys: Vec::new() })
            }
        };
    }

    /// Gives events to where they belong: those of a draft wait.
    fn events(&mut self, out: &mut Vec<Event>, emit: impl FnOnce(&mut Sink, &mut Vec<Event>)) {
        match &mut self.draft {
            Some(draft) => emit(&mut self.sink, &mut draft.events),
            None => emit(&mut self.sink, out),
        }
    }

    fn body(&mut self, limit: usize, out: &mut Vec<Event>) -> bool {
        let mut look = self.look(limit);
        let next = look.space().and_then(|()| look.body_tag());
        let bytes = look.bytes();
        match next {
            Ok(Some(key)) => {
                let State::Body(call) = std::mem::replace(&mut self.state, State::Text) else { return true };
                self.at += bytes;
                let types = self.tools.types(call.tool, &key);
                let value = Value::new(types, (!call.keys.contains(&key)).then_some(key));
                self.state = State::Value(call, value);
            }
            Ok(None) => {
                self.at += bytes;
                self.end_call(out);
            }
            Err(Miss::More) => return false,
            // At the end of the output: the beginning of a tag.
            Err(Miss::No) => {
                self.at = limit;
                return false;
            }
        }
        true
    }

    fn end_call(&mut self, out: &mut Vec<Event>) {
        self.events(out, |sink, out| sink.end_call(out));
        self.state = State::AfterCall;
    }

    fn value(&mut self, limit: usize, out: &mut Vec<Event>) -> bool {
        let tail = &self.held[self.at..limit];
        let n = tail.find('<').unwrap_or(tail.len());
        if n > 0 {
            self.content(n, out);
            return true;
        }
        match self.look(limit).value_end() {
            Ok(bytes) => {
                self.at += bytes;
                let State::Value(call, value) = std::mem::replace(&mut self.state, State::Text) else { return true };
                let call = self.end_value(call, value, out);
                self.state = State::Body(call);
            }
            Err(Miss::More) => return false,
            Err(Miss::No) if tail.is_empty() => return false,
            Err(Miss::No) => self.content(1, out),
        }
        true
    }

    /// The next bytes of a value.
    fn content(&mut self, bytes: usize, out: &mut Vec<Event>) {
        let State::Value(_, value) = &mut self.state else { return };
        let piece = value.push(&self.held[self.at..self.at + bytes], self.sink.is_first_argument());
        self.at += bytes;
        self.events(out, |sink, out| sink.arguments(&piece, out));
    }

    fn end_value(&mut self, mut call: Call, value: Value, out: &mut Vec<Event>) -> Call {
        let piece = value.end(self.sink.is_first_argument());
        self.events(out, |sink, out| sink.arguments(&piece, out));
        call.keys.extend(value.into_key());
        call
    }

    fn json(&mut self, limit: usize, out: &mut Vec<Event>) -> bool {
        let State::Json(tool, scan) = &mut self.state else { return false };
        let (bytes, done) = scan.push(&self.held[self.at..limit]);
        self.at += bytes;
        if !done {
            return false;
        }
        let (tool, scan) = (*tool, std::mem::take(scan));
        if self.take_json(tool, &scan, out) {
            self.state = State::AfterCall;
        } else if self.draft.is_some() {
            self.release(self.at, out);
        } else {
            self.sink.say(false, &self.held[self.mark..self.at], true, out);
            self.state = State::Text;
        }
        true
    }

    /// Gives out a call whose JSON is complete; false if it is none.
    fn take_json(&mut self, tool: Option<usize>, scan: &Scan, out: &mut Vec<Event>) -> bool {
        let call = match tool {
            Some(tool) => scan.arguments().map(|arguments| (tool, arguments)),
            None => scan.call().and_then(|(name, arguments)| Some((self.tools.find(&name)?, arguments))),
        };
        let Some((tool, arguments)) = call else { return false };
        let name = self.tools.name(tool).to_string();
        self.events(out, |sink, out| {
            sink.begin_call(name, out);
            sink.whole_arguments(arguments, out);
        });
        true
    }

    fn after_call(&mut self, limit: usize, out: &mut Vec<Event>) -> bool {
        let tail = &self.held[self.at..limit];
        let space = tail.len() - tail.trim_start_matches(look::is_space).len();
        if space > 0 {
            self.sink.add_gap(&tail[..space]);
            self.at += space;
            return true;
        }
        if tail.is_empty() {
            return false;
        }
        let closing = self.look(limit).any_tag(&[CALL_END, FUNCTION_END, PARAMETER_END]);
        let opening = self.look(limit).open(&self.tools);
        match (closing, opening) {
            (Ok(bytes), _) => {
                self.at += bytes;
                self.sink.take_gap();
            }
            (_, Ok(open)) => self.begin(open, false, out),
            (Err(Miss::More), _) | (_, Err(Miss::More)) => return false,
            _ if self.draft.is_some() => self.release(self.at, out),
            _ => self.state = State::Text,
        }
        true
    }

    /// A draft, read up to `to`, is thinking like any other. Its complete calls are remembered.
    fn release(&mut self, to: usize, out: &mut Vec<Event>) {
        let Some(mut draft) = self.draft.take() else { return };
        self.sink.leave_calls();
        self.sink.say(true, &draft.gap, true, out);
        self.sink.say(true, &self.held[draft.start..to], true, out);
        let complete = draft.events.iter().rposition(|e| matches!(e, Event::CallEnd { .. })).map_or(0, |i| i + 1);
        if complete > 0 {
            draft.events.truncate(complete);
            self.drafted = draft.events;
        }
        self.at = to;
        self.state = State::Reasoning;
    }
}

/// Bytes at the end of `text` that begin `tag` without completing it.
fn partial(text: &str, tag: &str) -> usize {
    (1..tag.len()).rev().find(|&n| text.ends_with(&tag[..n])).unwrap_or(0)
}

#[cfg(test)]
mod tests;
