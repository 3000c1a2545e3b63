//! The declared tools, and which types their schemas give a parameter.
//!
//! `$ref` inside the schema, `anyOf`, `oneOf`, `allOf`, lists of types, `enum`, `const` and `nullable` are followed. A
//! parameter is a string, byte for byte, unless its schema says otherwise: nothing is guessed from how a value looks. If
//! it may be a string and something else, it is something else where it is that value's JSON. Of JSON's types:
//!
//! - an integer may be written with a fraction of zero; `True`, `False` and `None` are read as JSON's words;
//! - arrays and objects are given as they are written;
//! - what is no value of its type is given as the string that it is, white space included.

use crate::ToolChoice;
use serde_json::{Map, Value};
use std::collections::HashMap;

/// Longest number or word that is not simply text, with the white space around it.
pub(super) const MAX_SCALAR: usize = 512;
/// Parts of a schema that are looked at for one parameter: references may run in circles.
const MAX_PARTS: usize = 500;
const MAX_DEPTH: usize = 50;

/// A set of JSON types. Whatever may be a number may be an integer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Types(u8);

impl Types {
    pub const NULL: Types = Types(1);
    pub const BOOLEAN: Types = Types(2);
    pub const INTEGER: Types = Types(4);
    pub const NUMBER: Types = Types(8);
    pub const STRING: Types = Types(16);
    pub const ARRAY: Types = Types(32);
    pub const OBJECT: Types = Types(64);
    const NONE: Types = Types(0);
    const ANY: Types = Types(127);

    pub fn has(self, other: Types) -> bool {
        self.0 & other.0 != 0
    }

    fn or(self, other: Types) -> Types {
        Types(self.0 | other.0)
    }

    fn and(self, other: Types) -> Types {
        Types(self.0 & other.0)
    }

    fn named(name: &str) -> Types {
        match name {
            "null" => Types::NULL,
            "boolean" => Types::BOOLEAN,
            "integer" => Types::INTEGER,
            "number" => Types::NUMBER.or(Types::INTEGER),
            "string" => Types::STRING,
            "array" => Types::ARRAY,
            "object" => Types::OBJECT,
            _ => Types::ANY,
        }
    }

    fn of_value(value: &Value) -> Types {
        match value {
            Value::Null => Types::NULL,
            Value::Bool(_) => Types::BOOLEAN,
            Value::Number(n) if n.as_f64().is_some_and(|x| x.fract() == 0.0) => Types::INTEGER.or(Types::NUMBER),
            Value::Number(_) => Types::NUMBER.or(Types::INTEGER),
            Value::String(_) => Types::STRING,
            Value::Array(_) => Types::ARRAY,
            Value::Object(_) => Types::OBJECT,
        }
    }
}

/// The tools that may be called.
#[derive(Debug, Default)]
pub(super) struct Tools {
    list: Vec<(String, Value)>,
    by_name: HashMap<String, usize>,
}

impl Tools {
    /// Reads `{"type": "function", "function": {name, parameters}}` and the flat `{name, parameters | input_schema}`;
    /// what has no name is no tool.
    pub fn new(declarations: &[Value], choice: &ToolChoice) -> Tools {
        let mut tools = Tools::default();
        let allowed = |name: &str| match choice {
            ToolChoice::Auto | ToolChoice::Required => true,
            ToolChoice::None => false,
            ToolChoice::AutoOf(names) | ToolChoice::RequiredOf(names) => names.iter().any(|n| n == name),
        };
        for declaration in declarations {
            let function = declaration.get("function").filter(|f| f.is_object()).unwrap_or(declaration);
            let Some(name) = function.get("name").and_then(Value::as_str).filter(|n| allowed(n)) else { continue };
            let schema = function.get("parameters").or_else(|| function.get("input_schema"));
            tools.by_name.insert(name.to_string(), tools.list.len());
            tools.list.push((name.to_string(), schema.cloned().unwrap_or(Value::Null)));
        }
        tools
    }

    pub fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    pub fn find(&self, name: &str) -> Option<usize> {
        self.by_name.get(name).copied()
    }

    pub fn name(&self, tool: usize) -> &str {
        self.list.get(tool).map_or("", |(name, _)| name)
    }

