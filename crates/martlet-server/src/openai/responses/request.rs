//! From JSON to a conversation and the options of its turn.

use super::items::{self, Find};
use super::types::{ReasoningOptions, ResponsesRequest, ResponsesResponse};
use crate::ask;
use crate::error::{ApiError, Fields};
use crate::generate::Traced;
use crate::json::{self, wrong};
use crate::options::Options;
use crate::text::stable;
use crate::thinking::Thinking;
use crate::tools::{Tools, openai_choice};
use martlet_chat::{Conversation, Message, Role};
use martlet_session::{Prompt, Sampling, TurnOptions};
use serde_json::{Map, Value, json};

/// Fields that never change an answer; nobody has to be warned of them.
const WITHOUT_EFFECT: [&str; 8] = [
    "stream_options",
    "user",
    "prompt_cache_key",
    "prompt_cache_retention",
    "safety_identifier",
    "service_tier",
    "client_metadata",
    "resume_response_id",
];

/// What may be asked to be included.
const INCLUDE: [&str; 8] = [
    "reasoning.encrypted_content",
    "message.output_text.logprobs",
    "file_search_call.results",
    "web_search_call.results",
    "web_search_call.action.sources",
    "message.input_image.image_url",
    "computer_call_output.output.image_url",
    "code_interpreter_call.outputs",
];

/// A request, read and checked.
#[derive(Debug)]
pub struct Read {
    pub model: Option<String>,
    pub prompt: Prompt,
    /// The text of the last message.
    pub last: String,
    pub options: TurnOptions,
    pub tools: Tools,
    pub stream: bool,
    pub store: bool,
    /// Show the thinking as its summary.
    pub summary: bool,
    /// Pack the thinking, so that it comes back.
    pub encrypted: bool,
    pub logprobs: bool,
    /// The new items, as they are shown later.
    pub input: Vec<Value>,
    /// The conversation without instructions.
    pub messages: Vec<Message>,
    /// The response as far as the request says it.
    pub response: ResponsesResponse,
    pub warnings: Vec<String>,
    pub traced: Traced,
    pub fields: Fields,
}

pub fn read(body: &Map<String, Value>, server: &Options, find: &Find<'_>) -> Result<Read, ApiError> {
    let (request, mut warnings) = json::read_request::<ResponsesRequest>(body, &WITHOUT_EFFECT)?;
    impossible(&request, &mut warnings)?;
    let include = request.include.clone().unwrap_or_default();
    if let Some(i) = include.iter().position(|name| !INCLUDE.contains(&name.as_str())) {
        return Err(ApiError::field(format!("include[{i}]"), format!("\"{}\" is not known", include[i])));
    }
    let input = input(&request)?;
    let mut messages = previous(&request, find)?;
    messages.extend(items::messages(&input, "input", find, &mut warnings)?);
    if messages.is_empty() {
        return Err(ApiError::field("input", "is empty: there is nothing to answer"));
    }
    let instructions = request.instructions.as_deref().map(stable).filter(|t| !t.is_empty());
    let said = instructions.map(|text| Message::text(Role::System, text)).into_iter();
    let chat = Conversation::new(said.chain(messages.iter().cloned()).collect());
    let tools = request.tools.as_ref().map(|t| Tools::of_responses(t, "tools")).transpose()?.unwrap_or_default();
    warnings.extend(tools.skipped.iter().cloned());

    let logprobs = include.iter().any(|name| name == "message.output_text.logprobs");
    let mut options = turn_options(&request, logprobs)?;
    if let Some(choice) = &request.tool_choice {
        tools.choose(openai_choice(choice, "tool_choice")?, "tool_choice", &mut options)?;
    }
    let reasoning = request.reasoning.as_ref();
    let (prompt, last) = tools.turn(chat, &thinking(reasoning)?, server, &mut options)?;
    let traced = tools.traced(request.tool_choice.clone());
    let fields = tools.fields(body, "input");
    Ok(Read {
        prompt,
        last,
        options,
        tools,
        stream: request.stream.unwrap_or(false),
        store: request.store.unwrap_or(true),
        summary: reasoning.and_then(|r| r.summary.as_deref()).is_some_and(|s| s != "none"),
        encrypted: include.iter().any(|name| name == "reasoning.encrypted_content"),
        logprobs,
        input,
        messages,
        response: response(&request),
        model: request.model,
        warnings,
        traced,
        fields,
    })
}

