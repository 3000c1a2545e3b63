//! From events of turns to chunks of chat completions, and to the one response.

use super::types::{ChatChoice, ChatChunk, ChatCompletion, ChatMessage, ChunkChoice, Delta, Logprobs};
use crate::error::{ApiError, Style};
use crate::generate::Adapter;
use crate::sse::Frame;
use crate::tokens::{Pending, TokenBytes};
use crate::tools::{Kind, Tools, custom_input};
use crate::usage::{SoFar, Sum, Usage, UsageIn};
use martlet_session::{Event, FinishReason};
use serde_json::{Value, json};

/// What is known from the beginning.
pub struct About {
    pub id: String,
    pub created: u64,
    pub model: String,
    pub tools: Tools,
    pub logprobs: bool,
    pub usage: UsageIn,
    pub bytes_of: TokenBytes,
}

/// The state of a response.
pub struct Chat {
    about: About,
    choices: Vec<Choice>,
    usage: Sum,
    so_far: SoFar,
}

#[derive(Default)]
struct Choice {
    content: String,
    reasoning: String,
    calls: Vec<Call>,
    logprobs: Vec<crate::tokens::TokenLogprob>,
    pending: Pending,
    finish: Option<&'static str>,
    stop_reason: Option<String>,
}

struct Call {
    id: String,
    name: String,
    custom: bool,
    arguments: String,
}

impl Call {
    fn json(&self) -> Value {
        let Call { id, name, arguments, .. } = self;
        match self.custom {
            true => json!({"id": id, "type": "custom", "custom": {"name": name, "input": custom_input(arguments)}}),
            false => json!({"id": id, "type": "function", "function": {"name": name, "arguments": arguments}}),
        }
    }
}

impl Chat {
    pub fn new(about: About, n: usize) -> Chat {
        Chat {
            about,
            choices: (0..n).map(|_| Choice::default()).collect(),
            usage: Sum::default(),
            so_far: SoFar::default(),
        }
    }

    fn chunk(&self, choices: Vec<ChunkChoice>, usage: Option<Usage>) -> Frame {
        let About { id, created, model, usage: told, .. } = &self.about;
        let usage = told.of_chunk(usage, self.so_far);
        Frame::data(&ChatChunk { id, object: "chat.completion.chunk", created: *created, model, choices, usage })
    }

    fn delta(&self, index: usize, delta: Delta, logprobs: Option<Logprobs>) -> Frame {
        self.chunk(vec![ChunkChoice { index, delta, logprobs, finish_reason: None, stop_reason: None }], None)
    }

    /// The tokens of the text that comes now.
    fn logprobs(&mut self, index: usize, text: &str) -> Option<Logprobs> {
        if !self.about.logprobs {
            return None;
        }
        let choice = &mut self.choices[index];
        let content = choice.pending.take(text, &self.about.bytes_of);
        choice.logprobs.extend(content.iter().cloned());
        Some(Logprobs { content })
    }

    fn call(&mut self, index: usize, name: &str, out: &mut Vec<Frame>) {
        let call = self.choices[index].calls.len();
        // Of the response's id, so that ids are unlike each other and the same events give the same stream.
        let id = format!("call_{}{index}{call:02}", self.about.id.rsplit('-').next().unwrap_or_default());
        let custom = *self.about.tools.kind(name) == Kind::Custom;
        let delta = match custom {
            true => json!({"index": call, "id": id, "type": "custom", "custom": {"name": name, "input": ""}}),
            false => json!({"index": call, "id": id, "type": "function", "function": {"name": name, "arguments": ""}}),
        };
        self.choices[index].calls.push(Call { id, name: name.to_string(), custom, arguments: String::new() });
        out.push(self.delta(index, Delta { tool_calls: vec![delta], ..Delta::default() }, None));
    }

    fn arguments(&mut self, index: usize, call: usize, piece: &str, out: &mut Vec<Frame>) {
        let Some(state) = self.choices[index].calls.get_mut(call) else { return };
        state.arguments += piece;
        if !state.custom {
            let delta = json!({"index": call, "function": {"arguments": piece}});
            out.push(self.delta(index, Delta { tool_calls: vec![delta], ..Delta::default() }, None));
        }
    }

