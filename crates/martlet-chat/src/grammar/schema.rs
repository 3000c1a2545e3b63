//! JSON schemas: what is supported, bounds, and where it goes wrong.

use serde_json::{Map, Value, json};

use super::compile::compile;
use super::{GrammarError, Vocabulary};
use llguidance::api::TopLevelGrammar;

/// Levels of a schema (each is several stack frames of the compiler).
const MAX_DEPTH: usize = 64;
/// Values in a schema, names not counted.
const MAX_VALUES: usize = 100_000;
/// Bytes of its strings and names.
const MAX_BYTES: usize = 4 << 20;
/// Parts of a schema that are tried alone to find the one at fault.
const MAX_TRIALS: usize = 200;

/// At most one newline with indentation, or one blank, between any two parts of JSON: a model that may write white space
/// without end sometimes does. [`super::json`] narrows it further.
const WHITE_SPACE: &str = r"\n([ ]{0,48}|\t{1,12})| ";

/// Keywords of JSON Schema that would change what is valid, and can not be enforced.
const UNSUPPORTED: [&str; 18] = [
    "not",
    "if",
    "then",
    "else",
    "contains",
    "minContains",
    "maxContains",
    "uniqueItems",
    "propertyNames",
    "dependencies",
    "dependentRequired",
    "dependentSchemas",
    "unevaluatedItems",
    "unevaluatedProperties",
    "$dynamicRef",
    "$dynamicAnchor",
    "$recursiveRef",
    "$recursiveAnchor",
];

/// Where a schema holds other schemas.
const OF_NAMES: [&str; 4] = ["$defs", "definitions", "properties", "patternProperties"];
const IN_LISTS: [&str; 4] = ["prefixItems", "allOf", "anyOf", "oneOf"];
const ALONE: [&str; 3] = ["items", "additionalItems", "additionalProperties"];

/// How much of a schema must be enforced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Options {
    /// All of it.
    Exact,
    /// What can be: keywords that are not supported are passed over, `oneOf` is read as `anyOf`.
    Lenient,
}

/// Checks the bounds, and that every keyword can be enforced.
pub(super) fn check(schema: &Value) -> Result<(), GrammarError> {
    check_size(schema)?;
    let mut left = vec![(String::new(), schema)];
    while let Some((path, schema)) = left.pop() {
        match schema {
            Value::Bool(_) => continue,
            Value::Object(fields) => {
                if let Some(key) = fields.keys().find(|k| is_unsupported(k, &fields[k.as_str()])) {
                    return Err(GrammarError::Keyword { path: join(&path, key) });
                }
            }
            _ => {
                let message = "a schema must be an object, true or false".to_string();
                return Err(GrammarError::Schema { path, message });
            }
        }
        left.extend(children(&path, schema));
    }
    Ok(())
}

fn is_unsupported(key: &str, value: &Value) -> bool {
    let harmless = key == "uniqueItems" && *value == Value::Bool(false);
    key == "x-guidance" || (UNSUPPORTED.contains(&key) && !harmless)
}

/// Bounds on depth, values and bytes.
pub(super) fn check_size(schema: &Value) -> Result<(), GrammarError> {
    let (mut values, mut bytes) = (0, 0);
    let mut left = vec![(0, schema)];
    while let Some((depth, value)) = left.pop() {
        if depth > MAX_DEPTH {
            return Err(GrammarError::TooDeep { path: String::new(), limit: MAX_DEPTH });
        }
        values += 1;
        match value {
            Value::String(text) => bytes += text.len(),
            Value::Array(items) => left.extend(items.iter().map(|v| (depth + 1, v))),
            Value::Object(fields) => {
                bytes += fields.keys().map(String::len).sum::<usize>();
                left.extend(fields.values().map(|v| (depth + 1, v)));
            }
            _ => {}
        }
    }
    for (found, limit, unit) in [(values, MAX_VALUES, "values"), (bytes, MAX_BYTES, "bytes of text")] {
        if found > limit {
            return Err(GrammarError::TooLarge { what: "the schema", found, limit, unit });
        }
    }
    Ok(())
}

