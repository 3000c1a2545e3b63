//! Chat templates: the checkpoint's own Jinja text, rendered as transformers renders it.
//!
//! The engine is minijinja; what differs from jinja2 under Python (printing of values, `tojson`, white space, what
//! counts as a sequence) is replaced here. One difference stays: a bare float with an exponent, joined by `~`, prints
//! positionally (`1e20 ~ ''`). Integers beyond 64 bits are floats, since that is how they are parsed.
//!
//! A template is outside data: its work is bounded by fuel, its output by size, and the nesting of the values that it
//! builds by a check on every assignment, since printing, comparing and freeing a value takes stack for each level.

mod python;
mod source;
mod text;
mod time;

use std::borrow::Cow;
use std::io;
use std::time::SystemTime;

use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Kwargs, ObjectRepr, Rest, Value, ValueKind};
use minijinja::{Environment, Error, ErrorKind, State};
use serde_json::{Map, Value as Json};

use crate::conversation::{Conversation, Message};
use python::{JsonOptions, from_json, to_str};

/// What a template may cost.
#[derive(Clone, Copy, Debug)]
pub struct TemplateLimits {
    /// Work: one unit is an instruction or 64 bytes produced. 10 million take about a second; a prompt of a million
    /// tokens, in 2,000 messages, needs less than one million.
    pub fuel: u64,
    /// Bytes of the rendered prompt.
    pub output_bytes: usize,
    /// Bytes of the template's source.
    pub source_bytes: usize,
}

impl Default for TemplateLimits {
    fn default() -> Self {
        TemplateLimits { fuel: 10_000_000, output_bytes: 64 << 20, source_bytes: 4 << 20 }
    }
}

/// Why a template could not be read or rendered. Lines are those of the template.
#[derive(Debug, thiserror::Error)]
pub enum TemplateError {
    #[error("the chat template has {found} bytes; at most {limit} are read")]
    SourceTooLong { found: usize, limit: usize },
    #[error("the chat template is not valid Jinja: line {line}: {message}")]
    Syntax { line: usize, message: String },
    /// The template called `raise_exception`: it says itself what is wrong with the conversation.
    #[error("the chat template refuses this conversation: {message} (line {line})")]
    Raised { line: usize, message: String },
    #[error("the chat template failed in line {line}: {message}")]
    Failed { line: usize, message: String },
    #[error("the chat template was stopped in line {line}: it did more than {fuel} units of work")]
    OutOfFuel { line: usize, fuel: u64 },
    #[error("the chat template wrote more than {limit} bytes")]
    OutputTooLong { limit: usize },
    #[error("the conversation has no messages; a chat template needs at least one")]
    NoMessages,
    #[error("chat_template_kwargs may not set {0:?}: the conversation sets it")]
    ReservedKey(String),
}

/// A compiled chat template with its fixed variables.
pub struct ChatTemplate {
    environment: Environment<'static>,
    limits: TemplateLimits,
    special_tokens: Map<String, Json>,
}

const NAME: &str = "chat_template";

impl ChatTemplate {
    /// Compiles a template. `special_tokens` are variables such as `bos_token` and `eos_token`.
    pub fn new(source: &str, special_tokens: Map<String, Json>) -> Result<ChatTemplate, TemplateError> {
        ChatTemplate::with_limits(source, special_tokens, TemplateLimits::default(), SystemTime::now)
    }

    /// As [`ChatTemplate::new`], with limits and the clock that `strftime_now` reads.
    pub fn with_limits(
        source: &str,
        special_tokens: Map<String, Json>,
        limits: TemplateLimits,
        clock: fn() -> SystemTime,
    ) -> Result<ChatTemplate, TemplateError> {
        if source.len() > limits.source_bytes {
            return Err(TemplateError::SourceTooLong { found: source.len(), limit: limits.source_bytes });
        }
        let mut environment = Environment::new();
        environment.set_syntax(syntax());
        environment.set_fuel(Some(limits.fuel));
        environment.set_formatter(|out, _, value| Ok(out.write_str(&to_str(value)?)?));
        environment.set_unknown_method_callback(text::method);
        environment.add_filter("tojson", to_json);
        environment.add_filter("string", |value: &Value| to_str(value).map(Cow::into_owned));
        environment.add_filter("trim", text::trim);
        environment.add_filter("join", text::join);
        environment.add_filter("indent", text::indent);
        environment.add_filter(source::CHECKED, |state: &State<'_, '_>, value: &Value| checked(state, value, true));
        environment
            .add_filter(source::CHECKED_ATTRIBUTE, |state: &State<'_, '_>, value: &Value| checked(state, value, false));
        environment.add_test("sequence", is_sequence);
        environment.add_test("iterable", is_iterable);
        environment.add_function("raise_exception", raise_exception);
        environment.add_function("strftime_now", move |format: &str| time::strftime(format, clock()));
        environment
            .add_template_owned(NAME, source::prepare(source))
            .map_err(|e| TemplateError::Syntax { line: line_of(&e), message: message_of(&e) })?;
        Ok(ChatTemplate { environment, limits, special_tokens })
    }

