//! The value of a parameter, from the model's raw text to JSON.

use super::types::{MAX_SCALAR, Types};

/// A value on its way.
#[derive(Clone, Debug)]
pub(super) struct Value {
    types: Types,
    /// None: a key that has its value already; this one counts for nothing.
    key: Option<String>,
    /// Nothing has come yet: a newline is part of the frame.
    fresh: bool,
    /// A newline came last: it may be part of the frame.
    newline: bool,
    /// It is a string for certain, and is given out as it comes.
    streams: bool,
    /// What came, where it is not given out yet.
    text: String,
}

impl Value {
    pub fn new(types: Types, key: Option<String>) -> Value {
        Value { types, key, fresh: true, newline: false, streams: false, text: String::new() }
    }

    pub fn into_key(self) -> Option<String> {
        self.key
    }

    /// Takes text; gives a piece of the arguments. `first`: nothing was given out before it.
    pub fn push(&mut self, mut text: &str, first: bool) -> String {
        let Some(key) = &self.key else { return String::new() };
        if self.fresh && !text.is_empty() {
            self.fresh = false;
            text = text.strip_prefix('\n').unwrap_or(text);
        }
        if text.is_empty() {
            return String::new();
        }
        let newline = if self.newline { "\n" } else { "" };
        let body = text.strip_suffix('\n');
        self.newline = body.is_some();
        let body = body.unwrap_or(text);
        let mut out = String::new();
        if !self.streams {
            self.text.push_str(newline);
            self.text.push_str(body);
            if self.text.is_empty() || self.types.may_be_other(&self.text) {
                return out;
            }
            self.streams = true;
            begin(key, first, &mut out);
            out.push('"');
            escape(&std::mem::take(&mut self.text), &mut out);
            return out;
        }
        escape(newline, &mut out);
        escape(body, &mut out);
        out
    }

    /// Gives the rest of the value.
    pub fn end(&self, first: bool) -> String {
        let mut out = String::new();
        let Some(key) = &self.key else { return out };
        if self.streams {
            return "\"".into();
        }
        begin(key, first, &mut out);
        match self.types.read(&self.text) {
            Some(json) => out += &json,
            None => string(&self.text, &mut out),
        }
        out
    }
}

fn begin(key: &str, first: bool, out: &mut String) {
    out.push(if first { '{' } else { ',' });
    string(key, out);
    out.push(':');
}

fn string(text: &str, out: &mut String) {
    out.push('"');
    escape(text, out);
    out.push('"');
}

/// Text as the inside of a JSON string.
pub(super) fn escape(text: &str, out: &mut String) {
    let mut from = 0;
    for (at, byte) in text.bytes().enumerate() {
        let short = match byte {
            b'"' => "\\\"",
            b'\\' => "\\\\",
            b'\n' => "\\n",
            b'\r' => "\\r",
            b'\t' => "\\t",
            0..0x20 => "",
            _ => continue,
        };
        out.push_str(&text[from..at]);
        match short {
            "" => *out += &format!("\\u{byte:04x}"),
            _ => out.push_str(short),
        }
        from = at + 1;
    }
    out.push_str(&text[from..]);
}

impl Types {
    /// Whether a value of this type that begins with `text` may be something else than a string.
    fn may_be_other(self, text: &str) -> bool {
        if !self.has(Types::STRING) {
            return true;
        }
        let space = text.bytes().take(MAX_SCALAR + 1).take_while(u8::is_ascii_whitespace).count();
        if space > MAX_SCALAR {
            return false;
        }
        let text = &text[space..];
        let container = text.is_empty()
            || (self.has(Types::ARRAY) && text.starts_with('['))
            || (self.has(Types::OBJECT) && text.starts_with('{'));
        if container || text.len() > MAX_SCALAR {
            return container;
        }
        let word = text.trim_ascii_end();
        let begins = |words: &[&str]| words.iter().any(|w| w.starts_with(word));
        (self.has(Types::NULL) && begins(&["null", "None"]))
            || (self.has(Types::BOOLEAN) && begins(&["true", "false", "True", "False"]))
            || (self.has(Types::INTEGER) && word.bytes().all(|b| b.is_ascii_digit() || b"+-.eE".contains(&b)))
    }

    /// The JSON of a text that is a value of this type, other than a string.
    fn read(self, text: &str) -> Option<String> {
        if !self.may_be_other(text) {
            return None;
        }
        let text = text.trim_ascii();
        let or_string = self.has(Types::STRING);
        match text {
            // In the place of a number, say, it means nothing else.
            "null" | "None" if self.has(Types::NULL) || !or_string => return Some("null".into()),
            "true" | "True" if self.has(Types::BOOLEAN) => return Some("true".into()),
            "false" | "False" if self.has(Types::BOOLEAN) => return Some("false".into()),
            _ => {}
        }
        let container = match text.as_bytes().first()? {
            b'[' => self.has(Types::ARRAY) || (!or_string && self.has(Types::OBJECT)),
            b'{' => self.has(Types::OBJECT) || (!or_string && self.has(Types::ARRAY)),
            _ => false,
        };
        if container {
            return super::json::is_json(text).then(|| text.to_string());
        }
        if self.has(Types::NUMBER) { number(text) } else { self.has(Types::INTEGER).then(|| integer(text)).flatten() }
    }
}

/// A JSON number, as it is written.
fn number(text: &str) -> Option<String> {
    let valid = text.len() <= MAX_SCALAR && serde_json::from_str::<serde_json::Number>(text).is_ok();
    valid.then(|| text.to_string())
}

/// A JSON number without fraction; `5.0` becomes `5`.
fn integer(text: &str) -> Option<String> {
    const EXACT: f64 = 9_007_199_254_740_992.0;
    let number = number(text)?;
    if number.bytes().all(|b| b.is_ascii_digit() || b == b'-') {
        return Some(number);
    }
    let value: f64 = number.parse().ok()?;
    (value.fract() == 0.0 && value.abs() <= EXACT).then(|| (value as i64).to_string())
}
