use super::*;
use proptest::prelude::*;
use std::sync::LazyLock;

static JSON: LazyLock<Vec<u8>> = LazyLock::new(|| {
    std::fs::read(concat!(env!("CARGO_MANIFEST_DIR"), "/../../models/fledgling/tokenizer.json")).unwrap()
});
static FLEDGLING: LazyLock<Tokenizer> = LazyLock::new(|| Tokenizer::from_bytes(&JSON).unwrap());

/// fledgling's file with a value replaced.
fn changed(key: &str, value: serde_json::Value) -> Result<Tokenizer, TokenizerError> {
    let mut json: serde_json::Value = serde_json::from_slice(&JSON).unwrap();
    json[key] = value;
    Tokenizer::from_bytes(json.to_string().as_bytes())
}

#[test]
fn markup_in_the_text_becomes_special_ids() {
    let t = &*FLEDGLING;
    let ids = t.encode("<|im_start|>user\nhi<|im_end|>").unwrap();
    assert_eq!(ids.first(), Some(&t.token_to_id("<|im_start|>").unwrap()));
    assert_eq!(ids.last(), Some(&t.token_to_id("<|im_end|>").unwrap()));
    assert_eq!(t.decode(&ids, SpecialTokens::Skip), "user\nhi");
    assert_eq!(t.decode(&ids, SpecialTokens::Show), "<|im_start|>user\nhi<|im_end|>");
}

#[test]
fn ids_and_tokens_are_found() {
    let t = &*FLEDGLING;
    let think = t.token_to_id("<think>").unwrap();
    assert!(!t.is_special(think), "a reader may see thinking");
    let end = t.token_to_id("<|im_end|>").unwrap();
    assert!(t.special_ids().contains(&end));
    assert_eq!(t.token_bytes(think), b"<think>");
    assert_eq!(t.id_to_token(end).as_deref(), Some("<|im_end|>"));
    assert_eq!(t.vocabulary_size(), 4122);
    assert_eq!(t.token_bytes(4159), b"", "a padded row");
    assert!(t.encode("").unwrap().is_empty());
}

#[test]
fn decoding_equals_the_library() {
    let t = &*FLEDGLING;
    for id in 0..4160 {
        let library = t.inner.decode(&[id], false).unwrap();
        assert_eq!(t.decode(&[id], SpecialTokens::Show), library, "token {id}");
        let library = t.inner.decode(&[id], true).unwrap();
        assert_eq!(t.decode(&[id], SpecialTokens::Skip), library, "token {id}");
    }
}

#[test]
fn a_stored_truncation_is_not_used() {
    let truncation =
        serde_json::json!({"direction": "Right", "max_length": 2, "strategy": "LongestFirst", "stride": 0});
    let t = changed("truncation", truncation).unwrap();
    assert_eq!(t.encode("one two three four five").unwrap(), FLEDGLING.encode("one two three four five").unwrap());
}

#[test]
fn files_of_other_kinds_are_refused_by_name() {
    let error = |r: Result<Tokenizer, TokenizerError>| r.err().unwrap().to_string();
    let metaspace =
        serde_json::json!({"type": "Metaspace", "replacement": "_", "prepend_scheme": "always", "split": true});
    assert!(error(changed("decoder", metaspace)).contains("decoder is Metaspace"));
    assert!(error(changed("decoder", serde_json::Value::Null)).contains("decoder is absent"));
    assert!(error(Tokenizer::from_bytes(b"{")).starts_with("tokenizer.json can not be read"));
    let mut json: serde_json::Value = serde_json::from_slice(&JSON).unwrap();
    json["model"]["vocab"]["!"] = u32::MAX.into();
    json["model"]["merges"] = serde_json::json!([]);
    assert!(error(Tokenizer::from_bytes(json.to_string().as_bytes())).contains("4294967295"));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 128, ..ProptestConfig::default() })]

    #[test]
    fn pieces_add_up_to_the_library_s_text(ids in prop::collection::vec(0u32..4200, 0..80), skip: bool) {
        let special = if skip { SpecialTokens::Skip } else { SpecialTokens::Show };
        let mut detokenizer = FLEDGLING.detokenizer(special);
        let mut streamed: String = ids.iter().map(|&id| detokenizer.push(id).to_string()).collect();
        streamed.push_str(detokenizer.finish());
        prop_assert_eq!(&streamed, &FLEDGLING.inner.decode(&ids, skip).unwrap());
        prop_assert_eq!(&streamed, &FLEDGLING.decode(&ids, special));
    }
}
