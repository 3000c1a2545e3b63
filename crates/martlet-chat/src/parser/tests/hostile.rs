//! Outputs that are slow for a parser that looks at anything more than a few times. No time is measured: with work that
//! grows with the square of the length, these tests would take hours.

use super::*;

/// Some `length` bytes of `unit`, at once, in pieces, and by single characters; as thinking, as text, and inside the
/// parts of a call.
fn run(unit: &str, length: usize) {
    let output = unit.repeat(length / unit.len());
    let value = "<tool_call>\n<function=f>\n<parameter=x>\n";
    let starts = ["", value, "<function=f><parameter=n>", "<tool_call>{\"name\": \"", "</think>"];
    for (start, open) in starts.into_iter().flat_map(|s| [(s, false), (s, true)]) {
        let parser = OutputParser::new(open, &tools(), &ToolChoice::Auto);
        let whole = format!("{start}{output}");
        let events = parse(&parser, [whole.as_str()], false);
        for size in [1013, 1] {
            let pieces = whole.as_bytes().chunks(size).map(|c| std::str::from_utf8(c).unwrap());
            assert!(parse(&parser, pieces, false) == events, "{unit:?} after {start:?} in pieces of {size}");
        }
    }
}

const KIB: usize = 1 << 10;

#[test]
fn a_megabyte_of_opening_tags_or_angle_brackets() {
    run("<tool_call>", KIB * KIB);
    run("<", KIB * KIB);
}

#[test]
fn many_tags() {
    for unit in ["<function=f>", "<tool_call>\n<function=f>\n", "</", "</parameter>", "</parameter>\n", "</function>"] {
        run(unit, 32 * KIB);
    }
    for unit in ["</think>", "</thin", "<think>", "</tool_call>", "<parameter=x>1</parameter>", "<parameter=x"] {
        run(unit, 32 * KIB);
    }
}

#[test]
fn much_space_many_digits_and_brackets() {
    for unit in ["\n", " ", "1", "{", "[\"", "\\", "{}", "\"", "a"] {
        run(unit, 32 * KIB);
    }
}

#[test]
fn many_calls() {
    run("<tool_call>\n<function=f>\n<parameter=x>\n1\n</parameter>\n</function>\n</tool_call>\n", 32 * KIB);
    run("<tool_call>\n{\"name\": \"f\", \"arguments\": {}}\n</tool_call>\n", 32 * KIB);
}

#[test]
fn deep_json_is_a_string_or_text() {
    let deep = "[".repeat(100_000) + &"]".repeat(100_000);
    let parser = OutputParser::new(false, &tools(), &ToolChoice::Auto);
    let output = format!("<function=f><parameter=l>{deep}</parameter></function>");
    assert_eq!(show(&parse(&parser, [output.as_str()], false)), format!("f({{\"l\":\"{deep}\"}})"));
    let output = format!("<tool_call>{{\"name\": \"f\", \"arguments\": {{\"l\": {deep}}}}}</tool_call>");
    assert_eq!(parse(&parser, [output.as_str()], false), [Event::Text(output)]);
}

#[test]
fn schemas_that_run_in_circles_are_strings() {
    let mut definitions = serde_json::Map::new();
    for i in 0..60 {
        let next = json!({"$ref": format!("#/$defs/d{}", (i + 1) % 60)});
        definitions.insert(format!("d{i}"), json!({"anyOf": [next.clone(), next.clone(), next]}));
    }
    let tool = json!({"name": "f", "parameters": {
        "$defs": definitions, "$ref": "#/$defs/d0", "properties": {"x": {"$ref": "#/$defs/d1"}, "y": {"$ref": "#"}},
    }});
    let parser = OutputParser::new(false, &[tool], &ToolChoice::Auto);
    let output = "<function=f><parameter=x>1</parameter><parameter=q>2</parameter></function>";
    assert_eq!(show(&parse(&parser, [output], false)), r#"f({"x":"1","q":"2"})"#);
}

/// What the module's text promises: nothing but white space, calls of the JSON form, values that are no strings and
/// calls in thinking waits longer than a tag may be long.
#[test]
fn little_is_held_back() {
    let starts = ["", "text ", "<function=f><parameter=x>", "a</parameter>"];
    let mut random = Random(5);
    for _ in 0..200 {
        let mut parser = OutputParser::new(false, &tools(), &ToolChoice::Auto);
        let mut output = starts[random.below(starts.len())].to_string();
        let parts =
            ["<", "</parameter>", " ", "\n", "<function=", "<tool_call>", "<parameter=", "a", ">", "</function>"];
        (0..4000).for_each(|_| output += parts[random.below(parts.len())]);
        for piece in output.as_bytes().chunks(7) {
            parser.push(std::str::from_utf8(piece).unwrap());
            assert!(parser.held.len() <= 1200, "{:?}", parser.held);
        }
    }
}
