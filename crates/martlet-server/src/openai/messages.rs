//! Messages of chat completions, as one conversation.

use crate::error::ApiError;
use crate::json::{fields, get, join, text};
use crate::text::without_volatile_lines;
use martlet_chat::{Conversation, Role};
use serde_json::{Map, Value, json};

/// Reads messages; errors name their path below `messages`.
pub fn conversation(messages: &[Value]) -> Result<Conversation, ApiError> {
    if messages.is_empty() {
        return Err(ApiError::field("messages", "is empty: at least one message is needed"));
    }
    let plain = messages.iter().enumerate().map(|(i, m)| plain(m, &format!("messages[{i}]")));
    let plain = plain.collect::<Result<Vec<_>, _>>()?;
    let mut chat = Conversation::from_json(&Value::Array(plain))?;
    for message in &mut chat.messages {
        message.for_templates();
        if message.role == Role::System {
            without_volatile_lines(message);
        }
    }
    Ok(chat)
}

/// A message in the words that all templates know.
fn plain(message: &Value, path: &str) -> Result<Value, ApiError> {
    let mut out = fields(message, path)?.clone();
    // The older name of a tool's result.
    if out.get("role").and_then(Value::as_str) == Some("function") {
        out.insert("role".into(), "tool".into());
    }
    if let Some(Value::Array(parts)) = out.get("content") {
        let content = join(path, "content");
        let tool = out.get("role").and_then(Value::as_str) == Some("tool");
        let read = |(i, part)| match text_part(part, &format!("{content}[{i}]")) {
            // What a tool found can not be asked for again in words.
            Err(_) if tool && is_picture(part) => Ok(json!({"type": "text", "text": UNSEEN})),
            read => read,
        };
        let parts = parts.iter().enumerate().map(read);
        let parts = Value::Array(parts.collect::<Result<_, _>>()?);
        out.insert("content".into(), parts);
    }
    if let Some(Value::Array(calls)) = out.get("tool_calls") {
        let calls: Vec<Value> = calls.iter().map(plain_call).collect();
        out.insert("tool_calls".into(), calls.into());
    } else if let Some(call @ Value::Object(_)) = out.remove("function_call") {
        out.insert("tool_calls".into(), json!([{"type": "function", "function": call}]));
    }
    Ok(Value::Object(out))
}

/// A part that says text, under any of its names.
pub fn text_part(part: &Value, path: &str) -> Result<Value, ApiError> {
    // Some clients send bare strings.
    if let Some(text) = part.as_str() {
        return Ok(json!({"type": "text", "text": text}));
    }
    let part = fields(part, path)?;
    let key = match get(part, "type").map(|t| text(t, &join(path, "type"))).transpose()? {
        Some("text" | "input_text" | "output_text") => "text",
        Some("refusal") => "refusal",
        None if part.contains_key("text") => "text",
        kind => return Err(no_vision(path, kind.unwrap_or("unknown"))),
    };
    let said = part.get(key).filter(|v| !v.is_null());
    let said = said.map_or(Ok(""), |v| text(v, &join(path, key)))?;
    Ok(json!({"type": "text", "text": said}))
}

/// Stands for a picture among a tool's results.
const UNSEEN: &str = "[a picture, which this model can not see]";

fn is_picture(part: &Value) -> bool {
    part.get("type").and_then(Value::as_str).is_some_and(|kind| kind.contains("image"))
}

/// 400 for a part that only a model with eyes or ears could use.
pub fn no_vision(path: &str, kind: &str) -> ApiError {
    let message = format!("a part of type \"{kind}\" can not be read: this model has no vision; say it in words");
    ApiError::unsupported(path, message)
}

/// A custom tool's call is one of a function with one argument.
fn plain_call(call: &Value) -> Value {
    match call.get("custom").and_then(Value::as_object) {
        Some(custom) => {
            let input = custom.get("input").and_then(Value::as_str).unwrap_or_default();
            let mut function = Map::new();
            function.insert("name".into(), custom.get("name").cloned().unwrap_or_default());
            function.insert("arguments".into(), crate::tools::custom_arguments(input).into());
            json!({"id": call.get("id"), "type": "function", "function": function})
        }
        None => call.clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use martlet_chat::{Arguments, Content, Message};

    fn read(messages: Value) -> Result<Vec<Message>, String> {
        let read = conversation(messages.as_array().unwrap());
        read.map(|c| c.messages).map_err(|e| e.param.unwrap_or_default())
    }

    #[test]
    fn content_in_every_form() {
        let messages = read(json!([
            {"role": "developer", "content": "x-anthropic-billing-header: a=1;\nBe brief."},
            {"role": "user", "content": [{"type": "input_text", "text": "a"}, "b", {"type": "text", "text": "c"}]},
            {"role": "assistant", "content": null, "tool_calls":
                [{"id": "1", "type": "function", "function": {"name": "f", "arguments": "{\"city\":\"Paris\"}"}},
                 {"id": "2", "type": "custom", "custom": {"name": "g", "input": "text"}},
                 {"id": "3", "function": {"name": "h", "arguments": "{\"broken"}}]},
            {"role": "tool", "tool_call_id": "1", "content": null},
            {"role": "function", "name": "g", "content": [{"type": "text", "text": "ok"}]},
        ]))
        .unwrap();
        assert_eq!(messages[0], Message::text(Role::System, "Be brief."));
        let parts: Vec<_> = match &messages[1].content {
            Some(Content::Parts(parts)) => parts.iter().filter_map(|p| p.text()).collect(),
            other => panic!("{other:?}"),
        };
        assert_eq!(parts, ["a", "b", "c"]);
        let calls = &messages[2].tool_calls;
        assert_eq!(calls[0].arguments, Arguments::Object(Map::from_iter([("city".into(), "Paris".into())])));
        assert_eq!(calls[1].arguments, Arguments::Object(Map::from_iter([("input".into(), "text".into())])));
        assert_eq!(messages[3].content, Some(Content::Text(String::new())));
        assert_eq!(messages[4].role, Role::Tool);
    }

    #[test]
    fn thinking_in_the_text_is_told_apart() {
        let messages = read(json!([{"role": "user", "content": "q"},
            {"role": "assistant", "content": "<think>r</think>a"},
            {"role": "user", "content": "q"},
            {"role": "assistant", "content": "<think>still"}]))
        .unwrap();
        assert_eq!(messages[1].reasoning_content.as_deref(), Some("r"));
        assert_eq!(messages[1].content, Some(Content::Text("a".into())));
        assert_eq!(messages[3].content, Some(Content::Text("<think>still".into())), "it is to be gone on with");
    }

    #[test]
    fn mistakes_are_named_by_path() {
        assert_eq!(read(json!([])), Err("messages".into()));
        assert_eq!(read(json!([{"role": "user", "content": 5}])), Err("messages[0].content".into()));
        assert_eq!(read(json!([{"role": "wizard", "content": ""}])), Err("messages[0].role".into()));
        assert_eq!(read(json!([{"content": ""}])), Err("messages[0].role".into()));
        assert_eq!(read(json!(["hello"])), Err("messages[0]".into()));
        let seen = json!([{"role": "user", "content": "a"}, {"role": "tool", "content": [{"type": "image_url"}]}]);
        assert!(read(seen).is_ok());
        let image = json!([{"role": "user", "content": [{"type": "text", "text": "a"},
            {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}]}]);
        assert_eq!(read(image), Err("messages[0].content[1]".into()));
    }
}
