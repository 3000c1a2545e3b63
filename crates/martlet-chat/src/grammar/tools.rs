//! What calls of the declared tools may look like.

use std::sync::{Arc, OnceLock};

use serde_json::{Map, Value, json};

use super::compile::json_between;
use super::json::Follower;
use super::schema::{self, Options};
use super::{GrammarError, PARAMETER_END, Vocabulary};

/// Parameters of one tool that are told apart as set or not yet set; those beyond, in order of name, may be left out or
/// repeated.
pub(super) const MAX_TRACKED: usize = 128;
/// References and alternatives that are followed to learn what a parameter is.
const MAX_HOPS: usize = 8;
/// Texts that a parameter may be one of; longer lists are taken for any text.
const MAX_LITERALS: usize = 4096;

/// How a model writes calls.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CallForm {
    /// `<function=NAME>` with a `<parameter=KEY>` for each argument: Qwen3.5 and later, and Qwen3-Coder.
    #[default]
    Xml,
    /// `{"name": NAME, "arguments": {...}}`: earlier ones.
    Json,
}

/// The tools that may be called.
pub struct CallGrammar {
    pub(super) form: CallForm,
    /// By name as it is written, ascending.
    pub(super) tools: Vec<Tool>,
    vocabulary: Arc<Vocabulary>,
}

pub(super) struct Tool {
    /// As the model writes it.
    pub name: String,
    /// `keys` of them have names, ascending; the next, if any, stands for all further names.
    pub parameters: Vec<Parameter>,
    pub keys: usize,
    /// One bit for each parameter that must be set.
    pub required: u128,
    /// Of the JSON form: all arguments.
    pub arguments: Option<Json>,
}

pub(super) struct Parameter {
    pub name: String,
    pub kind: Kind,
}

/// How a value is written.
pub(super) enum Kind {
    /// As it is, up to the closing tag.
    Text,
    /// One of these, ascending; none holds a newline.
    Literals(Vec<String>),
    /// As JSON.
    Json(Json),
}

/// A JSON value; compiled when a model first writes one.
pub(super) struct Json {
    schema: Value,
    around: Around,
    start: OnceLock<Option<Box<Follower>>>,
}