    /// The input of a custom tool is known when its JSON is whole.
    fn call_end(&self, index: usize, call: usize, out: &mut Vec<Frame>) {
        if let Some(state) = self.choices[index].calls.get(call).filter(|c| c.custom) {
            let delta = json!({"index": call, "custom": {"input": custom_input(&state.arguments)}});
            out.push(self.delta(index, Delta { tool_calls: vec![delta], ..Delta::default() }, None));
        }
    }
}

/// The word for an end, and the detail that the word leaves out.
pub fn finish_of(reason: &FinishReason) -> (&'static str, Option<String>) {
    match reason {
        FinishReason::ToolCalls => ("tool_calls", None),
        FinishReason::Length | FinishReason::Deadline => ("length", None),
        FinishReason::StopString(stop) => ("stop", Some(stop.clone())),
        FinishReason::Repetition => ("stop", Some("repetition".into())),
        FinishReason::Cancelled => ("stop", Some("cancelled".into())),
        _ => ("stop", None),
    }
}

impl Adapter for Chat {
    fn begin(&mut self, prompt_tokens: usize, out: &mut Vec<Frame>) {
        self.so_far.prompt = prompt_tokens;
        for index in 0..self.choices.len() {
            let delta = Delta { role: Some("assistant"), content: Some(String::new()), ..Delta::default() };
            out.push(self.delta(index, delta, None));
        }
    }

    fn event(&mut self, index: usize, event: &Event, out: &mut Vec<Frame>) {
        self.so_far.generated += usize::from(matches!(event, Event::Token(_)));
        match event {
            Event::Token(token) if self.about.logprobs => self.choices[index].pending.push(token.clone()),
            Event::Reasoning(text) => {
                // Probabilities are reported of the answer.
                self.choices[index].pending.clear();
                self.choices[index].reasoning += text;
                out.push(self.delta(index, Delta { reasoning_content: Some(text.clone()), ..Delta::default() }, None));
            }
            Event::Text(text) => {
                let logprobs = self.logprobs(index, text);
                self.choices[index].content += text;
                out.push(self.delta(index, Delta { content: Some(text.clone()), ..Delta::default() }, logprobs));
            }
            Event::ToolCall { name, .. } => self.call(index, name, out),
            Event::ToolArguments { index: call, piece } => self.arguments(index, *call, piece, out),
            Event::ToolCallEnd { index: call } => {
                self.choices[index].pending.clear();
                self.call_end(index, *call, out);
            }
            Event::Finished(outcome) => {
                self.usage.add(outcome);
                let (finish, stop_reason) = finish_of(&outcome.reason);
                let choice = &mut self.choices[index];
                (choice.finish, choice.stop_reason) = (Some(finish), stop_reason.clone());
                let last = ChunkChoice {
                    index,
                    delta: Delta::default(),
                    logprobs: None,
                    finish_reason: Some(finish),
                    stop_reason,
                };
                out.push(self.chunk(vec![last], None));
            }
            _ => {}
        }
    }

    fn end(&mut self, out: &mut Vec<Frame>) {
        if self.about.usage != UsageIn::None {
            out.push(self.chunk(Vec::new(), Some(self.usage.into())));
        }
        out.push(Frame::word("[DONE]"));
    }

    fn fail(&mut self, error: &ApiError, out: &mut Vec<Frame>) {
        out.push(Frame::data(&error.body(Style::OpenAi)));
        out.push(Frame::word("[DONE]"));
    }

    fn response(&self) -> Value {
        let choices = self.choices.iter().enumerate().map(|(index, c)| ChatChoice {
            index,
            message: ChatMessage {
                role: "assistant",
                content: (!c.content.is_empty() || c.calls.is_empty()).then(|| c.content.clone()),
                reasoning_content: (!c.reasoning.is_empty()).then(|| c.reasoning.clone()),
                refusal: None,
                tool_calls: c.calls.iter().map(Call::json).collect(),
            },
            logprobs: self.about.logprobs.then(|| Logprobs { content: c.logprobs.clone() }),
            finish_reason: c.finish,
            stop_reason: c.stop_reason.clone(),
        });
        let response = ChatCompletion {
            id: self.about.id.clone(),
            object: "chat.completion",
            created: self.about.created,
            model: self.about.model.clone(),
            choices: choices.collect(),
            usage: self.usage.into(),
        };
        serde_json::to_value(response).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests;
