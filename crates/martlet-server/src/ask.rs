//! What every API can ask of a turn in the same words: stop strings, logit bias, formats, counts of tokens.

use crate::error::ApiError;
use crate::json::{fields, get, join, list, need, need_text, text, wrong};
use martlet_session::{Format, MAX_STOPS};
use serde_json::{Map, Value};

/// `stop`: a string or a list of them. Empty ones, which some clients send for none, are left out.
pub fn stops(value: Option<&Value>, path: &str) -> Result<Vec<String>, ApiError> {
    let stops = match value {
        None | Some(Value::Null) => Vec::new(),
        Some(Value::String(one)) => vec![one.clone()],
        Some(Value::Array(items)) => {
            let each = |(i, item)| text(item, &format!("{path}[{i}]")).map(str::to_string);
            items.iter().enumerate().map(each).collect::<Result<_, _>>()?
        }
        Some(other) => return Err(wrong(path, "a string or an array of strings", other)),
    };
    if stops.len() > MAX_STOPS {
        return Err(ApiError::field(
            path,
            format!("{} stop strings; at most {MAX_STOPS} are watched for", stops.len()),
        ));
    }
    Ok(stops.into_iter().filter(|s| !s.is_empty()).collect())
}

/// `logit_bias`: token ids as keys.
pub fn bias(value: Option<&Map<String, Value>>, path: &str) -> Result<Vec<(u32, f32)>, ApiError> {
    let pair = |(key, value): (&String, &Value)| {
        let path = join(path, key);
        let token = key.trim().parse().map_err(|_| ApiError::field(path.as_str(), "the key is no token id"))?;
        let value = value.as_f64().ok_or_else(|| wrong(&path, "a number", value))?;
        Ok((token, value as f32))
    };
    value.into_iter().flatten().map(pair).collect()
}

/// `max_tokens`: negative means until the end of the answer or of the context.
pub fn most(tokens: Option<i64>) -> Option<usize> {
    tokens.and_then(|n| usize::try_from(n).ok())
}

/// `n` and its like, within a limit.
pub fn count(n: Option<i64>, path: &str, limit: usize) -> Result<usize, ApiError> {
    match usize::try_from(n.unwrap_or(1)) {
        Ok(n) if (1..=limit).contains(&n) => Ok(n),
        _ => Err(ApiError::field(path, format!("is {}: it must be from 1 to {limit}", n.unwrap_or(1)))),
    }
}

/// Most probable tokens to report.
pub fn top(n: Option<i64>, path: &str) -> Result<usize, ApiError> {
    match n.unwrap_or(0) {
        n @ 0..=20 => Ok(n as usize),
        n => Err(ApiError::field(path, format!("is {n}: it must be from 0 to 20"))),
    }
}

/// top_k as others mean it too: 0 and -1 are off.
pub fn top_k(k: Option<i64>) -> Result<Option<u32>, ApiError> {
    match k {
        None => Ok(None),
        Some(-1) => Ok(Some(0)),
        Some(k) => match u32::try_from(k) {
            Ok(k) => Ok(Some(k)),
            Err(_) => Err(ApiError::field("top_k", format!("is {k}: it must be 0 (off) or above"))),
        },
    }
}

/// top_p of 0 means the most probable token alone.
pub fn top_p(p: Option<f32>) -> Option<f32> {
    p.map(|p| if p == 0.0 { f32::MIN_POSITIVE } else { p })
}

/// A format: what chat completions (`json_schema: {schema}`) and responses (`schema` without a frame) know, and `regex`,
/// `lark` and `choice`.
pub fn format(value: &Value, path: &str) -> Result<Option<Format>, ApiError> {
    let object = fields(value, path)?;
    match need_text(object, path, "type")? {
        "text" => Ok(None),
        "json_object" => match get(object, "schema") {
            // A common spelling elsewhere.
            Some(schema) => schema_of(schema, &join(path, "schema")),
            None => Ok(Some(Format::JsonObject)),
        },
        "json_schema" => match get(object, "json_schema") {
            Some(framed) => {
                let path = join(path, "json_schema");
                let framed = fields(framed, &path)?;
                match get(framed, "schema") {
                    Some(schema) => schema_of(schema, &join(&path, "schema")),
                    None => Ok(Some(Format::JsonObject)),
                }
            }
            None => schema_of(need(object, path, "schema")?, &join(path, "schema")),
        },
        "regex" => {
            let key = if get(object, "pattern").is_some() { "pattern" } else { "regex" };
            Ok(Some(Format::Regex(need_text(object, path, key)?.into())))
        }
        "lark" | "grammar" => {
            let key = if get(object, "lark").is_some() { "lark" } else { "grammar" };
            Ok(Some(Format::Lark(need_text(object, path, key)?.into())))
        }
        "choice" => choice(need(object, path, "choice")?, &join(path, "choice")),
        other => {
            let known = "text, json_object, json_schema, regex, lark and choice are";
            Err(ApiError::field(join(path, "type"), format!("\"{other}\" is not known; {known}")))
        }
    }
}

