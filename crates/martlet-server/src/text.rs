//! What clients put into texts that belongs elsewhere.

use martlet_chat::{Content, Message};

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_that_change_with_each_call_are_left_out() {
        assert_eq!(stable("X-Anthropic-Billing-Header: a=1; b=2;\nYou are"), "You are");
        assert_eq!(stable("x-anthropic-billing-header: a"), "");
        assert_eq!(stable("You are\nx-anthropic-billing-header: a"), "You are\nx-anthropic-billing-header: a");
        assert_eq!(stable("é"), "é");
    }
}
