//! The one conversation model: what a person, a program or a file says, in the form that every template reads.
//!
//! A chat file is either an object `{messages, tools?, enable_thinking?, chat_template_kwargs?}` or the bare array of
//! messages. Key order is kept everywhere, because templates print it. Errors name the JSON path of the value.

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::{Map, Value};

/// A conversation, and what the request says about how to render it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Conversation {
    pub messages: Vec<Message>,
    /// Tool declarations as the request has them, usually `{"type": "function", "function": {...}}`.
    pub tools: Vec<Value>,
    /// `None` leaves the choice to the template's own default.
    pub enable_thinking: Option<bool>,
    /// Further variables for the template, such as `preserve_thinking` or `reasoning_effort`.
    pub template_kwargs: Map<String, Value>,
}

/// Who speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    System,
    Developer,
    User,
    Assistant,
    Tool,
}

/// One message. A JSON null is the same as an absent key, as in transformers 5.
#[derive(Clone, Debug, PartialEq)]
pub struct Message {
    pub role: Role,
    pub content: Option<Content>,
    /// The assistant's thinking. Read from `reasoning_content`, else from the older names `thinking` and `reasoning`.
    pub reasoning_content: Option<String>,
    pub tool_calls: Vec<ToolCall>,
    /// In a tool message: the call that it answers.
    pub tool_call_id: Option<String>,
    pub name: Option<String>,
    /// Keys that martlet gives no meaning to; a template may still read them.
    pub extra: Map<String, Value>,
}

/// What a message says.
#[derive(Clone, Debug, PartialEq)]
pub enum Content {
    Text(String),
    Parts(Vec<Part>),
}

/// One part of a message, kept as the request has it: `{"type": "text", "text": ...}`, `{"type": "image_url", ...}`.
#[derive(Clone, Debug, PartialEq)]
pub struct Part(pub Map<String, Value>);

/// A call that the assistant made.
#[derive(Clone, Debug, PartialEq)]
pub struct ToolCall {
    pub id: Option<String>,
    pub name: String,
    pub arguments: Arguments,
}

/// Arguments of a call. The string form of a JSON object is parsed (an empty string is an empty object); any other
/// string stays as it is, for the template to judge.
#[derive(Clone, Debug, PartialEq)]
pub enum Arguments {
    Object(Map<String, Value>),
    Raw(String),
}

