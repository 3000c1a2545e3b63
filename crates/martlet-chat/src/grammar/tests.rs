use super::*;
use crate::Tokenizer;
use serde_json::json;
use std::sync::{Arc, OnceLock};

fn tokenizer() -> Tokenizer {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../models/fledgling/tokenizer.json");
    Tokenizer::from_bytes(&std::fs::read(path).unwrap()).unwrap()
}

fn vocabulary() -> Arc<Vocabulary> {
    static ONCE: OnceLock<Arc<Vocabulary>> = OnceLock::new();
    ONCE.get_or_init(|| Arc::new(Vocabulary::new(&tokenizer(), &[END]).unwrap())).clone()
}

const END: u32 = 4098;

fn format(format: Format) -> Result<AnswerRule, GrammarError> {
    let format = Some(Arc::new(CompiledFormat::new(&format, &vocabulary())?));
    Ok(AnswerRule::new(vocabulary(), Thinking::default(), Body { format, ..Body::default() }))
}

fn json_rule(schema: Value) -> AnswerRule {
    format(Format::JsonSchema(schema)).unwrap()
}

/// The text up to the first token that is not allowed; the mask must say the same of every token on the way.
fn follow(rule: &AnswerRule, text: &str) -> (String, bool) {
    let ids = tokenizer().encode(text).unwrap();
    let (mut matcher, mut taken) = (rule.start(), Vec::new());
    for id in ids {
        let mask = matcher.mask();
        assert_eq!(matcher.allows(id), mask.as_ref().is_none_or(|m| has(m, id)), "token {id} in {text:?}");
        if !matcher.allows(id) {
            break;
        }
        matcher.advance(id);
        taken.push(id);
    }
    (tokenizer().decode(&taken, crate::SpecialTokens::Show), matcher.may_end())
}

fn has(mask: &[u32], token: u32) -> bool {
    mask.get(token as usize / 32).is_some_and(|w| w >> (token % 32) & 1 == 1)
}

#[track_caller]
fn accepts(rule: &AnswerRule, text: &str) {
    assert_eq!(follow(rule, text), (text.to_string(), true));
}

/// All of `text` but `rest` may come, and no token of that; where it is empty, all may come, but must go on.
#[track_caller]
fn refuses(rule: &AnswerRule, text: &str, rest: &str) {
    let (taken, may_end) = follow(rule, text);
    assert_eq!(text.strip_prefix(&taken), Some(rest));
    assert!(!rest.is_empty() || !may_end, "{text:?} may end");
}

