use super::*;
use crate::golden;
use martlet_session::TokenInfo;
use std::sync::Arc;

fn responses(about: About) -> Responses {
    let response = ResponsesResponse {
        id: "resp_1".into(),
        object: "response",
        created_at: 1,
        status: "in_progress",
        background: false,
        error: None,
        incomplete_details: None,
        instructions: None,
        max_output_tokens: None,
        model: "m".into(),
        output: Vec::new(),
        parallel_tool_calls: true,
        previous_response_id: None,
        reasoning: json!({}),
        store: true,
        temperature: None,
        text: json!({"format": {"type": "text"}}),
        tool_choice: "auto".into(),
        tools: json!([]),
        top_logprobs: 0,
        top_p: None,
        truncation: "disabled",
        usage: None,
        metadata: json!({}),
    };
    Responses::new(response, about)
}

fn about() -> About {
    About {
        tools: Tools::default(),
        summary: false,
        encrypted: false,
        logprobs: false,
        bytes_of: Arc::new(|id| vec![id as u8]),
    }
}

fn check(name: &str, about: About, events: &[Event]) {
    golden::check(&format!("openai/responses/{name}"), &mut responses(about), events);
}

#[test]
fn an_answer_with_thinking() {
    check("thinking", about(), &golden::answer());
}

#[test]
fn thinking_as_a_summary_and_packed() {
    check("summary", About { summary: true, encrypted: true, ..about() }, &golden::answer());
}

#[test]
fn calls_of_functions_custom_tools_and_members() {
    let declared = json!([
        {"type": "function", "name": "f"},
        {"type": "custom", "name": "p"},
        {"type": "namespace", "name": "files", "tools": [{"type": "function", "name": "read"}]}
    ]);
    let tools = Tools::of_responses(&declared, "tools").unwrap();
    let mut events = vec![Event::Text("I look.".into())];
    events.extend(golden::call(0, "f", &["{\"a\":", "1}"]));
    events.extend(golden::call(1, "p", &["{\"input\":\"li", "ne\\n\"}"]));
    events.extend(golden::call(2, "files__read", &["{}"]));
    events.push(golden::finished(FinishReason::ToolCalls));
    check("calls", About { tools, ..about() }, &events);
}

#[test]
fn an_answer_cut_short() {
    check("cut", about(), &[Event::Text("He".into()), golden::finished(FinishReason::Length)]);
}

#[test]
fn probabilities() {
    let token = |id: u8| Event::Token(TokenInfo { id: id.into(), logprob: Some(-0.5), top: Vec::new() });
    let events = [
        token(b'a'),
        Event::Text("a".into()),
        token(b'b'),
        Event::Text("b".into()),
        golden::finished(FinishReason::EndToken(1)),
    ];
    check("logprobs", About { logprobs: true, ..about() }, &events);
}

#[test]
fn a_failure_in_the_middle_is_an_event() {
    let mut responses = responses(about());
    let mut out = Vec::new();
    responses.event(0, &Event::Text("a".into()), &mut out);
    responses.fail(&ApiError::internal("the step failed"), &mut out);
    let last = out.last().unwrap();
    assert_eq!(last.event, Some("response.failed"));
    assert!(last.data.contains("the step failed") && last.data.contains("\"incomplete\""), "{}", last.data);
}

#[test]
fn what_was_said_can_be_read_back() {
    let mut responses = responses(About { encrypted: true, ..about() });
    let mut out = Vec::new();
    golden::answer().iter().for_each(|event| responses.event(0, event, &mut out));
    responses.end(&mut out);
    let store = crate::store::Store::new(0, std::time::Duration::ZERO);
    let find = super::super::items::Find { store: &store, client: &Default::default() };
    let said = responses.response()["output"].as_array().unwrap().clone();
    let messages = super::super::items::messages(&said, "output", &find, &mut Vec::new()).unwrap();
    assert_eq!(messages.len(), 1);
    assert_eq!(messages[0].reasoning_content.as_deref(), Some("so it is"));
    assert_eq!(messages[0].content, Some(martlet_chat::Content::Text("Hello".into())));
}