/// A conversation that can not be read, with the place.
#[derive(Debug, thiserror::Error, PartialEq)]
pub enum ConversationError {
    #[error("{path}: expected {expected}, found {found}")]
    WrongType { path: String, expected: &'static str, found: String },
    #[error("{path}: the key {key:?} is missing")]
    MissingKey { path: String, key: &'static str },
    #[error("{path}: unknown key {key:?}; known are {known}")]
    UnknownKey { path: String, key: String, known: &'static str },
    #[error("{path}: unknown role {found:?}; known are system, developer, user, assistant, tool")]
    UnknownRole { path: String, found: String },
    #[error("not valid JSON: {0}")]
    Syntax(String),
}

type Result<T> = std::result::Result<T, ConversationError>;

impl Role {
    pub fn as_str(self) -> &'static str {
        match self {
            Role::System => "system",
            Role::Developer => "developer",
            Role::User => "user",
            Role::Assistant => "assistant",
            Role::Tool => "tool",
        }
    }

    fn from_str(name: &str) -> Option<Role> {
        [Role::System, Role::Developer, Role::User, Role::Assistant, Role::Tool]
            .into_iter()
            .find(|r| r.as_str() == name)
    }
}

impl Message {
    /// A message of plain text and nothing else.
    pub fn text(role: Role, text: impl Into<String>) -> Message {
        Message {
            role,
            content: Some(Content::Text(text.into())),
            reasoning_content: None,
            tool_calls: Vec::new(),
            tool_call_id: None,
            name: None,
            extra: Map::new(),
        }
    }

    /// The message as the JSON object that templates see, in one fixed order of keys.
    pub fn to_json(&self) -> Value {
        let mut out = Map::new();
        out.insert("role".into(), self.role.as_str().into());
        match &self.content {
            Some(Content::Text(text)) => drop(out.insert("content".into(), text.as_str().into())),
            Some(Content::Parts(parts)) => {
                let parts = parts.iter().map(|p| Value::Object(p.0.clone())).collect();
                out.insert("content".into(), Value::Array(parts));
            }
            None => {}
        }
        if let Some(text) = &self.reasoning_content {
            out.insert("reasoning_content".into(), text.as_str().into());
        }
        if !self.tool_calls.is_empty() {
            out.insert("tool_calls".into(), self.tool_calls.iter().map(ToolCall::to_json).collect());
        }
        for (key, value) in [("tool_call_id", &self.tool_call_id), ("name", &self.name)] {
            if let Some(value) = value {
                out.insert(key.into(), value.as_str().into());
            }
        }
        out.extend(self.extra.iter().map(|(k, v)| (k.clone(), v.clone())));
        Value::Object(out)
    }

    fn from_json(value: &Value, path: &str) -> Result<Message> {
        let fields = object(value, path)?;
        let role = text(required(fields, path, "role")?, &format!("{path}.role"))?;
        let role = Role::from_str(&role)
            .ok_or_else(|| ConversationError::UnknownRole { path: format!("{path}.role"), found: role })?;
        let mut message = Message { content: None, ..Message::text(role, "") };
        for (key, value) in fields.iter().filter(|(_, v)| !v.is_null()) {
            let path = format!("{path}.{key}");
            match key.as_str() {
                "role" => {}
                "content" => message.content = Some(Content::from_json(value, &path)?),
                "reasoning_content" => message.reasoning_content = Some(text(value, &path)?),
                "tool_calls" => message.tool_calls = each(value, &path, ToolCall::from_json)?,
                "tool_call_id" => message.tool_call_id = Some(text(value, &path)?),
                "name" => message.name = Some(text(value, &path)?),
                _ => drop(message.extra.insert(key.clone(), value.clone())),
            }
        }
        for older in ["thinking", "reasoning"] {
            if let Some(Value::String(text)) = message.extra.get(older) {
                message.reasoning_content.get_or_insert_with(|| text.clone());
            }
        }
        Ok(message)
    }
}

impl Content {
    fn from_json(value: &Value, path: &str) -> Result<Content> {
        match value {
            Value::String(text) => Ok(Content::Text(text.clone())),
            Value::Array(_) => Ok(Content::Parts(each(value, path, |v, path| Ok(Part(object(v, path)?.clone())))?)),
            other => Err(wrong_type(path, "a string, null or an array of parts", other)),
        }
    }
}

impl Part {
    /// The text of a text part.
    pub fn text(&self) -> Option<&str> {
        self.0.get("text").and_then(Value::as_str)
    }
}

impl ToolCall {
    fn to_json(&self) -> Value {
        let arguments = match &self.arguments {
            Arguments::Object(map) => Value::Object(map.clone()),
            Arguments::Raw(text) => text.as_str().into(),
        };
        let mut out = Map::new();
        if let Some(id) = &self.id {
            out.insert("id".into(), id.as_str().into());
        }
        out.insert("type".into(), "function".into());
        out.insert("function".into(), serde_json::json!({"name": self.name, "arguments": arguments}));
        Value::Object(out)
    }

    /// Reads `{id?, type?, function: {name, arguments}}`, and the older flat `{name, arguments}`.
    fn from_json(value: &Value, path: &str) -> Result<ToolCall> {
        let outer = object(value, path)?;
        let id = outer.get("id").filter(|v| !v.is_null()).map(|v| text(v, &format!("{path}.id"))).transpose()?;
        let (function, path) = match outer.get("function") {
            Some(inner) => {
                let path = format!("{path}.function");
                (object(inner, &path)?, path)
            }
            None => (outer, path.to_string()),
        };
        let name = text(required(function, &path, "name")?, &format!("{path}.name"))?;
        let arguments = match function.get("arguments") {
            None | Some(Value::Null) => Arguments::Object(Map::new()),
            Some(Value::Object(map)) => Arguments::Object(map.clone()),
            Some(Value::String(text)) => Arguments::parse(text),
            Some(other) => return Err(wrong_type(&format!("{path}.arguments"), "an object or a string", other)),
        };
        Ok(ToolCall { id, name, arguments })
    }
}

impl Arguments {
    /// The string form that the APIs use.
    pub fn parse(text: &str) -> Arguments {
        if text.trim().is_empty() {
            return Arguments::Object(Map::new());
        }
        match serde_json::from_str(text) {
            Ok(map) => Arguments::Object(map),
            Err(_) => Arguments::Raw(text.to_string()),
        }
    }

    /// As an object. No template can print what is none (it was cut, say); under a name of its own the model still sees
    /// what was sent.
    pub fn into_object(self) -> Map<String, Value> {
        match self {
            Arguments::Object(map) => map,
            Arguments::Raw(text) => Map::from_iter([("arguments".to_string(), Value::from(text))]),
        }
    }
}

impl Conversation {
    /// Messages alone, with every choice left to the template.
    pub fn new(messages: Vec<Message>) -> Conversation {
        Conversation { messages, ..Conversation::default() }
    }

    /// Chooses whether to think, over what the further variables of the template say.
    pub fn set_thinking(&mut self, choice: bool) {
        self.template_kwargs.retain(|key, _| key != "enable_thinking");
        self.enable_thinking = Some(choice);
    }

    /// Reads a chat file.
    pub fn parse(json: &str) -> Result<Conversation> {
        let value: Value = serde_json::from_str(json).map_err(|e| ConversationError::Syntax(e.to_string()))?;
        Conversation::from_json(&value)
    }

    /// Reads a chat object, or a bare array of messages. Paths in errors start at `messages`.
    pub fn from_json(value: &Value) -> Result<Conversation> {
        let fields = match value {
            Value::Array(_) => return Ok(Conversation::new(each(value, "messages", Message::from_json)?)),
            Value::Object(fields) => fields,
            other => {
                return Err(wrong_type("the chat", "an object with \"messages\", or an array of messages", other));
            }
        };
        let messages = required(fields, "the chat", "messages")?;
        let mut chat = Conversation::new(each(messages, "messages", Message::from_json)?);
        for (key, value) in fields.iter().filter(|(_, v)| !v.is_null()) {
            match key.as_str() {
                "messages" => {}
                "tools" => chat.tools = each(value, key, |v, path| object(v, path).map(|_| v.clone()))?,
                "enable_thinking" => {
                    let choice = value.as_bool().ok_or_else(|| wrong_type(key, "true or false", value))?;
                    chat.enable_thinking = Some(choice);
                }
                "chat_template_kwargs" => chat.template_kwargs = object(value, key)?.clone(),
                _ => {
                    return Err(ConversationError::UnknownKey {
                        path: "the chat".into(),
                        key: key.clone(),
                        known: "messages, tools, enable_thinking, chat_template_kwargs",
                    });
                }
            }
        }
        Ok(chat)
    }

    /// The chat file of this conversation; reading it back gives an equal conversation.
    pub fn to_json(&self) -> Value {
        let mut out = Map::new();
        out.insert("messages".into(), self.messages.iter().map(Message::to_json).collect());
        if !self.tools.is_empty() {
            out.insert("tools".into(), Value::Array(self.tools.clone()));
        }
        if let Some(choice) = self.enable_thinking {
            out.insert("enable_thinking".into(), choice.into());
        }
        if !self.template_kwargs.is_empty() {
            out.insert("chat_template_kwargs".into(), Value::Object(self.template_kwargs.clone()));
        }
        Value::Object(out)
    }
}

impl Serialize for Conversation {
    fn serialize<S: Serializer>(&self, serializer: S) -> std::result::Result<S::Ok, S::Error> {
        self.to_json().serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Conversation {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> std::result::Result<Self, D::Error> {
        Conversation::from_json(&Value::deserialize(deserializer)?).map_err(D::Error::custom)
    }
}

fn wrong_type(path: &str, expected: &'static str, found: &Value) -> ConversationError {
    let found = match found {
        Value::Null => "null".into(),
        Value::Bool(b) => b.to_string(),
        Value::Number(n) => format!("the number {n}"),
        Value::String(_) => "a string".into(),
        Value::Array(_) => "an array".into(),
        Value::Object(_) => "an object".into(),
    };
    ConversationError::WrongType { path: path.to_string(), expected, found }
}

fn object<'a>(value: &'a Value, path: &str) -> Result<&'a Map<String, Value>> {
    value.as_object().ok_or_else(|| wrong_type(path, "an object", value))
}

fn text(value: &Value, path: &str) -> Result<String> {
    value.as_str().map(str::to_string).ok_or_else(|| wrong_type(path, "a string", value))
}

fn required<'a>(fields: &'a Map<String, Value>, path: &str, key: &'static str) -> Result<&'a Value> {
    fields.get(key).ok_or_else(|| ConversationError::MissingKey { path: path.to_string(), key })
}

fn each<T>(value: &Value, path: &str, read: impl Fn(&Value, &str) -> Result<T>) -> Result<Vec<T>> {
    let items = value.as_array().ok_or_else(|| wrong_type(path, "an array", value))?;
    items.iter().enumerate().map(|(i, item)| read(item, &format!("{path}[{i}]"))).collect()
}

#[cfg(test)]
mod tests;
