//! From JSON to a conversation and the options of its turn.

use super::types::MessagesRequest;
use crate::ask;
use crate::error::{ApiError, Fields};
use crate::generate::Traced;
use crate::json::{self, fields, get, join, list, need, need_text, text, wrong};
use crate::openai::messages::no_vision;
use crate::options::Options;
use crate::text::stable;
use crate::thinking::Thinking;
use crate::tools::Tools;
use martlet_chat::{Arguments, Content, Conversation, Message, Role, ToolCall};
use martlet_session::{Format, Prompt, Sampling, ToolChoice, TurnOptions};
use serde_json::{Map, Value};

/// Fields that never change an answer; nobody has to be warned of them.
const WITHOUT_EFFECT: [&str; 4] = ["metadata", "service_tier", "cache_control", "resume_response_id"];

/// Between blocks of one message.
const BETWEEN: &str = "\n\n";

/// A request, read and checked.
#[derive(Debug)]
pub struct Read {
    pub model: Option<String>,
    pub prompt: Prompt,
    /// The text of the last message.
    pub last: String,
    pub options: TurnOptions,
    pub stream: bool,
    pub warnings: Vec<String>,
    pub traced: Traced,
    pub fields: Fields,
}

pub fn read(body: &Map<String, Value>, server: &Options) -> Result<Read, ApiError> {
    let (request, mut warnings) = json::read_request::<MessagesRequest>(body, &WITHOUT_EFFECT)?;
    impossible(&request)?;
    let chat = conversation(&request, &mut warnings)?;
    let tools = request.tools.as_ref().map(|t| Tools::of_messages(t, "tools")).transpose()?.unwrap_or_default();
    warnings.extend(tools.skipped.iter().cloned());

    let mut options = TurnOptions {
        sampling: Sampling {
            temperature: request.temperature,
            top_p: ask::top_p(request.top_p),
            top_k: ask::top_k(request.top_k)?,
            seed: request.seed.map(|seed| seed as u64),
            ..Sampling::default()
        },
        max_tokens: ask::most(request.max_tokens),
        ignore_eos: request.ignore_eos.unwrap_or(false),
        stop: ask::stops(request.stop_sequences.as_ref(), "stop_sequences")?,
        format: format(&request)?,
        ..TurnOptions::default()
    };
    if let Some(choice) = &request.tool_choice {
        let choice = tool_choice(choice, "tool_choice", &mut options)?;
        tools.choose(choice, "tool_choice", &mut options)?;
    }
    let (prompt, last) = tools.turn(chat, &thinking(&request)?, server, &mut options)?;
    let traced = tools.traced(request.tool_choice);
    let fields = tools.fields(body, "messages");
    Ok(Read {
        model: request.model,
        prompt,
        last,
        options,
        stream: request.stream.unwrap_or(false),
        warnings,
        traced,
        fields,
    })
}

/// What is known, and can not be honoured.
fn impossible(request: &MessagesRequest) -> Result<(), ApiError> {
    let some = |v: &Option<Value>| v.as_ref().is_some_and(|v| v.as_array().is_none_or(|list| !list.is_empty()));
    for (path, value) in [("mcp_servers", &request.mcp_servers), ("container", &request.container)] {
        if some(value) {
            return Err(ApiError::unsupported(path, "this server runs no tools: leave it out"));
        }
    }
    Ok(())
}

fn tool_choice(value: &Value, path: &str, options: &mut TurnOptions) -> Result<ToolChoice, ApiError> {
    let choice = fields(value, path)?;
    options.single_tool_call = get(choice, "disable_parallel_tool_use").and_then(Value::as_bool).unwrap_or(false);
    match need_text(choice, path, "type")? {
        "auto" => Ok(ToolChoice::Auto),
        "none" => Ok(ToolChoice::None),
        "any" => Ok(ToolChoice::Required),
        "tool" => Ok(ToolChoice::RequiredOf(vec![need_text(choice, path, "name")?.to_string()])),
        other => {
            Err(ApiError::field(join(path, "type"), format!("\"{other}\" is not known; auto, any, tool and none are")))
        }
    }
}

fn format(request: &MessagesRequest) -> Result<Option<Format>, ApiError> {
    let configured = request.output_config.as_ref().map(|c| fields(c, "output_config")).transpose()?;
    match (configured.and_then(|c| get(c, "format")), &request.output_format) {
        (Some(format), _) => ask::format(format, "output_config.format"),
        (None, Some(format)) => ask::format(format, "output_format"),
        (None, None) => Ok(None),
    }
}

