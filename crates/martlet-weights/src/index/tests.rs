use super::*;

fn parsed(text: &str) -> Result<BTreeMap<String, String>, IndexError> {
    parse(text.as_bytes(), &Limits::default())
}

#[test]
fn shards_are_plain_file_names() {
    let map =
        parsed(r#"{"metadata":{"total_size":1},"weight_map":{"a":"x-1.safetensors","b":"x-2.safetensors"}}"#).unwrap();
    assert_eq!((map["a"].as_str(), map["b"].as_str()), ("x-1.safetensors", "x-2.safetensors"));
    for shard in ["../x", "/etc/passwd", "a/b", "a\\\\b", "..", ".", "", "c:x", "./x", "x/", "a\\u0000b"] {
        let text = parsed(&format!(r#"{{"weight_map":{{"some.weight":"{shard}"}}}}"#)).unwrap_err().to_string();
        assert!(text.contains("some.weight") && text.contains("plain file names"), "{shard}: {text}");
    }
}

#[test]
fn other_texts_are_refused() {
    for text in ["", "{}", "[]", r#"{"weight_map":[]}"#, r#"{"weight_map":{"a":1}}"#] {
        assert!(matches!(parsed(text), Err(IndexError::Json(_))), "{text}");
    }
    assert_eq!(parsed(r#"{"weight_map":{}}"#), Err(IndexError::Empty));
    let text = parsed(r#"{"weight_map":{"twin":"x","twin":"y"}}"#).unwrap_err().to_string();
    assert!(text.contains("twin") && text.contains("twice"), "{text}");
    let limits = Limits { json_bytes: 10, ..Limits::default() };
    assert_eq!(parse(&[b' '; 11], &limits), Err(IndexError::Limit { found: 11, limit: 10 }));
}

#[test]
fn mutated_texts_never_panic_nor_escape() {
    let seed = br#"{"metadata":{"total_size":9},"weight_map":{"a.b":"x-1.safetensors","c":"x-2.safetensors"}}"#;
    let mut random = crate::mutate::Random::new(3);
    let mut accepted = 0;
    for _ in 0..60_000 {
        if let Ok(map) = parse(&random.mutate(seed), &Limits::default()) {
            accepted += 1;
            assert!(map.values().all(|shard| !shard.contains(['/', '\\', '\0']) && shard != ".."));
        }
    }
    assert!(accepted > 100, "{accepted}");
}
