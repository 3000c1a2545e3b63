//! Items of responses as messages of a conversation: what the model said in a row is one message.

use crate::auth::Client;
use crate::error::ApiError;
use crate::json::{fields, get, join, list, need_text, text, wrong};
use crate::openai::messages::text_part;
use crate::store::Store;
use crate::text::without_volatile_lines;
use crate::tools::{Tools, custom_arguments};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use martlet_chat::{Arguments, Content, Message, Part, Role, ToolCall};
use serde_json::{Map, Value};

/// Items that only their own provider could make or use; they say nothing to this model.
const HOSTED: [&str; 14] = [
    "web_search_call",
    "file_search_call",
    "image_generation_call",
    "code_interpreter_call",
    "computer_call",
    "computer_call_output",
    "local_shell_call",
    "local_shell_call_output",
    "mcp_list_tools",
    "mcp_call",
    "mcp_approval_request",
    "mcp_approval_response",
    "tool_search_call",
    "tool_search_output",
];

/// Where items are looked up that are only named.
pub struct Find<'a> {
    pub store: &'a Store,
    pub client: &'a Client,
}

/// Thinking in a form that clients keep and send back without looking into it.
pub fn encrypted(thinking: &str) -> String {
    STANDARD.encode(thinking)
}

/// The messages of items.
pub fn messages(
    items: &[Value],
    path: &str,
    find: &Find<'_>,
    warnings: &mut Vec<String>,
) -> Result<Vec<Message>, ApiError> {
    let mut reader = Reader { messages: Vec::new(), find, warnings };
    for (i, item) in items.iter().enumerate() {
        reader.item(item, &format!("{path}[{i}]"))?;
    }
    let mut messages = reader.messages;
    messages.iter_mut().for_each(Message::for_templates);
    Ok(messages)
}

struct Reader<'a, 'b> {
    messages: Vec<Message>,
    find: &'a Find<'b>,
    warnings: &'a mut Vec<String>,
}

impl Reader<'_, '_> {
    /// The message that the model's items in a row become.
    fn assistant(&mut self) -> &mut Message {
        if self.messages.last().is_none_or(|m| m.role != Role::Assistant) {
            self.messages.push(Message { content: None, ..Message::text(Role::Assistant, "") });
        }
        let last = self.messages.len() - 1;
        &mut self.messages[last]
    }

    fn item(&mut self, item: &Value, path: &str) -> Result<(), ApiError> {
        let item = fields(item, path)?;
        let kind = get(item, "type").map(|t| text(t, &join(path, "type"))).transpose()?;
        match kind {
            None | Some("message") => self.message(item, path),
            Some("reasoning") => {
                let thinking = thinking(item, path)?;
                if !thinking.is_empty() {
                    add(&mut self.assistant().reasoning_content, &thinking);
                }
                Ok(())
            }
            Some("function_call") => {
                let name = need_text(item, path, "name")?;
                let name = match get(item, "namespace").and_then(Value::as_str) {
                    Some(namespace) => Tools::member_name(namespace, name),
                    None => name.to_string(),
                };
                let arguments = match get(item, "arguments") {
                    Some(Value::Object(map)) => map.clone(),
                    Some(value) => Arguments::parse(text(value, &join(path, "arguments"))?).into_object(),
                    None => Map::new(),
                };
                self.call(item, name, arguments)
            }
            Some("custom_tool_call") => {
                let input = get(item, "input").and_then(Value::as_str).unwrap_or_default();
                self.call(item, need_text(item, path, "name")?.to_string(), custom_arguments(input))
            }
            Some("function_call_output" | "custom_tool_call_output") => {
                let said = self.output(item.get("output"), &join(path, "output"))?;
                let id = get(item, "call_id").and_then(Value::as_str).map(str::to_string);
                self.messages.push(Message { tool_call_id: id, ..Message::text(Role::Tool, said) });
                Ok(())
            }
            Some("item_reference") => {
                let id = need_text(item, path, "id")?;
                let Some(found) = self.find.store.item(id, self.find.client) else {
                    return Err(ApiError::field(join(path, "id"), format!("there is no stored item \"{id}\"")));
                };
                self.item(&found, path)
            }
            Some(kind) if HOSTED.contains(&kind) => {
                self.warnings.push(format!("{path} ({kind})"));
                Ok(())
            }
            Some(kind) => {
                Err(ApiError::unsupported(join(path, "type"), format!("an item of type \"{kind}\" is not known")))
            }
        }
    }