/// What is known, and can not be honoured.
fn impossible(request: &ResponsesRequest, warnings: &mut Vec<String>) -> Result<(), ApiError> {
    if request.background == Some(true) {
        let message =
            "responses are made while the client waits; a stream with x-martlet-resume outlives its connection";
        return Err(ApiError::unsupported("background", message));
    }
    for (path, value) in [("conversation", &request.conversation), ("prompt", &request.prompt)] {
        if value.is_some() {
            return Err(ApiError::unsupported(path, "nothing of this kind is kept here: send the items"));
        }
    }
    match request.truncation.as_deref() {
        None | Some("disabled") => {}
        // It allows cutting, and none is done.
        Some("auto") => warnings.push("truncation".into()),
        Some(other) => return Err(ApiError::field("truncation", format!("\"{other}\" is not known; disabled is"))),
    }
    Ok(())
}

/// The request's items; a text is one message.
fn input(request: &ResponsesRequest) -> Result<Vec<Value>, ApiError> {
    match &request.input {
        None => Ok(Vec::new()),
        Some(Value::String(text)) => {
            let part = json!({"type": "input_text", "text": text});
            Ok(vec![json!({"type": "message", "role": "user", "content": [part]})])
        }
        Some(Value::Array(items)) => Ok(items.clone()),
        Some(other) => Err(wrong("input", "a string or an array of items", other)),
    }
}

fn previous(request: &ResponsesRequest, find: &Find<'_>) -> Result<Vec<Message>, ApiError> {
    let Some(id) = &request.previous_response_id else { return Ok(Vec::new()) };
    match find.store.get(id, find.client) {
        Some(stored) => Ok(stored.messages.clone()),
        None => {
            let message = format!("there is no response \"{id}\": it was not stored, or its time has passed");
            let error = ApiError::field("previous_response_id", message);
            Err(ApiError { code: "previous_response_not_found", ..error })
        }
    }
}

fn turn_options(request: &ResponsesRequest, logprobs: bool) -> Result<TurnOptions, ApiError> {
    let top = ask::top(request.top_logprobs, "top_logprobs")?;
    let format = request.text.as_ref().and_then(|t| t.format.as_ref());
    Ok(TurnOptions {
        sampling: Sampling {
            temperature: request.temperature,
            top_p: ask::top_p(request.top_p),
            seed: request.seed.map(|seed| seed as u64),
            ..Sampling::default()
        },
        max_tokens: ask::most(request.max_output_tokens),
        stop: ask::stops(request.stop.as_ref(), "stop")?,
        logprobs: logprobs.then_some(top),
        single_tool_call: request.parallel_tool_calls == Some(false),
        format: format.map(|f| ask::format(f, "text.format")).transpose()?.flatten(),
        ..TurnOptions::default()
    })
}

fn thinking(reasoning: Option<&ReasoningOptions>) -> Result<Thinking, ApiError> {
    let mut thinking = Thinking::default();
    if let Some(effort) = reasoning.and_then(|r| r.effort.as_deref()) {
        thinking.effort(effort, "reasoning.effort")?;
    }
    if let Some(tokens) = reasoning.and_then(|r| r.max_tokens) {
        thinking.tokens(&tokens.into(), "reasoning.max_tokens")?;
    }
    Ok(thinking)
}