    /// Renders the prompt. With `add_generation_prompt` it ends where the assistant's answer begins.
    pub fn render(&self, chat: &Conversation, add_generation_prompt: bool) -> Result<String, TemplateError> {
        if chat.messages.is_empty() {
            return Err(TemplateError::NoMessages);
        }
        let variables = self.variables(chat, add_generation_prompt)?;
        let mut out = Bounded { text: Vec::new(), limit: self.limits.output_bytes, overflowed: false };
        let template = self.environment.get_template(NAME).map_err(|e| self.failure(&e))?;
        let result = template.render_captured_to(variables, &mut out).map(drop);
        match result {
            _ if out.overflowed => Err(TemplateError::OutputTooLong { limit: self.limits.output_bytes }),
            Err(error) => Err(self.failure(&error)),
            Ok(()) => Ok(String::from_utf8_lossy(&out.text).into_owned()),
        }
    }

    /// The variables that transformers passes: later ones replace earlier ones of the same name.
    fn variables(&self, chat: &Conversation, add_generation_prompt: bool) -> Result<Value, TemplateError> {
        let messages: Vec<Json> = chat.messages.iter().map(template_message).collect();
        let tools = if chat.tools.is_empty() { Json::Null } else { Json::Array(chat.tools.clone()) };
        let mut variables = self.special_tokens.clone();
        if let Some(choice) = chat.enable_thinking {
            variables.insert("enable_thinking".into(), choice.into());
        }
        for (key, value) in &chat.template_kwargs {
            if ["messages", "tools", "documents", "add_generation_prompt"].contains(&key.as_str()) {
                return Err(TemplateError::ReservedKey(key.clone()));
            }
            variables.insert(key.clone(), value.clone());
        }
        variables.insert("messages".into(), Json::Array(messages));
        variables.insert("tools".into(), tools);
        variables.insert("documents".into(), Json::Null);
        variables.insert("add_generation_prompt".into(), add_generation_prompt.into());
        Ok(from_json(&Json::Object(variables)))
    }

