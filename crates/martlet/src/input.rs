//! What a person gives to read: standard input, files, lists of token ids.

use crate::exit::Usage;
use anyhow::Context;
use martlet_chat::Conversation;
use std::io::{self, IsTerminal, Read};

/// All of standard input, as it is.
pub fn stdin() -> anyhow::Result<String> {
    let mut bytes = Vec::new();
    io::stdin().lock().read_to_end(&mut bytes).context("standard input can not be read")?;
    Ok(String::from_utf8(bytes).map_err(|e| Usage(format!("standard input is not UTF-8: {e}")))?)
}

/// Standard input if it is not a terminal; without the newline at its end, which programs add to lines.
pub fn piped() -> anyhow::Result<Option<String>> {
    if io::stdin().is_terminal() {
        return Ok(None);
    }
    let mut text = stdin()?;
    if text.ends_with('\n') {
        text.pop();
        if text.ends_with('\r') {
            text.pop();
        }
    }
    Ok(Some(text))
}

/// A text file as it is; "-" is standard input.
pub fn file(path: &str) -> anyhow::Result<String> {
    match path {
        "-" => stdin(),
        _ => Ok(std::fs::read_to_string(path).map_err(|e| Usage(format!("{path}: {e}")))?),
    }
}

/// A chat file: an object with messages, or an array of messages.
pub fn chat(path: &str) -> anyhow::Result<Conversation> {
    Ok(Conversation::parse(&file(path)?).map_err(|e| Usage(format!("{path}: {e}")))?)
}

/// Whether to think: a flag goes before the chat file, the file before the other settings.
pub fn choose_thinking(chat: &mut Conversation, flag: Option<bool>, setting: Option<bool>) {
    match flag {
        Some(choice) => chat.set_thinking(choice),
        None => chat.enable_thinking = chat.enable_thinking.or(setting),
    }
}

/// Token ids, separated by commas or white space; brackets around them are allowed.
pub fn ids(text: &str) -> Result<Vec<u32>, Usage> {
    let inner = text.trim();
    let inner = inner.strip_prefix('[').and_then(|t| t.strip_suffix(']')).unwrap_or(inner);
    let words = inner.split(|c: char| c == ',' || c.is_whitespace()).filter(|w| !w.is_empty());
    words.map(|w| w.parse().map_err(|_| Usage(format!("\"{w}\" is no token id")))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_read_in_every_usual_form() {
        for text in ["1,2,3", "[1, 2, 3]", " 1 2\n3 ", "1, 2 ,3,"] {
            assert_eq!(ids(text).unwrap(), [1, 2, 3], "{text}");
        }
        assert_eq!(ids("").unwrap(), [0; 0]);
        assert!(ids("1,-2").unwrap_err().to_string().contains("\"-2\""));
    }
}
