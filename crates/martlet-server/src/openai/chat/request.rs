//! From JSON to a conversation and the options of its turn.

use super::types::ChatRequest;
use crate::ask;
use crate::error::{ApiError, Fields};
use crate::generate::Traced;
use crate::json::{self, fields, get, join, text};
use crate::openai::messages;
use crate::options::Options;
use crate::thinking::Thinking;
use crate::tools::{Tools, openai_choice};
use crate::usage::UsageIn;
use martlet_session::{Prompt, TurnOptions};
use serde_json::{Map, Value};

/// Fields that never change an answer; nobody has to be warned of them.
const WITHOUT_EFFECT: [&str; 8] = [
    "user",
    "metadata",
    "store",
    "prompt_cache_key",
    "prompt_cache_retention",
    "safety_identifier",
    "stream_options.include_obfuscation",
    "resume_response_id",
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
    pub n: usize,
    pub stream: bool,
    pub usage: UsageIn,
    pub warnings: Vec<String>,
    pub traced: Traced,
    pub fields: Fields,
}

pub fn read(body: &Map<String, Value>, server: &Options) -> Result<Read, ApiError> {
    let (request, mut warnings) = json::read_request::<ChatRequest>(body, &WITHOUT_EFFECT)?;
    impossible(&request)?;
    let mut chat = messages::conversation(&request.messages)?;
    chat.template_kwargs = request.chat_template_kwargs.clone().unwrap_or_default();
    let tools = request.tools.as_ref().map(|t| Tools::of_chat(t, "tools")).transpose()?.unwrap_or_default();
    warnings.extend(tools.skipped.iter().cloned());

    let mut options = turn_options(&request)?;
    if let Some(choice) = &request.tool_choice {
        tools.choose(openai_choice(choice, "tool_choice")?, "tool_choice", &mut options)?;
    }
    let (prompt, last) = tools.turn(chat, &thinking(&request)?, server, &mut options)?;
    let n = ask::count(request.n, "n", server.limits.answers())?;
    let stream = request.stream.unwrap_or(false);
    let usage = request.stream_options.map_or(UsageIn::None, |o| o.usage());
    let traced = tools.traced(request.tool_choice);
    let fields = tools.fields(body, "messages");
    Ok(Read { model: request.model, prompt, last, options, tools, n, stream, usage, warnings, traced, fields })
}

/// What is known, and can not be honoured.
fn impossible(request: &ChatRequest) -> Result<(), ApiError> {
    if let Some(i) = request.modalities.iter().flatten().position(|m| m != "text") {
        return Err(ApiError::unsupported(format!("modalities[{i}]"), "this model answers in text alone"));
    }
    if request.audio.is_some() {
        return Err(ApiError::unsupported("audio", "this model answers in text alone"));
    }
    if request.functions.as_ref().and_then(Value::as_array).is_some_and(|f| !f.is_empty()) {
        return Err(ApiError::unsupported("functions", "this older form is not read: use tools"));
    }
    match &request.function_call {
        None => Ok(()),
        Some(Value::String(word)) if word == "none" || word == "auto" => Ok(()),
        Some(_) => Err(ApiError::unsupported("function_call", "this older form is not read: use tool_choice")),
    }
}

fn turn_options(request: &ChatRequest) -> Result<TurnOptions, ApiError> {
    let logprobs = match request.logprobs {
        Some(true) => Some(ask::top(request.top_logprobs, "top_logprobs")?),
        _ if request.top_logprobs.unwrap_or(0) > 0 => {
            return Err(ApiError::field("top_logprobs", "needs logprobs: true"));
        }
        _ => None,
    };
    Ok(TurnOptions {
        max_tokens: ask::most(request.max_completion_tokens.or(request.max_tokens)),
        logprobs,
        single_tool_call: request.parallel_tool_calls == Some(false),
        format: request.format()?,
        ..request.turn_options()?
    })
}

/// All the ways in which clients ask for thinking; the narrower goes last.
fn thinking(request: &ChatRequest) -> Result<Thinking, ApiError> {
    let mut thinking = Thinking::default();
    if let Some(variables) = &request.chat_template_kwargs {
        thinking.variables(variables, "chat_template_kwargs")?;
    }
    if let Some(effort) = &request.reasoning_effort {
        thinking.effort(effort, "reasoning_effort")?;
    }
    if let Some(reasoning) = &request.reasoning {
        reasoning_object(&mut thinking, reasoning, "reasoning")?;
    }
    if let Some(object) = &request.thinking {
        thinking.object(object, "thinking")?;
    }
    thinking.choice = request.enable_thinking.or(thinking.choice);
    if let Some(budget) = request.thinking_budget {
        thinking.tokens(&budget.into(), "thinking_budget")?;
    }
    Ok(thinking)
}

