//! Tokens with their probabilities, as the OpenAI APIs show them.

use martlet_session::TokenInfo;
use serde::Serialize;
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
