//! From JSON to prompts and the options of their turns.

use super::types::CompletionsRequest;
use crate::ask;
use crate::error::ApiError;
use crate::json::{self, wrong};
use crate::options::Options;
use crate::usage::UsageIn;
use martlet_session::{Prompt, TurnOptions};
use serde_json::{Map, Value};

const WITHOUT_EFFECT: [&str; 3] = ["user", "stream_options.include_obfuscation", "resume_response_id"];

/// Where a request says nothing.
const MAX_TOKENS: usize = 16;

/// A request, read and checked.
#[derive(Debug)]
pub struct Read {
    pub model: Option<String>,
    pub prompts: Vec<Prompt>,
    pub options: TurnOptions,
    pub n: usize,
    pub echo: bool,
    pub stream: bool,
    pub usage: UsageIn,
    pub warnings: Vec<String>,
}

/// The text of a prompt, if it is one.
pub fn text(prompt: &Prompt) -> String {
    match prompt {
        Prompt::Text(text) => text.clone(),
        _ => String::new(),
    }
}

pub fn read(body: &Map<String, Value>, server: &Options) -> Result<Read, ApiError> {
    let (request, warnings) = json::read_request::<CompletionsRequest>(body, &WITHOUT_EFFECT)?;
    if request.suffix.as_deref().is_some_and(|s| !s.is_empty()) {
        return Err(ApiError::unsupported("suffix", "this model can not fill in: write the prompt for it"));
    }
    let echo = request.echo.unwrap_or(false);
    if echo && request.logprobs.is_some() {
        return Err(ApiError::unsupported("echo", "probabilities of the prompt's tokens are not kept"));
    }
    let n = ask::count(request.n, "n", server.limits.answers())?;
    if request.best_of.is_some_and(|best| best != n as i64) {
        return Err(ApiError::unsupported("best_of", "all answers are given: best_of must be n"));
    }
    let prompts = prompts(&request.prompt)?;
    let most = server.limits.answers();
    if prompts.len() * n > most {
        let message = format!("{} prompts with {n} answers each; at most {most} answers are given", prompts.len());
        return Err(ApiError::field("prompt", message));
    }
    let options = TurnOptions {
        max_tokens: request.max_tokens.map_or(Some(MAX_TOKENS), |n| ask::most(Some(n))),
        logprobs: request.logprobs.map(|n| ask::top(Some(n), "logprobs")).transpose()?,
        format: request.format()?,
        ..request.turn_options()?
    };
    Ok(Read {
        model: request.model,
        prompts,
        options,
        n,
        echo,
        stream: request.stream.unwrap_or(false),
        usage: request.stream_options.map_or(UsageIn::None, |o| o.usage()),
        warnings,
    })
}

fn prompts(value: &Value) -> Result<Vec<Prompt>, ApiError> {
    let items = match value {
        Value::String(text) => return Ok(vec![Prompt::Text(text.clone())]),
        Value::Array(items) if items.is_empty() => return Err(ApiError::field("prompt", "is empty")),
        Value::Array(items) => items,
        other => return Err(wrong("prompt", "a string, token ids, or an array of them", other)),
    };
    if items[0].is_number() {
        return Ok(vec![ids(items, "prompt")?]);
    }
    let each = items.iter().enumerate().map(|(i, item)| {
        let path = format!("prompt[{i}]");
        match item {
            Value::String(text) => Ok(Prompt::Text(text.clone())),
            Value::Array(list) => ids(list, &path),
            other => Err(wrong(&path, "a string or token ids", other)),
        }
    });
    each.collect()
}

fn ids(items: &[Value], path: &str) -> Result<Prompt, ApiError> {
    let id = |(i, v): (usize, &Value)| {
        let id = v.as_u64().and_then(|id| u32::try_from(id).ok());
        id.ok_or_else(|| wrong(&format!("{path}[{i}]"), "a token id", v))
    };
    items.iter().enumerate().map(id).collect::<Result<_, _>>().map(Prompt::Ids)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn with(extra: Value) -> Result<Read, ApiError> {
        let mut body = json!({"model": "m", "prompt": "a"});
        body.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
        read(body.as_object().unwrap(), &Options::default())
    }

    #[test]
    fn prompts_in_every_form() {
        let of = |prompt: Value| with(json!({"prompt": prompt})).map(|r| r.prompts).map_err(|e| e.param.unwrap());
        assert_eq!(of(json!("a")), Ok(vec![Prompt::Text("a".into())]));
        assert_eq!(of(json!(["a", "b"])), Ok(vec![Prompt::Text("a".into()), Prompt::Text("b".into())]));
        assert_eq!(of(json!([1, 2])), Ok(vec![Prompt::Ids(vec![1, 2])]));
        assert_eq!(of(json!([[1], [2]])), Ok(vec![Prompt::Ids(vec![1]), Prompt::Ids(vec![2])]));
        assert_eq!(of(json!([1, "a"])), Err("prompt[1]".into()));
        assert_eq!(of(json!([])), Err("prompt".into()));
        assert_eq!(of(json!(vec!["a"; 17])), Err("prompt".into()));
    }

    #[test]
    fn what_is_impossible_is_named() {
        let param = |extra: Value| with(extra).unwrap_err().param.unwrap();
        assert_eq!(param(json!({"suffix": "x"})), "suffix");
        assert_eq!(param(json!({"echo": true, "logprobs": 1})), "echo");
        assert_eq!(param(json!({"best_of": 3})), "best_of");
        let both = json!({"response_format": {"type": "json_object"}, "structured_outputs": {"regex": "a"}});
        assert_eq!(param(both), "structured_outputs");
        assert_eq!(with(json!({})).unwrap().options.max_tokens, Some(16));
        assert_eq!(with(json!({"max_tokens": -1})).unwrap().options.max_tokens, None);
        assert_eq!(with(json!({"logprobs": 0})).unwrap().options.logprobs, Some(0));
    }
}
