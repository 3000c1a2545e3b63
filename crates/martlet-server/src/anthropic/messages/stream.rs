//! From events of a turn to events of a message, and to the one response.

use super::types::{Message, MessageUsage, ThinkingTokens};
use crate::error::{ApiError, Style};
use crate::generate::Adapter;
use crate::sse::Frame;
use martlet_session::{Event, FinishReason};
use serde_json::{Map, Value, json};

/// The state of a message.
pub struct Messages {
    message: Message,
    blocks: Vec<Block>,
    open: bool,
}

enum Block {
    Thinking(String),
    Text(String),
    ToolUse { id: String, name: String, arguments: String },
}

impl Messages {
    pub fn new(id: &str, model: &str) -> Messages {
        let message = Message {
            id: id.to_string(),
            kind: "message",
            role: "assistant",
            model: model.to_string(),
            content: Vec::new(),
            stop_reason: None,
            stop_sequence: None,
            stop_details: None,
            usage: MessageUsage::default(),
        };
        Messages { message, blocks: Vec::new(), open: false }
    }

    /// The number of the block that is written to.
    fn index(&self) -> usize {
        self.blocks.len() - 1
    }

    fn start(&mut self, block: Block, out: &mut Vec<Frame>) {
        self.stop(out);
        let begun = match &block {
            Block::Thinking(_) => json!({"type": "thinking", "thinking": "", "signature": ""}),
            Block::Text(_) => json!({"type": "text", "text": ""}),
            Block::ToolUse { id, name, .. } => json!({"type": "tool_use", "id": id, "name": name, "input": {}}),
        };
        self.blocks.push(block);
        self.open = true;
        let data = json!({"type": "content_block_start", "index": self.index(), "content_block": begun});
        out.push(Frame::named("content_block_start", &data));
    }

    fn delta(&self, delta: Value, out: &mut Vec<Frame>) {
        let data = json!({"type": "content_block_delta", "index": self.index(), "delta": delta});
        out.push(Frame::named("content_block_delta", &data));
    }

    /// Ends the block that is written to.
    fn stop(&mut self, out: &mut Vec<Frame>) {
        if !std::mem::take(&mut self.open) {
            return;
        }
        if let Some(Block::Thinking(text)) = self.blocks.last() {
            self.delta(json!({"type": "signature_delta", "signature": signature(text)}), out);
        }
        let data = json!({"type": "content_block_stop", "index": self.index()});
        out.push(Frame::named("content_block_stop", &data));
    }

    fn thinking(&mut self, text: &str, out: &mut Vec<Frame>) {
        if !(self.open && matches!(self.blocks.last(), Some(Block::Thinking(_)))) {
            self.start(Block::Thinking(String::new()), out);
        }
        if let Some(Block::Thinking(all)) = self.blocks.last_mut() {
            all.push_str(text);
        }
        self.delta(json!({"type": "thinking_delta", "thinking": text}), out);
    }

    fn text(&mut self, text: &str, out: &mut Vec<Frame>) {
        if !(self.open && matches!(self.blocks.last(), Some(Block::Text(_)))) {
            self.start(Block::Text(String::new()), out);
        }
        if let Some(Block::Text(all)) = self.blocks.last_mut() {
            all.push_str(text);
        }
        self.delta(json!({"type": "text_delta", "text": text}), out);
    }

    fn call(&mut self, index: usize, name: &str, out: &mut Vec<Frame>) {
        let id = format!("toolu_{}{index:02}", self.message.id.trim_start_matches("msg_"));
        self.start(Block::ToolUse { id, name: name.to_string(), arguments: String::new() }, out);
    }

    fn arguments(&mut self, piece: &str, out: &mut Vec<Frame>) {
        if let Some(Block::ToolUse { arguments, .. }) = self.blocks.last_mut() {
            arguments.push_str(piece);
            self.delta(json!({"type": "input_json_delta", "partial_json": piece}), out);
        }
    }
}

/// Clients send it back with the thinking that it belongs to. It proves nothing, and nothing depends on it.
fn signature(thinking: &str) -> String {
    format!("martlet-{}", &blake3::hash(thinking.as_bytes()).to_hex()[..32])
}

