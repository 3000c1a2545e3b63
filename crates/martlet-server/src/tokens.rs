//! Tokens with their probabilities, as the OpenAI APIs show them.

use martlet_session::TokenInfo;
use serde::Serialize;
use std::collections::VecDeque;
use std::sync::Arc;
use utoipa::ToSchema;

/// The bytes of a token.
pub type TokenBytes = Arc<dyn Fn(u32) -> Vec<u8> + Send + Sync>;

/// A token and how probable it was.
#[derive(Clone, Debug, PartialEq, Serialize, ToSchema)]
pub struct TokenLogprob {
    pub token: String,
    pub logprob: f32,
    pub bytes: Vec<u8>,
    #[schema(no_recursion)]
    pub top_logprobs: Vec<TopLogprob>,
}

/// What could have come in its place.
#[derive(Clone, Debug, PartialEq, Serialize, ToSchema)]
pub struct TopLogprob {
    pub token: String,
    pub logprob: f32,
    pub bytes: Vec<u8>,
}

/// JSON has no infinity.
const LEAST: f32 = -9999.0;

/// A token as the APIs show it. A part of a character shows as U+FFFD; its bytes are exact.
pub fn shown(token: &TokenInfo, bytes_of: &TokenBytes) -> TokenLogprob {
    let top = token.top.iter().map(|(id, logprob)| {
        let bytes = bytes_of(*id);
        TopLogprob { token: lossy(&bytes), logprob: logprob.max(LEAST), bytes }
    });
    let bytes = bytes_of(token.id);
    TokenLogprob {
        token: lossy(&bytes),
        logprob: token.logprob.unwrap_or(LEAST).max(LEAST),
        top_logprobs: top.collect(),
        bytes,
    }
}

fn lossy(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Tokens whose text has not come yet.
#[derive(Debug, Default)]
pub struct Pending(VecDeque<TokenInfo>);

impl Pending {
    pub fn push(&mut self, token: TokenInfo) {
        self.0.push_back(token);
    }

    /// They belong to thinking or to a call.
    pub fn clear(&mut self) {
        self.0.clear();
    }

    /// The tokens of a piece of text: those before it are left out (tags, and the newlines behind them), and those that lie
    /// behind it stay, since a stop string may yet cut them off.
    pub fn take(&mut self, text: &str, bytes_of: &TokenBytes) -> Vec<TokenLogprob> {
        let bytes: Vec<Vec<u8>> = self.0.iter().map(|token| bytes_of(token.id)).collect();
        let begins = |from: usize| {
            let mut rest = bytes[from..].iter().flatten();
            text.bytes().all(|byte| rest.next() == Some(&byte))
        };
        let (from, to) = match (0..bytes.len()).find(|from| begins(*from)) {
            Some(from) => {
                let ends = bytes[from..].iter().scan(0, |sum, piece| {
                    let before = *sum;
                    *sum += piece.len();
                    Some(before)
                });
                (from, from + ends.take_while(|before| *before < text.len()).count())
            }
            // A character that its tokens do not spell, or a tag and a text in one token.
            None => (0, bytes.len()),
        };
        self.0.drain(..to).skip(from).map(|token| shown(&token, bytes_of)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Tokens of some texts, and what is reported with each piece of text.
    fn taken(tokens: &[&'static str], texts: &[&str]) -> Vec<Vec<String>> {
        let all: Vec<&'static str> = tokens.to_vec();
        let bytes_of: TokenBytes = Arc::new(move |id| all[id as usize].as_bytes().to_vec());
        let mut pending = Pending::default();
        (0..tokens.len())
            .for_each(|id| pending.push(TokenInfo { id: id as u32, logprob: Some(-1.0), top: Vec::new() }));
        let names = |text: &&str| pending.take(text, &bytes_of).into_iter().map(|t| t.token).collect();
        texts.iter().map(names).collect()
    }

    #[test]
    fn the_tokens_of_a_text_spell_it() {
        assert_eq!(taken(&["</think>", "\n\n", "Hel", "lo"], &["Hel", "lo"]), [["Hel"], ["lo"]]);
        assert_eq!(taken(&["a", " b", "eta"], &["a "]), [["a", " b"]], "what a stop string may cut off waits");
        assert_eq!(taken(&["</think>", "a", "ab"], &["a", "ab"]), [["a"], ["ab"]]);
        assert_eq!(taken(&[">\n\nHi", "!"], &["Hi!"]), [[">\n\nHi", "!"]]);
        assert_eq!(taken(&["x", "\u{1}"], &["\u{fffd}"]), [["x", "\u{1}"]]);
    }
}