#[test]
fn json_is_held_to_its_schema() {
    let rule = json_rule(json!({
        "type": "object", "required": ["name", "age"], "additionalProperties": false,
        "properties": {"name": {"type": "string"}, "age": {"type": "integer", "minimum": 0}, "tags": {"type": "array", "items": {"enum": ["a", "b"]}}}
    }));
    accepts(&rule, r#"{"name": "Ann", "age": 7}"#);
    accepts(&rule, r#"{"name":"An\"n","age":7,"tags":["a","b"]}"#);
    accepts(&rule, "{\n  \"name\": \"x\",\n  \"age\": 0,\n  \"tags\": [\n    \"a\"\n  ]\n}");
    refuses(&rule, r#"{"name": "Ann"}"#, "\"}");
    refuses(&rule, r#"{"name": "Ann", "age": -7}"#, " -7}");
    refuses(&rule, r#"{"name": "Ann", "age": 7, "tags": ["c"]}"#, "c\"]}");
    refuses(&rule, r#"{"name": "Ann", "age": 7, "more": 1}"#, "more\": 1}");
    refuses(&rule, r#"{"name": "Ann", "age": 7} and"#, " and");
    refuses(&rule, r#"Here: {"name": "Ann", "age": 7}"#, r#"Here: {"name": "Ann", "age": 7}"#);
}

#[test]
fn arrays_at_the_root_and_any_object() {
    let list = json_rule(json!({"type": "array", "items": {"type": "integer"}}));
    accepts(&list, "[1, 2, 3]");
    refuses(&list, "{}", "{}");
    let object = format(Format::JsonObject).unwrap();
    accepts(&object, r#"{"a": [1, {"b": null}], "c": "d"}"#);
    refuses(&object, "[1]", "[1]");
}

#[test]
fn white_space_is_bounded() {
    let rule = json_rule(json!({"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}));
    accepts(&rule, "{\n    \"a\": 1\n}");
    refuses(&rule, "{\n\n\"a\": 1}", "\n\n\"a\": 1}");
    refuses(&rule, "{  \"a\": 1}", " \"a\": 1}");
    refuses(&rule, &format!("{{\n{}\"a\": 1}}", " ".repeat(60)), &format!("{}\"a\": 1}}", " ".repeat(52)));
    refuses(&rule, "\n{\"a\": 1}", "\n{\"a\": 1}");
    refuses(&rule, "{\"a\": 1}\n\n\n", "\n\n\n");
    refuses(&rule, "{\"a\" : 1}", " : 1}");
    refuses(&rule, &format!("{{\"a\"\n{}: 1}}", " ".repeat(48)), &format!("\n{}: 1}}", " ".repeat(48)));
    refuses(&rule, "{\"a\":\n1}", "\n1}");
    refuses(&rule, "{\"a\":  1}", " 1}");
    refuses(&rule, "{\n          \"a\": 1}", "    \"a\": 1}");
    // Behind a key there is only the colon, alone or with the value's sign.
    let mut matcher = rule.start();
    tokenizer().encode("{\"a\"").unwrap().into_iter().for_each(|id| matcher.advance(id));
    let texts: Vec<String> =
        bits(&matcher.mask()).iter().map(|t| tokenizer().decode(&[*t], crate::SpecialTokens::Show)).collect();
    assert_eq!(texts, [":", ":-"]);
}

#[test]
fn white_space_is_bounded_in_objects_of_all_kinds_and_in_calls() {
    let object = format(Format::JsonObject).unwrap();
    let pretty = "{\n  \"a b\": [\n    \"c : d\",\n    {\"e\": \"f\"}\n  ],\n  \"g\": 1\n}";
    accepts(&object, pretty);
    refuses(&object, "{\"a\": \"b\", \"c\" : 1}", " : 1}");
    refuses(&object, "{\"a\": [\"b\", {\"c\"\n  : 1}]}", "\n  : 1}]}");
    let older = calls_of(ToolUse::Required, CallForm::Json);
    let of = |arguments: &str| format!("<tool_call>\n{{\"name\": \"free\", \"arguments\": {arguments}}}\n</tool_call>");
    accepts(&older, &of(pretty));
    refuses(&older, &of("{\"a\" : 1}"), " : 1}}\n</tool_call>");
    refuses(&older, &of("{\"a\":\n1}"), "\n1}}\n</tool_call>");
    let tool = json!({"name": "f", "parameters": {"properties": {"o": {"type": "object"}}}});
    let calls = Some(Arc::new(CallGrammar::new(&[tool], None, CallForm::Xml, &vocabulary()).unwrap()));
    let rule = AnswerRule::new(vocabulary(), Thinking::default(), Body { calls, required: true, ..Body::default() });
    accepts(&rule, &call("f", &[("o", pretty)]));
    refuses(&rule, &call("f", &[("o", "{\"a\"\n : 1}")]), "\n : 1}\n</parameter>\n</function>\n</tool_call>");
}

#[test]
fn long_and_patterned_strings_compile() {
    let of = |field: Value| {
        json_rule(
            json!({"type": "object", "properties": {"o": {"type": "object", "properties": {"s": field}, "required": ["s"]}}, "required": ["o"]}),
        )
    };
    let long = of(json!({"type": "string", "maxLength": 2000}));
    accepts(&long, &format!("{{\"o\": {{\"s\": \"{}\"}}}}", "word ".repeat(300)));
    refuses(&long, &format!("{{\"o\": {{\"s\": \"{}\"}}}}", "word ".repeat(401)), " word \"}}");
    let small = of(json!({"type": "string", "pattern": "^[a-z]+$"}));
    accepts(&small, r#"{"o": {"s": "abc"}}"#);
    refuses(&small, r#"{"o": {"s": "aBc"}}"#, "Bc\"}}");
    let visible = of(json!({"type": "string", "pattern": r"\S"}));
    accepts(&visible, r#"{"o": {"s": " a b "}}"#);
    refuses(&visible, r#"{"o": {"s": "  "}}"#, " \"}}");
}

#[test]
fn many_optional_properties_compile() {
    let names: serde_json::Map<String, Value> =
        (0..20).map(|i| (format!("field_{i}"), json!({"type": "string"}))).collect();
    let rule = json_rule(json!({"type": "object", "properties": names, "additionalProperties": false}));
    accepts(&rule, r#"{"field_3": "a", "field_17": "b"}"#);
    accepts(&rule, "{}");
    refuses(&rule, r#"{"field_20": "a"}"#, "0\": \"a\"}");
}

#[test]
fn other_formats() {
    let regex = format(Format::Regex(r"[a-c]{2,4}/\d+".into())).unwrap();
    accepts(&regex, "abc/12");
    refuses(&regex, "abcab/1", "ab/1");
    let choice = format(Format::Choice(vec!["yes".into(), "yes, but".into(), "no\n\"".into()])).unwrap();
    accepts(&choice, "yes");
    accepts(&choice, "yes, but");
    accepts(&choice, "no\n\"");
    refuses(&choice, "maybe", "maybe");
    refuses(&choice, "yes, b", "");
    let lark = format(Format::Lark("start: \"a\" (\",\" NUMBER)*\nNUMBER: /[0-9]+/\n".into())).unwrap();
    accepts(&lark, "a,1,23");
    refuses(&lark, "a,1,", "");
}

#[track_caller]
fn schema_error(schema: Value) -> (String, String) {
    let error = format(Format::JsonSchema(schema)).err().expect("refused");
    (error.path().unwrap_or("-").to_string(), error.to_string())
}

#[test]
fn what_is_not_supported_is_named_by_its_path() {
    let path = |schema| schema_error(schema).0;
    assert_eq!(path(json!({"type": "object", "properties": {"a": {"not": {"type": "string"}}}})), "properties.a.not");
    assert_eq!(path(json!({"anyOf": [{}, {"type": "array", "uniqueItems": true}]})), "anyOf[1].uniqueItems");
    assert_eq!(path(json!({"properties": {"a b": {"items": [{"if": true}]}}})), "properties[\"a b\"].items[0].if");
    assert_eq!(path(json!({"properties": {"a": {"type": "string", "pattern": "(?=x)y"}}})), "properties.a");
    assert_eq!(path(json!({"properties": {"a": {"type": "text"}}})), "properties.a");
    assert_eq!(
        path(
            json!({"properties": {"a": {"$ref": "#/$defs/b"}}, "$defs": {"b": {"type": "string", "format": "no-such"}}})
        ),
        "$defs.b"
    );
    assert_eq!(
        path(json!({"properties": {"a": {"oneOf": [{"type": "string"}, {"type": "string", "maxLength": 3}]}}})),
        "properties.a"
    );
    assert_eq!(path(json!({"properties": {"a": 3}})), "properties.a");
    assert_eq!(path(json!([1])), "");
    assert_eq!(path(json!(false)), "");
    assert_eq!(path(json!({"x-guidance": {"lenient": true}})), "x-guidance");
}

#[test]
fn work_is_bounded() {
    let mut deep = json!({"type": "string"});
    for _ in 0..100 {
        deep = json!({"type": "array", "items": deep});
    }
    let refused = |format_: Format| format(format_).err().unwrap();
    assert_eq!(refused(Format::JsonSchema(deep)), GrammarError::TooDeep { path: String::new(), limit: 64 });
    let many: Vec<Value> = (0..200_000).map(Value::from).collect();
    let too_large = GrammarError::TooLarge { what: "the schema", found: 200_002, limit: 100_000, unit: "values" };
    assert_eq!(refused(Format::JsonSchema(json!({"enum": many}))), too_large);
    let brackets = "(".repeat(20_000) + &")".repeat(20_000);
    for (wrong, message) in [
        (
            Format::Regex(brackets.clone()),
            "the regular expression has 20000 levels of brackets; at most 200 are supported",
        ),
        (
            Format::Lark(format!("start: {brackets}")),
            "the grammar has 20000 levels of brackets; at most 200 are supported",
        ),
        (Format::Regex("[^\\x00-\\u{10ffff}]".into()), "the regular expression can not be used: nothing can match it"),
        (Format::Lark("start: start \"a\"".into()), "the grammar can not be used: nothing can match it"),
        (Format::Choice(vec![]), "choice: there is nothing to choose from"),
        (Format::Choice(vec!["".into()]), "choice: number 1 is empty"),
    ] {
        assert_eq!(refused(wrong).to_string(), message);
    }
    // What llguidance says is passed on, on one line.
    for (wrong, message) in [
        (Format::Regex("(a".into()), "the regular expression can not be used: at 1(8): invalid regex \"(a\""),
        (Format::Lark("start: nothing".into()), "the grammar can not be used: at 1(8): unknown name: \"nothing\""),
    ] {
        let found = refused(wrong).to_string();
        assert_eq!((found.get(..message.len()), found.contains('\n')), (Some(message), false), "{found}");
    }
}

/// A cheap generator, for walks that are the same on every machine.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: usize) -> usize {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (self.0 >> 33) as usize % sides
    }
}

fn bits(mask: &Option<Vec<u32>>) -> Vec<u32> {
    let size = vocabulary().size() as u32;
    (0..size).filter(|t| mask.as_ref().is_none_or(|m| has(m, *t))).collect()
}

/// Random walks: masks agree with `allows` for every token, and steps back lead to where they came from.
fn wander(rule: &AnswerRule, seed: u64, steps: usize) {
    let mut dice = Dice(seed);
    let mut matcher = rule.start();
    let mut path: Vec<(u32, Vec<u32>)> = Vec::new();
    for step in 0..steps {
        let mask = matcher.mask();
        let allowed = bits(&mask);
        if step % 3 == 0 {
            let found: Vec<u32> = (0..vocabulary().size() as u32).filter(|t| matcher.allows(*t)).collect();
            assert_eq!(found, allowed, "after {:?}", path.iter().map(|p| p.0).collect::<Vec<_>>());
        }
        let open: Vec<u32> = allowed.iter().copied().filter(|t| *t != END).collect();
        if open.is_empty() {
            break;
        }
        // Markup and rare tokens as often as others would make for odd texts only.
        let token = open[dice.roll(open.len())];
        path.push((token, allowed));
        matcher.advance(token);
        if dice.roll(4) == 0 {
            let back = dice.roll(path.len().min(10)) + 1;
            matcher.rollback(back);
            let (_, expected) = path[path.len() - back].clone();
            path.truncate(path.len() - back);
            assert_eq!(bits(&matcher.mask()), expected, "after a step back");
        }
    }
}

#[test]
fn masks_and_single_tokens_agree_and_steps_can_be_taken_back() {
    let schema = json!({"type": "object", "required": ["a", "b"], "properties": {
        "a": {"type": "string", "maxLength": 9}, "b": {"type": "array", "items": {"type": "number"}}, "c": {"enum": ["x", 1, null]}}});
    let thinking = Thinking { open: true, may_open: false, budget: Some(5) };
    let rules = [
        json_rule(schema.clone()),
        json_rule(schema.clone()).with_thinking(thinking),
        json_rule(schema).with_thinking(Thinking { may_open: true, ..Thinking::default() }),
        calls(ToolUse::Auto),
        calls(ToolUse::Required),
        calls(ToolUse::Single).with_thinking(thinking),
        calls(ToolUse::Beside),
    ];
    for (i, rule) in rules.iter().enumerate() {
        for seed in 0..6 {
            wander(rule, seed * 100 + i as u64, 40);
        }
    }
}

impl AnswerRule {
    fn with_thinking(&self, thinking: Thinking) -> AnswerRule {
        AnswerRule::new(self.vocabulary().clone(), thinking, self.body().clone())
    }
}

#[derive(Clone, Copy, PartialEq)]
enum ToolUse {
    Auto,
    Required,
    Single,
    /// Beside a format.
    Beside,
}

fn tools() -> Vec<Value> {
    vec![
        json!({"type": "function", "function": {"name": "write", "parameters": {
            "type": "object", "required": ["path", "content"],
            "properties": {
                "path": {"type": "string"}, "content": {"type": "string"},
                "mode": {"type": "string", "enum": ["new", "new_only", "old"]},
                "lines": {"type": "array", "items": {"$ref": "#/$defs/line"}},
                "count": {"type": "integer"}, "flag": {"type": "boolean"},
                "note": {"type": ["string", "null"]}
            },
            "$defs": {"line": {"type": "integer", "minimum": 1}}}}}),
        json!({"type": "function", "function": {"name": "write_all"}}),
        json!({"type": "function", "function": {"name": "free", "parameters": {"type": "object"}}}),
        json!({"type": "web_search"}),
    ]
}

fn calls(use_: ToolUse) -> AnswerRule {
    calls_of(use_, CallForm::Xml)
}

fn calls_of(use_: ToolUse, form: CallForm) -> AnswerRule {
    let calls = Some(Arc::new(CallGrammar::new(&tools(), None, form, &vocabulary()).unwrap()));
    let body = Body {
        calls,
        required: matches!(use_, ToolUse::Required | ToolUse::Single),
        single: use_ == ToolUse::Single,
        format: (use_ == ToolUse::Beside)
            .then(|| Arc::new(CompiledFormat::new(&Format::JsonObject, &vocabulary()).unwrap())),
    };
    AnswerRule::new(vocabulary(), Thinking::default(), body)
}

fn call(name: &str, arguments: &[(&str, &str)]) -> String {
    let arguments: String = arguments.iter().map(|(k, v)| format!("<parameter={k}>\n{v}\n</parameter>\n")).collect();
    format!("<tool_call>\n<function={name}>\n{arguments}</function>\n</tool_call>")
}

#[test]
fn calls_are_held_to_their_declarations() {
    let rule = calls(ToolUse::Required);
    let good = |arguments: &[(&str, &str)]| accepts(&rule, &call("write", arguments));
    let bad = |arguments: &[(&str, &str)], rest: &str| refuses(&rule, &call("write", arguments), rest);
    good(&[("path", "a.rs"), ("content", "fn main() {}\n")]);
    good(&[("content", "x"), ("path", "a")]); // in any order
    good(&[("content", ""), ("path", " \n a\n\n")]);
    good(&[("content", "a && b < c > d"), ("flag", "true"), ("path", "a"), ("count", "-12"), ("mode", "new")]);
    good(&[("lines", "[1, 2,\n3]"), ("path", "a"), ("mode", "new_only"), ("content", "a"), ("note", "null")]);
    bad(&[("path", "a")], ">\n</tool_call>");
    bad(&[("path", "a"), ("content", "b"), ("path", "c")], "=path>\nc\n</parameter>\n</function>\n</tool_call>");
    bad(&[("path", "a"), ("content", "b"), ("other", "c")], "other>\nc\n</parameter>\n</function>\n</tool_call>");
    bad(&[("path", "a"), ("content", "b"), ("flag", "yes")], "yes\n</parameter>\n</function>\n</tool_call>");
    bad(&[("path", "a"), ("content", "b"), ("count", "1.5")], ".5\n</parameter>\n</function>\n</tool_call>");
    bad(&[("path", "a"), ("content", "b"), ("mode", "newer")], "wer\n</parameter>\n</function>\n</tool_call>");
    bad(&[("path", "a"), ("content", "b"), ("lines", "[0]")], "0]\n</parameter>\n</function>\n</tool_call>");
    accepts(&rule, &call("write_all", &[]));
    refuses(
        &rule,
        &call("write_all", &[("path", "a")]),
        "<parameter=path>\na\n</parameter>\n</function>\n</tool_call>",
    );
    refuses(&rule, &call("writ", &[]), ">\n</function>\n</tool_call>");
    accepts(&rule, &call("free", &[("anything", "x"), ("more", "{}")]));
    refuses(&rule, "I will write.", "I will write.");
    let two = format!("{}\n{}", call("write_all", &[]), call("free", &[]));
    accepts(&rule, &two);
    refuses(&calls(ToolUse::Single), &two, &call("free", &[]));
    accepts(&calls(ToolUse::Single), &call("write_all", &[]));
    refuses(&rule, &format!("{} Done.", call("write_all", &[])), " Done.");
}

#[test]
fn a_value_may_hold_closing_tags_that_are_not_its_own() {
    let rule = calls(ToolUse::Required);
    for content in [
        "return \"</parameter>\"",
        "</parameter>",
        "</parameter>\n</parameter>",
        "a\n</parameter>\n<param",
        "</parameter>\n<parameters>",
        "</function>\n</tool_call>",
        "</parameter></functions>",
        "<parameter=path>\nb",
        "<tool_call>\n<function=write>\n</function>\n</tool_call>",
    ] {
        accepts(&rule, &call("write", &[("content", content), ("path", "a")]));
    }
    // The parser would end the value here, and then a parameter would be missing or unknown.
    refuses(
        &rule,
        &call("write", &[("content", "</parameter>\n</function>"), ("path", "a")]),
        ">\n</parameter>\n<parameter=path>\na\n</parameter>\n</function>\n</tool_call>",
    );
    refuses(
        &rule,
        &call("write", &[("content", "</parameter> <parameter=none>"), ("path", "a")]),
        "one>\n</parameter>\n<parameter=path>\na\n</parameter>\n</function>\n</tool_call>",
    );
    // In JSON too.
    let listed = |text: &str| {
        let tool = json!({"name": "f", "parameters": {"properties": {"list": {"type": "array", "items": {"type": "string"}}}}});
        let calls = Some(Arc::new(CallGrammar::new(&[tool], None, CallForm::Xml, &vocabulary()).unwrap()));
        let rule =
            AnswerRule::new(vocabulary(), Thinking::default(), Body { calls, required: true, ..Body::default() });
        let whole = call("f", &[("list", text)]);
        whole.strip_prefix(&follow(&rule, &whole).0).unwrap().to_string()
    };
    assert_eq!(listed("[\"</parameter>\", \"</function>\"]"), "");
    assert_eq!(listed("[\"</parameter> </function>\"]"), ">\"]\n</parameter>\n</function>\n</tool_call>");
}

#[test]
fn text_is_free_until_a_call_is_opened() {
    let rule = calls(ToolUse::Auto);
    let written = call("write", &[("path", "a"), ("content", "b")]);
    accepts(&rule, "Some text with <function=x> and <tool_cal> in it.");
    accepts(&rule, &format!("I will look.\n\n{written}\n{written}\nDone."));
    refuses(&rule, "See <tool_call> here", " here");
    refuses(&rule, "<tool_call>\n<function=none>", "none>");
    refuses(&rule, "<tool_call>\n<function=write>\n</function>\n</tool_call>", "</function>\n</tool_call>");
    let mut matcher = rule.start();
    assert_eq!(matcher.mask(), None);
    // Spelt out, the tag is a tag too.
    let ids: Vec<u32> = "<tool_call".chars().map(|c| tokenizer().encode(&c.to_string()).unwrap()[0]).collect();
    ids.iter().for_each(|id| matcher.advance(*id));
    let close = tokenizer().encode(">").unwrap()[0];
    assert!(matcher.allows(close) && matcher.may_end());
    matcher.advance(close);
    assert!(!matcher.may_end() && !matcher.allows(close));
    matcher.rollback(1);
    assert!(matcher.may_end() && matcher.allows(close));
}

#[test]
fn a_format_or_a_call() {
    let rule = calls(ToolUse::Beside);
    accepts(&rule, r#"{"a": 1}"#);
    accepts(&rule, &format!("{}\n{}", call("write_all", &[]), call("free", &[("a", "b")])));
    refuses(&rule, &format!("{{\"a\": 1}}\n{}", call("write_all", &[])), &format!("}}\n{}", call("write_all", &[])));
    refuses(&rule, "text", "text");
}

#[test]
fn the_older_form_of_calls() {
    let rule = calls_of(ToolUse::Required, CallForm::Json);
    let of =
        |arguments: &str| format!("<tool_call>\n{{\"name\": \"write\", \"arguments\": {arguments}}}\n</tool_call>");
    accepts(&rule, &of(r#"{"path": "a", "content": "b"}"#));
    accepts(&rule, &format!("{}\n{}", of(r#"{"path": "a", "content": "}\n"}"#), of(r#"{"path":"a","content":"b"}"#)));
    refuses(&rule, &of(r#"{"path": "a"}"#), "\"}}\n</tool_call>");
    refuses(&rule, &of(r#"{"path": "a", "content": 1}"#), "1}}\n</tool_call>");
}

#[test]
fn thinking_comes_before_the_form() {
    let thinking = Thinking { open: true, may_open: false, budget: None };
    let rule = json_rule(json!({"type": "object"})).with_thinking(thinking);
    for gap in ["", "\n", "\n\n"] {
        accepts(&rule, &format!("First {{, then \"a\".\n</think>{gap}{{\"a\": 1}}"));
    }
    refuses(&rule, "Thinking without an end", "");
    refuses(&rule, "So\n</think>\n\n\n\n{\"a\": 1}", "\n\n\n\n{\"a\": 1}");
    refuses(&rule, "So\n</think>\n\nHere: {}", "Here: {}");
    let must_call = calls(ToolUse::Required).with_thinking(thinking);
    accepts(&must_call, &format!("See <tool_call> in text.\n</think>\n\n{}", call("write_all", &[])));
    let may_open =
        json_rule(json!({"type": "object"})).with_thinking(Thinking { may_open: true, ..Thinking::default() });
    accepts(&may_open, "{\"a\": 1}");
    accepts(&may_open, "<think>\nWhat?\n</think>\n\n{\"a\": 1}");
    refuses(&may_open, "What?", "What?");
}

#[test]
fn a_form_may_take_nothing_at_all() {
    let regex = |regex: &str| Some(Arc::new(CompiledFormat::new(&Format::Regex(regex.into()), &vocabulary()).unwrap()));
    for thinking in [Thinking { open: true, ..Thinking::default() }, Thinking { may_open: true, ..Thinking::default() }]
    {
        let before = if thinking.open { "so</think>\n\n" } else { "<think>so</think>\n\n" };
        let rule = |form| AnswerRule::new(vocabulary(), thinking, Body { format: regex(form), ..Body::default() });
        accepts(&rule(""), before);
        refuses(&rule(""), &format!("{before}a"), "a");
        accepts(&rule("(ab)?"), before);
        refuses(&rule("ab"), before, "");
    }
    let rule = |form| {
        AnswerRule::new(
            vocabulary(),
            Thinking { may_open: true, ..Thinking::default() },
            Body { format: regex(form), ..Body::default() },
        )
    };
    accepts(&rule(""), "");
    assert!(has(&rule("").start().mask().unwrap(), END), "the mask says so too");
    refuses(&rule("ab"), "", "");
}

#[test]
fn a_budget_closes_thinking() {
    let thinking = Thinking { open: true, may_open: false, budget: Some(3) };
    let rule = AnswerRule::new(vocabulary(), thinking, Body::default());
    let close = tokenizer().token_to_id("</think>").unwrap();
    let word = tokenizer().encode("a").unwrap()[0];
    let mut matcher = rule.start();
    for _ in 0..3 {
        assert!(matcher.mask().is_none());
        matcher.advance(word);
    }
    assert_eq!(bits(&matcher.mask()), [close]);
    assert!(matcher.allows(close) && !matcher.allows(word) && !matcher.allows(END));
    matcher.advance(close);
    assert!(matcher.mask().is_none() && matcher.may_end());
    matcher.rollback(2);
    assert!(matcher.mask().is_none());
    // Closed by itself, it goes on as ever.
    matcher.advance(close);
    assert!(matcher.mask().is_none());
    let none = AnswerRule::new(vocabulary(), Thinking { budget: Some(0), ..thinking }, Body::default());
    assert_eq!(bits(&none.start().mask()), [close]);
}

#[test]
fn tools_are_read_from_any_declaration() {
    let read = |tools: &[Value], names: Option<&[String]>| {
        CallGrammar::new(tools, names, CallForm::Xml, &vocabulary()).map(|c| c.tools.len())
    };
    let named = |name: &str| Some([name.to_string()]);
    assert_eq!(read(&tools(), None), Ok(3));
    assert_eq!(read(&tools(), named("free").as_ref().map(|n| &n[..])), Ok(1));
    let unknown =
        GrammarError::UnknownTool { name: "gone".into(), known: r#""write", "write_all", "free""#.to_string() };
    assert_eq!(read(&tools(), named("gone").as_ref().map(|n| &n[..])), Err(unknown));
    assert_eq!(read(&[json!({"type": "web_search"})], None), Err(GrammarError::NoTools));
    // What can not be followed is any JSON, unless the declaration is strict.
    let odd = |strict: bool| json!({"name": "f", "strict": strict, "parameters": {"properties": {"a": {"type": "object", "not": {}}}}});
    assert_eq!(read(&[odd(false)], None), Ok(1));
    assert_eq!(
        read(&[json!({"name": "g"}), odd(true)], None).unwrap_err().to_string(),
        "tools[1].parameters.properties.a.not: the keyword can not be enforced; leave it or \"strict\" out"
    );
    assert_eq!(
        read(&[json!({"name": "a>b"})], None).unwrap_err().to_string(),
        "tools[0].name: \"a>b\" can not be written in a call"
    );
}
