//! JSON that a model writes inside a call.

use serde::Deserialize;
use serde_json::Value;
use serde_json::value::RawValue;

/// Finds the end of an object.
#[derive(Clone, Debug, Default)]
pub(super) struct Scan {
    text: String,
    /// Brackets that must close what is open.
    closers: Vec<u8>,
    in_string: bool,
    escaped: bool,
}

impl Scan {
    /// Takes the bytes that belong to the object, which begins with the first; gives their number, and whether its end
    /// was reached, be it by a `<` where there can be none.
    pub fn push(&mut self, text: &str) -> (usize, bool) {
        for (at, byte) in text.bytes().enumerate() {
            let (bytes, done) = match (self.in_string, byte) {
                (true, _) if self.escaped => {
                    self.escaped = false;
                    continue;
                }
                (true, b'\\') => {
                    self.escaped = true;
                    continue;
                }
                (_, b'"') => {
                    self.in_string = !self.in_string;
                    continue;
                }
                (true, _) => continue,
                (false, b'<') => (at, true),
                (false, b'{' | b'[') => {
                    self.closers.push(byte + 2); // in ASCII both pairs are two apart
                    continue;
                }
                (false, b'}' | b']') => {
                    let pair = self.closers.pop() == Some(byte);
                    (at + 1, !pair || self.closers.is_empty())
                }
                _ => continue,
            };
            if done {
                self.text.push_str(&text[..bytes]);
                return (bytes, true);
            }
        }
        self.text.push_str(text);
        (text.len(), false)
    }

    /// The object, with what is open closed and control characters in strings escaped.
    fn closed(&self) -> String {
        let mut out = String::with_capacity(self.text.len() + self.closers.len());
        let (mut in_string, mut escaped) = (false, false);
        for c in self.text.chars() {
            match c {
                '"' if !escaped => in_string = !in_string,
                c if in_string && c < ' ' => {
                    super::value::escape(c.encode_utf8(&mut [0]), &mut out);
                    escaped = false;
                    continue;
                }
                _ => {}
            }
            escaped = in_string && c == '\\' && !escaped;
            out.push(c);
        }
        if escaped {
            out.pop();
        }
        if in_string {
            out.push('"');
        }
        out.extend(self.closers.iter().rev().map(|b| *b as char));
        out
    }

    /// The object as the arguments of a call.
    pub fn arguments(&self) -> Option<String> {
        let json = self.closed();
        is_json(&json).then_some(json)
    }

    /// The object as a whole call: name and arguments.
    pub fn call(&self) -> Option<(String, String)> {
        let json = self.closed();
        let wire: Wire<'_> = serde_json::from_str(&json).ok()?;
        let name = wire.name?;
        let raw = wire.arguments.map_or("{}", RawValue::get).trim();
        let arguments = match raw.as_bytes().first()? {
            b'{' => raw.to_string(),
            // Encoded twice.
            b'"' => match serde_json::from_str::<String>(raw).ok()?.trim() {
                "" => "{}".to_string(),
                inner if inner.starts_with('{') => inner.to_string(),
                _ => return None,
            },
            _ => return None,
        };
        is_json(&arguments).then_some((name, arguments))
    }
}

#[derive(Deserialize)]
struct Wire<'a> {
    name: Option<String>,
    #[serde(borrow, alias = "parameters")]
    arguments: Option<&'a RawValue>,
}

/// Whether every JSON reader will take it: its numbers have a value, its strings are Unicode, it is not too deep.
pub(super) fn is_json(text: &str) -> bool {
    serde_json::from_str::<Value>(text).is_ok()
}
