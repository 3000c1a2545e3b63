use super::*;
use crate::conversation::Role;

fn chat(json: &str) -> Conversation {
    Conversation::parse(json).unwrap()
}

fn render_with(source: &str, kwargs: Json) -> Result<String, TemplateError> {
    let clock = || SystemTime::UNIX_EPOCH;
    let template = ChatTemplate::with_limits(source, Map::new(), TemplateLimits::default(), clock)?;
    let mut chat = Conversation::new(vec![Message::text(Role::User, "hi"), Message::text(Role::Assistant, "yo")]);
    chat.template_kwargs = kwargs.as_object().unwrap().clone();
    template.render(&chat, true)
}

fn check(source: &str, expected: &str) {
    let kwargs = serde_json::json!({
        "yes": true, "nothing": null, "half": 0.5, "big": 1e20, "list": [1, "a", null, 2.0], "map": {"items": [1], "b": 2},
    });
    assert_eq!(render_with(source, kwargs).unwrap(), expected, "{source}");
}

/// Each expected text is what jinja2 3.1 prints with the settings of transformers.
#[test]
fn values_print_as_under_python() {
    check("{{ yes }} {{ nothing }} {{ missing }} {{ half }} {{ big }}", "True None  0.5 1e+20");
    check("{{ list }} {{ map }}", "[1, 'a', None, 2.0] {'items': [1], 'b': 2}");
    check("{{ 'x' ~ yes ~ nothing ~ list ~ 3 ~ half }}", "xTrueNone[1, 'a', None, 2.0]30.5");
    check("{{ yes | string }}{{ (list | string)[0:3] }}{{ 1.0 | string }}", "True[1,1.0");
    check("{{ [1, 'b', 1e20] }}{{ ('a',) }}{{ {'k': none} }}", "[1, 'b', 1e+20]('a',){'k': None}");
    check(
        "{{ list | join(',') }}{{ messages | join(d='+', attribute='role') }}{{ 'ab' | join('-') }}",
        "1,a,None,2.0user+assistanta-b",
    );
}

#[test]
fn tojson_is_that_of_transformers() {
    check("{{ map | tojson }} {{ yes | tojson }} {{ '<é>' | tojson }}", "{\"items\": [1], \"b\": 2} true \"<é>\"");
    check("{{ 'é' | tojson(ensure_ascii=true) }} {{ 'é' | tojson(true) }}", "\"\\u00e9\" \"\\u00e9\"");
    check("{{ [1, {}] | tojson(indent=2) }}", "[\n  1,\n  {}\n]");
    check("{{ map | tojson(separators=(',', ':'), sort_keys=true) }}", "{\"b\":2,\"items\":[1]}");
    check("{{ big | tojson }} {{ [] | tojson(indent=none) }}", "1e+20 []");
    assert!(render_with("{{ missing | tojson }}", Json::Object(Map::new())).is_err());
    assert!(render_with("{{ 1 | tojson(colour=1) }}", Json::Object(Map::new())).is_err());
}

#[test]
fn tests_and_methods_follow_python() {
    check(
        "{{ 'a' is sequence }}{{ map is sequence }}{{ 3 is sequence }}{{ nothing is iterable }}",
        "TrueTrueFalseFalse",
    );
    check("{{ 'a' is iterable }}{{ map is iterable }}{{ missing is iterable }}", "TrueTrueTrue");
    check(
        "{{ map is mapping }}{{ list is mapping }}{{ nothing is none }}{{ yes is true }}{{ 1 is true }}",
        "TrueFalseTrueTrueFalse",
    );
    check(
        "{{ missing is undefined }}{{ nothing is undefined }}{{ 'a' is string }}{{ 1 is string }}",
        "TrueFalseTrueFalse",
    );
    check("{{ yes is integer }}{{ yes is number }}{{ yes is boolean }}", "FalseTrueTrue");
    check("{{ 'xa yx'.strip('x') }}|{{ '\u{1c} a \n'.strip() }}|{{ ' a '.rstrip() }}|{{ ' a ' | trim }}", "a y|a| a|a");
    check("{{ ' a  b '.split() }}{{ 'a,b,c'.split(',', 1) }}", "['a', 'b']['a', 'b,c']");
    check("{{ 'abc'.startswith('ab') }}{{ 'abc'.removeprefix('a') }}{{ 'abc'.removesuffix('c') }}", "Truebcab");
    check("{% for k, v in map.items() %}{{ k }}={{ v }};{% endfor %}", "items=[1];b=2;");
    check("{% for k, v in map | items %}{{ k }}={{ v }};{% endfor %}", "items=[1];b=2;");
    check("{{ map.get('b') }}{{ map.get('c') }}{{ map.get('c', 'd') }}", "2Noned");
    check(
        "{{ 'a' in missing }}{{ missing | length }}{{ missing | default('x') }}{{ '' | default('y', true) }}",
        "False0xy",
    );
}

#[test]
fn slices_and_loops_work() {
    check("{% for m in messages[::-1] %}{{ m.content }}{% endfor %}", "yohi");
    check("{% set rest = messages[1:] %}{{ rest[0].content }}{{ rest | length }}{{ rest[-1].role }}", "yo1assistant");
    check(
        "{% for m in messages %}{{ loop.previtem.content if loop.previtem }}{{ loop.nextitem is defined }}{% endfor %}",
        "TruehiFalse",
    );
    check("{% set ns = namespace(n=0) %}{% for m in messages %}{% set ns.n = ns.n + 1 %}{% endfor %}{{ ns.n }}", "2");
    check(
        "{% for i in range(9) %}{% if i == 1 %}{% continue %}{% endif %}{% if i == 3 %}{% break %}{% endif %}{{ i }}{% endfor %}",
        "02",
    );
    check("{% macro f(a, b='z') %}{{ a }}{{ b }}{% endmacro %}{{ f('x') ~ f('y', b='q') }}", "xzyq");
}

