//! From events of a turn to events of a response, and to the one response.

use super::items::encrypted;
use super::types::{InputDetails, OutputDetails, ResponsesResponse, ResponsesUsage};
use crate::error::ApiError;
use crate::generate::Adapter;
use crate::sse::Frame;
use crate::tokens::{Pending, TokenBytes, TokenLogprob};
use crate::tools::{Kind, Tools, custom_input};
use martlet_session::{Event, FinishReason};
use serde_json::{Value, json};

/// What is known from the beginning.
pub struct About {
    pub tools: Tools,
    pub summary: bool,
    pub encrypted: bool,
    pub logprobs: bool,
    pub bytes_of: TokenBytes,
}

/// The state of a response.
pub struct Responses {
    response: ResponsesResponse,
    about: About,
    sequence: usize,
    /// The item that is written to; those before it are in the response.
    open: Option<Item>,
    pending: Pending,
    finish: Option<FinishReason>,
}

enum Item {
    Reasoning(String),
    Message { text: String, logprobs: Vec<TokenLogprob> },
    Call { name: String, arguments: String },
}

impl Responses {
    pub fn new(response: ResponsesResponse, about: About) -> Responses {
        Responses { response, about, sequence: 0, open: None, pending: Pending::default(), finish: None }
    }

    fn emit(&mut self, kind: &'static str, data: Value, out: &mut Vec<Frame>) {
        let mut event = json!({"type": kind, "sequence_number": self.sequence});
        if let (Value::Object(event), Value::Object(data)) = (&mut event, data) {
            event.extend(data);
        }
        self.sequence += 1;
        out.push(Frame::named(kind, &event));
    }

    /// The id of the item that is written to.
    fn id(&self, prefix: &str) -> String {
        let own = self.response.id.trim_start_matches("resp_");
        format!("{prefix}{own}{:02}", self.response.output.len())
    }

    /// An event about a part of the item that is written to.
    fn about_part(&mut self, kind: &'static str, id: &str, key: &str, mut data: Value, out: &mut Vec<Frame>) {
        if let Value::Object(data) = &mut data {
            data.insert("item_id".into(), id.into());
            data.insert("output_index".into(), self.response.output.len().into());
            if !key.is_empty() {
                data.insert(key.into(), 0.into());
            }
        }
        self.emit(kind, data, out);
    }

    fn added(&mut self, item: Value, out: &mut Vec<Frame>) {
        let data = json!({"output_index": self.response.output.len(), "item": item});
        self.emit("response.output_item.added", data, out);
    }

    /// Ends the item that is written to.
    fn close(&mut self, status: &'static str, out: &mut Vec<Frame>) {
        let item = match self.open.take() {
            None => return,
            Some(Item::Reasoning(text)) => self.close_reasoning(&text, status, out),
            Some(Item::Message { text, logprobs }) => self.close_message(&text, &logprobs, status, out),
            Some(Item::Call { name, arguments }) => self.close_call(&name, &arguments, status, out),
        };
        let data = json!({"output_index": self.response.output.len(), "item": item});
        self.emit("response.output_item.done", data, out);
        self.response.output.push(item);
    }

    fn close_reasoning(&mut self, text: &str, status: &'static str, out: &mut Vec<Frame>) -> Value {
        let id = self.id("rs_");
        let packed = self.about.encrypted.then(|| encrypted(text));
        let (content, summary) = match self.about.summary {
            true => {
                let done = json!({"text": text});
                self.about_part("response.reasoning_summary_text.done", &id, "summary_index", done, out);
                let part = json!({"type": "summary_text", "text": text});
                let done = json!({"part": part});
                self.about_part("response.reasoning_summary_part.done", &id, "summary_index", done, out);
                (json!([]), json!([part]))
            }
            false => {
                self.about_part("response.reasoning_text.done", &id, "content_index", json!({"text": text}), out);
                let part = json!({"type": "reasoning_text", "text": text});
                self.about_part("response.content_part.done", &id, "content_index", json!({"part": part}), out);
                (json!([part]), json!([]))
            }
        };
        json!({"id": id, "type": "reasoning", "summary": summary, "content": content,
               "encrypted_content": packed, "status": status})
    }

