use super::*;
use crate::model::TextFiles;
use serde_json::json;

/// As strict as Qwen's: the system stands first, roles are four, arguments are objects, and thinking is shown only
/// behind the last question, which is no tool's result.
const STRICT: &str = "
{%- set ns = namespace(last=-1) -%}
{%- for m in messages -%}
  {%- if m.role == 'user' and not (m.content.startswith('<tool_response>') and m.content.endswith('</tool_response>')) -%}
    {%- set ns.last = loop.index0 -%}
  {%- endif -%}
{%- endfor -%}
{%- if ns.last < 0 -%}{{ raise_exception('No question.') }}{%- endif -%}
{%- for m in messages -%}
  {%- if m.role == 'system' and not loop.first -%}{{ raise_exception('The system must be first.') }}{%- endif -%}
  {%- if m.role not in ['system', 'user', 'assistant', 'tool'] -%}{{ raise_exception('Role?') }}{%- endif -%}
  {{ '<|im_start|>' ~ ('user' if m.role == 'tool' else m.role) ~ '\n' }}
  {%- if m.role == 'assistant' and loop.index0 > ns.last -%}
    {{ '<think>\n' ~ (m.reasoning_content or '') ~ '\n</think>\n\n' }}
  {%- endif -%}
  {{ m.content }}
  {%- for c in m.tool_calls or [] -%}
    {%- for key, value in c.function.arguments | items -%}{{ '[' ~ key ~ '=' ~ value ~ ']' }}{%- endfor -%}
  {%- endfor -%}
  {{ '<|im_end|>\n' }}
{%- endfor -%}
{%- if add_generation_prompt -%}
  {{ '<|im_start|>assistant\n<think>\n' ~ ('\n</think>\n\n' if enable_thinking is defined and not enable_thinking else '') }}
{%- endif -%}";

fn prompt(messages: serde_json::Value) -> Result<ChatPrompt, String> {
    prompt_of(json!({ "messages": messages }))
}

fn prompt_of(chat: serde_json::Value) -> Result<ChatPrompt, String> {
    let tokenizer: &[u8] = include_bytes!("../../../../models/fledgling/tokenizer.json");
    let files = [("chat_template.jinja", STRICT.as_bytes()), ("tokenizer.json", tokenizer)];
    let model = ChatModel::load(&TextFiles::from_embedded("test", files)).unwrap();
    model.prompt(&Conversation::from_json(&chat).unwrap()).map_err(|e| e.to_string())
}

fn text(messages: serde_json::Value) -> String {
    prompt(messages).unwrap().text
}

#[test]
fn late_system_messages_stand_where_they_came() {
    let chat = json!([
        {"role": "developer", "content": "Be brief."},
        {"role": "user", "content": "One"},
        {"role": "assistant", "content": "1"},
        {"role": "system", "content": [{"type": "text", "text": "Count "}, {"type": "text", "text": "on."}]},
        {"role": "user", "content": "Two"},
    ]);
    assert_eq!(
        text(chat),
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nOne<|im_end|>\n<|im_start|>assistant\n1<|im_end|>\n\
         <|im_start|>system\nCount on.<|im_end|>\n<|im_start|>user\nTwo<|im_end|>\n<|im_start|>assistant\n<think>\n"
    );
}

#[test]
fn a_late_system_message_is_no_question() {
    // Else the thinking before it would go, and with it every cached prefix.
    let chat = json!([
        {"role": "user", "content": "Q"},
        {"role": "assistant", "reasoning_content": "hm", "content": "look", "tool_calls": [
            {"function": {"name": "f", "arguments": "{\"a\": \"b\"}"}}]},
        {"role": "tool", "content": "r"},
        {"role": "system", "content": "Mind the time."},
    ]);
    let text = text(chat);
    assert!(text.contains("<think>\nhm\n</think>\n\nlook[a=b]<|im_end|>"), "{text}");
    assert!(
        text.contains("r<|im_end|>\n<|im_start|>system\nMind the time.<|im_end|>\n<|im_start|>assistant"),
        "{text}"
    );
}

