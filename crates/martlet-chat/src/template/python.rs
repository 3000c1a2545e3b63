//! Values as Python prints them: `str()`, `repr()` and `json.dumps`, over the template engine's values.
//!
//! Templates are written for jinja2, where a bool prints as `True`, 1e16 as `1e+16` and a list with quoted strings.

use std::borrow::Cow;
use std::fmt::{self, Write as _};
use std::sync::Arc;

use minijinja::value::{DynObject, Enumerator, Object, ObjectRepr, Value, ValueKind};
use minijinja::{Error, ErrorKind};

/// A JSON value for a template. Lists and objects print as Python's `str()` prints them, also under `~`.
pub(super) fn from_json(json: &serde_json::Value) -> Value {
    use serde_json::Value as Json;
    match json {
        Json::Null => Value::from(()),
        Json::Bool(b) => Value::from(*b),
        Json::Number(n) => match (n.as_i64(), n.as_u64()) {
            (Some(i), _) => Value::from(i),
            (_, Some(u)) => Value::from(u),
            _ => Value::from(n.as_f64().unwrap_or(f64::NAN)),
        },
        Json::String(s) => Value::from(s.as_str()),
        Json::Array(items) => printed(items.iter().map(from_json).collect::<Vec<_>>().into()),
        Json::Object(map) => printed(Value::from_pairs(map.iter().map(|(k, v)| (k.as_str(), from_json(v))))),
    }
}

fn printed(container: Value) -> Value {
    match container.as_object() {
        Some(object) => Value::from_object(Printed(object.clone())),
        None => container,
    }
}

/// Whether a list or map came from [`from_json`].
pub(super) fn is_from_json(value: &Value) -> bool {
    value.downcast_object_ref::<Printed>().is_some()
}

/// A list or map of the engine with Python's printing.
#[derive(Debug)]
struct Printed(DynObject);

impl Object for Printed {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        self.0.repr()
    }

    fn get_value(self: &Arc<Self>, key: &Value) -> Option<Value> {
        self.0.get_value(key)
    }

    fn get_value_by_str(self: &Arc<Self>, key: &str) -> Option<Value> {
        self.0.get_value_by_str(key)
    }

    fn enumerate(self: &Arc<Self>) -> Enumerator {
        self.0.enumerate()
    }

    fn enumerator_len(self: &Arc<Self>) -> Option<usize> {
        self.0.enumerator_len()
    }

    fn render(self: &Arc<Self>, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut text = String::new();
        write_repr(&mut text, &Value::from_dyn_object(self.0.clone()))?;
        f.write_str(&text)
    }
}

/// One value may print as at most so many bytes: a short template can repeat a long conversation a million times.
const MOST_BYTES: usize = 64 << 20;

/// `str(value)`.
pub(super) fn to_str(value: &Value) -> Result<Cow<'_, str>, Error> {
    match value.as_str() {
        Some(text) => Ok(text.into()),
        None if value.is_undefined() => Ok("".into()),
        None => {
            let mut out = String::new();
            // A failed write left a text that is too long.
            let written = write_repr(&mut out, value);
            check_length(&out)?;
            written?;
            Ok(out.into())
        }
    }
}

/// Fails when a text is longer than any value may print.
pub(super) fn check_length(text: &str) -> Result<(), Error> {
    if text.len() > MOST_BYTES {
        let message = format!("a value prints as more than {MOST_BYTES} bytes");
        return Err(Error::new(ErrorKind::InvalidOperation, message));
    }
    Ok(())
}