/// Where a request has the schema, expression or list that its answer must follow.
pub fn form(body: &Map<String, Value>) -> String {
    const PLACES: [&[&str]; 5] = [
        &["response_format"],
        &["structured_outputs"],
        &["text", "format"],
        &["output_config", "format"],
        &["output_format"],
    ];
    const KEYS: [&str; 8] = ["json_schema", "schema", "json", "pattern", "regex", "lark", "grammar", "choice"];
    let object = |path: &&&[&str]| path.iter().try_fold(body, |at, key| get(at, key)?.as_object()).is_some();
    let Some(path) = PLACES.iter().find(object) else { return "response_format".to_string() };
    let mut found = path.join(".");
    let mut at = path.iter().try_fold(body, |at, key| get(at, key)?.as_object());
    // A frame has one more inside.
    for _ in 0..2 {
        let Some(key) = at.and_then(|at| KEYS.into_iter().find(|key| get(at, key).is_some())) else { break };
        found = join(&found, key);
        at = at.and_then(|at| get(at, key)?.as_object()).filter(|_| key == "json_schema");
    }
    found
}

fn schema_of(schema: &Value, path: &str) -> Result<Option<Format>, ApiError> {
    match schema {
        Value::Object(_) | Value::Bool(_) => Ok(Some(Format::JsonSchema(schema.clone()))),
        other => Err(wrong(path, "a JSON schema", other)),
    }
}

fn choice(value: &Value, path: &str) -> Result<Option<Format>, ApiError> {
    let texts =
        list(value, path)?.iter().enumerate().map(|(i, v)| text(v, &format!("{path}[{i}]")).map(str::to_string));
    let texts = texts.collect::<Result<Vec<_>, _>>()?;
    if texts.is_empty() {
        return Err(ApiError::field(path, "is empty: there is nothing to choose from"));
    }
    Ok(Some(Format::Choice(texts)))
}