#[test]
fn words_of_the_trick_may_stand_in_messages() {
    let chat = json!([
        {"role": "user", "content": "<tool_response>martlet-place-0-1;</tool_response> martlet-place-1-"},
        {"role": "system", "content": "martlet-place-2-1;"},
    ]);
    let text = text(chat);
    assert!(
        text.contains("user\n<tool_response>martlet-place-0-1;</tool_response> martlet-place-1-<|im_end|>"),
        "{text}"
    );
    assert!(text.contains("<|im_start|>system\nmartlet-place-2-1;<|im_end|>"), "{text}");
}

#[test]
fn what_is_refused_otherwise_stays_refused_in_the_templates_words() {
    let error = prompt(json!([{"role": "system", "content": "a"}])).unwrap_err();
    assert!(error.contains("No question."), "{error}");
    let error = prompt(json!([{"role": "system", "content": "a"}, {"role": "system", "content": "b"}])).unwrap_err();
    assert!(error.contains("No question."), "{error}");
}

#[test]
fn the_last_message_of_the_assistant_is_gone_on_with() {
    let with = |last: serde_json::Value| prompt(json!([{"role": "user", "content": "Q"}, last])).unwrap();
    let head = "<|im_start|>user\nQ<|im_end|>\n<|im_start|>assistant\n<think>\n";
    let cases = [
        (json!({"content": "The answer is "}), "\n</think>\n\nThe answer is ", false),
        (json!({"content": "B", "reasoning_content": "A"}), "A\n</think>\n\nB", false),
        (json!({"content": "<think>\nA\n</think>\n\nB"}), "A\n</think>\n\nB", false),
        (json!({"content": "<think>\nLet me"}), "Let me", true),
        (json!({"reasoning_content": "Let me"}), "Let me", true),
        (json!({"content": ""}), "", true),
        (json!({"content": [{"type": "text", "text": "B"}]}), "\n</think>\n\nB", false),
    ];
    for (mut last, tail, opens_thinking) in cases {
        last["role"] = "assistant".into();
        assert_eq!(with(last), ChatPrompt { text: format!("{head}{tail}"), opens_thinking });
    }
    let off = json!({"enable_thinking": false, "messages": [
        {"role": "user", "content": "Q"}, {"role": "assistant", "content": "{"}]});
    let expected = ChatPrompt { text: format!("{head}\n</think>\n\n{{"), opens_thinking: false };
    assert_eq!(prompt_of(off).unwrap(), expected);
}

#[test]
fn thinking_moves_to_its_place() {
    let own = |text: &str, apart: Option<&str>| {
        let apart = apart.map(str::to_string);
        let mut message = Message { reasoning_content: apart, ..Message::text(Role::Assistant, text) };
        message.for_templates();
        let once = message.clone();
        message.for_templates();
        assert_eq!(message, once);
        let Some(Content::Text(said)) = message.content else { panic!("{message:?}") };
        (message.reasoning_content, said)
    };
    let split = |thought: &str, said: &str| (Some(thought.to_string()), said.to_string());
    assert_eq!(own("<think>\nr\n</think>\n\n a", None), split("r", " a"));
    assert_eq!(own("<think>r</think>a", Some("apart")), split("apart", "a"));
    assert_eq!(own("a <think>r</think>", None), (None, "a <think>r</think>".into()));
    assert_eq!(own("<think>open", None), (None, "<think>open".into()));
}

#[test]
fn calls_and_results_become_readable() {
    let chat = json!([
        {"role": "user", "content": "Q"},
        {"role": "assistant", "content": "<think>t</think>see", "tool_calls": [
            {"function": {"name": "f", "arguments": "{broken"}}, {"function": {"name": "g", "arguments": ""}}]},
        {"role": "tool", "content": null},
    ]);
    let text = text(chat);
    assert!(
        text.contains("<think>\nt\n</think>\n\nsee[arguments={broken]<|im_end|>\n<|im_start|>user\n<|im_end|>"),
        "{text}"
    );
}
