//! On both sides of each limit, and what only a character more or less tells apart.

use super::*;

/// Checks an answer that the model ended; its tool `f` has the parameter `v` of this schema.
fn check_with(schema: Json, open: bool, output: &str, expected: &str) {
    let tool = json!({"name": "f", "parameters": {"properties": {"v": schema}}});
    check(&OutputParser::new(open, &[tool], &ToolChoice::Auto), output, false, expected);
}

fn check_text(output: &str, expected: &str) {
    check_with(json!({"type": "string"}), false, output, expected);
}

/// The value as JSON of the parameter that is written as `text`.
#[track_caller]
fn check_value(schema: Json, text: &str, value: &str) {
    let output = format!("<function=f><parameter=v>{text}</parameter></function>");
    check_with(schema, false, &output, &format!("f({{\"v\":{value}}})"));
}

#[test]
fn white_space_before_the_thinking() {
    let output = |space: usize| format!("{}<think>a</think>b", " ".repeat(space));
    check_text(&output(MAX_LEADING_SPACE), r#"r"a" t"b""#);
    check_text(&output(MAX_LEADING_SPACE + 1), &format!("t{:?}", output(MAX_LEADING_SPACE + 1)));
}

#[test]
fn names_of_the_greatest_length() {
    let output = |length: usize| format!("<function=f><parameter={}>1</parameter></function>", "k".repeat(length));
    check_text(&output(256), &format!("f({{\"{}\":\"1\"}})", "k".repeat(256)));
    check_text(&output(257), &format!("t{:?}", output(257)));
    // That it is too long is certain with its last byte.
    let mut parser = OutputParser::new(false, &tools(), &ToolChoice::Auto);
    let opening = format!("<function=f><parameter={}", "k".repeat(256));
    assert_eq!(parser.push(&opening), []);
    assert_eq!(parser.push("k"), [Event::Text(opening + "k")]);
}

#[test]
fn what_an_answer_that_ended_was_about_to_close() {
    let value = |rest: &str| format!("<function=f><parameter=v>a{rest}");
    check_text(&value("</"), r#"f({"v":"a</"})"#);
    check_text(&value("</p"), r#"f({"v":"a"})"#);
    check_with(json!({}), true, "<function=f></function></thi", r#"r"<function=f></function></thi" f({})"#);
}

#[test]
fn white_space_that_was_given_out_ends_what_waits() {
    let space = " ".repeat(300);
    // A quotation mark quotes only what stands next to it.
    let output = format!("</think>a`{space}</think>b");
    check_with(json!({}), true, &output, &format!("t\"a`{space}b\""));
    // Behind the next word white space waits as ever.
    check_text(&format!("a{space}b \n<function=f></function>"), &format!("t\"a{space}b\" f({{}})"));
}

#[test]
fn white_space_inside_a_call_is_no_text() {
    check_text("a<tool_call><function=f></function>\n</tool_call>\nb", r#"t"a" f({}) t"\nb""#);
}

#[test]
fn brackets_that_do_not_match_end_an_object() {
    let start = "<tool_call>{\"name\": [} \"";
    check_text(&format!("{start}<function=f></function>\""), &format!("t{start:?} f({{}}) t\"\\\"\""));
}

#[test]
fn words_and_numbers_of_the_greatest_length() {
    let either = || json!({"type": ["string", "integer"]});
    let blanks = |n: usize| " ".repeat(n);
    check_value(either(), &(blanks(512) + "1"), "1");
    check_value(either(), &(blanks(513) + "1"), &format!("\"{}1\"", blanks(513)));
    let one = |length: usize| format!("1.{}", "0".repeat(length - 2));
    check_value(either(), &one(512), "1");
    check_value(either(), &one(513), &format!("{:?}", one(513)));
    check_value(json!({"type": "integer"}), &one(512), "1");
    check_value(json!({"type": "integer"}), &one(513), &format!("{:?}", one(513)));
    check_value(json!({"type": "number"}), &one(512), &one(512));
    // As far as a double counts.
    check_value(json!({"type": "integer"}), "9007199254740992.0", "9007199254740992");
    check_value(json!({"type": "integer"}), "9007199254740994.0", "\"9007199254740994.0\"");
}

#[test]
fn white_space_alone_may_yet_become_a_list() {
    check_value(json!({"type": ["string", "array"]}), "  [1]", "[1]");
    check_value(json!({"type": ["string", "array"]}), "  1]", "\"  1]\"");
}