    fn call(&mut self, item: &Map<String, Value>, name: String, arguments: Map<String, Value>) -> Result<(), ApiError> {
        let id = get(item, "call_id").and_then(Value::as_str).map(str::to_string);
        self.assistant().tool_calls.push(ToolCall { id, name, arguments: Arguments::Object(arguments) });
        Ok(())
    }

    fn message(&mut self, item: &Map<String, Value>, path: &str) -> Result<(), ApiError> {
        let content = match item.get("content") {
            None | Some(Value::Null) => Content::Text(String::new()),
            Some(Value::String(text)) => Content::Text(text.clone()),
            Some(value) => Content::Parts(parts(value, &join(path, "content"))?),
        };
        let role = match need_text(item, path, "role")? {
            "user" => Role::User,
            "assistant" => {
                let said = joined(&content, "");
                let message = self.assistant();
                let mut text = message.content.take().map(|content| joined(&content, ""));
                add(&mut text, &said);
                message.content = text.map(Content::Text);
                return Ok(());
            }
            "system" | "developer" => Role::System,
            other => {
                let message = format!("\"{other}\" is not known; user, assistant, system and developer are");
                return Err(ApiError::field(join(path, "role"), message));
            }
        };
        let mut message = Message { content: Some(content), ..Message::text(role, "") };
        if role == Role::System {
            without_volatile_lines(&mut message);
        }
        self.messages.push(message);
        Ok(())
    }

    /// What a tool gave. A picture in it is the tool's choice, not the person's: the model is told that there was one.
    fn output(&mut self, value: Option<&Value>, path: &str) -> Result<String, ApiError> {
        let parts = match value {
            None | Some(Value::Null) => return Ok(String::new()),
            Some(Value::String(text)) => return Ok(text.clone()),
            Some(value @ Value::Array(_)) => list(value, path)?,
            // Coding agents put more than a text into it.
            Some(value @ Value::Object(_)) => return Ok(value.to_string()),
            Some(other) => return Err(wrong(path, "a string or an array of parts", other)),
        };
        let mut texts = Vec::new();
        for (i, part) in parts.iter().enumerate() {
            let path = format!("{path}[{i}]");
            match part.get("type").and_then(Value::as_str) {
                Some(kind @ ("input_image" | "input_file")) => {
                    texts.push(format!("[a part of type {kind}, which this model can not see]"));
                    self.warnings.push(format!("{path} ({kind})"));
                }
                _ => texts.push(text_part(part, &path)?["text"].as_str().unwrap_or_default().to_string()),
            }
        }
        Ok(texts.join("\n"))
    }
}

fn parts(value: &Value, path: &str) -> Result<Vec<Part>, ApiError> {
    let each = list(value, path)?.iter().enumerate().map(|(i, part)| {
        let path = format!("{path}[{i}]");
        Ok(Part(fields(&text_part(part, &path)?, &path)?.clone()))
    });
    each.collect()
}

fn joined(content: &Content, between: &str) -> String {
    match content {
        Content::Text(text) => text.clone(),
        Content::Parts(parts) => parts.iter().filter_map(Part::text).collect::<Vec<_>>().join(between),
    }
}

fn add(to: &mut Option<String>, text: &str) {
    match to {
        Some(said) if !said.is_empty() => {
            said.push_str("\n\n");
            said.push_str(text);
        }
        _ => *to = Some(text.to_string()),
    }
}

