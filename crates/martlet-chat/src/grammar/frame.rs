//! The frame of tool calls, byte by byte:
//!
//! ```text
//! <tool_call>
//! <function=NAME>
//! <parameter=KEY>
//! VALUE
//! </parameter>
//! </function>
//! </tool_call>
//! ```
//!
//! Parameters come in any order, each once, and the required ones before the end. A value that is text may hold
//! anything: it ends at `</parameter>` only where, after white space, `<parameter=` or `</function>` follows (the output
//! parser decides alike). The other form, `{"name": NAME, "arguments": {...}}` between the outer tags, has its frame here
//! too. JSON inside is followed elsewhere.

use super::tools::{CallForm, CallGrammar, Kind, MAX_TRACKED, Parameter, Tool};
use super::{CALL, FUNCTION_END, PARAMETER, PARAMETER_END};

/// Longest name of a parameter that is not declared.
const MAX_KEY: u8 = 64;

/// A place inside a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Call {
    pub tool: u32,
    /// One bit for each parameter that is set.
    pub seen: u128,
    pub place: Place,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    /// So many bytes of a text that must come.
    Fixed(Fixed, u8),
    /// Names from `lo` to `hi` have the bytes so far.
    Name {
        lo: u32,
        hi: u32,
        at: u16,
    },
    /// A parameter or the end of the function may come.
    Frame,
    /// `<` came.
    FrameOpen,
    Key {
        lo: u32,
        hi: u32,
        at: u16,
    },
    FurtherKey {
        length: u8,
    },
    Text(Closing),
    /// Behind `<parameter=KEY>`.
    KeyEnd {
        parameter: u32,
    },
    Literal {
        parameter: u32,
        lo: u32,
        hi: u32,
        at: u16,
    },
    /// `fresh`: before the first byte, which begins a token.
    Json {
        parameter: u32,
        fresh: bool,
        closing: Closing,
    },
    Arguments {
        fresh: bool,
    },
}

/// Texts that must come as they are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fixed {
    Open,
    XmlHead,
    JsonHead,
    NameEnd,
    Parameter,
    ValueEnd,
    FunctionEnd,
    Arguments,
}

impl Fixed {
    fn bytes(self) -> &'static [u8] {
        match self {
            Fixed::Open => CALL.as_bytes(),
            Fixed::XmlHead => b"\n<function=",
            Fixed::JsonHead => b"\n{\"name\": \"",
            Fixed::NameEnd => b"\n",
            Fixed::Parameter => PARAMETER.as_bytes(),
            Fixed::ValueEnd => b"\n</parameter>\n",
            Fixed::FunctionEnd => b"</function>\n</tool_call>",
            Fixed::Arguments => b", \"arguments\":",
        }
    }
}

/// What a byte leads to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    On(Call),
    /// The call is complete.
    Closed,
    Refused,
}

impl Call {
    /// Before the opening tag.
    pub fn open() -> Call {
        Call { tool: 0, seen: 0, place: Place::Fixed(Fixed::Open, 0) }
    }

    /// Behind the opening tag.
    pub fn opened(calls: &CallGrammar) -> Call {
        let head = if calls.form == CallForm::Xml { Fixed::XmlHead } else { Fixed::JsonHead };
        Call { tool: 0, seen: 0, place: Place::Fixed(head, 0) }
    }

    pub fn step(self, calls: &CallGrammar, byte: u8) -> Step {
        let at_place = |place| Step::On(Call { place, ..self });
        match self.place {
            Place::Fixed(fixed, at) => match fixed.bytes() {
                bytes if bytes[at as usize] != byte => Step::Refused,
                bytes if at as usize + 1 < bytes.len() => at_place(Place::Fixed(fixed, at + 1)),
                _ => self.behind(calls, fixed),
            },
            Place::Name { lo, hi, at } => self.name(calls, byte, (lo, hi, at)),
            Place::Frame if byte == b'<' => at_place(Place::FrameOpen),
            Place::FrameOpen if byte == b'p' && self.takes_parameter(calls) => {
                at_place(Place::Fixed(Fixed::Parameter, 2))
            }
            Place::FrameOpen if byte == b'/' && self.is_complete(calls) => {
                at_place(Place::Fixed(Fixed::FunctionEnd, 2))
            }
            Place::Frame | Place::FrameOpen => Step::Refused,
            Place::Key { lo, hi, at } => self.key(calls, byte, (lo, hi, at)),
            Place::FurtherKey { length } => match byte {
                b'>' if length > 0 => self.key_end(self.tool(calls).keys as u32),
                b'<' | b'>' | b'\n' => Step::Refused,
                _ if length == MAX_KEY => Step::Refused,
                _ => at_place(Place::FurtherKey { length: length + 1 }),
            },
            Place::Text(closing) => match closing.step(byte) {
                (_, Some(Tag::Parameter)) if self.takes_parameter(calls) => self.begin_key(calls),
                (_, Some(Tag::FunctionEnd)) if self.is_complete(calls) => {
                    at_place(Place::Fixed(Fixed::FunctionEnd, FUNCTION_END.len() as u8))
                }
                (_, Some(Tag::Parameter | Tag::FunctionEnd)) => Step::Refused,
                (closing, _) => at_place(Place::Text(closing)),
            },
            Place::KeyEnd { parameter } => self.value(calls, byte, parameter),
            Place::Literal { parameter, lo, hi, at } => self.literal(calls, byte, parameter, (lo, hi, at)),
            Place::Json { fresh: true, .. } | Place::Arguments { fresh: true } => Step::Refused,
            // What the parser would take for the end of the value.
            Place::Json { parameter, closing, .. } => match closing.step(byte) {
                (_, Some(_)) => Step::Refused,
                (closing, None) => at_place(Place::Json { parameter, fresh: false, closing }),
            },
            Place::Arguments { .. } => Step::On(self),
        }
    }