    fn close_message(&mut self, text: &str, logprobs: &[TokenLogprob], status: &str, out: &mut Vec<Frame>) -> Value {
        let id = self.id("msg_");
        let done = json!({"text": text, "logprobs": logprobs});
        self.about_part("response.output_text.done", &id, "content_index", done, out);
        let part = json!({"type": "output_text", "text": text, "annotations": [], "logprobs": logprobs});
        self.about_part("response.content_part.done", &id, "content_index", json!({"part": part}), out);
        json!({"id": id, "type": "message", "status": status, "role": "assistant", "content": [part]})
    }

    fn close_call(&mut self, name: &str, arguments: &str, status: &str, out: &mut Vec<Frame>) -> Value {
        if *self.about.tools.kind(name) == Kind::Custom {
            let (id, input) = (self.id("ctc_"), custom_input(arguments));
            // The text is known when its JSON is whole.
            self.about_part("response.custom_tool_call_input.delta", &id, "", json!({"delta": input}), out);
            self.about_part("response.custom_tool_call_input.done", &id, "", json!({"input": input}), out);
        } else {
            let id = self.id("fc_");
            let done = json!({"name": self.client_name(name), "arguments": arguments});
            self.about_part("response.function_call_arguments.done", &id, "", done, out);
        }
        self.call_item(name, arguments, status)
    }

    fn client_name<'a>(&'a self, name: &'a str) -> &'a str {
        match self.about.tools.kind(name) {
            Kind::Member { name, .. } => name,
            _ => name,
        }
    }

    fn call_item(&self, name: &str, arguments: &str, status: &str) -> Value {
        let call_id = self.id("call_");
        match self.about.tools.kind(name) {
            Kind::Custom => json!({"id": self.id("ctc_"), "type": "custom_tool_call", "status": status,
                "call_id": call_id, "name": name, "input": custom_input(arguments)}),
            Kind::Member { namespace, name } => json!({"id": self.id("fc_"), "type": "function_call", "status": status,
                "call_id": call_id, "namespace": namespace, "name": name, "arguments": arguments}),
            Kind::Function => json!({"id": self.id("fc_"), "type": "function_call", "status": status,
                "call_id": call_id, "name": name, "arguments": arguments}),
        }
    }

    fn reasoning(&mut self, text: &str, out: &mut Vec<Frame>) {
        if !matches!(self.open, Some(Item::Reasoning(_))) {
            self.close("completed", out);
            self.begin_reasoning(out);
        }
        if let Some(Item::Reasoning(all)) = &mut self.open {
            all.push_str(text);
        }
        let id = self.id("rs_");
        match self.about.summary {
            true => {
                let delta = json!({"delta": text});
                self.about_part("response.reasoning_summary_text.delta", &id, "summary_index", delta, out);
            }
            false => {
                self.about_part("response.reasoning_text.delta", &id, "content_index", json!({"delta": text}), out);
            }
        }
    }

    fn begin_reasoning(&mut self, out: &mut Vec<Frame>) {
        self.open = Some(Item::Reasoning(String::new()));
        let id = self.id("rs_");
        self.added(json!({"id": id, "type": "reasoning", "summary": [], "content": [], "status": "in_progress"}), out);
        match self.about.summary {
            true => {
                let part = json!({"part": {"type": "summary_text", "text": ""}});
                self.about_part("response.reasoning_summary_part.added", &id, "summary_index", part, out);
            }
            false => {
                let part = json!({"part": {"type": "reasoning_text", "text": ""}});
                self.about_part("response.content_part.added", &id, "content_index", part, out);
            }
        }
    }

    fn text(&mut self, text: &str, out: &mut Vec<Frame>) {
        if !matches!(self.open, Some(Item::Message { .. })) {
            self.close("completed", out);
            self.begin_message(out);
        }
        let new = self.pending.take(text, &self.about.bytes_of);
        if let Some(Item::Message { text: all, logprobs }) = &mut self.open {
            all.push_str(text);
            logprobs.extend(new.iter().cloned());
        }
        let id = self.id("msg_");
        let delta = json!({"delta": text, "logprobs": new});
        self.about_part("response.output_text.delta", &id, "content_index", delta, out);
    }

