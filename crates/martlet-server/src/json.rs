//! JSON from outside: its shape checked with paths, unknown fields noted.

use crate::error::ApiError;
use serde::Deserialize;
use serde_json::{Map, Value};

/// A request's body as an object.
pub fn object(bytes: &[u8]) -> Result<Map<String, Value>, ApiError> {
    if bytes.is_empty() {
        return Err(ApiError::bad_request("invalid_json", "the body is empty: a JSON object is expected"));
    }
    // The parser refuses what is nested more than 128 deep, so that nothing behind it runs out of stack.
    match serde_json::from_slice(bytes) {
        Ok(Value::Object(map)) => Ok(map),
        Ok(other) => {
            let message = format!("the body is {}: a JSON object is expected", kind(&other));
            Err(ApiError::bad_request("invalid_json", message))
        }
        Err(e) => Err(ApiError::bad_request("invalid_json", format!("the body is not valid JSON: {e}"))),
    }
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