    /// Behind a JSON value and the newline that ends it.
    pub fn behind_json(self) -> Call {
        let place = match self.place {
            Place::Json { .. } => Place::Fixed(Fixed::ValueEnd, 1),
            Place::Arguments { .. } => Place::Fixed(Fixed::FunctionEnd, FUNCTION_END.len() as u8 + 1),
            other => other,
        };
        Call { place, ..self }
    }

    /// Behind a text that had to come.
    fn behind(self, calls: &CallGrammar, fixed: Fixed) -> Step {
        let at_place = |place| Step::On(Call { place, ..self });
        match fixed {
            Fixed::Open => Step::On(Call::opened(calls)),
            Fixed::XmlHead | Fixed::JsonHead => at_place(Place::Name { lo: 0, hi: calls.tools.len() as u32, at: 0 }),
            Fixed::NameEnd | Fixed::ValueEnd => at_place(Place::Frame),
            Fixed::Parameter => self.begin_key(calls),
            Fixed::FunctionEnd => Step::Closed,
            Fixed::Arguments => at_place(Place::Arguments { fresh: true }),
        }
    }

    fn name(self, calls: &CallGrammar, byte: u8, (lo, hi, at): (u32, u32, u16)) -> Step {
        let (end, then) = match calls.form {
            CallForm::Xml => (b'>', Fixed::NameEnd),
            CallForm::Json => (b'"', Fixed::Arguments),
        };
        if byte == end && calls.tools[lo as usize].name.len() == at as usize {
            return Step::On(Call { tool: lo, seen: 0, place: Place::Fixed(then, 0) });
        }
        match narrow(&calls.tools, |t: &Tool| t.name.as_bytes(), byte, (lo, hi, at)) {
            Some((lo, hi)) => Step::On(Call { place: Place::Name { lo, hi, at: at + 1 }, ..self }),
            None => Step::Refused,
        }
    }

    fn begin_key(self, calls: &CallGrammar) -> Step {
        let place = match self.tool(calls).keys as u32 {
            0 => Place::FurtherKey { length: 0 },
            keys => Place::Key { lo: 0, hi: keys, at: 0 },
        };
        Step::On(Call { place, ..self })
    }

    fn key(self, calls: &CallGrammar, byte: u8, (lo, hi, at): (u32, u32, u16)) -> Step {
        let tool = self.tool(calls);
        if byte == b'>' && tool.parameters[lo as usize].name.len() == at as usize {
            return if self.is_seen(lo) { Step::Refused } else { self.key_end(lo) };
        }
        let declared = narrow(&tool.parameters[..tool.keys], |p: &Parameter| p.name.as_bytes(), byte, (lo, hi, at));
        match declared {
            // Without further names a beginning is of use only if one of its names is not yet set.
            Some((lo, hi)) if tool.takes_further() || (lo..hi).any(|i| !self.is_seen(i)) => {
                Step::On(Call { place: Place::Key { lo, hi, at: at + 1 }, ..self })
            }
            _ if tool.takes_further() && at < u16::from(MAX_KEY) => {
                Call { place: Place::FurtherKey { length: at as u8 }, ..self }.step(calls, byte)
            }
            _ => Step::Refused,
        }
    }

    /// Behind `<parameter=KEY>`.
    fn key_end(self, parameter: u32) -> Step {
        let bit = if parameter < MAX_TRACKED as u32 { 1 << parameter } else { 0 };
        Step::On(Call { seen: self.seen | bit, place: Place::KeyEnd { parameter }, ..self })
    }