/// The schema as the compiler wants it: with our white space, and with the definitions of `root` where it is a part of
/// that.
pub(super) fn prepare(schema: &Value, root: Option<&Value>, options: Options) -> Value {
    let mut fields = match schema {
        Value::Object(fields) => fields.clone(),
        Value::Bool(false) => Map::from_iter([("anyOf".into(), json!([]))]),
        _ => Map::new(),
    };
    fields.retain(|k, v| k != "uniqueItems" || *v != Value::Bool(false));
    for key in ["$defs", "definitions", "$schema"] {
        if let Some(definitions) = root.and_then(|r| r.get(key)) {
            fields.entry(key).or_insert_with(|| definitions.clone());
        }
    }
    let mut guidance = json!({"whitespace_pattern": WHITE_SPACE});
    if options == Options::Lenient {
        guidance["lenient"] = true.into();
        guidance["coerce_one_of"] = true.into();
    }
    fields.insert("x-guidance".into(), guidance);
    Value::Object(fields)
}

/// The schemas inside a schema, with their paths.
fn children<'a>(path: &str, schema: &'a Value) -> Vec<(String, &'a Value)> {
    let mut found = Vec::new();
    let mut add = |path: String, value: &'a Value| found.push((path, value));
    for key in OF_NAMES {
        for (name, value) in schema.get(key).and_then(Value::as_object).into_iter().flatten() {
            add(join(&join(path, key), name), value);
        }
    }
    for key in IN_LISTS.into_iter().chain(["items"]) {
        for (i, value) in schema.get(key).and_then(Value::as_array).into_iter().flatten().enumerate() {
            add(format!("{}[{i}]", join(path, key)), value);
        }
    }
    for key in ALONE {
        if let Some(value) = schema.get(key).filter(|v| !v.is_array()) {
            add(join(path, key), value);
        }
    }
    found
}

/// `path.key`, with the key in brackets and quotes where it is no plain word.
pub(super) fn join(path: &str, key: &str) -> String {
    let plain = !key.is_empty() && key.chars().all(|c| c.is_alphanumeric() || "_-$".contains(c));
    match (plain, path.is_empty()) {
        (true, true) => key.to_string(),
        (true, false) => format!("{path}.{key}"),
        (false, _) => format!("{path}[{}]", Value::from(key)),
    }
}

/// The innermost part of a schema that can not be compiled by itself either, and why.
pub(super) fn blame(vocabulary: &Vocabulary, schema: &Value, message: String) -> GrammarError {
    let (mut path, mut at, mut message) = (String::new(), schema, message);
    let mut trials = MAX_TRIALS;
    'deeper: loop {
        for (child_path, child) in children(&path, at) {
            if trials == 0 {
                break 'deeper;
            }
            // A part that refers to other places than the definitions means nothing by itself.
            if refers_elsewhere(child) {
                continue;
            }
            trials -= 1;
            let alone = prepare(child, Some(schema), Options::Exact);
            // `false` is allowed for parts; only as a whole it is nothing.
            if *child == Value::Bool(false) {
                continue;
            }
            if let Err(why) = compile(vocabulary, TopLevelGrammar::from_json_schema(alone)) {
                (path, at, message) = (child_path, child, why);
                continue 'deeper;
            }
        }
        break;
    }
    GrammarError::Schema { path, message }
}

fn refers_elsewhere(schema: &Value) -> bool {
    match schema {
        Value::Object(fields) => fields.iter().any(|(key, value)| match (key.as_str(), value) {
            ("$ref", Value::String(target)) => !target.starts_with("#/$defs/") && !target.starts_with("#/definitions/"),
            _ => refers_elsewhere(value),
        }),
        Value::Array(items) => items.iter().any(refers_elsewhere),
        _ => false,
    }
}
