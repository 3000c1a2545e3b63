//! `martlet replay`: what the output parser makes of a trace.

use crate::app::App;
use crate::exit::Usage;
use crate::input;
use martlet_chat::{Event, Trace};
use serde_json::{Value, json};

#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// The trace; "-" is standard input
    pub file: String,
    /// Print one JSON object for each event, as it came, instead of whole parts
    #[arg(long)]
    pub json: bool,
}

const EXAMPLES: &str = "\
Examples:
  martlet replay traces/2026-01-31T12-00-00-chatcmpl-1-0.jsonl
  martlet replay trace.jsonl --json

A trace is a file of JSON lines: a header, {\"martlet_trace\": 1,
\"prompt_opens_thinking\": BOOL, \"tools\": [...], \"tool_choice\": ...}, then
{\"token\": ID, \"text\": TEXT} for each token. Other lines are passed over, but
{\"event\": \"finished\", \"reason\": ...} says whether the model ended its answer.
With --json, \"token\" counts the tokens before an event, from 1.";

pub fn run(args: &Args, app: &App) -> anyhow::Result<()> {
    let trace = Trace::parse(&input::file(&args.file)?).map_err(|e| Usage(format!("{}: {e}", args.file)))?;
    let events = trace.events();
    let lines = if args.json { pieces(events) } else { parts(events) };
    Ok(app.terminal.answer(&lines)?)
}

/// Every event by itself.
fn pieces(events: Vec<Vec<Event>>) -> String {
    let line = |token: usize, event: &Event| {
        let mut json = match event {
            Event::Reasoning(text) => json!({"event": "reasoning", "text": text}),
            Event::Text(text) => json!({"event": "text", "text": text}),
            Event::Call { index, name } => json!({"event": "tool_call", "index": index, "name": name}),
            Event::Arguments { index, piece } => json!({"event": "tool_arguments", "index": index, "piece": piece}),
            Event::CallEnd { index } => json!({"event": "tool_call_end", "index": index}),
        };
        json["token"] = token.into();
        format!("{json}\n")
    };
    let last = events.len().saturating_sub(1);
    let numbered = events.iter().enumerate().map(|(i, events)| ((i + 1).min(last), events));
    numbered.flat_map(|(token, events)| events.iter().map(move |e| line(token, e))).collect()
}

/// Thinking, texts and calls as wholes: the kind, then what was said as a JSON string.
fn parts(events: Vec<Vec<Event>>) -> String {
    let mut parts: Vec<(String, String)> = Vec::new();
    for event in events.into_iter().flatten() {
        let (kind, text) = match event {
            Event::Reasoning(text) => ("reasoning".to_string(), text),
            Event::Text(text) => ("text".to_string(), text),
            Event::Call { index, name } => (format!("call {index}"), name),
            Event::Arguments { index, piece } => (format!("arguments {index}"), piece),
            Event::CallEnd { index } => (format!("end {index}"), String::new()),
        };
        match parts.last_mut() {
            Some((last, said)) if *last == kind => said.push_str(&text),
            _ => parts.push((kind, text)),
        }
    }
    let line = |(kind, text): (String, String)| match kind.as_str() {
        "reasoning" | "text" => format!("{kind} {}\n", Value::from(text)),
        _ => format!("{kind} {text}").trim_end().to_string() + "\n",
    };
    parts.into_iter().map(line).collect()
}