#[test]
fn block_tags_take_their_line() {
    check("a\n  {% if yes %}\nb\n  {% endif %}\nc\n", "a\nb\nc");
    check("a\r\n{% generation %}\r\nb\r\n{% endgeneration %}\r\nc", "a\nb\nc");
    check("{% generation %}{% set inside = 1 %}{{ messages[0].content }}{% endgeneration %}{{ inside }}", "hi");
    check("{{ strftime_now('%d %b %Y') }}", "01 Jan 1970");
}

#[test]
fn reasoning_has_both_names() {
    let template = ChatTemplate::new("{{ messages[0].thinking }}{{ messages[0] | list }}", Map::new()).unwrap();
    let chat = chat(r#"[{"role": "assistant", "content": "", "reasoning": "hm"}]"#);
    let expected = "hm['thinking', 'role', 'content', 'reasoning_content', 'reasoning']";
    assert_eq!(template.render(&chat, false).unwrap(), expected);
}

#[test]
fn raised_errors_are_told_apart_and_have_a_line() {
    let none = || Json::Object(Map::new());
    let macro_source = "{% macro f() %}\n{{ raise_exception('no ' ~ 1) }}{% endmacro %}\n\n{{ f() }}";
    match render_with(macro_source, none()) {
        Err(TemplateError::Raised { message, line: 2 | 4 }) => assert_eq!(message, "no 1"),
        other => panic!("{other:?}"),
    }
    match render_with("a\n\n{{ missing.field.other }}", none()) {
        Err(TemplateError::Failed { line: 3, message }) => assert!(message.starts_with("undefined value"), "{message}"),
        other => panic!("{other:?}"),
    }
    let syntax = render_with("a\n{% for %}", none()).unwrap_err().to_string();
    assert!(syntax.starts_with("the chat template is not valid Jinja: line 2: syntax error"), "{syntax}");
    let empty = ChatTemplate::new("x", Map::new()).unwrap().render(&chat("[]"), true);
    assert!(matches!(empty, Err(TemplateError::NoMessages)));
    let reserved = render_with("", serde_json::json!({"tools": 1})).unwrap_err().to_string();
    assert_eq!(reserved, "chat_template_kwargs may not set \"tools\": the conversation sets it");
}

#[test]
fn hostile_templates_end() {
    let render = |source: &str, limits| {
        let template = ChatTemplate::with_limits(source, Map::new(), limits, SystemTime::now)?;
        template.render(&chat(r#"[{"role": "user"}]"#), true)
    };
    let small = TemplateLimits { fuel: 10_000, output_bytes: 1000, source_bytes: 10_000 };
    let endless = "{% for a in range(100000) %}{% for b in range(100000) %}{% endfor %}{% endfor %}";
    assert!(matches!(render(endless, small), Err(TemplateError::OutOfFuel { fuel: 10_000, .. })));
    let captured = "{% set x %}{{ 'a' * 100000000 }}{% endset %}";
    assert!(matches!(render(captured, small), Err(TemplateError::OutOfFuel { .. })));
    assert!(matches!(render("{{ 'abcdefghij' * 101 }}", small), Err(TemplateError::OutputTooLong { limit: 1000 })));
    assert!(matches!(render(&"a".repeat(10_001), small), Err(TemplateError::SourceTooLong { found: 10_001, .. })));
    assert!(render("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", TemplateLimits::default()).is_err());
    assert!(render(&"(".repeat(9_000), small).is_err());
    assert!(render(&format!("{{{{ {} }}}}", "[".repeat(9_000)), small).is_err());
}

#[test]
fn values_can_not_grow_deep_or_hold_themselves() {
    let error = |source: &str| render_with(source, Json::Object(Map::new())).unwrap_err().to_string();
    let deep = |value: &str| {
        error(&format!(
            "{{% set n = namespace(x=[]) %}}{{% for a in range(9000) %}}{{% set n.x = {value} %}}{{% endfor %}}"
        ))
    };
    for value in ["[n.x]", "{'x': n.x}", "[n.x][:1]", "(n.x,)", "[n.x][::-1]", "dict(x=n.x)", "n.x | list + [n.x]"] {
        let message = deep(value);
        assert!(
            message.contains("200 levels deep") || message.contains("more than 1000000 values"),
            "{value}: {message}"
        );
    }
    assert!(error(&format!("{{% set x = [] %}}{}", "{% set x = [x] %}".repeat(300))).contains("200 levels"));
    assert!(error("{% set n = namespace() %}{% set n.me = [n] %}").contains("can not hold a namespace"));
    assert!(error("{{ [messages] * 1000000 }}").contains("bytes"), "printed");
    assert!(error("{{ ([messages] * 1000000) | join }}").contains("bytes"), "joined");
    assert!(error("{{ ([messages] * 1000000) | tojson }}").contains("bytes"), "as JSON");
    check("{% set n = namespace(x=namespace(y=1)) %}{% set n.z = messages %}{{ n.x.y }}{{ n.z | length }}", "12");
}