/// The texts before and behind a JSON value that are followed with it, since tokens hold them together. The value is at
/// its end where a token ends with the second.
type Around = [&'static str; 2];
const VALUE: Around = ["", "\n"];
const ARGUMENTS: Around = [" ", "}\n"];

impl CallGrammar {
    /// Reads tool declarations (`{"type": "function", "function": {name, parameters}}`, or the inner object alone). What a
    /// schema says is enforced as far as it can be; with `strict` in the declaration, what can not be is an error. Lengths,
    /// patterns and formats of parameters that are text are not enforced. `names`: the tools that may be called; `None`:
    /// all.
    pub fn new(
        tools: &[Value],
        names: Option<&[String]>,
        form: CallForm,
        vocabulary: &Arc<Vocabulary>,
    ) -> Result<CallGrammar, GrammarError> {
        let mut read: Vec<Tool> = Vec::with_capacity(tools.len());
        let mut known = Vec::new();
        for (index, declared) in tools.iter().enumerate() {
            let at_fault = |path: String, message: String| GrammarError::Tool { index, path, message };
            let (function, path) = match declared.get("function") {
                Some(function) => (function, "function"),
                None => (declared, ""),
            };
            // A tool without a name is none that can be called by one.
            let Some(name) = function.get("name").and_then(Value::as_str) else { continue };
            if name.is_empty() || name.contains(['<', '>', '\n']) {
                return Err(at_fault(schema::join(path, "name"), format!("{name:?} can not be written in a call")));
            }
            known.push(name);
            if names.is_some_and(|names| !names.iter().any(|n| n == name)) {
                continue;
            }
            let tool = Tool::read(name, function, form, vocabulary).map_err(|e| match e {
                GrammarError::Keyword { path: at } => {
                    at_fault(inside(path, &at), "the keyword can not be enforced; leave it or \"strict\" out".into())
                }
                GrammarError::Schema { path: at, message } => at_fault(inside(path, &at), message),
                other => at_fault(inside(path, ""), other.to_string()),
            })?;
            read.push(tool);
        }
        if let Some(name) = names.into_iter().flatten().find(|n| !known.contains(&n.as_str())) {
            let known = known.iter().map(|k| format!("{k:?}")).collect::<Vec<_>>().join(", ");
            return Err(GrammarError::UnknownTool { name: name.clone(), known });
        }
        // Of two with one name the first counts: the sort is stable.
        read.sort_by(|a, b| a.name.cmp(&b.name));
        read.dedup_by(|later, first| later.name == first.name);
        if read.is_empty() {
            return Err(GrammarError::NoTools);
        }
        Ok(CallGrammar { form, tools: read, vocabulary: vocabulary.clone() })
    }

    /// At the beginning of a value; `None` when there is no grammar of it for this vocabulary.
    pub(super) fn follower(&self, json: &Json) -> Option<Follower> {
        json.start.get_or_init(|| json.compile(&self.vocabulary)).as_ref().map(|start| start.fork())
    }
}

/// `function.parameters.PATH`
fn inside(tool: &str, path: &str) -> String {
    let parameters = schema::join(tool, "parameters");
    match path {
        "" => parameters,
        _ if path.starts_with('[') => parameters + path,
        _ => format!("{parameters}.{path}"),
    }
}

impl Json {
    fn new(schema: Value, around: Around) -> Json {
        Json { schema, around, start: OnceLock::new() }
    }

    /// By its schema as far as it can be followed, else any JSON.
    fn compile(&self, vocabulary: &Vocabulary) -> Option<Box<Follower>> {
        let any = || json_between(vocabulary, schema::prepare(&json!({}), None, Options::Lenient), self.around);
        json_between(vocabulary, self.schema.clone(), self.around).or_else(|_| any()).map(Box::new).ok()
    }

    fn check(&self, vocabulary: &Vocabulary) -> Result<(), String> {
        json_between(vocabulary, self.schema.clone(), self.around).map(drop)
    }
}

impl Tool {
    fn read(name: &str, function: &Value, form: CallForm, vocabulary: &Vocabulary) -> Result<Tool, GrammarError> {
        let none = json!({"type": "object", "properties": {}, "additionalProperties": false});
        let root = function.get("parameters").filter(|p| !p.is_null()).unwrap_or(&none);
        let strict = function.get("strict") == Some(&Value::Bool(true));
        if strict {
            schema::check(root)?;
        } else {
            schema::check_size(root)?;
        }
        let options = if strict { Options::Exact } else { Options::Lenient };
        let mut fields = Fields::default();
        fields.collect(root, root, MAX_HOPS, true);
        let mut parameters: Vec<Parameter> = fields
            .properties
            .iter()
            .filter(|(_, schema)| **schema != Value::Bool(false))
            .map(|(name, schema)| Parameter { name: name.clone(), kind: Kind::of(root, schema, options) })
            // What the frame can not hold can not be set.
            .filter(|p| !p.name.is_empty() && !p.name.contains(['<', '>', '\n']))
            .collect();
        parameters.sort_by(|a, b| a.name.cmp(&b.name));
        if strict && form == CallForm::Xml {
            for Parameter { name, kind } in &parameters {
                let Kind::Json(value) = kind else { continue };
                let path = schema::join("properties", name);
                value.check(vocabulary).map_err(|message| GrammarError::Schema { path, message })?;
            }
        }
        let keys = parameters.len();
        let is_required = |p: &Parameter| fields.required.contains(&p.name.as_str());
        let tracked = parameters.iter().take(MAX_TRACKED).enumerate();
        let required = tracked.filter(|(_, p)| is_required(p)).fold(0, |bits, (i, _)| bits | 1 << i);
        if let Some(schema) = fields.further() {
            parameters.push(Parameter { name: String::new(), kind: Kind::of(root, schema, options) });
        }
        let written = Value::from(name).to_string();
        let name = if form == CallForm::Json { written[1..written.len() - 1].to_string() } else { name.to_string() };
        let whole = || Json::new(schema::prepare(root, None, options), ARGUMENTS);
        let arguments = (form == CallForm::Json).then(whole);
        if let Some(whole) = arguments.as_ref().filter(|_| strict) {
            whole.check(vocabulary).map_err(|message| GrammarError::Schema { path: String::new(), message })?;
        }
        Ok(Tool { name, parameters, keys, required, arguments })
    }

    /// Whether names may be written that are not declared.
    pub(super) fn takes_further(&self) -> bool {
        self.parameters.len() > self.keys
    }
}

/// The parameters of a tool, gathered from all parts of its schema.
#[derive(Default)]
struct Fields<'a> {
    properties: Map<String, Value>,
    required: Vec<&'a str>,
    declared: bool,
    additional: Option<&'a Value>,
}

static ANY: Value = Value::Bool(true);

