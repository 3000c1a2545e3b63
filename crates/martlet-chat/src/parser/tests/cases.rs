//! The table: what a model wrote, and what it means. See [`show`] for the notation of events.

use super::*;

/// An answer without thinking; tools are declared.
fn text(cases: &[(&str, &str)]) {
    let parser = OutputParser::new(false, &tools(), &ToolChoice::Auto);
    cases.iter().for_each(|(output, expected)| check(&parser, output, false, expected));
}

/// The same, cut by a limit.
fn cut(cases: &[(&str, &str)]) {
    let parser = OutputParser::new(false, &tools(), &ToolChoice::Auto);
    cases.iter().for_each(|(output, expected)| check(&parser, output, true, expected));
}

/// The prompt ends inside thinking; tools are declared.
fn thinking(cases: &[(&str, &str)]) {
    let parser = OutputParser::new(true, &tools(), &ToolChoice::Auto);
    cases.iter().for_each(|(output, expected)| check(&parser, output, false, expected));
}

#[test]
fn thinking_without_tools() {
    let cases = [
        // prompt ends inside <think>, output, events
        (true, "hm\n</think>\n\nyes", r#"r"hm" t"yes""#),
        (true, "\nhm\n</think>\n\nyes\n", r#"r"hm" t"yes\n""#),
        (true, "\n</think>\n\nyes", r#"t"yes""#),
        (true, "</think>yes", r#"t"yes""#),
        (true, "a\n\nb\n\n\n</think>\n\n\nyes", r#"r"a\n\nb" t"yes""#),
        (true, "a \n</think>  yes", r#"r"a " t"  yes""#),
        (true, "cut off\n", r#"r"cut off\n""#),
        (true, "cut </thin", r#"r"cut </thin""#),
        (true, "a </thinking> b</think>c", r#"r"a </thinking> b" t"c""#),
        (true, "a</th</think>c", r#"r"a</th" t"c""#),
        (true, "a <think> b</think>c", r#"r"a <think> b" t"c""#),
        (true, "<think>\nhm</think>c", r#"r"hm" t"c""#),
        (true, "\n<think>\nhm</think>c", r#"r"hm" t"c""#),
        (true, "\n<thin", r#"r"<thin""#),
        (true, "", ""),
        (true, "\n", ""),
        (true, "x\n</think>", r#"r"x""#),
        (true, "x\n</think>\n", r#"r"x""#),
        (true, "日本\n</think>\n語", r#"r"日本" t"語""#),
        // The first closing tag counts; later ones are not shown, unless they are quoted.
        (true, "a</think>b</think>c</think>", r#"r"a" t"bc""#),
        (true, "a</think>the tag `</think>` ends it", r#"r"a" t"the tag `</think>` ends it""#),
        (true, "a</think>s = \"</think>\"", r#"r"a" t"s = \"</think>\"""#),
        (false, "<think>\nhm\n</think>\n\nyes", r#"r"hm" t"yes""#),
        (false, "\n <think>hm</think> yes", r#"r"hm" t" yes""#),
        (false, "</think>\n\nyes", r#"t"yes""#),
        (false, "no thinking", r#"t"no thinking""#),
        (false, "  indented", r#"t"  indented""#),
        (false, "a <think>b</think>", r#"t"a <think>b</think>""#),
        (false, "<thin", r#"t"<thin""#),
        (false, " \n", r#"t" \n""#),
        (false, "1 < 2 </", r#"t"1 < 2 </""#),
        (false, "", ""),
        (
            true,
            "a\n</think>\n\n<tool_call>\n<function=f>\n</function>\n</tool_call>",
            r#"r"a" t"<tool_call>\n<function=f>\n</function>\n</tool_call>""#,
        ),
    ];
    for (open, output, expected) in cases {
        check(&OutputParser::new(open, &[], &ToolChoice::Auto), output, false, expected);
        check(&OutputParser::new(open, &tools(), &ToolChoice::None), output, false, expected);
    }
}

#[test]
fn calls_of_the_xml_form() {
    text(&[
        ("<tool_call>\n<function=f>\n<parameter=x>\n1\n</parameter>\n</function>\n</tool_call>", r#"f({"x":"1"})"#),
        (
            "I will look.\n\n<tool_call>\n<function=glob>\n<parameter=p>\n*.rs\n</parameter>\n</function>\n</tool_call>\n",
            r#"t"I will look." glob({"p":"*.rs"})"#,
        ),
        (
            "<tool_call><function=f><parameter=x>1</parameter><parameter=n>2</parameter></function></tool_call>",
            r#"f({"x":"1","n":2})"#,
        ),
        (
            "<tool_call>\n<function=f>\n<parameter=n>\n2\n</parameter>\n<parameter=x>\n1\n</parameter>\n</function>\n</tool_call>",
            r#"f({"n":2,"x":"1"})"#,
        ),
        ("<tool_call>\n<function=bare>\n</function>\n</tool_call>", "bare({})"),
        ("<tool_call>\n<function=bare></function>\n</tool_call>", "bare({})"),
        (
            "<tool_call>\n<function=my.ns-tool:1>\n<parameter=any key>\nv\n</parameter>\n</function>\n</tool_call>",
            r#"my.ns-tool:1({"any key":"v"})"#,
        ),
        (
            "<tool_call>\n<function=\"f\">\n<parameter='x'>\n1\n</parameter>\n</function>\n</tool_call>",
            r#"f({"x":"1"})"#,
        ),
        ("<tool_call>\n<function= f >\n<parameter= x >1</parameter>\n</function>\n</tool_call>", r#"f({"x":"1"})"#),
        // Several.
        (
            "<tool_call>\n<function=f>\n<parameter=x>\n1\n</parameter>\n</function>\n</tool_call>\n\n<tool_call>\n<function=glob>\n</function>\n</tool_call>\n",
            r#"f({"x":"1"}) glob({})"#,
        ),
        (
            "<tool_call><function=bare></function></tool_call><tool_call><function=bare></function></tool_call><tool_call><function=bare></function></tool_call>",
            "bare({}) bare({}) bare({})",
        ),
        (
            "<tool_call><function=bare></function>\n<function=glob><parameter=p>a</parameter></function></tool_call>",
            r#"bare({}) glob({"p":"a"})"#,
        ),
        // Text around.
        ("a\n<tool_call><function=bare></function></tool_call>\nb", r#"t"a" bare({}) t"\nb""#),
        ("\n\n<tool_call><function=bare></function></tool_call>\n\nb\n", r#"bare({}) t"b\n""#),
        (" \n <tool_call><function=bare></function></tool_call> \n ", "bare({})"),
        (
            "a <tool_call><function=bare></function></tool_call> b <tool_call><function=bare></function></tool_call> c",
            r#"t"a" bare({}) t" b" bare({}) t" c""#,
        ),
        // A key that comes twice.
        (
            "<function=f><parameter=x>1</parameter><parameter=x>2</parameter><parameter=n>3</parameter></function>",
            r#"f({"x":"1","n":3})"#,
        ),
        ("<function=f><parameter=n>1</parameter><parameter=n>2</parameter></function>", r#"f({"n":1})"#),
    ]);
}

#[test]
fn frames_that_are_incomplete_are_understood() {
    text(&[
        // Without the outer opening tag.
        (
            "I will look.\n\n<function=glob><parameter=p>*.rs</parameter></function>\n</tool_call>",
            r#"t"I will look." glob({"p":"*.rs"})"#,
        ),
        ("<function=f>\n<parameter=x>\n1\n</parameter>\n</function>", r#"f({"x":"1"})"#),
        ("<function=bare></function> done", r#"bare({}) t"done""#),
        // Without one closing tag or the other.
        ("<tool_call>\n<function=f>\n<parameter=x>\n1\n</parameter>\n</function>", r#"f({"x":"1"})"#),
        ("<tool_call>\n<function=f>\n<parameter=x>\n1\n</parameter>\n</tool_call>", r#"f({"x":"1"})"#),
        ("<tool_call>\n<function=f>\n<parameter=x>\n1\n</parameter>\n", r#"f({"x":"1"})"#),
        ("<tool_call>\n<function=f>\n<parameter=x>\n1\n</parameter", r#"f({"x":"1"})"#),
        ("<tool_call>\n<function=f>\n<parameter=x>\n1\n</parameter>\n</func", r#"f({"x":"1"})"#),
        ("<tool_call>\n<function=f>\n<parameter=x>\n1\n</function>\n</tool_call>\n", r#"f({"x":"1"})"#),
        ("<tool_call>\n<function=f>\n<parameter=x>\n1\n</function>", r#"f({"x":"1"})"#),
        (
            "<tool_call>\n<function=f>\n<parameter=x>\n1\n</parameter>\n</tool_call>\n<tool_call>\n<function=bare>\n</function>\n</tool_call>",
            r#"f({"x":"1"}) bare({})"#,
        ),
        (
            "<tool_call>\n<function=f>\n<parameter=x>\n1\n</function>\n</tool_call>\n<tool_call>\n<function=bare>\n</function>\n</tool_call>",
            r#"f({"x":"1"}) bare({})"#,
        ),
        (
            "<tool_call>\n<function=f>\n<parameter=x>\n1\n</parameter>\n</function>\n<tool_call>\n<function=bare>\n</function>",
            r#"f({"x":"1"}) bare({})"#,
        ),
        ("<tool_call>\n<function=bare>\n</tool_call>", "bare({})"),
        ("<tool_call>\n<function=bare>\n", "bare({})"),
        // Ended inside a value.
        ("<function=f><parameter=x>text", r#"f({"x":"text"})"#),
        ("<function=f><parameter=x>", r#"f({"x":""})"#),
        ("<function=f><parameter=n>4", r#"f({"n":4})"#),
        ("<function=f><parameter=o>{\"a\": 1", r#"f({"o":"{\"a\": 1"})"#),
        ("<function=f><parameter=x>a</parameter><parameter=y>b < c", r#"f({"x":"a","y":"b < c"})"#),
        ("<function=f><parameter=x>a</parameter><parameter=y", r#"f({"x":"a"})"#),
        // Closing tags too many.
        (
            "<function=f><parameter=x>1</parameter></function></parameter></function></tool_call>\n</tool_call>ok",
            r#"f({"x":"1"}) t"ok""#,
        ),
        // An object in the XML form.
        ("<function=f>\n{\"x\": \"1\", \"n\": 2.0}\n</function>", r#"f({"x": "1", "n": 2.0})"#),
        ("<tool_call>\n<function=f>{\"x\": \"1\"}</function>\n</tool_call>", r#"f({"x": "1"})"#),
    ]);
}

#[test]
fn what_is_no_call_is_text() {
    text(&[
        (
            "<tool_call>\n<function=none>\n</function>\n</tool_call>",
            r#"t"<tool_call>\n<function=none>\n</function>\n</tool_call>""#,
        ),
        ("some use <function=...>, others <tool_call>", r#"t"some use <function=...>, others <tool_call>""#),
        ("a <function=f> b", r#"t"a <function=f> b""#),
        ("a <function=f>", r#"t"a <function=f>""#),
        ("a  <function=f>\n ", r#"t"a  <function=f>\n ""#),
        ("a <tool_call> ", r#"t"a <tool_call> ""#),
        ("<tool_call>\n<function=f", r#"t"<tool_call>\n<function=f""#),
        ("<tool_call>\n<function=f>\nx", r#"t"<tool_call>\n<function=f>\nx""#),
        (
            "<tool_call>\n<function=f>\n<parameter=>1</parameter>",
            r#"t"<tool_call>\n<function=f>\n<parameter=>1</parameter>""#,
        ),
        ("<tool_call>\n<function=>\n", r#"t"<tool_call>\n<function=>\n""#),
        ("<tool_call>\n<Function=f>\n</Function>", r#"t"<tool_call>\n<Function=f>\n</Function>""#),
        ("<tool_call>f(x)</tool_call>", r#"t"<tool_call>f(x)</tool_call>""#),
        ("</tool_call>", r#"t"</tool_call>""#),
        ("</function>\n</parameter>", r#"t"</function>\n</parameter>""#),
        ("<parameter=x>1</parameter>", r#"t"<parameter=x>1</parameter>""#),
        ("<tool_call", r#"t"<tool_call""#),
        ("a < b <", r#"t"a < b <""#),
        ("if a<b { c }", r#"t"if a<b { c }""#),
        ("<tool_call><tool_call>\n<function=bare></function></tool_call>", r#"t"<tool_call>" bare({})"#),
        ("<<tool_call><function=bare></function></tool_call>", r#"t"<" bare({})"#),
        ("two\n\n\nlines  \n", r#"t"two\n\n\nlines  \n""#),
        ("  \n", r#"t"  \n""#),
        ("<think>\nhm\n</think>\n\n<function=bare></function>", r#"r"hm" bare({})"#),
    ]);
    let only = |choice| OutputParser::new(false, &tools(), &choice);
    let output = "<function=f><parameter=x>1</parameter></function><function=bare></function>";
    let named = vec!["bare".to_string()];
    for choice in [ToolChoice::AutoOf(named.clone()), ToolChoice::RequiredOf(named)] {
        check(&only(choice), output, false, r#"t"<function=f><parameter=x>1</parameter></function>" bare({})"#);
    }
    check(&only(ToolChoice::Required), output, false, r#"f({"x":"1"}) bare({})"#);
    check(&only(ToolChoice::None), output, false, &format!("t{output:?}"));
}

#[test]
fn long_runs_of_white_space_are_not_held_back_for_ever() {
    let space = " ".repeat(MAX_SPACE);
    let call = "<function=bare></function>";
    text(&[
        (&format!("a{space}{call}"), r#"t"a" bare({})"#),
        (&format!("a{space} {call}"), &format!(r#"t"a{space} " bare({{}})"#)),
        (&format!("<function=bare>{space}</function>"), "bare({})"),
        (&format!("<function=bare>{space} </function>"), &format!(r#"t"<function=bare>{space} </function>""#)),
        (
            &format!("<function=f><parameter=x>1</parameter>{space} </function>"),
            &format!(r#"f({{"x":"1</parameter>{space} "}})"#),
        ),
    ]);
}

#[test]
fn a_value_may_hold_any_tag_that_does_not_end_it() {
    let values = [
        "return \"</parameter>\"",
        "</parameter>",
        "</parameter>\n</parameter>",
        "a\n</parameter>\n<param",
        "</parameter>\n<parameters>",
        "</parameter></functions>",
        "</parameter>\n</tool_call>\nmore",
        "<parameter=y>\nb",
        "</function>",
        "</function>\n</tool_call>",
        "</tool_call>\n<tool_call>",
        "<tool_call>\n<function=f>\n</function>\n</tool_call>",
        "<think></think>",
        "a && b < c > d",
        "&lt;b&gt; &amp; <br/>",
        "<![CDATA[ ]]>",
        "    if x:\n",
        "\n\nblank lines around\n\n",
        " ",
        "",
        "\n",
        "\r\n",
        "tab\tquote\"backslash\\ control\u{1} del\u{7f} \u{2028} 日本 👩‍👩‍👧",
        "{\"a\": [1, 2]}",
        "null",
    ];
    let parser = OutputParser::new(false, &tools(), &ToolChoice::Auto);
    for value in values {
        let output = format!(
            "<tool_call>\n<function=f>\n<parameter=x>\n{value}\n</parameter>\n<parameter=n>\n1\n</parameter>\n</function>\n</tool_call>"
        );
        let expected = format!("f({{\"x\":{},\"n\":1}})", Json::from(value));
        let events = check_splits(&parser, &output, false);
        let shown = show(&events);
        let json: Json = serde_json::from_str(&shown[2..shown.len() - 1]).unwrap();
        assert_eq!(json, json!({"x": value, "n": 1}), "{expected}");
    }
}

#[test]
fn values_have_the_type_that_the_schema_says() {
    let (string, integer, number) = (json!({"type": "string"}), json!({"type": "integer"}), json!({"type": "number"}));
    let (boolean, array, object) = (json!({"type": "boolean"}), json!({"type": "array"}), json!({"type": "object"}));
    let nullable = json!({"anyOf": [{"type": "string"}, {"type": "null"}]});
    let number_or_text = json!({"type": ["string", "number"]});
    let list_or_text = json!({"oneOf": [{"type": "string"}, {"type": "array", "items": {}}]});
    let optional = json!({"type": ["integer", "null"]});
    let referred = json!({"$ref": "#/$defs/Count"});
    let cases = [
        (&string, "02134", r#""02134""#),
        (&string, "1e5", r#""1e5""#),
        (&string, "true", r#""true""#),
        (&string, "null", r#""null""#),
        (&string, "42", r#""42""#),
        (&string, "[1]", r#""[1]""#),
        (&integer, "5", "5"),
        (&integer, "5.0", "5"),
        (&integer, "-7", "-7"),
        (&integer, " 5 ", "5"),
        (&integer, "1e3", "1000"),
        (&integer, "5.5", r#""5.5""#),
        (&integer, "12345678901234567890123", "12345678901234567890123"),
        (&integer, "007", r#""007""#),
        (&integer, "+5", r#""+5""#),
        (&integer, "five", r#""five""#),
        (&integer, "", r#""""#),
        (&integer, "  ", r#""  ""#),
        (&integer, "null", "null"),
        (&integer, "\"5\"", r#""\"5\"""#),
        (&number, "1e5", "1e5"),
        (&number, "2.50", "2.50"),
        (&number, "3", "3"),
        (&number, ".5", r#"".5""#),
        (&number, "NaN", r#""NaN""#),
        (&number, "1e999", r#""1e999""#),
        (&number, "1_000", r#""1_000""#),
        (&boolean, "True", "true"),
        (&boolean, "false", "false"),
        (&boolean, "False", "false"),
        (&boolean, "yes", r#""yes""#),
        (&boolean, "1", r#""1""#),
        (&array, "[1, 2, 3]", "[1, 2, 3]"),
        (&array, "[{\"path\":\"a\",\"ranges\":[\"1-5\"]}]", "[{\"path\":\"a\",\"ranges\":[\"1-5\"]}]"),
        (&array, "[1, 2", r#""[1, 2""#),
        (&array, "['a']", r#""['a']""#),
        (&array, "a, b", r#""a, b""#),
        (&array, "[\n  1,\n  2\n]", "[\n  1,\n  2\n]"),
        (&array, "[1e999]", r#""[1e999]""#),
        (&object, "{\"a\":null}", "{\"a\":null}"),
        (&object, "{\"a\": \"</parameter>\"}", "{\"a\": \"</parameter>\"}"),
        (&object, "{'a': True}", r#""{'a': True}""#),
        (&object, "{\"a\": \"\\ud800\"}", r#""{\"a\": \"\\ud800\"}""#),
        (&object, "[1]", "[1]"),
        (&nullable, "null", "null"),
        (&nullable, "None", "null"),
        (&nullable, "nullable", r#""nullable""#),
        (&nullable, "nul", r#""nul""#),
        (&nullable, "42", r#""42""#),
        (&nullable, "", r#""""#),
        (&number_or_text, "42", "42"),
        (&number_or_text, "4.5 metres", r#""4.5 metres""#),
        (&number_or_text, "02134", r#""02134""#),
        (&number_or_text, "true", r#""true""#),
        (&list_or_text, "[\"a\"]", "[\"a\"]"),
        (&list_or_text, "[draft] a", r#""[draft] a""#),
        (&list_or_text, "a", r#""a""#),
        (&list_or_text, "{}", r#""{}""#),
        (&optional, "null", "null"),
        (&optional, "3.0", "3"),
        (&referred, "3.0", "3"),
        (&json!({"enum": ["1", "2"]}), "1", r#""1""#),
        (&json!({"enum": [1, 2]}), "1", "1"),
        (&json!({"enum": ["auto", 1, null]}), "1", "1"),
        (&json!({"enum": ["auto", 1, null]}), "auto", r#""auto""#),
        (&json!({"const": true}), "True", "true"),
        (&json!({"type": "integer", "nullable": true}), "None", "null"),
        (&json!({"allOf": [{"$ref": "#/$defs/Count"}, {"minimum": 1}]}), "2.0", "2"),
        (&json!({"properties": {"a": {}}}), "{\"a\":1}", "{\"a\":1}"),
        (&json!({"items": {}}), "[]", "[]"),
        (&json!({"minimum": 0}), "0.5", "0.5"),
        (&json!({"description": "anything"}), "42", r#""42""#),
        (&json!({}), "{\"a\":1}", r#""{\"a\":1}""#),
        (&json!(true), "1", r#""1""#),
        (&json!({"type": "integer", "enum": ["a"]}), "1", r#""1""#),
        (&json!({"$ref": "#/nowhere"}), "1", r#""1""#),
        (&json!({"$ref": "#/$defs/a%20b~1c"}), "1", "1"),
        (&json!({"type": "unheard-of"}), "1", r#""1""#),
    ];
    for (schema, value, expected) in cases {
        let tool = json!({"name": "f", "parameters": {
            "$defs": {"Count": {"type": "integer"}, "a b/c": {"$ref": "#/$defs/Count"}},
            "properties": {"v": schema, "x": {"type": "string"}},
        }});
        let parser = OutputParser::new(false, &[tool], &ToolChoice::Auto);
        let output = format!(
            "<tool_call>\n<function=f>\n<parameter=v>\n{value}\n</parameter>\n<parameter=x>\nv\n</parameter>\n</function>\n</tool_call>"
        );
        check(&parser, &output, false, &format!(r#"f({{"v":{expected},"x":"v"}})"#));
        // Without newlines around it, it is the same value.
        let bare = format!("<function=f><parameter=v>{value}</parameter></function>");
        check(&parser, &bare, false, &format!(r#"f({{"v":{expected}}})"#));
    }
}

#[test]
fn schemas_of_properties_are_found() {
    let typed = |parameters: Json, value: &str, expected: &str| {
        let parser = OutputParser::new(false, &[json!({"name": "f", "parameters": parameters})], &ToolChoice::Auto);
        let output = format!("<function=f><parameter=v>{value}</parameter></function>");
        check(&parser, &output, false, &format!(r#"f({{"v":{expected}}})"#));
    };
    let integer = json!({"type": "integer"});
    typed(json!({"$ref": "#/definitions/A", "definitions": {"A": {"properties": {"v": integer}}}}), "1", "1");
    typed(json!({"allOf": [{"properties": {"u": {}}}, {"properties": {"v": integer}}]}), "1", "1");
    typed(json!({"anyOf": [{"properties": {"v": integer}}, {"properties": {"v": {"type": "null"}}}]}), "null", "null");
    typed(json!({"additionalProperties": integer}), "1", "1");
    typed(json!({"additionalProperties": true}), "1", r#""1""#);
    typed(json!({"properties": {"u": integer}}), "1", r#""1""#);
    typed(json!(null), "1", r#""1""#);
}

#[test]
fn calls_of_the_json_form() {
    text(&[
        (
            "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"x\": \"1\", \"n\": 2}}\n</tool_call>",
            r#"f({"x": "1", "n": 2})"#,
        ),
        (
            "Look:\n<tool_call>\n{\"name\":\"f\",\"arguments\":{}}\n</tool_call>\n<tool_call>\n{\"name\":\"bare\"}\n</tool_call>",
            r#"t"Look:" f({}) bare({})"#,
        ),
        ("<tool_call>{\"arguments\": {\"x\": \"}\\\"{\"}, \"name\": \"f\"}</tool_call>", r#"f({"x": "}\"{"})"#),
        ("<tool_call>{\"name\": \"f\", \"parameters\": {\"n\": 1.50}}</tool_call>", r#"f({"n": 1.50})"#),
        ("<tool_call>{\"name\": \"f\", \"arguments\": \"{\\\"n\\\": 1}\"}</tool_call>", r#"f({"n": 1})"#),
        ("<tool_call>{\"name\": \"f\", \"arguments\": \"\"}</tool_call>", "f({})"),
        ("<tool_call>{\"name\": \"f\", \"arguments\": null}</tool_call>", "f({})"),
        (
            "<tool_call>{\"name\": \"f\", \"arguments\": {\"x\": \"</tool_call>\"}}</tool_call>",
            r#"f({"x": "</tool_call>"})"#,
        ),
        (
            "<tool_call>{\"name\": \"f\", \"id\": 3, \"arguments\": {\"n\": 12345678901234567890123}}</tool_call>",
            r#"f({"n": 12345678901234567890123})"#,
        ),
        // A line break inside a string, and brackets that are missing.
        ("<tool_call>\n{\"name\": \"f\", \"arguments\": {\"x\": \"a\nb\"}}\n</tool_call>", r#"f({"x": "a\nb"})"#),
        ("<tool_call>\n{\"name\": \"f\", \"arguments\": {\"x\": \"a\"}\n</tool_call>", r#"f({"x": "a"})"#),
        ("<tool_call>\n{\"name\": \"f\", \"arguments\": {\"x\": \"a", r#"f({"x": "a"})"#),
        ("<tool_call>\n{\"name\": \"f\", \"arguments\": {\"x\": \"a\\", r#"f({"x": "a"})"#),
        ("<tool_call>\n{\"name\": \"f\", \"arguments\": {}}", "f({})"),
        // No calls.
        (
            "<tool_call>\n{\"name\": \"none\", \"arguments\": {}}\n</tool_call>",
            r#"t"<tool_call>\n{\"name\": \"none\", \"arguments\": {}}\n</tool_call>""#,
        ),
        (
            "a \n<tool_call>{\"name\": \"f\", \"arguments\": [1]}</tool_call>",
            r#"t"a \n<tool_call>{\"name\": \"f\", \"arguments\": [1]}</tool_call>""#,
        ),
        ("<tool_call>{\"name\": 1}</tool_call>", r#"t"<tool_call>{\"name\": 1}</tool_call>""#),
        ("<tool_call>{}</tool_call>", r#"t"<tool_call>{}</tool_call>""#),
        ("<tool_call>{'name': 'f'}</tool_call>", r#"t"<tool_call>{'name': 'f'}</tool_call>""#),
        ("<tool_call>{\"name\": \"f\"]</tool_call>", r#"t"<tool_call>{\"name\": \"f\"]</tool_call>""#),
        ("<tool_call>{\"a\": <tool_call><function=bare></function>", r#"t"<tool_call>{\"a\":" bare({})"#),
        ("{\"name\": \"f\", \"arguments\": {}}", r#"t"{\"name\": \"f\", \"arguments\": {}}""#),
        ("<function=bare></function>\n<tool_call>{}</tool_call>", r#"bare({}) t"<tool_call>{}</tool_call>""#),
    ]);
}

#[test]
fn an_answer_that_was_cut_is_a_beginning() {
    cut(&[
        ("some text  \n", r#"t"some text  \n""#),
        ("a <tool_c", r#"t"a <tool_c""#),
        ("<tool_call>\n<function=f>\n", r#"t"<tool_call>\n<function=f>\n""#),
        ("<tool_call>\n<function=f>\n<parameter=x>", "f(~"),
        ("<tool_call>\n<function=f>\n<parameter=x>\nsome text", r#"f({"x":"some text~"#),
        ("<tool_call>\n<function=f>\n<parameter=x>\nsome text\n", r#"f({"x":"some text~"#),
        ("<tool_call>\n<function=f>\n<parameter=x>\nsome text\n</parameter>\n", r#"f({"x":"some text~"#),
        ("<tool_call>\n<function=f>\n<parameter=x>\n1\n</parameter>\n<parameter=n>\n4", r#"f({"x":"1"~"#),
        ("a\n\n<function=f><parameter=x>1</parameter></function>", r#"t"a" f({"x":"1"})"#),
        ("<function=f><parameter=x>1</parameter></function>\n\n", r#"f({"x":"1"})"#),
        ("<function=bare></function><function=f><parameter=x>1", r#"bare({}) f({"x":"1~"#),
        (
            "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"x",
            r#"t"<tool_call>\n{\"name\": \"f\", \"arguments\": {\"x""#,
        ),
    ]);
    let parser = OutputParser::new(true, &tools(), &ToolChoice::Auto);
    for (output, expected) in [
        ("plan\n", r#"r"plan\n""#),
        ("plan <function=bare></function>", r#"r"plan <function=bare></function>""#),
        ("plan <function=f><parameter=x>1", r#"r"plan <function=f><parameter=x>1""#),
        ("plan\n</think>\n\n<function=f><parameter=x>1", r#"r"plan" f({"x":"1~"#),
    ] {
        check(&parser, output, true, expected);
    }
}

#[test]
fn calls_inside_thinking_are_drafts() {
    let call = "<tool_call><function=f><parameter=x>1</parameter></function></tool_call>";
    thinking(&[
        (&format!("plan {call}"), r#"r"plan" f({"x":"1"})"#),
        (&format!("plan\n\n{call}\n{call}\n"), r#"r"plan" f({"x":"1"}) f({"x":"1"})"#),
        (call, r#"f({"x":"1"})"#),
        ("plan <tool_call>\n{\"name\": \"bare\"}\n</tool_call>", r#"r"plan" bare({})"#),
        ("plan <function=bare></function>", r#"r"plan" bare({})"#),
        // Closed later.
        (
            "some use <function=...>, others <tool_call></think>ok",
            r#"r"some use <function=...>, others <tool_call>" t"ok""#,
        ),
        (&format!("plan {call}\n</think>\n\nok"), &format!(r#"r"plan {call}" t"ok""#)),
        (&format!("plan {call} or not</think>ok"), &format!(r#"r"plan {call} or not" t"ok""#)),
        (&format!("plan {call}\n</think>\n\n{call}"), &format!(r#"r"plan {call}" f({{"x":"1"}})"#)),
        ("I may <function=f><parameter=x>a</think>b", r#"r"I may <function=f><parameter=x>a" t"b""#),
        ("a <tool_call>{\"name\": \"f</think>b", r#"r"a <tool_call>{\"name\": \"f" t"b""#),
        ("a <tool_call>{\"name\": 1}</think>b", r#"r"a <tool_call>{\"name\": 1}" t"b""#),
        // Not complete, or not declared.
        ("plan <function=f><parameter=x>a", r#"r"plan <function=f><parameter=x>a""#),
        ("plan <function=f><parameter=x>a</parameter>", r#"r"plan <function=f><parameter=x>a</parameter>""#),
        ("plan <function=f><parameter=x>a</thin", r#"r"plan <function=f><parameter=x>a</thin""#),
        (
            "plan <tool_call>\n<function=none>\n</function>\n</tool_call>",
            r#"r"plan <tool_call>\n<function=none>\n</function>\n</tool_call>""#,
        ),
        ("plan <tool_call>\n<function=bare>\n", r#"r"plan <tool_call>\n<function=bare>\n""#),
        ("plan <tool_call>\n{\"name\": \"bare\"", r#"r"plan <tool_call>\n{\"name\": \"bare\"""#),
        (
            &format!("plan {call}<function=f><parameter=x>a"),
            &format!(r#"r"plan {call}<function=f><parameter=x>a" f({{"x":"1"}})"#),
        ),
        // More thinking behind it: the last calls that stand together count.
        (&format!("plan {call} so."), &format!(r#"r"plan {call} so." f({{"x":"1"}})"#)),
        (&format!("{call} no: <function=bare></function>"), &format!(r#"r"{call} no:" bare({{}})"#)),
        (
            &format!("{call} a <function=bare></function> b\n"),
            &format!(r#"r"{call} a <function=bare></function> b\n" bare({{}})"#),
        ),
        ("plan\n</think>\n\n<function=f><parameter=x>1</parameter></function>", r#"r"plan" f({"x":"1"})"#),
        ("plan\n</think>\n\nLooking.\n\n<function=bare></function>\n", r#"r"plan" t"Looking." bare({})"#),
    ]);
}

#[test]
fn what_is_certain_comes_at_once() {
    let mut parser = OutputParser::new(true, &tools(), &ToolChoice::Auto);
    let text = |t: &str| vec![Event::Text(t.into())];
    let thought = |t: &str| vec![Event::Reasoning(t.into())];
    let piece = |p: &str| vec![Event::Arguments { index: 0, piece: p.into() }];
    assert_eq!(parser.push("one two"), thought("one two"));
    assert_eq!(parser.push("\n</thi"), []);
    assert_eq!(parser.push("s"), thought("\n</this"));
    assert!(parser.is_reasoning());
    assert_eq!(parser.push("</think>\n\nyes"), text("yes"));
    assert!(!parser.is_reasoning());
    assert_eq!(parser.push("\n"), []);
    assert_eq!(parser.push("<tool_call>\n<function=f>\n"), []);
    assert_eq!(parser.push("<parameter=x>"), [Event::Call { index: 0, name: "f".into() }]);
    assert_eq!(parser.push("\na"), piece("{\"x\":\"a"));
    assert_eq!(parser.push("b\n"), piece("b"));
    assert_eq!(parser.push("c</para"), piece("\\nc"));
    assert_eq!(parser.push("\n"), piece("</para"));
    assert_eq!(parser.push("\n</parameter>\n"), piece("\\n"));
    assert_eq!(parser.push("<parameter=n>\n4"), piece("\""));
    assert_eq!(parser.push("2\n</parameter>\n</function>"), {
        let mut events = piece(",\"n\":42}");
        events.push(Event::CallEnd { index: 0 });
        events
    });
    assert_eq!(parser.push("\n</tool_call>"), []);
    assert_eq!(parser.finish(false), []);
}

#[test]
fn the_prompt_tells_whether_thinking_is_open() {
    assert!(prompt_opens_thinking("<|im_start|>assistant\n<think>\n"));
    assert!(!prompt_opens_thinking("<|im_start|>assistant\n<think>\n\n</think>\n\n"));
    assert!(!prompt_opens_thinking("say <think><|im_end|>\n<|im_start|>assistant\n"));
}