/// Fails when the text grows past [`MOST_BYTES`].
fn write_repr(out: &mut String, value: &Value) -> fmt::Result {
    if out.len() > MOST_BYTES {
        return Err(fmt::Error);
    }
    match value.kind() {
        ValueKind::None => out.push_str("None"),
        ValueKind::Undefined => out.push_str("Undefined"),
        ValueKind::Bool => out.push_str(if value.is_true() { "True" } else { "False" }),
        ValueKind::Number => match as_float(value) {
            Some(float) => out.push_str(&float_repr(float)),
            None => write!(out, "{value}")?,
        },
        ValueKind::String => write_str_repr(out, value.as_str().unwrap_or_default()),
        ValueKind::Map => {
            out.push('{');
            for (i, (key, item)) in pairs(value).enumerate() {
                out.push_str(if i > 0 { ", " } else { "" });
                write_repr(out, &key)?;
                out.push_str(": ");
                write_repr(out, &item)?;
            }
            out.push('}');
        }
        ValueKind::Seq | ValueKind::Iterable => {
            let (open, close) = if value.is_tuple() { ("(", ")") } else { ("[", "]") };
            out.push_str(open);
            let mut count = 0;
            for item in value.try_iter().into_iter().flatten() {
                out.push_str(if count > 0 { ", " } else { "" });
                write_repr(out, &item)?;
                count += 1;
            }
            out.push_str(if value.is_tuple() && count == 1 { "," } else { "" });
            out.push_str(close);
        }
        _ => write!(out, "{value}")?,
    }
    Ok(())
}

fn pairs(map: &Value) -> impl Iterator<Item = (Value, Value)> {
    map.as_object().and_then(DynObject::try_iter_pairs).into_iter().flatten()
}

fn as_float(value: &Value) -> Option<f64> {
    if value.kind() == ValueKind::Number && !value.is_integer() { f64::try_from(value.clone()).ok() } else { None }
}

/// `repr` of a str: single quotes unless only double quotes avoid escapes; what Unicode calls not printable is escaped.
fn write_str_repr(out: &mut String, text: &str) {
    let quote = if text.contains('\'') && !text.contains('"') { '"' } else { '\'' };
    out.push(quote);
    for c in text.chars() {
        match c {
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            c if c == quote => {
                out.push('\\');
                out.push(c);
            }
            c if is_printable(c) => out.push(c),
            c => {
                let code = c as u32;
                let _ = match code {
                    0..=0xff => write!(out, "\\x{code:02x}"),
                    0x100..=0xffff => write!(out, "\\u{code:04x}"),
                    _ => write!(out, "\\U{code:08x}"),
                };
            }
        }
    }
    out.push(quote);
}

/// Python's `str.isprintable`, which excludes the same general categories as Rust's own debug printing of strings.
fn is_printable(c: char) -> bool {
    if c.is_ascii() {
        return !c.is_ascii_control();
    }
    // Behind a letter, `escape_debug` leaves combining marks as they are and escapes only what is not printable.
    let mut buffer = [b'a'; 5];
    let length = 1 + c.encode_utf8(&mut buffer[1..]).len();
    match std::str::from_utf8(&buffer[..length]) {
        Ok(text) => !text.escape_debug().any(|c| c == '{'),
        Err(_) => false,
    }
}

/// `float.__repr__`: the shortest digits that read back, positional for exponents -4 to 15.
pub(super) fn float_repr(value: f64) -> String {
    if value.is_nan() {
        return "nan".into();
    }
    if value.is_infinite() {
        return if value > 0.0 { "inf".into() } else { "-inf".into() };
    }
    let scientific = format!("{value:e}");
    let (digits, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    if (-4..16).contains(&exponent) {
        let fixed = value.to_string();
        return if fixed.contains('.') { fixed } else { fixed + ".0" };
    }
    let sign = if exponent < 0 { '-' } else { '+' };
    format!("{digits}e{sign}{:02}", exponent.abs())
}

/// The options of `json.dumps` that transformers' `tojson` passes on.
#[derive(Clone, Debug, Default)]
pub(super) struct JsonOptions {
    pub ensure_ascii: bool,
    /// The text of one level of indentation; `None` keeps everything on one line.
    pub indent: Option<String>,
    /// Item and key separators; by default `", "` (`","` with indentation) and `": "`.
    pub separators: Option<(String, String)>,
    pub sort_keys: bool,
}

/// `json.dumps(value, ...)`.
pub(super) fn to_json(value: &Value, options: &JsonOptions) -> Result<String, Error> {
    let item = if options.indent.is_some() { "," } else { ", " };
    let separators = options.separators.clone().unwrap_or_else(|| (item.into(), ": ".into()));
    let mut writer = JsonWriter { out: String::new(), options, separators };
    writer.value(value, 0)?;
    Ok(writer.out)
}

struct JsonWriter<'a> {
    out: String,
    options: &'a JsonOptions,
    separators: (String, String),
}

