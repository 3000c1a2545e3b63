//! The parser of what a model writes. The first byte says how the turn begins and ends, the second how the output is cut
//! into pieces; whatever the cut, the events must be those of the whole output, and complete calls must have arguments
//! that are JSON objects.
//!
//!     cargo +nightly fuzz run parser -- -max_total_time=120 -dict=fuzz/parser.dict
#![no_main]

use libfuzzer_sys::fuzz_target;
use martlet_chat::{Event, OutputParser, ToolChoice};
use serde_json::{Value, json};
use std::sync::LazyLock;

static TOOLS: LazyLock<Vec<Value>> = LazyLock::new(|| {
    vec![
        json!({"type": "function", "function": {"name": "f", "parameters": {"properties": {
            "x": {"type": "string"}, "n": {"type": "number"}, "i": {"type": "integer"}, "o": {"type": "object"},
            "u": {"anyOf": [{"type": "string"}, {"type": "null"}, {"type": "array"}]},
        }}}}),
        json!({"name": "g"}),
    ]
});

fuzz_target!(|input: &[u8]| {
    let [begin, cut, rest @ ..] = input else { return };
    let output = String::from_utf8_lossy(rest);
    let tools = if begin & 1 == 0 { TOOLS.as_slice() } else { &[] };
    let parse = |step: &mut dyn FnMut() -> usize| {
        let mut parser = OutputParser::new(begin & 2 != 0, tools, &ToolChoice::Auto);
        let (mut events, mut at) = (Vec::new(), 0);
        while at < output.len() {
            let end = (at + step().max(1)..output.len()).find(|&e| output.is_char_boundary(e)).unwrap_or(output.len());
            events.extend(parser.push(&output[at..end]));
            at = end;
        }
        events.extend(parser.finish(begin & 4 != 0));
        joined(events)
    };
    let whole = parse(&mut || usize::MAX >> 1);
    let mut state = u32::from(*cut) + 1;
    let random = parse(&mut || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 24) as usize % 9
    });
    assert_eq!(random, whole);
    assert_eq!(parse(&mut || 1), whole);
    check(&whole);
    if tools.is_empty() && begin & 2 == 0 && !output.contains("think>") {
        let text = if output.is_empty() { vec![] } else { vec![Event::Text(output.to_string())] };
        assert_eq!(whole, text);
    }
});

fn joined(events: Vec<Event>) -> Vec<Event> {
    let mut out: Vec<Event> = Vec::new();
    for event in events {
        match (out.last_mut(), &event) {
            (Some(Event::Text(text)), Event::Text(next)) | (Some(Event::Reasoning(text)), Event::Reasoning(next)) => {
                text.push_str(next)
            }
            (Some(Event::Arguments { piece, index }), Event::Arguments { piece: next, index: i }) if index == i => {
                piece.push_str(next);
            }
            _ => out.push(event),
        }
    }
    out
}

fn check(events: &[Event]) {
    let mut calls = 0;
    for (i, event) in events.iter().enumerate() {
        match event {
            Event::Text(t) | Event::Reasoning(t) => assert!(!t.is_empty()),
            Event::Call { index, name } => {
                assert!(*index == calls && (name == "f" || name == "g"));
                calls += 1;
            }
            Event::Arguments { index, piece } => assert!(*index + 1 == calls && !piece.is_empty()),
            Event::CallEnd { index } => {
                assert_eq!(*index + 1, calls);
                let Event::Arguments { piece, .. } = &events[i - 1] else { panic!("{events:?}") };
                let arguments: Value = serde_json::from_str(piece).expect("arguments are JSON");
                assert!(arguments.is_object());
            }
        }
    }
}
