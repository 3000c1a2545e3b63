//! Transcripts of streams, compared with files in `tests/golden`; UPDATE=1 writes them anew.

use crate::generate::Adapter;
use crate::sse::Frame;
use martlet_session::{Event, FinishReason, Outcome, Timings, Usage};
use serde_json::Value;
use std::path::Path;

/// The last event of a turn of 7 prompt tokens, 3 of them cached, and 5 of the answer, 2 of them thinking.
pub fn finished(reason: FinishReason) -> Event {
    let mut usage = Usage::default();
    (usage.prompt_tokens, usage.cached_tokens) = (7, 3);
    (usage.generated_tokens, usage.reasoning_tokens) = (5, 2);
    Event::Finished(Outcome::new(reason, usage, Timings::default()))
}

/// Events of a call.
pub fn call(index: usize, name: &str, pieces: &[&str]) -> Vec<Event> {
    let mut events = vec![Event::ToolCall { index, name: name.into() }];
    events.extend(pieces.iter().map(|piece| Event::ToolArguments { index, piece: piece.to_string() }));
    events.push(Event::ToolCallEnd { index });
    events
}

/// Events of an answer with thinking.
pub fn answer() -> Vec<Event> {
    vec![
        Event::Reasoning("so".into()),
        Event::Reasoning(" it is".into()),
        Event::Text("He".into()),
        Event::Text("llo".into()),
        finished(FinishReason::EndToken(1)),
    ]
}

/// Plays one answer and compares all that it says.
pub fn check(name: &str, adapter: &mut dyn Adapter, events: &[Event]) {
    let mut out = Vec::new();
    adapter.begin(7, &mut out);
    events.iter().for_each(|event| adapter.event(0, event, &mut out));
    adapter.end(&mut out);
    compare(name, &transcript(&out, &adapter.response()));
}

/// The stream as a client sees it, and the response that is no stream.
pub fn transcript(frames: &[Frame], response: &Value) -> String {
    let mut text: String = frames.iter().map(|f| String::from_utf8(f.bytes(None).to_vec()).unwrap()).collect();
    text += "--- not streamed\n";
    text += &serde_json::to_string_pretty(response).unwrap();
    text + "\n"
}

pub fn compare(name: &str, found: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(format!("{name}.txt"));
    if std::env::var_os("UPDATE").is_some() {
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        return std::fs::write(&path, found).unwrap();
    }
    let expected = std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    assert_eq!(found, expected, "{name} (UPDATE=1 renews it)");
}