/// What the request says is repeated in the response.
fn response(request: &ResponsesRequest) -> ResponsesResponse {
    let format = request.text.as_ref().and_then(|t| t.format.clone()).unwrap_or_else(|| json!({"type": "text"}));
    let reasoning = request.reasoning.as_ref();
    ResponsesResponse {
        id: String::new(),
        object: "response",
        created_at: 0,
        status: "in_progress",
        background: false,
        error: None,
        incomplete_details: None,
        instructions: request.instructions.clone(),
        max_output_tokens: request.max_output_tokens,
        model: String::new(),
        output: Vec::new(),
        parallel_tool_calls: request.parallel_tool_calls.unwrap_or(true),
        previous_response_id: request.previous_response_id.clone(),
        reasoning: json!({
            "effort": reasoning.and_then(|r| r.effort.clone()),
            "summary": reasoning.and_then(|r| r.summary.clone()),
        }),
        store: request.store.unwrap_or(true),
        temperature: request.temperature,
        text: json!({"format": format}),
        tool_choice: request.tool_choice.clone().unwrap_or_else(|| "auto".into()),
        tools: request.tools.clone().unwrap_or_else(|| json!([])),
        top_logprobs: request.top_logprobs.unwrap_or(0),
        top_p: request.top_p,
        truncation: "disabled",
        usage: None,
        metadata: request.metadata.clone().unwrap_or_else(|| json!({})),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::auth::Client;
    use crate::store::{Store, Stored};
    use martlet_session::{Format, ToolChoice};
    use std::time::Duration;

    fn with(extra: Value) -> Result<Read, ApiError> {
        let store = Store::new(10_000, Duration::from_secs(9));
        let messages = vec![Message::text(Role::User, "first"), Message::text(Role::Assistant, "answer")];
        let stored = Stored { id: "resp_1".into(), response: Value::Null, input: Vec::new(), messages };
        store.put(stored, Client::default());
        let mut body = json!({"model": "m", "input": "hi"});
        body.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
        read(body.as_object().unwrap(), &Options::default(), &Find { store: &store, client: &Client::default() })
    }

    fn param(extra: Value) -> String {
        with(extra).unwrap_err().param.unwrap_or_default()
    }

    #[test]
    fn a_conversation_goes_on_without_its_old_instructions() {
        let read = with(json!({"previous_response_id": "resp_1", "instructions": "New."})).unwrap();
        let Prompt::Chat(chat) = &read.prompt else { panic!() };
        let roles: Vec<Role> = chat.messages.iter().map(|m| m.role).collect();
        assert_eq!(roles, [Role::System, Role::User, Role::Assistant, Role::User]);
        assert_eq!(read.messages.len(), 3, "instructions are not kept");
        let error = with(json!({"previous_response_id": "resp_2"})).unwrap_err();
        assert_eq!((error.code, error.status.as_u16()), ("previous_response_not_found", 400));
    }

    #[test]
    fn the_request_of_a_coding_agent() {
        let read = with(json!({
            "instructions": "You are an agent.", "store": false, "stream": true, "parallel_tool_calls": false,
            "include": ["reasoning.encrypted_content"], "prompt_cache_key": "k", "reasoning": {"effort": "high", "summary": "auto"},
            "tools": [{"type": "function", "name": "f", "strict": false, "parameters": {}}, {"type": "web_search"}],
            "tool_choice": "auto", "text": {"verbosity": "low"}
        }))
        .unwrap();
        assert!(read.encrypted && read.summary && read.stream && !read.store && !read.logprobs);
        assert_eq!((read.options.thinking_budget, read.options.single_tool_call), (Some(16384), true));
        assert_eq!(read.warnings, ["text.verbosity", "tools[1] (web_search)"]);
        assert_eq!(read.options.tool_choice, ToolChoice::Auto);
    }

    #[test]
    fn formats_and_mistakes() {
        let format =
            json!({"format": {"type": "json_schema", "name": "x", "schema": {"type": "object"}, "strict": true}});
        let expected = Some(Format::JsonSchema(json!({"type": "object"})));
        assert_eq!(with(json!({"text": format})).unwrap().options.format, expected);
        assert_eq!(param(json!({"background": true})), "background");
        assert_eq!(param(json!({"conversation": "c"})), "conversation");
        assert_eq!(param(json!({"include": ["everything"]})), "include[0]");
        assert_eq!(param(json!({"input": []})), "input");
        assert_eq!(param(json!({"input": 5})), "input");
        assert_eq!(param(json!({"reasoning": {"effort": "huge"}})), "reasoning.effort");
        assert_eq!(param(json!({"truncation": "some"})), "truncation");
        assert_eq!(param(json!({"text": {"format": {"type": "json_schema"}}})), "text.format.schema");
    }
}
