//! JSON from outside: its shape checked with paths, unknown fields noted.

use crate::error::ApiError;
use serde::Deserialize;
use serde_json::{Map, Value};

/// A request's body as an object.
pub fn object(bytes: &[u8]) -> Result<Map<String, Value>, ApiError> {
    if bytes.is_empty() {
        return Err(ApiError::bad_request("invalid_json", "the body is empty: a JSON object is expected"));
    }
    let bytes = bytes.strip_prefix(BYTE_ORDER_MARK).unwrap_or(bytes);
    // The parser refuses what is nested more than 128 deep, so that nothing behind it runs out of stack.
    let parsed = serde_json::from_slice(bytes).or_else(|e| match whole_characters(bytes) {
        Some(mended) => serde_json::from_slice(&mended),
        None => Err(e),
    });
    match parsed {
        Ok(Value::Object(map)) => Ok(map),
        Ok(other) => {
            let message = format!("the body is {}: a JSON object is expected", kind(&other));
            Err(ApiError::bad_request("invalid_json", message))
        }
        Err(e) => Err(ApiError::bad_request("invalid_json", format!("the body is not valid JSON: {e}"))),
    }
}

/// Some clients put it before their text.
const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";

/// JSON in which no `\uXXXX` is half a character: such halves become U+FFFD. Clients cut texts between two units of
/// UTF-16, in the midst of an emoji say, and would lose the conversation over it. `None`: there are none.
fn whole_characters(json: &[u8]) -> Option<Vec<u8>> {
    let mut out: Option<Vec<u8>> = None;
    let mut at = 0;
    while let Some(found) = json[at..].iter().position(|byte| *byte == b'\\') {
        let escape = at + found;
        at = match unit(json, escape) {
            Some(0xd800..=0xdbff) if matches!(unit(json, escape + 6), Some(0xdc00..=0xdfff)) => escape + 12,
            Some(0xd800..=0xdfff) => {
                // As long as what it replaces.
                out.get_or_insert_with(|| json.to_vec())[escape + 2..escape + 6].copy_from_slice(b"fffd");
                escape + 6
            }
            _ => (escape + 2).min(json.len()),
        };
    }
    out
}

/// The number of the escape `\uXXXX` that begins at `at`.
fn unit(json: &[u8], at: usize) -> Option<u16> {
    let digits = json.get(at..at + 6)?.strip_prefix(b"\\u")?;
    let digits = std::str::from_utf8(digits).ok().filter(|d| d.bytes().all(|b| b.is_ascii_hexdigit()))?;
    u16::from_str_radix(digits, 16).ok()
}

/// Reads fields into a type; gives the paths of those that it does not know.
pub fn read<'a, T: Deserialize<'a>>(fields: &'a Map<String, Value>) -> Result<(T, Vec<String>), ApiError> {
    let mut unknown = Vec::new();
    let mut track = serde_path_to_error::Track::new();
    let tracked = serde_path_to_error::Deserializer::new(fields, &mut track);
    let read = serde_ignored::deserialize(tracked, |path| unknown.push(path.to_string().replace(".?", "")));
    match read {
        Ok(request) => Ok((request, unknown)),
        Err(e) => {
            let path = track.path().to_string();
            let path = if path == "." { String::new() } else { path };
            if let Some(field) = e.to_string().strip_prefix("missing field `").and_then(|rest| rest.split('`').next()) {
                return Err(ApiError::field(join(&path, field), "is missing"));
            }
            match path.is_empty() {
                true => Err(ApiError::bad_request("invalid_value", e.to_string())),
                false => Err(ApiError::field(path, e.to_string())),
            }
        }
    }
}

/// The same of a request's body, without those of the unknown fields that never change an answer: nobody has to be warned
/// of them.
pub fn read_request<'a, T: Deserialize<'a>>(
    body: &'a Map<String, Value>,
    without_effect: &[&str],
) -> Result<(T, Vec<String>), ApiError> {
    let (request, mut unknown) = read(body)?;
    unknown.retain(|field| !without_effect.contains(&field.as_str()));
    Ok((request, unknown))
}

/// What a value is, for error texts.
pub fn kind(value: &Value) -> String {
    match value {
        Value::Null => "null".into(),
        Value::Bool(b) => b.to_string(),
        Value::Number(n) => format!("the number {n}"),
        Value::String(_) => "a string".into(),
        Value::Array(_) => "an array".into(),
        Value::Object(_) => "an object".into(),
    }
}

/// 400: `expected` was, and something else found.
pub fn wrong(path: &str, expected: &str, found: &Value) -> ApiError {
    ApiError::field(path, format!("expected {expected}, found {}", kind(found)))
}

