//! Traces: what a model wrote, token by token, kept in a file of JSON lines so that it can be parsed again.
//!
//! ```text
//! {"martlet_trace": 1, "prompt_opens_thinking": true, "tools": [...], "tool_choice": "auto"}
//! {"token": 2610, "text": "Let"}
//! ...
//! {"event": "finished", "reason": "stop"}
//! ```
//!
//! Lines with other keys, events as they were given out among them, say nothing here.

use crate::{Event, OutputParser, ToolChoice};
use serde_json::Value;

/// A trace as far as the parser needs it.
#[derive(Clone, Debug, PartialEq)]
pub struct Trace {
    pub opens_thinking: bool,
    pub tools: Vec<Value>,
    pub tool_choice: ToolChoice,
    /// The text that each token completed; it may be empty.
    pub pieces: Vec<String>,
    /// The model did not end its answer.
    pub truncated: bool,
}

/// A file that is no trace, with the line, counted from 1.
#[derive(Debug, thiserror::Error, PartialEq)]
pub enum TraceError {
    #[error("line {line}: not a JSON object: {message}")]
    Syntax { line: usize, message: String },
    #[error("line 1: {{\"martlet_trace\": 1, ...}} is expected, found version {found}")]
    Version { found: String },
    #[error("line {line}: {key} is {found}, expected {expected}")]
    WrongType { line: usize, key: &'static str, found: String, expected: &'static str },
}

impl Trace {
    pub fn parse(text: &str) -> Result<Trace, TraceError> {
        let mut lines = text.lines().enumerate().filter(|(_, l)| !l.trim().is_empty()).map(|(i, l)| (i + 1, l));
        let (line, header) = lines.next().unwrap_or((1, ""));
        let header = object(line, header)?;
        match &header["martlet_trace"] {
            Value::Number(n) if n.as_u64() == Some(1) => {}
            other => return Err(TraceError::Version { found: other.to_string() }),
        }
        let wrong = |line, key, found: &Value, expected| {
            Err(TraceError::WrongType { line, key, found: found.to_string(), expected })
        };
        let opens_thinking = match &header["prompt_opens_thinking"] {
            Value::Bool(opens) => *opens,
            Value::Null => false,
            other => return wrong(line, "prompt_opens_thinking", other, "true or false"),
        };
        let tools = match &header["tools"] {
            Value::Array(tools) => tools.clone(),
            Value::Null => Vec::new(),
            other => return wrong(line, "tools", other, "an array"),
        };
        let tool_choice = tool_choice(&header["tool_choice"]);
        let mut trace = Trace { opens_thinking, tools, tool_choice, pieces: Vec::new(), truncated: false };
        for (line, json) in lines {
            let entry = object(line, json)?;
            match (&entry["text"], entry.get("token").is_some()) {
                (Value::String(text), true) => trace.pieces.push(text.clone()),
                (Value::Null, true) => trace.pieces.push(String::new()),
                (other, true) => return wrong(line, "text", other, "a string or null"),
                _ => {}
            }
            if entry["event"] == "finished" {
                trace.truncated = !matches!(entry["reason"].as_str(), None | Some("stop" | "tool_calls"));
            }
            trace.truncated |= entry["cut"] == true;
        }
        Ok(trace)
    }

    /// What the parser makes of it: the events of each token, then those of the end.
    pub fn events(&self) -> Vec<Vec<Event>> {
        let mut parser = OutputParser::new(self.opens_thinking, &self.tools, &self.tool_choice);
        let mut events: Vec<Vec<Event>> = self.pieces.iter().map(|piece| parser.push(piece)).collect();
        events.push(parser.finish(self.truncated));
        events
    }
}

fn object(line: usize, json: &str) -> Result<Value, TraceError> {
    let syntax = |message: String| TraceError::Syntax { line, message };
    match serde_json::from_str(json) {
        Ok(value @ Value::Object(_)) => Ok(value),
        Ok(other) => Err(syntax(format!("it is {other}"))),
        Err(e) => Err(syntax(e.to_string())),
    }
}

/// A choice as the APIs write it, as far as it says which calls are calls: none, all, or those of the tools that are
/// named.
fn tool_choice(choice: &Value) -> ToolChoice {
    if choice == "none" || choice["type"] == "none" {
        return ToolChoice::None;
    }
    let listed = choice["tools"].as_array().or(choice["allowed_tools"]["tools"].as_array());
    let tools = listed.into_iter().flatten().chain([choice]);
    let name = |tool: &Value| tool["name"].as_str().or(tool["function"]["name"].as_str()).map(str::to_string);
    match tools.filter_map(name).collect::<Vec<_>>() {
        names if names.is_empty() => ToolChoice::Auto,
        names => ToolChoice::AutoOf(names),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    const TRACE: &str = r#"{"martlet_trace":1,"prompt_opens_thinking":true,"tools":[{"name":"f"}],"tool_choice":"auto","model":"m"}
{"token":1,"text":"hm</think>"}
{"event":"reasoning","text":"hm"}
{"token":2,"text":null}
{"token":3,"text":"<function=f></function>"}

{"token":4,"text":"<fun"}
{"event":"finished","reason":"tool_calls"}
"#;

    #[test]
    fn a_trace_is_parsed_again() {
        let trace = Trace::parse(TRACE).unwrap();
        assert_eq!((trace.pieces.len(), trace.truncated), (4, false));
        let events = trace.events();
        assert_eq!(events[0], [Event::Reasoning("hm".into())]);
        assert_eq!((events[1].len(), events[2].len(), events.len()), (0, 3, 5));
        assert_eq!(events[4], [Event::Text("<fun".into())]);
        assert!(Trace::parse(&TRACE.replace("\"tool_calls\"", "\"length\"")).unwrap().truncated);
        assert!(Trace::parse(&(TRACE.to_string() + "{\"cut\":true}")).unwrap().truncated);
    }

    #[test]
    fn errors_name_the_line() {
        let error = |text: &str| Trace::parse(text).unwrap_err().to_string();
        assert!(error("").starts_with("line 1: not a JSON object"));
        assert!(error("{}").contains("found version null"));
        assert!(error(&TRACE.replace("\"text\":null", "\"text\":5")).contains("line 4: text is 5"));
        assert!(error(&(TRACE.to_string() + "{")).starts_with("line 9: "));
        assert!(error(&TRACE.replace("true", "1")).contains("prompt_opens_thinking is 1"));
    }

    #[test]
    fn choices_of_all_apis_are_understood() {
        let named = ToolChoice::AutoOf(vec!["f".into()]);
        for (choice, expected) in [
            (json!(null), ToolChoice::Auto),
            (json!("required"), ToolChoice::Auto),
            (json!({"type": "any"}), ToolChoice::Auto),
            (json!("none"), ToolChoice::None),
            (json!({"type": "none"}), ToolChoice::None),
            (json!({"type": "function", "function": {"name": "f"}}), named.clone()),
            (json!({"type": "tool", "name": "f"}), named.clone()),
            (json!({"type": "allowed_tools", "mode": "auto", "tools": [{"name": "f"}]}), named.clone()),
            (json!({"type": "allowed_tools", "allowed_tools": {"tools": [{"function": {"name": "f"}}]}}), named),
        ] {
            assert_eq!(tool_choice(&choice), expected, "{choice}");
        }
    }
}
