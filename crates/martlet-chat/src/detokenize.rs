//! Token ids to text while they are generated.
//!
//! Every token is a string of bytes, and characters may be spread over several tokens. Work is on bytes, so it is linear
//! in the length of the text, and a piece is given out only when its last character is complete.

use std::sync::Arc;

/// Whether tokens marked `special` appear in decoded text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SpecialTokens {
    Show,
    Skip,
}

/// The bytes of every token, by id.
#[derive(Debug, Default)]
pub(crate) struct TokenTable {
    bytes: Vec<u8>,
    /// End of each token in `bytes`; a token begins where the one before it ends.
    ends: Vec<u32>,
    special: Vec<bool>,
}

impl TokenTable {
    /// Adds a token in its written form. Ids must ascend; ids left out have no bytes, and a second name is dropped.
    pub(crate) fn insert(&mut self, id: u32, written: &str, special: bool) {
        let index = id as usize;
        if index < self.ends.len() {
            return;
        }
        self.ends.resize(index, self.bytes.len() as u32);
        self.special.resize(index, false);
        match written.chars().map(byte_of).collect::<Option<Vec<u8>>>() {
            Some(bytes) => self.bytes.extend(bytes),
            None => self.bytes.extend(written.as_bytes()),
        }
        self.ends.push(self.bytes.len() as u32);
        self.special.push(special);
    }

    pub(crate) fn len(&self) -> usize {
        self.ends.len()
    }

    pub(crate) fn bytes(&self, id: u32) -> &[u8] {
        let index = id as usize;
        let Some(&end) = self.ends.get(index) else { return &[] };
        let start = if index == 0 { 0 } else { self.ends[index - 1] };
        &self.bytes[start as usize..end as usize]
    }

    pub(crate) fn is_special(&self, id: u32) -> bool {
        self.special.get(id as usize).copied().unwrap_or(false)
    }

    pub(crate) fn shown(&self, id: u32, special: SpecialTokens) -> &[u8] {
        if special == SpecialTokens::Skip && self.is_special(id) { &[] } else { self.bytes(id) }
    }
}

/// Byte-level BPE writes each byte as one character: printable ones of Latin-1 as themselves, the other 68 as the
/// characters from U+0100 on, in order. A token with any other character stands for its own UTF-8 bytes.
fn byte_of(c: char) -> Option<u8> {
    match c as u32 {
        code @ (0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff) => Some(code as u8),
        code @ 0x100..=0x120 => Some((code - 0x100) as u8), // 0x00 to 0x20
        code @ 0x121..=0x142 => Some((code - 0x121 + 0x7f) as u8), // 0x7f to 0xa0
        0x143 => Some(0xad),
        _ => None,
    }
}

/// Turns generated ids into text, piece by piece. The pieces add up to the decoding of all ids at once.
#[derive(Clone, Debug)]
pub struct Detokenizer {
    table: Arc<TokenTable>,
    special: SpecialTokens,
    /// The beginning of a character: at most 3 bytes between calls.
    pending: Vec<u8>,
    /// What the last call gave out.
    piece: String,
}

impl Detokenizer {
    pub(crate) fn new(table: Arc<TokenTable>, special: SpecialTokens) -> Detokenizer {
        Detokenizer { table, special, pending: Vec::new(), piece: String::new() }
    }

    /// The text that this token completes; empty while a character is unfinished. A byte that can not be part of a
    /// character becomes U+FFFD.
    pub fn push(&mut self, id: u32) -> &str {
        self.pending.extend_from_slice(self.table.shown(id, self.special));
        self.piece.clear();
        let mut taken = 0;
        for chunk in self.pending.utf8_chunks() {
            self.piece.push_str(chunk.valid());
            taken += chunk.valid().len();
            let invalid = chunk.invalid();
            if invalid.is_empty() || (taken + invalid.len() == self.pending.len() && is_unfinished(invalid)) {
                break;
            }
            self.piece.push(char::REPLACEMENT_CHARACTER);
            taken += invalid.len();
        }
        self.pending.drain(..taken);
        &self.piece
    }

    /// Ends the stream: an unfinished character becomes U+FFFD.
    pub fn finish(&mut self) -> &str {
        self.piece.clear();
        if !self.pending.is_empty() {
            self.pending.clear();
            self.piece.push(char::REPLACEMENT_CHARACTER);
        }
        &self.piece
    }
}

/// Whether more bytes could make this a character.
fn is_unfinished(bytes: &[u8]) -> bool {
    std::str::from_utf8(bytes).is_err_and(|e| e.error_len().is_none())
}

#[cfg(test)]
mod tests;
