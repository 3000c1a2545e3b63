use super::*;
use crate::Answer;
use martlet_chat::{ChatModel, SpecialTokens, TextFiles, ToolChoice};
use serde_json::json;
use std::path::Path;
use std::sync::OnceLock;

fn model() -> &'static ChatModel {
    static MODEL: OnceLock<ChatModel> = OnceLock::new();
    MODEL.get_or_init(|| {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/fledgling");
        ChatModel::load(&TextFiles::from_folder(&path).unwrap()).unwrap()
    })
}

struct Run {
    answer: Answer,
    stopped: Option<String>,
    /// The token with which the answer was over.
    over_at: Option<usize>,
    reasoning_tokens: usize,
}

/// An answer in which a model says `said`.
fn run(said: &str, thinking: bool, stops: &[&str], single: bool, truncated: bool) -> Run {
    let tokenizer = &model().tokenizer;
    let tools = [json!({"name": "f", "parameters": {"properties": {"x": {"type": "string"}}}})];
    let parser = OutputParser::new(thinking, &tools, &ToolChoice::Auto);
    let stops = stops.iter().map(|s| s.to_string()).collect();
    let mut output = Output::new(Some(tokenizer.detokenizer(SpecialTokens::Skip)), Some(parser), stops, single);
    let (mut events, mut over_at) = (Vec::new(), None);
    for (i, id) in tokenizer.encode(said).unwrap().into_iter().enumerate() {
        output.push(id, &mut events);
        if output.is_over() {
            over_at = over_at.or(Some(i));
        }
    }
    output.finish(truncated, &mut events);
    assert!(!events.iter().any(|e| matches!(e, Event::Text(t) | Event::Reasoning(t) if t.is_empty())), "{events:?}");
    let ends = events.iter().filter(|e| matches!(e, Event::ToolCallEnd { .. })).count();
    assert_eq!(ends, output.calls());
    let mut answer = Answer::default();
    events.into_iter().for_each(|e| answer.add(e));
    Run { answer, stopped: output.stopped, over_at, reasoning_tokens: output.reasoning_tokens }
}

const CALL: &str = "<tool_call>\n<function=f>\n<parameter=x>\nEND of it\n</parameter>\n</function>\n</tool_call>";

#[test]
fn stop_strings_act_on_text_alone() {
    let said = format!("END?\n</think>\n\nfirst\n\n{CALL}\nthen END and more");
    let Run { answer, stopped, .. } = run(&said, true, &["END"], false, false);
    assert_eq!((answer.reasoning.as_str(), answer.text.as_str()), ("END?", "first\nthen "));
    assert_eq!((answer.calls.len(), answer.calls[0].arguments.as_str()), (1, r#"{"x":"END of it"}"#));
    assert_eq!(stopped.as_deref(), Some("END"));

    let before = run(&format!("one END two {CALL}"), false, &["END"], false, false);
    assert_eq!((before.answer.text.as_str(), before.answer.calls.len()), ("one ", 0));

    // What may begin a stop string belongs before the call.
    let held = run(&format!("one EN\n{CALL}D"), false, &["END"], false, false);
    assert_eq!((held.answer.text.as_str(), held.stopped), ("one END", None));
}

#[test]
fn a_stop_string_of_white_space_is_found() {
    let Run { answer, stopped, .. } = run("one\n\ntwo", false, &["\n\n"], false, false);
    assert_eq!((answer.text.as_str(), stopped.as_deref()), ("one", Some("\n\n")));
    let Run { answer, stopped, .. } = run("one\n\n", false, &["\n\n"], false, false);
    assert_eq!((answer.text.as_str(), stopped.as_deref()), ("one", Some("\n\n")));
}

#[test]
fn one_call_is_enough_where_one_is_asked_for() {
    let said = format!("look\n{CALL}\n{CALL}\nmore");
    let both = run(&said, false, &[], false, false);
    assert_eq!((both.answer.calls.len(), both.answer.text.as_str(), both.over_at), (2, "look\nmore", None));
    let one = run(&said, false, &[], true, false);
    assert_eq!((one.answer.calls.len(), one.answer.text.as_str()), (1, "look"));
    let called = format!("look\n{}", CALL.strip_suffix("\n</tool_call>").unwrap());
    assert_eq!(one.over_at, Some(model().tokenizer.encode(&called).unwrap().len() - 1));
    // Inside thinking nothing is a call before the end.
    let drafts = run(&said, true, &[], true, false);
    assert_eq!((drafts.answer.calls.len(), drafts.over_at), (1, None));
}

#[test]
fn a_cut_call_has_no_end_and_a_recovered_one_has() {
    let said = &CALL[..CALL.find("of it").unwrap()];
    assert_eq!(run(said, false, &[], false, false).answer.calls[0].arguments, r#"{"x":"END "}"#);
    let mut cut = run(said, false, &[], false, true).answer;
    assert_eq!(cut.calls.remove(0).arguments, r#"{"x":"END "#);
}

#[test]
fn tokens_of_thinking_are_counted() {
    let Run { reasoning_tokens, .. } = run("one two\n</think>\n\nthree", true, &[], false, false);
    assert_eq!(reasoning_tokens, model().tokenizer.encode("one two\n").unwrap().len());
    assert_eq!(run("</think>\n\nthree", true, &[], false, false).reasoning_tokens, 0);
    assert_eq!(run("three", false, &[], false, false).reasoning_tokens, 0);
}
