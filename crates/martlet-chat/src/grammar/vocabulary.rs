//! A model's tokens as grammars see them: strings of bytes in a trie, with markup told apart from text.
//!
//! Tokens that were added to the vocabulary (`<|im_end|>`, `<tool_call>`) are no text for a format: it can not be met by
//! markup. Where text is free, as in the values of tool calls, those of them that a reader sees are text like any other.

use std::sync::{Arc, OnceLock};

use llguidance::ParserFactory;
use llguidance::toktrie::{InferenceCapabilities, TokEnv, TokRxInfo, TokTrie, TokenizerEnv};

use super::bits::Bits;
use super::{CALL, GrammarError, PARAMETER_END, THINK, THINK_END};
use crate::tokenizer::Tokenizer;

/// Longer tokens are never allowed where something must be followed: the trie counts depths in 10 bits.
const MAX_TOKEN_BYTES: usize = 1000;
/// Bytes of all tokens together; the trie counts nodes in 22 bits. That of Qwen3.5 has 1.7 MB.
const MAX_BYTES: usize = (1 << 22) - 2;
/// No token.
const NONE: u32 = u32::MAX;

/// Made once for each model; see [`crate::ChatModel::vocabulary`].
pub struct Vocabulary {
    tokenizer: Tokenizer,
    /// Tokens that end an answer.
    ends: Vec<u32>,
    env: TokEnv,
    factory: OnceLock<Result<ParserFactory, GrammarError>>,
    /// Every token.
    pub(super) all: Bits,
    /// Tokens of text: ordinary ones, and added ones that a reader sees.
    pub(super) text: Bits,
    /// Of these the added ones.
    pub(super) added: Vec<u32>,
    /// Tokens of text that hold `=` or `>`: only they can complete a tag.
    pub(super) closers: Vec<u32>,
    /// Tokens of text that hold a whole tag.
    pub(super) with_call: Vec<u32>,
    pub(super) with_think_end: Vec<u32>,
    pub(super) with_parameter_end: Vec<u32>,
    /// Tokens of text that hold white space of JSON, and those that hold it behind a quote.
    pub(super) with_blank: Bits,
    pub(super) with_quoted_blank: Bits,
    pub(super) think: Option<u32>,
    /// How thinking is closed.
    pub(super) think_end: Vec<u32>,
}

/// What llguidance asks of a tokenizer. Nothing is forced by it: a mask is a function of the bytes so far, and how they
/// are cut into tokens is the model's choice.
struct Env {
    trie: TokTrie,
    tokenizer: Tokenizer,
}

impl TokenizerEnv for Env {
    fn tok_trie(&self) -> &TokTrie {
        &self.trie
    }

    fn tokenize_bytes(&self, bytes: &[u8]) -> Vec<u32> {
        let encode = |text: &str| self.tokenizer.encode(text).unwrap_or_default();
        self.trie.tokenize_with_greedy_fallback(bytes, encode)
    }

    fn tokenize_is_canonical(&self) -> bool {
        false
    }
}