impl JsonWriter<'_> {
    fn value(&mut self, value: &Value, depth: usize) -> Result<(), Error> {
        check_length(&self.out)?;
        match value.kind() {
            ValueKind::String => self.string(value.as_str().unwrap_or_default()),
            ValueKind::None | ValueKind::Bool | ValueKind::Number => self.out.push_str(&scalar(value)),
            ValueKind::Map => return self.map(value, depth),
            ValueKind::Seq | ValueKind::Iterable => {
                self.out.push('[');
                let mut empty = true;
                for item in value.try_iter()? {
                    self.begin_item(empty, depth + 1);
                    empty = false;
                    self.value(&item, depth + 1)?;
                }
                self.end(empty, depth, ']');
            }
            kind => {
                let detail = format!("a value of type {kind} is not JSON serializable");
                return Err(Error::new(ErrorKind::BadSerialization, detail));
            }
        }
        Ok(())
    }

    fn map(&mut self, value: &Value, depth: usize) -> Result<(), Error> {
        let mut entries = Vec::new();
        for (key, item) in pairs(value) {
            entries.push((json_key(&key)?, item));
        }
        if self.options.sort_keys {
            entries.sort_by(|a, b| a.0.cmp(&b.0));
        }
        self.out.push('{');
        let empty = entries.is_empty();
        for (i, (key, item)) in entries.into_iter().enumerate() {
            self.begin_item(i == 0, depth + 1);
            self.string(&key);
            self.out.push_str(&self.separators.1);
            self.value(&item, depth + 1)?;
        }
        self.end(empty, depth, '}');
        Ok(())
    }

    fn begin_item(&mut self, first: bool, depth: usize) {
        if !first {
            self.out.push_str(&self.separators.0);
        }
        self.new_line(depth);
    }

    fn end(&mut self, empty: bool, depth: usize, close: char) {
        if !empty {
            self.new_line(depth);
        }
        self.out.push(close);
    }

    fn new_line(&mut self, depth: usize) {
        if let Some(indent) = &self.options.indent {
            self.out.push('\n');
            for _ in 0..depth {
                self.out.push_str(indent);
            }
        }
    }

    fn string(&mut self, text: &str) {
        self.out.push('"');
        for c in text.chars() {
            match c {
                '"' => self.out.push_str("\\\""),
                '\\' => self.out.push_str("\\\\"),
                '\n' => self.out.push_str("\\n"),
                '\r' => self.out.push_str("\\r"),
                '\t' => self.out.push_str("\\t"),
                '\x08' => self.out.push_str("\\b"),
                '\x0c' => self.out.push_str("\\f"),
                c if c < ' ' || (self.options.ensure_ascii && !(' '..='~').contains(&c)) => {
                    for unit in c.encode_utf16(&mut [0; 2]) {
                        let _ = write!(self.out, "\\u{unit:04x}");
                    }
                }
                c => self.out.push(c),
            }
        }
        self.out.push('"');
    }
}

fn scalar(value: &Value) -> String {
    match value.kind() {
        ValueKind::None => "null".into(),
        ValueKind::Bool => if value.is_true() { "true" } else { "false" }.into(),
        _ => match as_float(value) {
            Some(f) if f.is_nan() => "NaN".into(),
            Some(f) if f.is_infinite() => if f > 0.0 { "Infinity" } else { "-Infinity" }.into(),
            Some(f) => float_repr(f),
            None => value.to_string(),
        },
    }
}