    fn failure(&self, error: &Error) -> TemplateError {
        let line = line_of(error);
        let mut cause: Option<&(dyn std::error::Error + 'static)> = Some(error);
        while let Some(current) = cause {
            if let Some(Raised(message)) = current.downcast_ref() {
                return TemplateError::Raised { line, message: message.clone() };
            }
            if current.downcast_ref::<Error>().is_some_and(|e| e.kind() == ErrorKind::OutOfFuel) {
                return TemplateError::OutOfFuel { line, fuel: self.limits.fuel };
            }
            cause = current.source();
        }
        TemplateError::Failed { line, message: message_of(error) }
    }
}

/// As transformers sets jinja2 up: a block tag takes its whole line when nothing else is on it.
fn syntax() -> SyntaxConfig {
    let mut syntax = SyntaxConfig::builder();
    syntax.trim_blocks(true).lstrip_blocks(true);
    syntax.build().unwrap_or_default()
}

/// transformers gives the reasoning under two names, `thinking` before all other keys.
fn template_message(message: &Message) -> Json {
    let json = message.to_json();
    match (&message.reasoning_content, json) {
        (Some(text), Json::Object(fields)) => {
            let mut out = Map::new();
            out.insert("thinking".into(), text.as_str().into());
            out.extend(fields);
            Json::Object(out)
        }
        (_, json) => json,
    }
}

fn line_of(error: &Error) -> usize {
    error.line().unwrap_or(0)
}

fn message_of(error: &Error) -> String {
    match error.detail() {
        Some(detail) => format!("{}: {detail}", error.kind()),
        None => error.kind().to_string(),
    }
}

/// The message of `raise_exception`, carried through the engine's error.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct Raised(String);

fn raise_exception(message: &Value) -> Result<Value, Error> {
    let message = to_str(message)?.into_owned();
    Err(Error::new(ErrorKind::InvalidOperation, message.clone()).with_source(Raised(message)))
}

/// `tojson(ensure_ascii=False, indent=None, separators=None, sort_keys=False)`, by position or by name.
fn to_json(value: &Value, args: Rest<Value>, kwargs: Kwargs) -> Result<Value, Error> {
    let option = |index: usize, name: &str| -> Result<Option<Value>, Error> {
        let value = match args.get(index) {
            Some(value) => Some(value.clone()),
            None => kwargs.get::<Option<Value>>(name)?,
        };
        Ok(value.filter(|v| !v.is_none() && !v.is_undefined()))
    };
    let options = JsonOptions {
        ensure_ascii: option(0, "ensure_ascii")?.is_some_and(|v| v.is_true()),
        indent: option(1, "indent")?.map(|v| text::indentation(&v)).transpose()?,
        separators: option(2, "separators")?.map(|v| separator_texts(&v)).transpose()?,
        sort_keys: option(3, "sort_keys")?.is_some_and(|v| v.is_true()),
    };
    kwargs.assert_all_used()?;
    python::to_json(value, &options).map(Value::from)
}

fn separator_texts(pair: &Value) -> Result<(String, String), Error> {
    let texts: Vec<Value> = pair.try_iter()?.collect();
    match texts.as_slice() {
        [item, key] => Ok((to_str(item)?.into_owned(), to_str(key)?.into_owned())),
        _ => Err(Error::new(ErrorKind::InvalidOperation, "tojson: separators must be a pair")),
    }
}

/// A value that a template may assign: not nested too deep, and no namespace inside another one, which could then hold
/// itself. Values of the request are not walked: JSON is nested 128 levels at most.
fn checked(state: &State<'_, '_>, value: &Value, namespaces: bool) -> Result<Value, Error> {
    const DEEPEST: usize = 200;
    const MOST_ITEMS: usize = 1_000_000;
    let refuse = |what: String| Err(Error::new(ErrorKind::InvalidOperation, what));
    let own_container = |v: &Value| v.as_object().is_some() && !python::is_from_json(v);
    let mut level = vec![value.clone()];
    let mut visited = 0;
    for _ in 0..DEEPEST {
        let mut next = Vec::new();
        for object in level.iter().filter(|v| own_container(v)).filter_map(Value::as_object) {
            if !namespaces && object.type_name().ends_with("Namespace") {
                return refuse("a namespace can not hold a namespace".into());
            }
            let items: Box<dyn Iterator<Item = Value>> = match object.repr() {
                ObjectRepr::Map => Box::new(object.try_iter_pairs().into_iter().flatten().map(|(_, item)| item)),
                ObjectRepr::Seq | ObjectRepr::Iterable => Box::new(object.try_iter().into_iter().flatten()),
                _ => Box::new(std::iter::empty()),
            };
            for item in items {
                visited += 1;
                if visited > MOST_ITEMS {
                    return refuse(format!("a value holds more than {MOST_ITEMS} values"));
                }
                if own_container(&item) {
                    next.push(item);
                }
            }
        }
        if next.is_empty() {
            state.consume_fuel(visited as u64)?;
            return Ok(value.clone());
        }
        level = next;
    }
    refuse(format!("a value is nested more than {DEEPEST} levels deep"))
}

/// jinja2 calls a sequence what has a length and an index: strings and dicts too. Slices are lists in Python and lazy
/// iterables here, so iterables count.
fn is_sequence(value: &Value) -> bool {
    use ValueKind::{Iterable, Map, Seq, String, Undefined};
    matches!(value.kind(), Seq | Map | String | Undefined | Iterable)
}

fn is_iterable(value: &Value) -> bool {
    is_sequence(value)
}

/// A writer that refuses to grow past its limit.
struct Bounded {
    text: Vec<u8>,
    limit: usize,
    overflowed: bool,
}

impl io::Write for Bounded {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if bytes.len() > self.limit.saturating_sub(self.text.len()) {
            self.overflowed = true;
            return Err(io::Error::other("output limit"));
        }
        self.text.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests;
