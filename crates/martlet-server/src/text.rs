//! What clients put into texts that belongs elsewhere.

use martlet_chat::{Arguments, Content, Message};
use serde_json::{Map, Value};

const OPEN: &str = "<think>";
const CLOSE: &str = "</think>";

/// Beginnings of lines with which coding agents open their system prompt, and which differ from call to call: with them
/// no prompt would begin like the one before.
const VOLATILE: [&str; 1] = ["x-anthropic-billing-header:"];

/// Whether a line is of that kind.
pub fn is_volatile(line: &str) -> bool {
    let line = line.trim_start().as_bytes();
    VOLATILE.iter().any(|v| line.get(..v.len()).is_some_and(|start| start.eq_ignore_ascii_case(v.as_bytes())))
}

/// A text without such lines at its beginning.
pub fn stable(text: &str) -> &str {
    let mut rest = text;
    while is_volatile(rest.lines().next().unwrap_or_default()) {
        rest = rest.split_once('\n').map_or("", |(_, rest)| rest);
    }
    rest
}

/// The same for a system message.
pub fn without_volatile_lines(message: &mut Message) {
    match &mut message.content {
        Some(Content::Text(text)) => {
            let kept = stable(text).len();
            text.drain(..text.len() - kept);
        }
        Some(Content::Parts(parts)) => {
            for part in parts.iter_mut() {
                if let Some(text) = part.text().map(|t| stable(t).to_string()) {
                    part.0.insert("text".into(), text.into());
                }
            }
        }
        None => {}
    }
}

/// Moves `<think>...</think>` from the beginning of an assistant's text to where thinking belongs.
pub fn own_thinking(message: &mut Message) {
    let Some(Content::Text(text)) = &message.content else { return };
    let Some(inner) = text.trim_start().strip_prefix(OPEN) else { return };
    let Some((thinking, answer)) = inner.split_once(CLOSE) else { return };
    let (thinking, answer) = (thinking.trim_matches('\n').to_string(), answer.trim_start_matches('\n').to_string());
    message.reasoning_content.get_or_insert(thinking);
    message.content = Some(Content::Text(answer));
}

/// Calls whose arguments are no JSON object (they were cut, say) become objects with the text as it is, since templates
/// walk over an object's keys.
pub fn whole_arguments(message: &mut Message) {
    for call in &mut message.tool_calls {
        if let Arguments::Raw(text) = &call.arguments {
            call.arguments = Arguments::Object(Map::from_iter([("arguments".to_string(), Value::from(text.as_str()))]));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use martlet_chat::Role;

    #[test]
    fn lines_that_change_with_each_call_are_left_out() {
        assert_eq!(stable("X-Anthropic-Billing-Header: a=1; b=2;\nYou are"), "You are");
        assert_eq!(stable("x-anthropic-billing-header: a"), "");
        assert_eq!(stable("You are\nx-anthropic-billing-header: a"), "You are\nx-anthropic-billing-header: a");
        assert_eq!(stable("é"), "é");
    }

    #[test]
    fn thinking_moves_to_its_place() {
        let own = |text: &str| {
            let mut message = Message::text(Role::Assistant, text);
            own_thinking(&mut message);
            let content = match message.content {
                Some(Content::Text(text)) => text,
                other => panic!("{other:?}"),
            };
            (message.reasoning_content, content)
        };
        assert_eq!(own("<think>\nr\n</think>\n\n a"), (Some("r".into()), " a".into()));
        assert_eq!(own("a <think>r</think>"), (None, "a <think>r</think>".into()));
        assert_eq!(own("<think>open"), (None, "<think>open".into()));
    }

    #[test]
    fn broken_arguments_are_kept_as_text() {
        let mut message = Message::text(Role::Assistant, "");
        message.tool_calls =
            vec![martlet_chat::ToolCall { id: None, name: "f".into(), arguments: Arguments::Raw("{x".into()) }];
        whole_arguments(&mut message);
        let wrapped = Map::from_iter([("arguments".to_string(), Value::from("{x"))]);
        assert_eq!(message.tool_calls[0].arguments, Arguments::Object(wrapped));
    }
}