fn json_key(key: &Value) -> Result<String, Error> {
    match key.kind() {
        ValueKind::String => Ok(key.as_str().unwrap_or_default().to_string()),
        ValueKind::None | ValueKind::Bool | ValueKind::Number => Ok(scalar(key)),
        kind => Err(Error::new(ErrorKind::BadSerialization, format!("a key of type {kind} is not JSON serializable"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn floats_print_as_in_python() {
        let cases = [
            (0.0, "0.0"),
            (-0.0, "-0.0"),
            (1.0, "1.0"),
            (0.1, "0.1"),
            (1e15, "1000000000000000.0"),
            (1e16, "1e+16"),
            (123456789012345680.0, "1.2345678901234568e+17"),
            (0.0001, "0.0001"),
            (0.00001, "1e-05"),
            (1.5e-7, "1.5e-07"),
            (1e100, "1e+100"),
            (5e-324, "5e-324"),
            (1.7976931348623157e308, "1.7976931348623157e+308"),
            (f64::NAN, "nan"),
            (f64::NEG_INFINITY, "-inf"),
        ];
        for (value, expected) in cases {
            assert_eq!(float_repr(value), expected);
        }
    }

    #[test]
    fn strings_print_as_in_python() {
        let cases = [
            ("a", "'a'"),
            ("it's", "\"it's\""),
            ("'\"", "'\\'\"'"),
            ("\n\\\x00\x7f", "'\\n\\\\\\x00\\x7f'"),
            ("é\u{301} ü\u{a0}", "'é\u{301} ü\\xa0'"),
            ("\u{200b}\u{2028}\u{e000}", "'\\u200b\\u2028\\ue000'"),
            ("😀\u{1f1e9}\u{e0001}", "'😀\u{1f1e9}\\U000e0001'"),
            ("\u{301}", "'\u{301}'"),
        ];
        for (text, expected) in cases {
            let mut out = String::new();
            write_str_repr(&mut out, text);
            assert_eq!(out, expected);
        }
    }

    #[test]
    fn containers_print_as_in_python() {
        let json =
            serde_json::json!({"a": [1, 2.0, true, null, "x"], "b": {}, "c": 1e20, "d": 18446744073709551615_u64});
        let value = from_json(&json);
        let expected = "{'a': [1, 2.0, True, None, 'x'], 'b': {}, 'c': 1e+20, 'd': 18446744073709551615}";
        assert_eq!(to_str(&value).unwrap(), expected);
        assert_eq!(value.to_string(), expected);
    }

    #[test]
    fn json_has_the_options_of_dumps() {
        let value = from_json(&serde_json::json!({"b": [1, {"x": []}], "a": "é😀\u{7f}<&>", "c": {}}));
        let text = |options: JsonOptions| to_json(&value, &options).unwrap();
        let plain = "{\"b\": [1, {\"x\": []}], \"a\": \"é😀\u{7f}<&>\", \"c\": {}}";
        assert_eq!(text(JsonOptions::default()), plain);
        assert_eq!(
            text(JsonOptions { ensure_ascii: true, sort_keys: true, ..Default::default() }),
            r#"{"a": "\u00e9\ud83d\ude00\u007f<&>", "b": [1, {"x": []}], "c": {}}"#
        );
        assert_eq!(
            text(JsonOptions { indent: Some(" ".into()), ..Default::default() }),
            "{\n \"b\": [\n  1,\n  {\n   \"x\": []\n  }\n ],\n \"a\": \"é😀\u{7f}<&>\",\n \"c\": {}\n}"
        );
        let separators = Some((",".to_string(), ":".to_string()));
        assert_eq!(text(JsonOptions { separators, ..Default::default() }), plain.replace(", ", ",").replace(": ", ":"));
    }
}
