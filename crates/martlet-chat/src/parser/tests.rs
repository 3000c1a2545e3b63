//! Every case is given at once, cut in two at every place, by single characters, and cut at random.

mod cases;
mod edges;
mod hostile;
mod splits;

use super::*;
use serde_json::json;

/// Tools of the cases, in all forms of declaration.
fn tools() -> Vec<Json> {
    vec![
        json!({"type": "function", "function": {"name": "f", "parameters": {
            "type": "object",
            "properties": {
                "x": {"type": "string"}, "y": {"type": "string"}, "n": {"type": "integer"}, "r": {"type": "number"},
                "b": {"type": "boolean"}, "l": {"type": "array"}, "o": {"type": "object"},
            },
            "required": ["x"],
        }}}),
        json!({"name": "glob", "input_schema": {"properties": {"p": {"type": "string"}}}}),
        json!({"name": "my.ns-tool:1", "parameters": {}}),
        json!({"type": "function", "function": {"name": "bare"}}),
    ]
}

/// Events of an output that comes in the given pieces, adjacent ones joined.
fn parse<'a>(parser: &OutputParser, pieces: impl IntoIterator<Item = &'a str>, cut: bool) -> Vec<Event> {
    let mut parser = parser.clone();
    let mut all = Vec::new();
    for piece in pieces {
        let events = parser.push(piece);
        let no_text = |e: &Event| matches!(e, Event::Text(t) | Event::Reasoning(t) | Event::Arguments { piece: t, .. } if t.is_empty());
        assert!(!events.iter().any(no_text), "{events:?}");
        all.extend(events);
    }
    all.extend(parser.finish(cut));
    join(all)
}

fn join(events: Vec<Event>) -> Vec<Event> {
    let mut joined: Vec<Event> = Vec::new();
    for event in events {
        match (joined.last_mut(), &event) {
            (Some(Event::Text(text)), Event::Text(next)) => text.push_str(next),
            (Some(Event::Reasoning(text)), Event::Reasoning(next)) => text.push_str(next),
            (Some(Event::Arguments { piece, index }), Event::Arguments { piece: next, index: same })
                if index == same =>
            {
                piece.push_str(next);
            }
            _ => joined.push(event),
        }
    }
    joined
}

/// `r"thinking" t"text" name(arguments)`, and `name(arguments~` for a call without an end.
fn show(events: &[Event]) -> String {
    let mut out: Vec<String> = Vec::new();
    let (mut calls, mut open) = (0, false);
    for event in events {
        match event {
            Event::Reasoning(text) => out.push(format!("r{text:?}")),
            Event::Text(text) => out.push(format!("t{text:?}")),
            Event::Call { index, name } => {
                assert!(!open && *index == calls, "{events:?}");
                (calls, open) = (calls + 1, true);
                out.push(format!("{name}(~"));
            }
            Event::Arguments { index, piece } => {
                assert!(open && *index == calls - 1, "{events:?}");
                let call = out.last_mut().unwrap();
                call.pop();
                *call += &format!("{piece}~");
            }
            Event::CallEnd { index } => {
                assert!(open && *index == calls - 1, "{events:?}");
                open = false;
                let call = out.last_mut().unwrap();
                call.pop();
                let json = &call[call.find('(').unwrap() + 1..];
                let arguments: Json = serde_json::from_str(json).unwrap_or_else(|e| panic!("{json}: {e}"));
                assert!(arguments.is_object(), "{json}");
                call.push(')');
            }
        }
    }
    out.join(" ")
}

/// A small generator of numbers (xorshift).
struct Random(u64);

impl Random {
    fn below(&mut self, n: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % n.max(1) as u64) as usize
    }
}

/// The pieces of an output that is cut at the given places.
fn cut_at<'a>(output: &'a str, places: &[usize]) -> Vec<&'a str> {
    let mut borders: Vec<usize> = places.iter().copied().filter(|&p| output.is_char_boundary(p)).collect();
    borders.extend([0, output.len()]);
    borders.sort_unstable();
    borders.windows(2).map(|w| &output[w[0]..w[1]]).collect()
}

/// Checks that no cut changes the events.
fn check_splits(parser: &OutputParser, output: &str, cut: bool) -> Vec<Event> {
    let whole = parse(parser, [output], cut);
    let same = |places: &[usize]| {
        let pieces = cut_at(output, places);
        let events = parse(parser, pieces.iter().copied(), cut);
        assert_eq!(events, whole, "{output:?} as {pieces:?}");
    };
    (1..output.len()).for_each(|place| same(&[place]));
    same(&(0..output.len()).collect::<Vec<_>>());
    let mut random = Random(output.len() as u64 * 7919 + 1);
    for _ in 0..40 {
        let cuts = 1 + random.below(12);
        same(&(0..cuts).map(|_| random.below(output.len() + 1)).collect::<Vec<_>>());
    }
    whole
}

/// Checks one case: see [`show`] for what is expected.
fn check(parser: &OutputParser, output: &str, cut: bool, expected: &str) {
    let events = check_splits(parser, output, cut);
    assert_eq!(show(&events), expected, "{output:?}{}", if cut { ", cut" } else { "" });
}