/// The string at a path.
pub fn text<'a>(value: &'a Value, path: &str) -> Result<&'a str, ApiError> {
    value.as_str().ok_or_else(|| wrong(path, "a string", value))
}

/// The object at a path.
pub fn fields<'a>(value: &'a Value, path: &str) -> Result<&'a Map<String, Value>, ApiError> {
    value.as_object().ok_or_else(|| wrong(path, "an object", value))
}

/// The array at a path.
pub fn list<'a>(value: &'a Value, path: &str) -> Result<&'a [Value], ApiError> {
    value.as_array().map(Vec::as_slice).ok_or_else(|| wrong(path, "an array", value))
}

/// A field that is there and not null.
pub fn get<'a>(fields: &'a Map<String, Value>, key: &str) -> Option<&'a Value> {
    fields.get(key).filter(|v| !v.is_null())
}

/// A field that must be there.
pub fn need<'a>(fields: &'a Map<String, Value>, path: &str, key: &str) -> Result<&'a Value, ApiError> {
    get(fields, key).ok_or_else(|| ApiError::field(join(path, key), "is missing"))
}

/// A string that must be there.
pub fn need_text<'a>(fields: &'a Map<String, Value>, path: &str, key: &str) -> Result<&'a str, ApiError> {
    text(need(fields, path, key)?, &join(path, key))
}

/// The path of a field.
pub fn join(path: &str, key: &str) -> String {
    if path.is_empty() { key.to_string() } else { format!("{path}.{key}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, Deserialize)]
    struct Inner {
        on: Option<bool>,
    }

    #[derive(Debug, Deserialize)]
    struct Needed {
        #[allow(dead_code, reason = "it is only missed")]
        inner: Vec<u32>,
    }

    #[derive(Debug, Deserialize)]
    struct Outer {
        n: Option<u32>,
        inner: Option<Inner>,
    }

    fn read_text(text: &str) -> Result<(Outer, Vec<String>), ApiError> {
        read(&object(text.as_bytes()).unwrap())
    }

    #[test]
    fn unknown_fields_are_named_by_path() {
        let (outer, unknown) = read_text(r#"{"n": 1, "x": 2, "inner": {"on": null, "off": {"a": 1}}}"#).unwrap();
        assert_eq!((outer.n, outer.inner.unwrap().on), (Some(1), None));
        assert_eq!(unknown, ["x", "inner.off"]);
    }

    #[test]
    fn a_wrong_field_is_named_by_path() {
        let error = read_text(r#"{"inner": {"on": "yes"}}"#).unwrap_err();
        assert_eq!(error.param.as_deref(), Some("inner.on"));
        assert_eq!(error.message, "inner.on: invalid type: string \"yes\", expected a boolean");
        assert_eq!(read_text(r#"{"n": -1}"#).unwrap_err().param.as_deref(), Some("n"));
        let error = read::<Needed>(&Map::new()).unwrap_err();
        assert_eq!((error.param.as_deref(), error.message.as_str()), (Some("inner"), "inner: is missing"));
    }

    #[test]
    fn half_characters_and_a_byte_order_mark_cost_no_conversation() {
        let read = |text: &str| object(text.as_bytes()).unwrap()["a"].as_str().unwrap().to_string();
        assert_eq!(read(r#"{"a": "cut \ud83d"}"#), "cut \u{fffd}");
        assert_eq!(read(r#"{"a": "\uDE00 \ud83d\ude00 \ud83d\ud83d\ude00"}"#), "\u{fffd} \u{1f600} \u{fffd}\u{1f600}");
        assert_eq!(
            read(r#"{"a": "\\ud83d \ud83dx \\"}"#),
            "\\ud83d \u{fffd}x \\",
            "an escaped backslash begins nothing"
        );
        assert_eq!(read("\u{feff}{\"a\": \"b\"}"), "b");
        assert_eq!(object(br#"{"a": "\ud83d"#).unwrap_err().code, "invalid_json");
    }

    #[test]
    fn what_is_no_object_is_refused() {
        let deep = format!("{}{}", "[".repeat(10_000), "]".repeat(10_000));
        let deep = format!("{{\"a\":{deep}}}");
        for body in [&b""[..], b"{:", b"[1]", b"\"a\"", b"{\"a\":\"\xff\"}", b"{} x", deep.as_bytes()] {
            let error = object(body).unwrap_err();
            assert_eq!((error.status.as_u16(), error.code), (400, "invalid_json"));
        }
    }
}
