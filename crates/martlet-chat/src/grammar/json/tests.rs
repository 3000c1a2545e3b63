use super::*;

/// The text up to the first white space that may not come.
fn allowed(text: &str) -> &str {
    let mut place = Place::default();
    for (at, byte) in text.bytes().enumerate() {
        match place.step(byte) {
            Some(next) => place = next,
            None => return &text[..at],
        }
    }
    text
}

#[test]
fn white_space_may_come_between_members_alone() {
    for text in [
        r#"{"a":1,"b":[true,{"c":"d"}]}"#,
        r#"{"a": 1, "b": [true, {"c": "d"}]}"#,
        r#"{ "a": 1, "b": [ true, { "c": "d" } ] }"#,
        "{\n  \"a\": \"b\",\n  \"c\": [\n    \"d\",\n    \"e\"\n  ],\n  \"f\": {}\n}",
        "{\n\t\"a\": [\n\t\t\"b\",\n\t\t\"c\"\n\t]\n}",
        // What strings hold is theirs.
        "{\"a : \\\" :\": \"b \\\\\", \"c  \\n{\": [\"d :  \", \"e\"\n]}",
        // As in a call: it begins behind a blank and ends with its bracket and a newline.
        " {\"a\": 1}}\n",
    ] {
        assert_eq!(allowed(text), text);
    }
    for (taken, rest) in [
        ("{\"a\"", " : 1}"),
        ("{\"a\"", "\n: 1}"),
        ("{\"a\"", "\t: 1}"),
        ("{\"a\":", "\n1}"),
        ("{\"a\":", "\t1}"),
        ("{\"a\": ", " 1}"),
        ("{\"a\": 1, \"b\"", " : 1}"),
        ("{\"a\": \"b\", \"c\"", " : 1}"),
        ("{\"a \\\" \"", " : 1}"),
        ("{\"a\\\\\"", " : 1}"),
        ("[\"a\", {\"b\"", " : 1}]"),
        ("{\"a\": [\"b\", \"c\" ], \"d\"", " : 1}"),
        ("{\n        ", " \"a\": 1}"),
        ("{\"a\": {\n                ", " \"b\": 1}}"),
        ("{\n\t", "\t\"a\": 1}"),
        ("{\"a\": 1\n        ", " }"),
    ] {
        assert_eq!(allowed(&format!("{taken}{rest}")), taken);
    }
}

#[test]
fn deep_nesting_is_bounded_work() {
    let deep = "{\"a\":[".repeat(5000) + &"]}".repeat(5000);
    assert_eq!(allowed(&deep), deep);
    // Beyond 64 levels a key is no longer told from an element once they are closed.
    let (open, closed) = ("{\"a\":".repeat(70), "}".repeat(69));
    let text = format!("{open}1{closed}, \"b\" : 1}}");
    assert_eq!(allowed(&text), text);
    let text = format!("{open}{{\"b\" : 1}}");
    assert_eq!(allowed(&text), format!("{open}{{\"b\""));
}