fn thinking(request: &MessagesRequest) -> Result<Thinking, ApiError> {
    let mut thinking = Thinking::default();
    if let Some(config) = &request.output_config
        && let Some(effort) = get(fields(config, "output_config")?, "effort")
    {
        thinking.effort(text(effort, "output_config.effort")?, "output_config.effort")?;
    }
    if let Some(object) = &request.thinking {
        thinking.object(object, "thinking")?;
    }
    Ok(thinking)
}

fn conversation(request: &MessagesRequest, warnings: &mut Vec<String>) -> Result<Conversation, ApiError> {
    if request.messages.is_empty() {
        return Err(ApiError::field("messages", "is empty: at least one message is needed"));
    }
    let mut messages = Vec::new();
    if let Some(system) = &request.system {
        system_message(system, "system", &mut messages)?;
    }
    for (i, message) in request.messages.iter().enumerate() {
        let path = format!("messages[{i}]");
        let message = fields(message, &path)?;
        let (role, content) = (need_text(message, &path, "role")?, join(&path, "content"));
        let said = message.get("content").unwrap_or(&Value::Null);
        match role {
            "user" => user(said, &content, &mut messages, warnings)?,
            "assistant" => {
                let mut message = assistant(said, &content, warnings)?;
                message.for_templates();
                messages.push(message);
            }
            "system" | "developer" => system_message(said, &content, &mut messages)?,
            other => {
                let message = format!("\"{other}\" is not known; user, assistant and system are");
                return Err(ApiError::field(join(&path, "role"), message));
            }
        }
    }
    Ok(Conversation::new(messages))
}

/// A system prompt, or a later system message, without the lines that differ from call to call.
fn system_message(value: &Value, path: &str, messages: &mut Vec<Message>) -> Result<(), ApiError> {
    let texts = match value {
        Value::Null => Vec::new(),
        Value::String(text) => vec![text.as_str()],
        Value::Array(blocks) => {
            let each = blocks.iter().enumerate().map(|(i, block)| {
                let path = format!("{path}[{i}]");
                need_text(fields(block, &path)?, &path, "text")
            });
            each.collect::<Result<_, _>>()?
        }
        other => return Err(wrong(path, "a string or an array of text blocks", other)),
    };
    let texts: Vec<&str> = texts.into_iter().map(stable).filter(|t| !t.is_empty()).collect();
    if !texts.is_empty() {
        messages.push(Message::text(Role::System, texts.join(BETWEEN)));
    }
    Ok(())
}

/// Blocks of the person's side: results of tools become messages of their own, in order.
fn user(value: &Value, path: &str, out: &mut Vec<Message>, warnings: &mut Vec<String>) -> Result<(), ApiError> {
    let blocks = match value {
        Value::String(text) => {
            out.push(Message::text(Role::User, text.as_str()));
            return Ok(());
        }
        Value::Array(blocks) => blocks,
        other => return Err(wrong(path, "a string or an array of blocks", other)),
    };
    let mut texts: Vec<String> = Vec::new();
    for block in typed(blocks, path) {
        let Block { kind, block, path } = block?;
        match kind {
            "text" | "document" => texts.push(readable(kind, block, &path)?),
            "tool_result" => {
                said(&mut texts, out);
                let id = need_text(block, &path, "tool_use_id")?;
                let text = tool_result(block.get("content"), &join(&path, "content"), warnings)?;
                out.push(Message { tool_call_id: Some(id.to_string()), ..Message::text(Role::Tool, text) });
            }
            _ => return Err(no_vision(&path, kind)),
        }
    }
    if blocks.is_empty() {
        texts.push(String::new());
    }
    said(&mut texts, out);
    Ok(())
}

fn said(texts: &mut Vec<String>, out: &mut Vec<Message>) {
    if !texts.is_empty() {
        out.push(Message::text(Role::User, texts.join(BETWEEN)));
        texts.clear();
    }
}

/// A block of a message.
struct Block<'a> {
    kind: &'a str,
    block: &'a Map<String, Value>,
    path: String,
}

fn typed<'a>(blocks: &'a [Value], path: &str) -> impl Iterator<Item = Result<Block<'a>, ApiError>> {
    blocks.iter().enumerate().map(move |(i, block)| {
        let path = format!("{path}[{i}]");
        let block = fields(block, &path)?;
        Ok(Block { kind: need_text(block, &path, "type")?, block, path })
    })
}

