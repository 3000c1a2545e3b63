//! The tokenizer with the real vocabulary of Qwen3.5 and 3.6, and with fledgling's.

use martlet_chat::{SpecialTokens, Tokenizer};
use martlet_tests::fixtures;

fn streamed(tokenizer: &Tokenizer, ids: &[u32]) -> String {
    let mut detokenizer = tokenizer.detokenizer(SpecialTokens::Show);
    let mut text: String = ids.iter().map(|&id| detokenizer.push(id).to_string()).collect();
    text.push_str(detokenizer.finish());
    text
}

#[test]
fn qwen_vocabulary_gives_the_ids_of_the_reference() {
    let path = std::env::var_os("MARTLET_QWEN_TOKENIZER").map(Into::into);
    let path = path.unwrap_or_else(|| fixtures::project("target/test-data/qwen/tokenizer.json"));
    let Some(path) = fixtures::prepared("equality with the vocabulary of Qwen3.5", path) else { return };
    let tokenizer = Tokenizer::from_bytes(&std::fs::read(path).unwrap()).unwrap();
    assert_eq!(tokenizer.vocabulary_size(), 248_077);
    let cases = fixtures::json("tests/fixtures/tokenizer/cases.json");
    let cases = cases.as_array().unwrap();
    assert!(cases.len() >= 20);
    for case in cases {
        let text = case["text"].as_str().unwrap();
        let expected: Vec<u32> = serde_json::from_value(case["ids"].clone()).unwrap();
        assert_eq!(tokenizer.encode(text).unwrap(), expected, "{text:?}");
        let decoded = case["decoded"].as_str().unwrap();
        assert_eq!(tokenizer.decode(&expected, SpecialTokens::Show), decoded, "{text:?}");
        assert_eq!(streamed(&tokenizer, &expected), decoded, "{text:?}");
    }
    // Every token alone: half characters and all markup.
    let ids: Vec<u32> = (0..tokenizer.vocabulary_size() as u32).collect();
    assert_eq!(streamed(&tokenizer, &ids), tokenizer.decode(&ids, SpecialTokens::Show));
    for (token, id) in
        [("<|endoftext|>", 248_044), ("<|im_end|>", 248_046), ("<think>", 248_068), ("</think>", 248_069)]
    {
        assert_eq!(tokenizer.token_to_id(token), Some(id));
        assert_eq!(tokenizer.token_bytes(id), token.as_bytes());
    }
    assert!(tokenizer.is_special(248_046) && !tokenizer.is_special(248_068));
}

#[test]
fn fledgling_s_golden_texts_are_decoded() {
    let json = std::fs::read(fixtures::project("models/fledgling/tokenizer.json")).unwrap();
    let tokenizer = Tokenizer::from_bytes(&json).unwrap();
    let mut checked = 0;
    for entry in std::fs::read_dir(fixtures::project("tests/fixtures/fledgling-golden")).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        if !name.starts_with(|c: char| c.is_ascii_digit()) || !name.ends_with(".json") {
            continue;
        }
        let case = fixtures::json(&format!("tests/fixtures/fledgling-golden/{name}"));
        let ids: Vec<u32> = serde_json::from_value(case["greedy_ids"].clone()).unwrap();
        assert_eq!(streamed(&tokenizer, &ids), case["greedy_text"].as_str().unwrap(), "{name}");
        checked += 1;
    }
    assert!(checked >= 40, "{checked} cases");
}
