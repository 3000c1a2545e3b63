use super::*;

fn error(json: &str) -> String {
    Conversation::parse(json).unwrap_err().to_string()
}

#[test]
fn an_object_and_a_bare_array_are_the_same_conversation() {
    let array = r#"[{"role": "user", "content": "hi"}]"#;
    let object = format!(r#"{{"messages": {array}}}"#);
    assert_eq!(Conversation::parse(array), Conversation::parse(&object));
    assert_eq!(Conversation::parse(array).unwrap().messages, [Message::text(Role::User, "hi")]);
}

#[test]
fn null_is_absent() {
    let chat = Conversation::parse(
        r#"{"messages": [{"role": "assistant", "content": null, "tool_calls": null, "reasoning_content": null}],
            "tools": null, "enable_thinking": null, "chat_template_kwargs": null}"#,
    )
    .unwrap();
    assert_eq!(chat.messages[0].to_json().to_string(), r#"{"role":"assistant"}"#);
    assert_eq!(chat.enable_thinking, None);
}

#[test]
fn arguments_come_as_object_or_as_string() {
    let call = |arguments: &str| {
        let json = format!(
            r#"[{{"role": "assistant", "tool_calls": [{{"function": {{"name": "f", "arguments": {arguments}}}}}]}}]"#
        );
        Conversation::parse(&json).unwrap().messages[0].tool_calls[0].arguments.clone()
    };
    let object = call(r#"{"b": 1, "a": [true]}"#);
    assert_eq!(call(r#""{\"b\": 1, \"a\": [true]}""#), object);
    assert_eq!(call(r#""""#), Arguments::Object(Map::new()));
    assert_eq!(call(r#""{\"b\": ""#), Arguments::Raw("{\"b\": ".into()));
    assert_eq!(call(r#""[1]""#), Arguments::Raw("[1]".into()));
}

#[test]
fn a_flat_tool_call_is_read_too() {
    let chat = Conversation::parse(r#"[{"role": "assistant", "tool_calls": [{"name": "f", "arguments": {}}]}]"#);
    assert_eq!(chat.unwrap().messages[0].tool_calls[0].name, "f");
}

#[test]
fn older_names_of_reasoning_are_read() {
    for key in ["reasoning_content", "thinking", "reasoning"] {
        let chat = Conversation::parse(&format!(r#"[{{"role": "assistant", "{key}": "hm", "content": ""}}]"#));
        assert_eq!(chat.unwrap().messages[0].reasoning_content.as_deref(), Some("hm"));
    }
}

#[test]
fn what_is_written_is_read_back() {
    let json = r#"{"messages": [
        {"role": "developer", "content": [{"type": "text", "text": "a"}, {"type": "image_url", "image_url": {"url": "x"}}]},
        {"role": "assistant", "content": "", "reasoning_content": "r", "tool_calls": [
            {"id": "c1", "type": "function", "function": {"name": "f", "arguments": {"z": 1.5, "a": null}}}]},
        {"role": "tool", "content": "42", "tool_call_id": "c1", "name": "f", "weight": 3}],
      "tools": [{"type": "function", "function": {"name": "f"}}],
      "enable_thinking": false, "chat_template_kwargs": {"preserve_thinking": true}}"#;
    let chat = Conversation::parse(json).unwrap();
    let written = serde_json::to_string(&chat).unwrap();
    let value: Value = serde_json::from_str(json).unwrap();
    assert_eq!(written, value.to_string(), "key order is kept");
    assert_eq!(serde_json::from_str::<Conversation>(&written).unwrap(), chat);
}

#[test]
fn errors_name_the_path() {
    let cases = [
        (
            r#"[{"role": "user", "content": 3}]"#,
            "messages[0].content: expected a string, null or an array of parts, found the number 3",
        ),
        (r#"[{"role": "user"}, {"content": "x"}]"#, "messages[1]: the key \"role\" is missing"),
        (
            r#"[{"role": "users"}]"#,
            "messages[0].role: unknown role \"users\"; known are system, developer, user, assistant, tool",
        ),
        (r#"[{"role": "user", "content": ["x"]}]"#, "messages[0].content[0]: expected an object, found a string"),
        (
            r#"[{"role": "assistant", "tool_calls": [{"function": {}}]}]"#,
            "messages[0].tool_calls[0].function: the key \"name\" is missing",
        ),
        (
            r#"[{"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": [1]}}]}]"#,
            "messages[0].tool_calls[0].function.arguments: expected an object or a string, found an array",
        ),
        (
            r#"{"messages": [], "tool": []}"#,
            "the chat: unknown key \"tool\"; known are messages, tools, enable_thinking, chat_template_kwargs",
        ),
        (r#"{"messages": [], "tools": {"a": 1}}"#, "tools: expected an array, found an object"),
        (r#"{"messages": [], "enable_thinking": "yes"}"#, "enable_thinking: expected true or false, found a string"),
        (r#"{"tools": []}"#, "the chat: the key \"messages\" is missing"),
        ("7", "the chat: expected an object with \"messages\", or an array of messages, found the number 7"),
    ];
    for (json, expected) in cases {
        assert_eq!(error(json), expected, "{json}");
    }
    assert!(error("[{").contains("line 1 column 2"), "{}", error("[{"));
}

#[test]
fn a_choice_of_thinking_goes_before_the_variables_of_the_template() {
    let text = r#"{"messages": [], "chat_template_kwargs": {"a": 1, "enable_thinking": false, "b": 2}}"#;
    let mut chat = Conversation::parse(text).unwrap();
    chat.set_thinking(true);
    assert_eq!(chat.enable_thinking, Some(true));
    assert_eq!(chat.template_kwargs.keys().collect::<Vec<_>>(), ["a", "b"]);
}