/// The text of a block of text, or of a document.
fn readable(kind: &str, block: &Map<String, Value>, path: &str) -> Result<String, ApiError> {
    match kind {
        "document" => document(block, path),
        _ => Ok(need_text(block, path, "text")?.to_string()),
    }
}

/// A document of plain text.
fn document(block: &Map<String, Value>, path: &str) -> Result<String, ApiError> {
    let source_path = join(path, "source");
    let source = fields(need(block, path, "source")?, &source_path)?;
    match need_text(source, &source_path, "type")? {
        "text" => {
            let text = need_text(source, &source_path, "data")?;
            let title = get(block, "title").and_then(Value::as_str);
            Ok(title.map_or_else(|| text.to_string(), |title| format!("{title}\n\n{text}")))
        }
        other => {
            Err(ApiError::unsupported(source_path, format!("a document of type \"{other}\" can not be read: text can")))
        }
    }
}

/// What a tool gave. A picture in it is the tool's choice, not the person's: the model is told that there was one.
fn tool_result(content: Option<&Value>, path: &str, warnings: &mut Vec<String>) -> Result<String, ApiError> {
    let blocks = match content {
        None | Some(Value::Null) => return Ok(String::new()),
        Some(Value::String(text)) => return Ok(text.clone()),
        Some(value) => list(value, path)?,
    };
    let mut texts = Vec::new();
    for block in typed(blocks, path) {
        let Block { kind, block, path } = block?;
        match kind {
            "text" | "document" => texts.push(readable(kind, block, &path)?),
            _ => {
                texts.push(format!("[a part of type {kind}, which this model can not see]"));
                warnings.push(format!("{path} ({kind})"));
            }
        }
    }
    Ok(texts.join("\n"))
}

/// The model's side of the conversation: one message of its blocks.
fn assistant(value: &Value, path: &str, warnings: &mut Vec<String>) -> Result<Message, ApiError> {
    let mut message = Message { content: None, ..Message::text(Role::Assistant, "") };
    let blocks = match value {
        Value::String(text) => {
            message.content = Some(Content::Text(text.clone()));
            return Ok(message);
        }
        Value::Array(blocks) => blocks,
        Value::Null => return Ok(message),
        other => return Err(wrong(path, "a string or an array of blocks", other)),
    };
    let (mut texts, mut thoughts) = (Vec::new(), Vec::new());
    for block in typed(blocks, path) {
        let Block { kind, block, path } = block?;
        match kind {
            "text" => texts.push(need_text(block, &path, "text")?),
            "thinking" => thoughts.push(need_text(block, &path, "thinking")?),
            "redacted_thinking" => {}
            "tool_use" => message.tool_calls.push(tool_use(block, &path)?),
            _ => warnings.push(format!("{path} ({kind})")),
        }
    }
    if !texts.is_empty() {
        message.content = Some(Content::Text(texts.join(BETWEEN)));
    }
    if !thoughts.is_empty() {
        message.reasoning_content = Some(thoughts.join(BETWEEN));
    }
    Ok(message)
}

