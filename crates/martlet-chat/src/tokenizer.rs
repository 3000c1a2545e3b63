//! Text to token ids and back, for byte-level BPE in the `tokenizer.json` form.
//!
//! Special tokens written in the text become their ids, and nothing is added around it: a rendered prompt already has
//! all it needs (transformers with `add_special_tokens=False`).

use std::sync::Arc;

use tokenizers::{DecoderWrapper, Tokenizer as HfTokenizer};

use crate::detokenize::{Detokenizer, SpecialTokens, TokenTable};

/// `tokenizer.json` may have at most so many bytes; that of Qwen3.5 has 13 MB.
pub const MAX_FILE_BYTES: usize = 128 << 20;
/// Token ids from here on are refused, because the table of token bytes has an entry for each id.
pub const MAX_TOKEN_ID: u32 = 1 << 22;

#[derive(Debug, thiserror::Error)]
pub enum TokenizerError {
    #[error("tokenizer.json has {found} bytes; at most {MAX_FILE_BYTES} are read")]
    TooLong { found: usize },
    #[error("tokenizer.json can not be read: {0}")]
    Format(String),
    #[error("tokenizer.json: its decoder is {found}; only ByteLevel (byte-level BPE) is supported")]
    Decoder { found: String },
    #[error("tokenizer.json: token {token:?} has id {id}; at most {MAX_TOKEN_ID} is supported")]
    IdTooLarge { token: String, id: u32 },
    #[error("the text can not be tokenized: {0}")]
    Encode(String),
}

/// A loaded tokenizer. Cloning shares the vocabulary.
#[derive(Clone)]
pub struct Tokenizer {
    inner: Arc<HfTokenizer>,
    table: Arc<TokenTable>,
}

impl Tokenizer {
    /// Reads the bytes of a `tokenizer.json`.
    pub fn from_bytes(json: &[u8]) -> Result<Tokenizer, TokenizerError> {
        if json.len() > MAX_FILE_BYTES {
            return Err(TokenizerError::TooLong { found: json.len() });
        }
        let mut inner = HfTokenizer::from_bytes(json).map_err(|e| TokenizerError::Format(e.to_string()))?;
        // The file may carry the truncation and padding of some training run; a prompt is never cut or padded.
        inner.with_truncation(None).map_err(|e| TokenizerError::Format(e.to_string()))?;
        inner.with_padding(None);
        match inner.get_decoder() {
            Some(DecoderWrapper::ByteLevel(_)) => {}
            other => {
                return Err(TokenizerError::Decoder { found: decoder_name(other) });
            }
        }
        let table = token_table(&inner)?;
        Ok(Tokenizer { inner: Arc::new(inner), table: Arc::new(table) })
    }

    /// Token ids of a text.
    pub fn encode(&self, text: &str) -> Result<Vec<u32>, TokenizerError> {
        let encoding = self.inner.encode_fast(text, false).map_err(|e| TokenizerError::Encode(e.to_string()))?;
        Ok(encoding.get_ids().to_vec())
    }

    /// Text of token ids; bytes that are not UTF-8 become U+FFFD. Ids without a token give nothing.
    pub fn decode(&self, ids: &[u32], special: SpecialTokens) -> String {
        let bytes: Vec<u8> = ids.iter().flat_map(|&id| self.table.shown(id, special)).copied().collect();
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// A streaming decoder whose pieces add up to [`Tokenizer::decode`] of the whole.
    pub fn detokenizer(&self, special: SpecialTokens) -> Detokenizer {
        Detokenizer::new(self.table.clone(), special)
    }

    /// One more than the largest id that has a token. The model's rows may be padded beyond it.
    pub fn vocabulary_size(&self) -> usize {
        self.table.len()
    }

    /// The bytes that a token stands for; empty when the id has no token.
    pub fn token_bytes(&self, id: u32) -> &[u8] {
        self.table.bytes(id)
    }

    /// Whether the token is markup that a reader never sees (`special` in the file).
    pub fn is_special(&self, id: u32) -> bool {
        self.table.is_special(id)
    }

    /// The id of a token written as in the file, such as `<|im_end|>`.
    pub fn token_to_id(&self, token: &str) -> Option<u32> {
        self.inner.token_to_id(token)
    }

    /// The token as the file writes it (byte-level characters for ordinary tokens).
    pub fn id_to_token(&self, id: u32) -> Option<String> {
        self.inner.id_to_token(id)
    }

    /// Ids of the tokens that are matched as a whole, before the text is cut: special ones and tags. Ascending.
    pub fn added_ids(&self) -> Vec<u32> {
        let mut ids: Vec<u32> = self.inner.get_added_tokens_decoder().into_keys().collect();
        ids.sort_unstable();
        ids
    }

    /// Ids of all special tokens, ascending.
    pub fn special_ids(&self) -> Vec<u32> {
        (0..self.table.len() as u32).filter(|&id| self.table.is_special(id)).collect()
    }
}

fn decoder_name(decoder: Option<&DecoderWrapper>) -> String {
    let json = decoder.and_then(|d| serde_json::to_value(d).ok());
    json.as_ref().and_then(|j| j["type"].as_str()).unwrap_or("absent").to_string()
}

fn token_table(inner: &HfTokenizer) -> Result<TokenTable, TokenizerError> {
    let mut vocabulary: Vec<(u32, String)> = inner.get_vocab(true).into_iter().map(|(token, id)| (id, token)).collect();
    vocabulary.sort_unstable();
    let added = inner.get_added_tokens_decoder();
    let mut table = TokenTable::default();
    for (id, token) in vocabulary {
        if id > MAX_TOKEN_ID {
            return Err(TokenizerError::IdTooLarge { token, id });
        }
        // Where two names share an id, the added one counts, as it does when tokens are looked up by id.
        let added = added.get(&id);
        if added.is_none_or(|a| a.content == token) {
            table.insert(id, &token, added.is_some_and(|a| a.special));
        }
    }
    Ok(table)
}

#[cfg(test)]
mod tests;