/// The thinking of an item: its text, else what this server packed, else its summary.
fn thinking(item: &Map<String, Value>, path: &str) -> Result<String, ApiError> {
    let texts = |key: &str| -> Result<String, ApiError> {
        let path = join(path, key);
        let parts = get(item, key).map(|v| list(v, &path)).transpose()?.unwrap_or_default();
        let texts: Vec<&str> = parts.iter().filter_map(|p| p.get("text")?.as_str()).collect();
        Ok(texts.join("\n\n"))
    };
    let said = texts("content")?;
    if !said.is_empty() {
        return Ok(said);
    }
    let packed = get(item, "encrypted_content").and_then(Value::as_str).and_then(|t| STANDARD.decode(t).ok());
    match packed.and_then(|bytes| String::from_utf8(bytes).ok()) {
        Some(text) => Ok(text),
        None => texts("summary"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;
    use std::time::Duration;

    fn read(items: Value) -> Result<(Vec<Message>, Vec<String>), String> {
        let store = Store::new(1000, Duration::from_secs(1));
        let find = Find { store: &store, client: &Client::default() };
        let mut warnings = Vec::new();
        let messages = messages(items.as_array().unwrap(), "input", &find, &mut warnings);
        messages.map(|m| (m, warnings)).map_err(|e| e.param.unwrap_or_default())
    }

    #[test]
    fn what_the_model_said_in_a_row_is_one_message() {
        let (found, warnings) = read(json!([
            {"role": "developer", "content": "Be brief."},
            {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "q"}]},
            {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": encrypted("hm")},
            {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "I look."}]},
            {"type": "function_call", "call_id": "c1", "name": "f", "arguments": "{\"a\":1}"},
            {"type": "function_call", "call_id": "c2", "name": "read", "namespace": "mcp__files", "arguments": "{"},
            {"type": "custom_tool_call", "call_id": "c3", "name": "p", "input": "text"},
            {"type": "function_call_output", "call_id": "c1", "output": [{"type": "input_text", "text": "ok"},
                {"type": "input_image", "image_url": "data:"}]},
            {"type": "custom_tool_call_output", "call_id": "c3", "output": "done"},
            {"type": "web_search_call", "id": "w"},
            {"type": "reasoning"},
        ]))
        .unwrap();
        let roles: Vec<Role> = found.iter().map(|m| m.role).collect();
        assert_eq!(roles, [Role::System, Role::User, Role::Assistant, Role::Tool, Role::Tool]);
        let said = &found[2];
        assert_eq!(said.reasoning_content.as_deref(), Some("hm"));
        assert_eq!(said.content, Some(Content::Text("I look.".into())));
        let calls: Vec<_> = said.tool_calls.iter().map(|c| (c.name.as_str(), c.arguments.clone())).collect();
        let arguments = |v: Value| Arguments::Object(v.as_object().unwrap().clone());
        assert_eq!(calls[0], ("f", arguments(json!({"a": 1}))));
        assert_eq!(calls[1], ("mcp__files__read", arguments(json!({"arguments": "{"}))));
        assert_eq!(calls[2], ("p", arguments(json!({"input": "text"}))));
        assert_eq!(
            found[3].content,
            Some(Content::Text("ok\n[a part of type input_image, which this model can not see]".into()))
        );
        assert_eq!(warnings, ["input[7].output[1] (input_image)", "input[9] (web_search_call)"]);
    }

    #[test]
    fn mistakes_are_named_by_path() {
        let error = |item: Value| read(json!([item])).unwrap_err();
        assert_eq!(error(json!({"role": "user", "content": [{"type": "input_image"}]})), "input[0].content[0]");
        assert_eq!(error(json!({"type": "dance"})), "input[0].type");
        assert_eq!(error(json!({"type": "function_call"})), "input[0].name");
        assert_eq!(error(json!({"type": "item_reference", "id": "x"})), "input[0].id");
        assert_eq!(error(json!({"role": "tool", "content": ""})), "input[0].role");
        assert_eq!(error(json!(5)), "input[0]");
    }
}