fn tool_use(block: &Map<String, Value>, path: &str) -> Result<ToolCall, ApiError> {
    let input = block.get("input").filter(|v| !v.is_null());
    let arguments = match input {
        None => Map::new(),
        // Some clients send what they were sent, as text.
        Some(Value::String(text)) => Arguments::parse(text).into_object(),
        Some(value) => fields(value, &join(path, "input"))?.clone(),
    };
    Ok(ToolCall {
        id: get(block, "id").and_then(Value::as_str).map(str::to_string),
        name: need_text(block, path, "name")?.to_string(),
        arguments: Arguments::Object(arguments),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn with(extra: Value) -> Result<Read, ApiError> {
        let mut body = json!({"model": "m", "max_tokens": 100, "messages": [{"role": "user", "content": "hi"}]});
        body.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
        read(body.as_object().unwrap(), &Options::default())
    }

    fn messages(extra: Value) -> Vec<Message> {
        match with(extra).unwrap().prompt {
            Prompt::Chat(chat) => chat.messages,
            other => panic!("{other:?}"),
        }
    }

    fn param(extra: Value) -> String {
        with(extra).unwrap_err().param.unwrap_or_default()
    }

    #[test]
    fn a_turn_of_a_coding_agent() {
        let found = messages(json!({
            "system": [
                {"type": "text", "text": "x-anthropic-billing-header: cc_version=1; cch=abc;"},
                {"type": "text", "text": "You are an agent.", "cache_control": {"type": "ephemeral"}},
                {"type": "text", "text": "Be brief."}
            ],
            "messages": [
                {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
                {"role": "assistant", "content": [
                    {"type": "thinking", "thinking": "hm", "signature": "s"},
                    {"type": "text", "text": "I look."},
                    {"type": "tool_use", "id": "toolu_1", "name": "f", "input": {"x": 1}},
                    {"type": "tool_use", "id": "toolu_2", "name": "f", "input": {}}]},
                {"role": "user", "content": [
                    {"type": "tool_result", "tool_use_id": "toolu_1", "content": [{"type": "text", "text": "ok"},
                        {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AA"}}]},
                    {"type": "tool_result", "tool_use_id": "toolu_2"},
                    {"type": "text", "text": "go on"}]},
                {"role": "system", "content": "Late."},
                {"role": "user", "content": "now"}
            ]
        }));
        let roles: Vec<Role> = found.iter().map(|m| m.role).collect();
        use Role::{Assistant, System, Tool, User};
        assert_eq!(roles, [System, User, Assistant, Tool, Tool, User, System, User]);
        let text = |i: usize| match &found[i].content {
            Some(Content::Text(text)) => text.as_str(),
            other => panic!("{other:?}"),
        };
        assert_eq!((text(0), text(1)), ("You are an agent.\n\nBe brief.", "a\n\nb"));
        assert_eq!((found[2].reasoning_content.as_deref(), found[2].tool_calls.len()), (Some("hm"), 2));
        assert_eq!(
            (text(3), found[3].tool_call_id.as_deref()),
            ("ok\n[a part of type image, which this model can not see]", Some("toolu_1"))
        );
        assert_eq!((text(4), text(5), text(6)), ("", "go on", "Late."));
    }

    #[test]
    fn choices_of_tools() {
        let tools =
            json!([{"name": "f", "input_schema": {"type": "object"}}, {"type": "web_search_20250305", "name": "w"}]);
        let choice = |choice: Value| {
            let o = with(json!({"tools": tools, "tool_choice": choice})).unwrap().options;
            (o.tool_choice, o.single_tool_call)
        };
        assert_eq!(choice(json!({"type": "auto", "disable_parallel_tool_use": true})), (ToolChoice::Auto, true));
        assert_eq!(choice(json!({"type": "any"})), (ToolChoice::Required, false));
        assert_eq!(choice(json!({"type": "tool", "name": "f"})), (ToolChoice::RequiredOf(vec!["f".into()]), false));
        assert_eq!(choice(json!({"type": "none"})), (ToolChoice::None, false));
        assert_eq!(param(json!({"tools": tools, "tool_choice": {"type": "tool", "name": "w"}})), "tool_choice");
        assert_eq!(with(json!({"tools": tools})).unwrap().warnings, ["tools[1] (web_search_20250305)"]);
    }

    #[test]
    fn thinking_and_formats() {
        let thinks = |extra: Value| {
            let read = with(extra).unwrap();
            let Prompt::Chat(chat) = read.prompt else { panic!() };
            (chat.enable_thinking, read.options.thinking_budget)
        };
        assert_eq!(thinks(json!({"thinking": {"type": "enabled", "budget_tokens": 2048}})), (Some(true), Some(2048)));
        assert_eq!(thinks(json!({"thinking": {"type": "disabled"}})), (Some(false), None));
        assert_eq!(thinks(json!({"output_config": {"effort": "low"}, "max_tokens": 8000})), (Some(true), Some(1024)));
        let format = with(json!({"output_config": {"format": {"type": "json_schema", "schema": {}}}})).unwrap();
        assert_eq!(format.options.format, Some(Format::JsonSchema(json!({}))));
    }

    #[test]
    fn mistakes_are_named_by_path() {
        let image = json!({"type": "image", "source": {}});
        assert_eq!(param(json!({"messages": [{"role": "user", "content": [image]}]})), "messages[0].content[0]");
        assert_eq!(param(json!({"messages": [{"role": "tool", "content": ""}]})), "messages[0].role");
        assert_eq!(param(json!({"messages": [{"role": "user"}]})), "messages[0].content");
        assert_eq!(param(json!({"messages": []})), "messages");
        assert_eq!(param(json!({"mcp_servers": [{}]})), "mcp_servers");
        assert_eq!(param(json!({"system": [{"type": "text"}]})), "system[0].text");
        assert_eq!(param(json!({"stop_sequences": [1]})), "stop_sequences[0]");
        assert_eq!(with(json!({"metadata": {}, "context_management": {}})).unwrap().warnings, ["context_management"]);
    }
}