impl Block {
    fn json(&self) -> Value {
        match self {
            Block::Thinking(text) => json!({"type": "thinking", "thinking": text, "signature": signature(text)}),
            Block::Text(text) => json!({"type": "text", "text": text}),
            Block::ToolUse { id, name, arguments } => {
                json!({"type": "tool_use", "id": id, "name": name, "input": input(arguments)})
            }
        }
    }
}

/// Arguments as an object; those that were cut short are given as they are.
fn input(arguments: &str) -> Value {
    match serde_json::from_str::<Map<String, Value>>(arguments) {
        Ok(map) => map.into(),
        Err(_) if arguments.is_empty() => json!({}),
        Err(_) => json!({"arguments": arguments}),
    }
}

impl Adapter for Messages {
    fn begin(&mut self, prompt_tokens: usize, out: &mut Vec<Frame>) {
        self.message.usage.input_tokens = prompt_tokens;
        out.push(Frame::named("message_start", &json!({"type": "message_start", "message": self.message})));
    }

    fn event(&mut self, _: usize, event: &Event, out: &mut Vec<Frame>) {
        match event {
            Event::Reasoning(text) => self.thinking(text, out),
            Event::Text(text) => self.text(text, out),
            Event::ToolCall { index, name } => self.call(*index, name, out),
            Event::ToolArguments { piece, .. } => self.arguments(piece, out),
            Event::ToolCallEnd { .. } => self.stop(out),
            Event::Finished(outcome) => {
                self.stop(out);
                let usage = &outcome.usage;
                self.message.usage = MessageUsage {
                    input_tokens: usage.prompt_tokens - usage.cached_tokens,
                    cache_creation_input_tokens: 0,
                    cache_read_input_tokens: usage.cached_tokens,
                    output_tokens: usage.generated_tokens,
                    output_tokens_details: ThinkingTokens { thinking_tokens: usage.reasoning_tokens },
                };
                let (reason, stop) = match &outcome.reason {
                    FinishReason::ToolCalls => ("tool_use", None),
                    FinishReason::Length | FinishReason::Deadline => ("max_tokens", None),
                    FinishReason::StopString(stop) => ("stop_sequence", Some(stop.clone())),
                    _ => ("end_turn", None),
                };
                (self.message.stop_reason, self.message.stop_sequence) = (Some(reason), stop);
                let repeats = outcome.reason == FinishReason::Repetition;
                self.message.stop_details = repeats.then(|| json!({"type": "repetition"}));
            }
            _ => {}
        }
    }

    fn end(&mut self, out: &mut Vec<Frame>) {
        let Message { stop_reason, stop_sequence, stop_details, usage, .. } = &self.message;
        let mut delta = json!({"stop_reason": stop_reason, "stop_sequence": stop_sequence});
        if let Some(details) = stop_details {
            delta["stop_details"] = details.clone();
        }
        out.push(Frame::named("message_delta", &json!({"type": "message_delta", "delta": delta, "usage": usage})));
        out.push(Frame::named("message_stop", &json!({"type": "message_stop"})));
    }

    fn fail(&mut self, error: &ApiError, out: &mut Vec<Frame>) {
        out.push(Frame::named("error", &error.body(Style::Anthropic)));
    }

    fn response(&self) -> Value {
        let content = self.blocks.iter().map(Block::json).collect();
        serde_json::to_value(Message { content, ..self.message.clone() }).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::golden;

    fn check(name: &str, events: &[Event]) {
        golden::check(&format!("anthropic/{name}"), &mut Messages::new("msg_1", "m"), events);
    }

    #[test]
    fn an_answer_with_thinking() {
        check("thinking", &golden::answer());
    }

    #[test]
    fn two_calls() {
        let mut events = vec![Event::Text("I look.".into())];
        events.extend(golden::call(0, "f", &["{\"a\":", "1}"]));
        events.extend(golden::call(1, "g", &["{}"]));
        events.push(golden::finished(FinishReason::ToolCalls));
        check("calls", &events);
    }

    #[test]
    fn an_answer_cut_short_in_a_call() {
        let mut events = golden::call(0, "f", &["{\"a\":"]);
        events.pop();
        events.push(golden::finished(FinishReason::Length));
        check("cut", &events);
    }

    #[test]
    fn an_answer_that_repeats_itself() {
        check("repeats", &[Event::Text("la la".into()), golden::finished(FinishReason::Repetition)]);
    }

    #[test]
    fn nothing_but_an_end() {
        check("stopped", &[golden::finished(FinishReason::StopString("x".into()))]);
    }
}