impl Vocabulary {
    /// `ends`: tokens that end an answer. Takes a third of a second for 250,000 tokens.
    pub fn new(tokenizer: &Tokenizer, ends: &[u32]) -> Result<Vocabulary, GrammarError> {
        let size = tokenizer.vocabulary_size();
        let ends: Vec<u32> = ends.iter().copied().filter(|e| (*e as usize) < size).collect();
        let added = tokenizer.added_ids();
        let words = words(tokenizer, &added, &ends)?;
        let trie = TokTrie::from(&TokRxInfo::new(size as u32, NONE), &words);
        let trie = if ends.is_empty() { trie } else { trie.with_eos_tokens(&ends) };
        let env: TokEnv = Arc::new(Env { trie, tokenizer: tokenizer.clone() });
        let shown: Vec<u32> = added.iter().copied().filter(|t| is_shown(tokenizer, *t) && !ends.contains(t)).collect();
        let mut text = Bits::none(size);
        (0..size as u32).filter(|t| words[*t as usize].first().is_some_and(|b| *b != MARK)).for_each(|t| text.set(t));
        shown.iter().for_each(|t| text.set(*t));
        let holds = |what: &'static [u8]| {
            let text = &text;
            move |t: &u32| text.has(*t) && tokenizer.token_bytes(*t).windows(what.len()).any(|w| w == what)
        };
        let ids = || 0..size as u32;
        let is_blank = |byte: &u8| b" \t\r\n".contains(byte);
        let (mut with_blank, mut with_quoted_blank) = (Bits::none(size), Bits::none(size));
        for token in ids().filter(|t| text.has(*t)) {
            let mut parts = tokenizer.token_bytes(token).split(|byte| *byte == b'"');
            let before = parts.next().is_some_and(|part| part.iter().any(is_blank));
            let behind = parts.flatten().any(is_blank);
            with_blank.put(token, before || behind);
            with_quoted_blank.put(token, behind);
        }
        let closers = ids().filter(|t| holds(b"=")(t) || holds(b">")(t)).collect();
        Ok(Vocabulary {
            closers,
            with_blank,
            with_quoted_blank,
            with_call: ids().filter(holds(CALL.as_bytes())).collect(),
            with_think_end: ids().filter(holds(THINK_END.as_bytes())).collect(),
            with_parameter_end: ids().filter(holds(PARAMETER_END.as_bytes())).collect(),
            think: tokenizer.token_to_id(THINK),
            think_end: tokenizer.encode(THINK_END).map_err(|e| GrammarError::Vocabulary(e.to_string()))?,
            all: Bits::all(size),
            added: shown,
            text,
            tokenizer: tokenizer.clone(),
            ends,
            env,
            factory: OnceLock::new(),
        })
    }

    /// What llguidance needs; made when it is first asked for, which takes most of a second for 250,000 tokens.
    pub(super) fn factory(&self) -> Result<&ParserFactory, GrammarError> {
        let make = || {
            let mut factory = ParserFactory::new(&self.env, InferenceCapabilities::default(), &slices())
                .map_err(|e| GrammarError::Vocabulary(e.to_string()))?;
            factory.quiet();
            *factory.limits_mut() = super::compile::parser_limits();
            Ok(factory)
        };
        self.factory.get_or_init(make).as_ref().map_err(Clone::clone)
    }

    /// Makes all that formats and tools need, for callers who have the time before the first turn.
    pub fn warm_up(&self) -> Result<(), GrammarError> {
        self.factory().map(drop)
    }

    /// One more than the largest id that has a token.
    pub fn size(&self) -> usize {
        self.tokenizer.vocabulary_size()
    }

    /// Tokens that end an answer.
    pub fn ends(&self) -> &[u32] {
        &self.ends
    }

    pub(super) fn bytes(&self, token: u32) -> &[u8] {
        self.tokenizer.token_bytes(token)
    }

    pub(super) fn trie(&self) -> &TokTrie {
        self.env.tok_trie()
    }
}

const MARK: u8 = TokTrie::SPECIAL_TOKEN_MARKER;

/// Whether the token is part of the text that a reader sees; the family's own tags are, whatever the file says.
fn is_shown(tokenizer: &Tokenizer, token: u32) -> bool {
    let tags = [THINK, THINK_END, CALL, super::CALL_END].map(str::as_bytes);
    !tokenizer.is_special(token) || tags.contains(&tokenizer.token_bytes(token))
}

/// The bytes of each token, added ones behind a mark that no text has. Tokens that can not be used have none.
fn words(tokenizer: &Tokenizer, added: &[u32], ends: &[u32]) -> Result<Vec<Vec<u8>>, GrammarError> {
    let mut words = Vec::with_capacity(tokenizer.vocabulary_size());
    for id in 0..tokenizer.vocabulary_size() as u32 {
        let bytes = tokenizer.token_bytes(id);
        let marked = ends.contains(&id) || added.binary_search(&id).is_ok();
        let word = if marked { [&[MARK], bytes].concat() } else { bytes.to_vec() };
        // A token of text that begins like a mark would be taken for one.
        let usable = word.len() <= MAX_TOKEN_BYTES && !bytes.is_empty() && (marked || bytes[0] != MARK);
        words.push(if usable { word } else { Vec::new() });
    }
    let found = words.iter().map(Vec::len).sum();
    if found > MAX_BYTES {
        return Err(GrammarError::TooLarge { what: "the vocabulary", found, limit: MAX_BYTES, unit: "bytes" });
    }
    Ok(words)
}

/// Sets of tokens that are allowed or forbidden as a whole inside JSON strings, so that masks there need no walk over the
/// vocabulary.
fn slices() -> Vec<String> {
    let slices = [
        r#"[^"\\\x00-\x1F\x7F]{1,10}"#,
        r#"[^"\\\x00-\x1F\x7F]{1,30}"#, // for strings of bounded length
        r#"[^"\\\x00-\x1F\x7F]+"#,
    ];
    slices.map(String::from).to_vec()
}