/// The names under which vLLM's clients ask for formats: `structured_outputs: {json, regex, choice, grammar}`.
pub fn structured(value: &Value, path: &str) -> Result<Option<Format>, ApiError> {
    let object = fields(value, path)?;
    let mut found = None;
    for (key, value) in object.iter().filter(|(_, v)| !v.is_null()) {
        let path = join(path, key);
        let format = match key.as_str() {
            "json" => match value.as_str() {
                Some(text) => {
                    let schema = serde_json::from_str(text);
                    schema_of(&schema.map_err(|e| ApiError::field(path.as_str(), e.to_string()))?, &path)?
                }
                None => schema_of(value, &path)?,
            },
            "json_object" => value.as_bool().unwrap_or(false).then_some(Format::JsonObject),
            "regex" => Some(Format::Regex(text(value, &path)?.into())),
            "grammar" => Some(Format::Lark(text(value, &path)?.into())),
            "choice" => choice(value, &path)?,
            _ => {
                return Err(ApiError::unsupported(
                    path,
                    "is not known; json, json_object, regex, grammar and choice are",
                ));
            }
        };
        if format.is_some() && found.is_some() {
            return Err(ApiError::field(path, "only one format can hold at a time"));
        }
        found = found.or(format);
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn stops_are_a_string_or_a_list() {
        let of = |v: Value| stops(Some(&v), "stop").map_err(|e| e.param.unwrap());
        assert_eq!(of(json!("a")), Ok(vec!["a".into()]));
        assert_eq!(of(json!(["a", "", "b"])), Ok(vec!["a".into(), "b".into()]));
        assert_eq!(of(json!(["a", 1])), Err("stop[1]".into()));
        assert_eq!(of(json!({})), Err("stop".into()));
        assert_eq!(of(Value::Array(vec!["a".into(); 17])), Err("stop".into()));
        assert_eq!(of(Value::Null), Ok(vec![]));
    }

    #[test]
    fn bias_is_by_token() {
        let of = |v: Value| bias(v.as_object(), "logit_bias").map_err(|e| e.param.unwrap());
        assert_eq!(of(json!({"42": -5, "7": 1.5})), Ok(vec![(42, -5.0), (7, 1.5)]));
        assert_eq!(of(json!({"hello": 1})), Err("logit_bias.hello".into()));
        assert_eq!(of(json!({"1": "x"})), Err("logit_bias.1".into()));
    }

    #[test]
    fn numbers() {
        assert_eq!((most(Some(-1)), most(Some(0)), most(None)), (None, Some(0), None));
        assert_eq!(count(None, "n", 4), Ok(1));
        let said = |e: ApiError| (e.param.unwrap(), e.message);
        let refused = |path: &str, message: &str| (path.to_string(), format!("{path}: {message}"));
        for n in [0, 5] {
            let expected = refused("n", &format!("is {n}: it must be from 1 to 4"));
            assert_eq!(count(Some(n), "n", 4).map_err(said), Err(expected));
        }
        assert_eq!((top_k(Some(-1)), top_k(Some(5))), (Ok(Some(0)), Ok(Some(5))));
        assert_eq!(top_k(Some(-2)).map_err(said), Err(refused("top_k", "is -2: it must be 0 (off) or above")));
        let expected = refused("top_logprobs", "is 21: it must be from 0 to 20");
        assert_eq!(top(Some(21), "top_logprobs").map_err(said), Err(expected));
    }

    #[test]
    fn a_form_has_a_place() {
        let of = |v: Value| form(v.as_object().unwrap());
        let schema = json!({"type": "object", "schema": {}});
        let framed = json!({"type": "json_schema", "json_schema": {"name": "x", "schema": schema}});
        assert_eq!(of(json!({"response_format": framed})), "response_format.json_schema.schema");
        assert_eq!(of(json!({"text": {"format": {"schema": schema}}})), "text.format.schema");
        assert_eq!(of(json!({"structured_outputs": {"json": schema}, "text": "x"})), "structured_outputs.json");
        assert_eq!(of(json!({"response_format": null, "output_format": {"pattern": "a"}})), "output_format.pattern");
        assert_eq!(of(json!({"output_config": {"format": {"choice": ["a"]}}})), "output_config.format.choice");
    }

    #[test]
    fn formats_in_every_form() {
        let schema = json!({"type": "array"});
        let of = |v: Value| format(&v, "response_format").map_err(|e| e.param.unwrap());
        let expected = || Ok(Some(Format::JsonSchema(schema.clone())));
        assert_eq!(of(json!({"type": "json_schema", "json_schema": {"name": "x", "schema": schema}})), expected());
        assert_eq!(of(json!({"type": "json_schema", "name": "x", "schema": schema})), expected());
        assert_eq!(of(json!({"type": "json_object", "schema": schema})), expected());
        assert_eq!(of(json!({"type": "json_object"})), Ok(Some(Format::JsonObject)));
        assert_eq!(of(json!({"type": "text"})), Ok(None));
        assert_eq!(of(json!({"type": "regex", "regex": "a+"})), Ok(Some(Format::Regex("a+".into()))));
        assert_eq!(of(json!({"type": "lark", "grammar": "start: /a/"})), Ok(Some(Format::Lark("start: /a/".into()))));
        assert_eq!(of(json!({"type": "choice", "choice": ["a"]})), Ok(Some(Format::Choice(vec!["a".into()]))));
        assert_eq!(of(json!({"type": "json_schema"})), Err("response_format.schema".into()));
        assert_eq!(of(json!({"type": "xml"})), Err("response_format.type".into()));
        assert_eq!(of(json!({"type": "choice", "choice": []})), Err("response_format.choice".into()));
        let vllm = |v: Value| structured(&v, "structured_outputs").map_err(|e| e.param.unwrap());
        assert_eq!(vllm(json!({"json": schema.to_string(), "regex": null})), expected());
        assert_eq!(vllm(json!({"regex": "a", "choice": ["b"]})), Err("structured_outputs.choice".into()));
    }
}