impl<'a> Fields<'a> {
    fn collect(&mut self, root: &'a Value, schema: &'a Value, hops: usize, certain: bool) {
        if hops == 0 {
            return;
        }
        if let Some(target) = target(root, schema) {
            self.collect(root, target, hops - 1, certain);
        }
        let required = schema.get("required").and_then(Value::as_array).into_iter().flatten().filter_map(Value::as_str);
        if certain {
            self.required.extend(required);
        }
        if let Some(properties) = schema.get("properties").and_then(Value::as_object) {
            self.declared = true;
            for (name, schema) in properties {
                self.properties.entry(name).or_insert_with(|| schema.clone());
            }
        }
        self.additional = self.additional.or(schema.get("additionalProperties"));
        for (key, certain) in [("allOf", certain), ("anyOf", false), ("oneOf", false)] {
            for part in schema.get(key).and_then(Value::as_array).into_iter().flatten() {
                self.collect(root, part, hops - 1, certain);
            }
        }
        if certain {
            let undeclared: Vec<&str> =
                self.required.iter().copied().filter(|k| !self.properties.contains_key(*k)).collect();
            if hops == MAX_HOPS {
                undeclared.iter().for_each(|k| drop(self.properties.insert(k.to_string(), ANY.clone())));
            }
        }
    }

    /// What names that are not declared may hold. Where some are declared, others are meant only if the schema says so.
    fn further(&self) -> Option<&'a Value> {
        match self.additional {
            Some(Value::Bool(false)) => None,
            Some(schema) => Some(schema),
            None => (!self.declared).then_some(&ANY),
        }
    }
}

/// Where a `$ref` inside `root` leads.
fn target<'a>(root: &'a Value, schema: &Value) -> Option<&'a Value> {
    root.pointer(schema.get("$ref")?.as_str()?.strip_prefix('#')?)
}

/// What is known of a value before it is compiled.
enum Shape {
    Text,
    Literals(Vec<String>),
    Json,
}

impl Kind {
    fn of(root: &Value, schema: &Value, options: Options) -> Kind {
        match shape(root, schema, MAX_HOPS) {
            Shape::Text => Kind::Text,
            Shape::Json => Kind::Json(Json::new(schema::prepare(schema, Some(root), options), VALUE)),
            Shape::Literals(mut texts) => {
                texts.sort();
                texts.dedup();
                let plain = |t: &String| !t.contains('\n') && !t.contains(PARAMETER_END);
                match !texts.is_empty() && texts.len() <= MAX_LITERALS && texts.iter().all(plain) {
                    true => Kind::Literals(texts),
                    false => Kind::Text,
                }
            }
        }
    }
}

/// A value that may be a string is text.
fn shape(root: &Value, schema: &Value, hops: usize) -> Shape {
    if hops == 0 {
        return Shape::Json;
    }
    if let Some(target) = target(root, schema) {
        return shape(root, target, hops - 1);
    }
    let list = |key: &str| schema.get(key).and_then(Value::as_array);
    if let Some(value) = schema.get("const") {
        return literals([value]);
    }
    if let Some(values) = list("enum") {
        return literals(values);
    }
    if let Some(parts) = list("anyOf").or(list("oneOf")) {
        return either(parts.iter().map(|part| shape(root, part, hops - 1)));
    }
    let of_type = |name: &str| match name {
        "string" => Shape::Text,
        "boolean" => Shape::Literals(vec!["true".into(), "false".into()]),
        "null" => Shape::Literals(vec!["null".into()]),
        _ => Shape::Json,
    };
    match schema.get("type") {
        Some(Value::String(name)) => of_type(name),
        Some(Value::Array(names)) => either(names.iter().filter_map(Value::as_str).map(of_type)),
        _ => match list("allOf") {
            Some(parts) => parts.iter().map(|part| shape(root, part, hops - 1)).next().unwrap_or(Shape::Text),
            None if ["properties", "items", "prefixItems", "minimum", "maximum"]
                .iter()
                .any(|k| schema.get(k).is_some()) =>
            {
                Shape::Json
            }
            None => Shape::Text,
        },
    }
}

fn either(shapes: impl Iterator<Item = Shape>) -> Shape {
    let (mut all, mut json) = (Vec::new(), false);
    for shape in shapes {
        match shape {
            Shape::Text => return Shape::Text,
            Shape::Literals(texts) => all.extend(texts),
            Shape::Json => json = true,
        }
    }
    if json { Shape::Json } else { Shape::Literals(all) }
}

fn literals<'a>(values: impl IntoIterator<Item = &'a Value>) -> Shape {
    let (mut texts, mut json) = (Vec::new(), false);
    for value in values {
        match value {
            Value::String(text) => texts.push(text.clone()),
            Value::Array(_) | Value::Object(_) => json = true,
            other => texts.push(other.to_string()),
        }
    }
    match (json, texts.is_empty()) {
        (false, _) => Shape::Literals(texts),
        (true, true) => Shape::Json,
        (true, false) => Shape::Text,
    }
}