    /// What a parameter may be; a string where nothing is said.
    pub fn types(&self, tool: usize, key: &str) -> Types {
        let Some((_, root)) = self.list.get(tool) else { return Types::STRING };
        let mut schema = Schema { root, parts: 0 };
        match schema.property(root, key, 0) {
            None | Some(Types::ANY | Types::NONE) => Types::STRING,
            Some(types) => types,
        }
    }
}

struct Schema<'a> {
    root: &'a Value,
    /// Looked at so far.
    parts: usize,
}

impl<'a> Schema<'a> {
    fn enter(&mut self, schema: &'a Value, depth: usize) -> Option<&'a Map<String, Value>> {
        self.parts += 1;
        schema.as_object().filter(|_| self.parts <= MAX_PARTS && depth <= MAX_DEPTH)
    }

    fn target(&self, fields: &Map<String, Value>) -> Option<&'a Value> {
        let path = fields.get("$ref")?.as_str()?.strip_prefix('#')?;
        self.root.pointer(path).or_else(|| self.root.pointer(&unescape(path)?))
    }

    /// The types of the property `key` of an object schema; `None`: it says nothing of it.
    fn property(&mut self, schema: &'a Value, key: &str, depth: usize) -> Option<Types> {
        let fields = self.enter(schema, depth)?;
        if let Some(property) = fields.get("properties").and_then(|p| p.get(key)) {
            return Some(self.types(property, depth + 1));
        }
        let mut found: Option<Types> = None;
        for part in self.target(fields).into_iter().chain(parts(fields, &["allOf", "anyOf", "oneOf"])) {
            if let Some(types) = self.property(part, key, depth + 1) {
                found = Some(found.unwrap_or(Types::NONE).or(types));
            }
        }
        match fields.get("additionalProperties") {
            Some(further @ Value::Object(_)) if found.is_none() => Some(self.types(further, depth + 1)),
            _ => found,
        }
    }

    fn types(&mut self, schema: &'a Value, depth: usize) -> Types {
        let Some(fields) = self.enter(schema, depth) else { return Types::ANY };
        let mut types = match fields.get("type") {
            Some(Value::String(name)) => Types::named(name),
            Some(Value::Array(names)) => {
                names.iter().filter_map(Value::as_str).map(Types::named).fold(Types::NONE, Types::or)
            }
            _ => Types::ANY,
        };
        if let Some(value) = fields.get("const") {
            types = types.and(Types::of_value(value));
        }
        if let Some(Value::Array(values)) = fields.get("enum") {
            types = types.and(values.iter().map(Types::of_value).fold(Types::NONE, Types::or));
        }
        for part in self.target(fields).into_iter().chain(parts(fields, &["allOf"])) {
            types = types.and(self.types(part, depth + 1));
        }
        for key in ["anyOf", "oneOf"] {
            let any = parts(fields, &[key]).into_iter().map(|part| self.types(part, depth + 1)).reduce(Types::or);
            types = types.and(any.unwrap_or(Types::ANY));
        }
        if types == Types::ANY {
            types = implied(fields);
        }
        let nullable = types != Types::ANY && fields.get("nullable") == Some(&Value::Bool(true));
        if nullable { types.or(Types::NULL) } else { types }
    }
}

/// What a schema without a type is about.
fn implied(fields: &Map<String, Value>) -> Types {
    let has = |keys: &[&str]| keys.iter().any(|k| fields.contains_key(*k));
    if has(&["properties", "additionalProperties", "required"]) {
        Types::OBJECT
    } else if has(&["items", "prefixItems", "minItems", "maxItems"]) {
        Types::ARRAY
    } else if has(&["minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"]) {
        Types::NUMBER.or(Types::INTEGER)
    } else {
        Types::ANY
    }
}

/// The members of the lists under these keys.
fn parts<'a>(fields: &'a Map<String, Value>, keys: &[&str]) -> Vec<&'a Value> {
    keys.iter().filter_map(|k| fields.get(*k)?.as_array()).flatten().collect()
}

/// The `%` escapes of a URI fragment undone.
fn unescape(path: &str) -> Option<String> {
    let mut bytes = Vec::new();
    let mut rest = path.as_bytes();
    while let [first, tail @ ..] = rest {
        rest = tail;
        bytes.push(match (first, tail) {
            (b'%', [high, low, ..]) => {
                rest = &tail[2..];
                let digit = |b: u8| (b as char).to_digit(16);
                (digit(*high)? * 16 + digit(*low)?) as u8
            }
            _ => *first,
        });
    }
    String::from_utf8(bytes).ok()
}
