use super::*;
use crate::golden;
use martlet_session::TokenInfo;
use std::sync::Arc;

fn chat(tools: Tools, logprobs: bool, n: usize) -> Chat {
    let about = About {
        id: "chatcmpl-1".into(),
        created: 1,
        model: "m".into(),
        tools,
        logprobs,
        usage: UsageIn::LastChunk,
        bytes_of: Arc::new(|id| vec![id as u8]),
    };
    Chat::new(about, n)
}

#[test]
fn an_answer_with_thinking() {
    let events = vec![
        Event::Reasoning("so".into()),
        Event::Text("He".into()),
        Event::Text("llo".into()),
        golden::finished(FinishReason::EndToken(1)),
    ];
    golden::check("openai/chat/thinking", &mut chat(Tools::default(), false, 1), &events);
}

#[test]
fn calls_of_functions_and_custom_tools() {
    let declared =
        json!([{"type": "function", "function": {"name": "f"}}, {"type": "custom", "custom": {"name": "p"}}]);
    let tools = Tools::of_chat(&declared, "tools").unwrap();
    let mut events = vec![Event::Text("I look.".into())];
    events.extend(golden::call(0, "f", &["{\"a\":", "1}"]));
    events.extend(golden::call(1, "p", &["{\"input\":\"li", "ne\\n\"}"]));
    events.push(golden::finished(FinishReason::ToolCalls));
    golden::check("openai/chat/calls", &mut chat(tools, false, 1), &events);
}

#[test]
fn an_answer_cut_short_in_a_call() {
    let declared = json!([{"type": "function", "function": {"name": "f"}}]);
    let tools = Tools::of_chat(&declared, "tools").unwrap();
    let mut events = golden::call(0, "f", &["{\"a\":"]);
    events.pop();
    events.push(golden::finished(FinishReason::Length));
    golden::check("openai/chat/cut", &mut chat(tools, false, 1), &events);
}

#[test]
fn probabilities_come_with_the_text_that_their_tokens_make() {
    let token =
        |id: u8, top: &[(u32, f32)]| Event::Token(TokenInfo { id: id.into(), logprob: Some(-0.5), top: top.to_vec() });
    let events = vec![
        token(b't', &[]),
        Event::Reasoning("t".into()),
        token(b'a', &[(98, -1.0), (99, f32::NEG_INFINITY)]),
        token(b'b', &[]),
        Event::Text("ab".into()),
        token(b'c', &[]),
        Event::Text("c".into()),
        golden::finished(FinishReason::StopString("d".into())),
    ];
    golden::check("openai/chat/logprobs", &mut chat(Tools::default(), true, 1), &events);
}

#[test]
fn several_answers_are_told_apart() {
    let mut chat = chat(Tools::default(), false, 2);
    let mut out = Vec::new();
    chat.begin(7, &mut out);
    chat.event(1, &Event::Text("b".into()), &mut out);
    chat.event(0, &Event::Text("a".into()), &mut out);
    chat.event(0, &golden::finished(FinishReason::Repetition), &mut out);
    chat.event(1, &golden::finished(FinishReason::Length), &mut out);
    chat.end(&mut out);
    golden::compare("openai/chat/several", &golden::transcript(&out, &chat.response()));
}

#[test]
fn a_failure_in_the_middle_is_an_event() {
    let mut chat = chat(Tools::default(), false, 1);
    let mut out = Vec::new();
    chat.event(0, &Event::Text("a".into()), &mut out);
    chat.fail(&ApiError::internal("the step failed"), &mut out);
    let last = &out[out.len() - 2].data;
    assert!(last.contains("\"server_error\"") && out[out.len() - 1].data == "[DONE]", "{last}");
}
