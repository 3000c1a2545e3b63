//! Tokenizer, chat template and stop tokens, as the files that other formats have beside their weights.

use super::metadata::Metadata;
use serde_json::{Map, Value as Json, json};

/// What a token is (`tokenizer.ggml.token_type`); all others belong to the vocabulary.
const CONTROL: u64 = 3;
const USER_DEFINED: u64 = 4;
/// Fills the vocabulary up to the rows of the embedding.
const UNUSED: u64 = 5;

/// Pre-tokenisers by name, with what follows an optional sign and makes a word: letters, since 3.5 with their marks.
const PRE: [(&str, &str, &str); 2] = [("qwen2", r"\p{L}", r"\p{L}"), ("qwen35", r"[\p{L}\p{M}]", r"\p{L}\p{M}")];

/// Tokens that end an answer whatever else the file says.
const ENDS: [&str; 2] = ["<|im_end|>", "<|endoftext|>"];

/// The file of that name, if the metadata has what it says.
pub fn file(metadata: &Metadata, name: &str) -> Result<Option<Vec<u8>>, String> {
    let bytes = |json: Json| json.to_string().into_bytes();
    Ok(match name {
        "tokenizer.json" => tokenizer(metadata)?.map(bytes),
        "tokenizer_config.json" => Some(bytes(special_tokens(metadata)?)),
        "generation_config.json" => Some(bytes(generation(metadata)?)),
        "chat_template.jinja" => metadata.text("tokenizer.chat_template")?.map(|t| t.as_bytes().to_vec()),
        _ => None,
    })
}

fn tokens(metadata: &Metadata) -> Result<Vec<&str>, String> {
    Ok(metadata.texts("tokenizer.ggml.tokens")?.unwrap_or_default())
}

fn tokenizer(metadata: &Metadata) -> Result<Option<Json>, String> {
    let Some(model) = metadata.text("tokenizer.ggml.model")? else { return Ok(None) };
    if model != "gpt2" {
        return Err(format!("key tokenizer.ggml.model is {model}; only gpt2 (byte-level BPE) is supported"));
    }
    if metadata.flag("tokenizer.ggml.add_bos_token")? == Some(true) {
        return Err("key tokenizer.ggml.add_bos_token is true: models of this family begin with no such token".into());
    }
    let tokens = tokens(metadata)?;
    let types = metadata.numbers("tokenizer.ggml.token_type")?.unwrap_or_else(|| vec![1; tokens.len()]);
    if types.len() != tokens.len() {
        let (a, b) = (types.len(), tokens.len());
        return Err(format!("key tokenizer.ggml.token_type has {a} entries, tokenizer.ggml.tokens {b}"));
    }
    let (mut vocabulary, mut added) = (Map::new(), Vec::new());
    for (id, (&token, &kind)) in tokens.iter().zip(&types).enumerate() {
        if kind == UNUSED {
            continue;
        }
        // Added tokens are in the vocabulary too, so that they keep their ids whatever lies between.
        if vocabulary.insert(token.to_string(), json!(id)).is_some() {
            return Err(format!("key tokenizer.ggml.tokens has {token:?} twice, the second time as {id}"));
        }
        if kind == CONTROL || kind == USER_DEFINED {
            added.push(json!({
                "id": id, "content": token, "special": kind == CONTROL,
                "single_word": false, "lstrip": false, "rstrip": false, "normalized": false,
            }));
        }
    }
    let byte_level = |prefix: bool| json!({"type": "ByteLevel", "add_prefix_space": prefix, "trim_offsets": prefix, "use_regex": false});
    let split = json!({
        "type": "Split", "pattern": {"Regex": split(metadata)?}, "behavior": "Isolated", "invert": false,
    });
    Ok(Some(json!({
        "version": "1.0",
        "added_tokens": added,
        "normalizer": {"type": "NFC"},
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [split, byte_level(false)]},
        "post_processor": byte_level(false),
        "decoder": byte_level(true),
        "model": {"type": "BPE", "vocab": vocabulary, "merges": merges(metadata)?, "ignore_merges": false},
    })))
}

/// The pattern that cuts a text into pieces before BPE.
fn split(metadata: &Metadata) -> Result<String, String> {
    let name = metadata.text("tokenizer.ggml.pre")?.unwrap_or("(missing)");
    let Some((_, letter, letters)) = PRE.iter().find(|(known, ..)| *known == name) else {
        return Err(format!("key tokenizer.ggml.pre is {name}; known are qwen2 and qwen35"));
    };
    Ok(format!(
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{{L}}\p{{N}}]?{letter}+|\p{{N}}| ?[^\s{letters}\p{{N}}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    ))
}

fn merges(metadata: &Metadata) -> Result<Vec<Json>, String> {
    const KEY: &str = "tokenizer.ggml.merges";
    let list = metadata.texts(KEY)?.ok_or_else(|| format!("key {KEY} is missing"))?;
    let pair = |(i, text): (usize, &&str)| {
        let pair = text.split_once(' ').filter(|(a, b)| !a.is_empty() && !b.is_empty());
        pair.map(|(a, b)| json!([a, b])).ok_or_else(|| format!("key {KEY}: entry {i} is {text:?}, expected two tokens"))
    };
    list.iter().enumerate().map(pair).collect()
}

fn special_tokens(metadata: &Metadata) -> Result<Json, String> {
    let tokens = tokens(metadata)?;
    let mut config = Map::new();
    for (field, key) in [("bos_token", "bos"), ("eos_token", "eos"), ("pad_token", "padding")] {
        let id = metadata.number(&format!("tokenizer.ggml.{key}_token_id"))?;
        if let Some(token) = id.and_then(|id| tokens.get(usize::try_from(id).ok()?)) {
            config.insert(field.into(), json!(token));
        }
    }
    Ok(Json::Object(config))
}

/// Where answers end, and how the model's makers sample.
fn generation(metadata: &Metadata) -> Result<Json, String> {
    let mut ends = Vec::new();
    for key in ["eos", "eot"] {
        ends.extend(metadata.number(&format!("tokenizer.ggml.{key}_token_id"))?);
    }
    for (id, token) in tokens(metadata)?.iter().enumerate() {
        if ENDS.contains(token) && !ends.contains(&(id as u64)) {
            ends.push(id as u64);
        }
    }
    let mut config = Map::new();
    if !ends.is_empty() {
        config.insert("eos_token_id".into(), json!(ends));
    }
    for (field, key) in [("temperature", "temp"), ("top_p", "top_p")] {
        let key = format!("general.sampling.{key}");
        if metadata.get(&key).is_some() {
            config.insert(field.into(), json!(metadata.need_float(&key)?));
        }
    }
    if let Some(k) = metadata.number("general.sampling.top_k")? {
        config.insert("top_k".into(), json!(k));
    }
    Ok(Json::Object(config))
}