    fn begin_message(&mut self, out: &mut Vec<Frame>) {
        self.open = Some(Item::Message { text: String::new(), logprobs: Vec::new() });
        let id = self.id("msg_");
        let item = json!({"id": id, "type": "message", "status": "in_progress", "role": "assistant", "content": []});
        self.added(item, out);
        let part = json!({"part": {"type": "output_text", "text": "", "annotations": [], "logprobs": []}});
        self.about_part("response.content_part.added", &id, "content_index", part, out);
    }

    fn call(&mut self, name: &str, out: &mut Vec<Frame>) {
        self.close("completed", out);
        self.open = Some(Item::Call { name: name.to_string(), arguments: String::new() });
        self.added(self.call_item(name, "", "in_progress"), out);
    }

    fn arguments(&mut self, piece: &str, out: &mut Vec<Frame>) {
        let Some(Item::Call { name, arguments }) = &mut self.open else { return };
        arguments.push_str(piece);
        if *self.about.tools.kind(name) != Kind::Custom {
            let id = self.id("fc_");
            self.about_part("response.function_call_arguments.delta", &id, "", json!({"delta": piece}), out);
        }
    }

    fn shown(&self) -> Value {
        serde_json::to_value(&self.response).unwrap_or_default()
    }
}

impl Adapter for Responses {
    fn begin(&mut self, _: usize, out: &mut Vec<Frame>) {
        self.emit("response.created", json!({"response": self.shown()}), out);
        self.emit("response.in_progress", json!({"response": self.shown()}), out);
    }

    fn event(&mut self, _: usize, event: &Event, out: &mut Vec<Frame>) {
        match event {
            Event::Token(token) if self.about.logprobs => self.pending.push(token.clone()),
            Event::Reasoning(text) => {
                // Probabilities are reported of the answer.
                self.pending.clear();
                self.reasoning(text, out);
            }
            Event::Text(text) => self.text(text, out),
            Event::ToolCall { name, .. } => self.call(name, out),
            Event::ToolArguments { piece, .. } => self.arguments(piece, out),
            Event::ToolCallEnd { .. } => {
                self.pending.clear();
                self.close("completed", out);
            }
            Event::Finished(outcome) => {
                let usage = &outcome.usage;
                self.response.usage = Some(ResponsesUsage {
                    input_tokens: usage.prompt_tokens,
                    input_tokens_details: InputDetails { cached_tokens: usage.cached_tokens },
                    output_tokens: usage.generated_tokens,
                    output_tokens_details: OutputDetails { reasoning_tokens: usage.reasoning_tokens },
                    total_tokens: usage.prompt_tokens + usage.generated_tokens,
                });
                self.finish = Some(outcome.reason.clone());
            }
            _ => {}
        }
    }

    fn end(&mut self, out: &mut Vec<Frame>) {
        let (status, reason) = match &self.finish {
            Some(FinishReason::Length | FinishReason::Deadline) => ("incomplete", Some("max_output_tokens")),
            Some(FinishReason::Repetition) => ("incomplete", Some("repetition")),
            Some(FinishReason::Cancelled) => ("cancelled", None),
            _ => ("completed", None),
        };
        let (kind, item) = match status {
            "completed" => ("response.completed", "completed"),
            _ => ("response.incomplete", "incomplete"),
        };
        self.close(item, out);
        self.response.status = status;
        self.response.incomplete_details = reason.map(|reason| json!({"reason": reason}));
        self.emit(kind, json!({"response": self.shown()}), out);
    }

    fn fail(&mut self, error: &ApiError, out: &mut Vec<Frame>) {
        self.close("incomplete", out);
        self.response.status = "failed";
        self.response.error = Some(json!({"code": error.code, "message": error.message}));
        self.emit("response.failed", json!({"response": self.shown()}), out);
    }

    fn response(&self) -> Value {
        self.shown()
    }
}

#[cfg(test)]
mod tests;