/// `{effort, max_tokens, enabled}`, as routers have it.
fn reasoning_object(thinking: &mut Thinking, value: &Value, path: &str) -> Result<(), ApiError> {
    let object = fields(value, path)?;
    if let Some(effort) = get(object, "effort") {
        let path = join(path, "effort");
        thinking.effort(text(effort, &path)?, &path)?;
    }
    if let Some(tokens) = get(object, "max_tokens") {
        thinking.tokens(tokens, &join(path, "max_tokens"))?;
    }
    if let Some(enabled) = get(object, "enabled").and_then(Value::as_bool) {
        thinking.choice = Some(enabled);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use martlet_session::Format;
    use martlet_session::ToolChoice;
    use serde_json::json;

    fn with(extra: Value) -> Result<Read, ApiError> {
        let mut body = json!({"model": "m", "messages": [{"role": "user", "content": "hi"}]});
        body.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
        read(body.as_object().unwrap(), &Options::default())
    }

    fn options(extra: Value) -> TurnOptions {
        with(extra).unwrap().options
    }

    fn param(extra: Value) -> String {
        with(extra).unwrap_err().param.unwrap_or_default()
    }

    #[test]
    fn sampling_and_limits() {
        let o = options(json!({"temperature": 0, "top_p": 0.9, "top_k": -1, "min_p": 0.1, "seed": -1,
            "presence_penalty": 1, "frequency_penalty": -1, "repetition_penalty": 1.1, "stop": ["a"],
            "logit_bias": {"5": -100}, "max_tokens": -1, "logprobs": true, "top_logprobs": 3}));
        assert_eq!((o.sampling.temperature, o.sampling.top_k, o.sampling.seed), (Some(0.0), Some(0), Some(u64::MAX)));
        assert_eq!((o.max_tokens, o.logprobs, o.stop.len(), o.logit_bias.len()), (None, Some(3), 1, 1));
        let newer = options(json!({"max_tokens": 5, "max_completion_tokens": 7}));
        assert_eq!(newer.max_tokens, Some(7));
        assert_eq!(with(json!({"n": 3})).unwrap().n, 3);
        let mut server = Options::default();
        server.limits.requests = 2;
        let body = json!({"messages": [{"role": "user", "content": "hi"}], "n": 3});
        let error = super::read(body.as_object().unwrap(), &server).unwrap_err();
        assert_eq!((error.param.as_deref(), error.status.as_u16()), (Some("n"), 400), "429 would be for ever");
    }

    #[test]
    fn unknown_fields_are_named_and_known_ones_that_are_impossible_refused() {
        let read =
            with(json!({"verbosity": "low", "user": "u", "stream_options": {"x": 1}, "cache_control": {}})).unwrap();
        assert_eq!(read.warnings, ["verbosity", "stream_options.x", "cache_control"]);
        assert_eq!(param(json!({"modalities": ["text", "audio"]})), "modalities[1]");
        assert_eq!(param(json!({"functions": [{"name": "f"}]})), "functions");
        assert_eq!(param(json!({"temperature": "hot"})), "temperature");
        assert_eq!(param(json!({"top_logprobs": 3})), "top_logprobs");
        assert_eq!(param(json!({"n": 0})), "n");
        assert_eq!(param(json!({"reasoning_effort": "extreme"})), "reasoning_effort");
        assert_eq!(param(json!({"tool_choice": "required"})), "tool_choice");
        assert_eq!(param(json!({"messages": []})), "messages");
    }

    #[test]
    fn thinking_in_every_spelling() {
        let thinks = |extra: Value| {
            let read = with(extra).unwrap();
            match read.prompt {
                Prompt::Chat(chat) => (chat.enable_thinking, read.options.thinking_budget),
                _ => panic!(),
            }
        };
        assert_eq!(thinks(json!({})), (None, None));
        assert_eq!(thinks(json!({"enable_thinking": false})), (Some(false), None));
        assert_eq!(thinks(json!({"chat_template_kwargs": {"enable_thinking": false, "x": 1}})), (Some(false), None));
        assert_eq!(thinks(json!({"reasoning_effort": "low", "max_tokens": 4096})), (Some(true), Some(1024)));
        assert_eq!(thinks(json!({"reasoning": {"effort": "none"}})), (Some(false), None));
        assert_eq!(thinks(json!({"thinking": {"type": "enabled", "budget_tokens": 99}})), (Some(true), Some(99)));
        assert_eq!(thinks(json!({"thinking_budget": 0})), (Some(false), None));
    }

    #[test]
    fn variables_reach_the_template() {
        let read = with(json!({"chat_template_kwargs": {"x": 1}, "reasoning_effort": "high"})).unwrap();
        let Prompt::Chat(chat) = read.prompt else { panic!() };
        assert_eq!(Value::Object(chat.template_kwargs), json!({"x": 1, "reasoning_effort": "high"}));
    }

    #[test]
    fn tools_and_formats() {
        let tools = json!([{"type": "function", "function": {"name": "f"}}, {"type": "web_search"}]);
        let read = with(json!({"tools": tools, "tool_choice": "required", "parallel_tool_calls": false})).unwrap();
        assert_eq!((read.options.tool_choice, read.options.single_tool_call), (ToolChoice::Required, true));
        assert_eq!(read.warnings, ["tools[1] (web_search)"]);
        let both = json!({"tools": tools, "tool_choice": "required", "response_format": {"type": "json_object"}});
        assert_eq!(param(both), "tool_choice");
        assert_eq!(options(json!({"response_format": {"type": "json_object"}})).format, Some(Format::JsonObject));
        assert_eq!(options(json!({})).tool_choice, ToolChoice::None, "without tools nothing is a call");
    }
}