    /// A newline, then the value.
    fn value(self, calls: &CallGrammar, byte: u8, parameter: u32) -> Step {
        if byte != b'\n' {
            return Step::Refused;
        }
        let place = match &self.tool(calls).parameters[parameter as usize].kind {
            Kind::Text => Place::Text(Closing::start()),
            Kind::Json(_) => Place::Json { parameter, fresh: true, closing: Closing::start() },
            Kind::Literals(texts) => Place::Literal { parameter, lo: 0, hi: texts.len() as u32, at: 0 },
        };
        Step::On(Call { place, ..self })
    }

    fn literal(self, calls: &CallGrammar, byte: u8, parameter: u32, (lo, hi, at): (u32, u32, u16)) -> Step {
        let at_place = |place| Step::On(Call { place, ..self });
        let Kind::Literals(texts) = &self.tool(calls).parameters[parameter as usize].kind else { return Step::Refused };
        if byte == b'\n' && texts[lo as usize].len() == at as usize {
            return at_place(Place::Fixed(Fixed::ValueEnd, 1));
        }
        match narrow(texts, |t: &String| t.as_bytes(), byte, (lo, hi, at)) {
            Some((lo, hi)) => at_place(Place::Literal { parameter, lo, hi, at: at + 1 }),
            None => Step::Refused,
        }
    }

    pub fn tool(self, calls: &CallGrammar) -> &Tool {
        &calls.tools[self.tool as usize]
    }

    fn is_seen(self, parameter: u32) -> bool {
        parameter < MAX_TRACKED as u32 && self.seen >> parameter & 1 == 1
    }

    fn takes_parameter(self, calls: &CallGrammar) -> bool {
        let tool = self.tool(calls);
        tool.takes_further() || (0..tool.keys as u32).any(|i| !self.is_seen(i))
    }

    fn is_complete(self, calls: &CallGrammar) -> bool {
        self.tool(calls).required & !self.seen == 0
    }
}

/// Those of `sorted[lo..hi]`, which agree in `at` bytes, that go on with `byte`.
fn narrow<T>(sorted: &[T], text: impl Fn(&T) -> &[u8], byte: u8, (lo, hi, at): (u32, u32, u16)) -> Option<(u32, u32)> {
    let part = &sorted[lo as usize..hi as usize];
    let next = |item: &T| text(item).get(at as usize).copied();
    let from = part.partition_point(|item| next(item) < Some(byte));
    let to = part.partition_point(|item| next(item) <= Some(byte));
    (from < to && at < u16::MAX).then_some((lo + from as u32, lo + to as u32))
}

/// How far the end of a value has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Closing {
    /// Bytes of `</parameter>`.
    end: u8,
    /// What came behind `</parameter>`.
    tail: Tail,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Tail {
    None,
    Space,
    Open,
    /// So many bytes of the tag.
    Parameter(u8),
    FunctionEnd(u8),
}

/// A tag that is complete.
enum Tag {
    Parameter,
    FunctionEnd,
}

impl Closing {
    /// At the beginning of a value.
    pub fn start() -> Closing {
        Closing { end: 0, tail: Tail::None }
    }

    /// Nothing of an end has come: only a token that holds all of it can end the value.
    pub fn is_none(self) -> bool {
        self.end == 0 && self.tail == Tail::None
    }

    fn step(self, byte: u8) -> (Closing, Option<Tag>) {
        let (mut next, mut tag) = (self, None);
        next.end = advance(PARAMETER_END, self.end, byte);
        next.tail = match (self.tail, byte) {
            (Tail::Space, b' ' | b'\t' | b'\r' | b'\n') => Tail::Space,
            (Tail::Space, b'<') => Tail::Open,
            (Tail::Open, b'p') => Tail::Parameter(2),
            (Tail::Open, b'/') => Tail::FunctionEnd(2),
            (Tail::Parameter(at), _) if PARAMETER.as_bytes()[at as usize] == byte => Tail::Parameter(at + 1),
            (Tail::FunctionEnd(at), _) if FUNCTION_END.as_bytes()[at as usize] == byte => Tail::FunctionEnd(at + 1),
            _ => Tail::None,
        };
        match next.tail {
            Tail::Parameter(at) if at as usize == PARAMETER.len() => {
                (next.tail, tag) = (Tail::None, Some(Tag::Parameter))
            }
            Tail::FunctionEnd(at) if at as usize == FUNCTION_END.len() => {
                (next.tail, tag) = (Tail::None, Some(Tag::FunctionEnd));
            }
            _ => {}
        }
        if next.end as usize == PARAMETER_END.len() {
            (next.end, next.tail) = (0, Tail::Space);
        }
        (next, tag)
    }
}

/// Bytes of a tag (which has `<` only at its beginning) that the text ends with.
pub(super) fn advance(tag: &str, at: u8, byte: u8) -> u8 {
    if tag.as_bytes().get(at as usize) == Some(&byte) { at + 1 } else { u8::from(byte == b'<') }
}
