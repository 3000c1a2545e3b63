//! What a running server answers, field by field, where the model or a script must have said something first.

use martlet_server::{Limits, Options};
use martlet_session::LoopGuard;
use martlet_tests::server::{Api, Running, options, serve, serve_script, session};
use serde_json::{Value, json};

fn chat(server: &Running, body: Value) -> Value {
    answer(server, Api::Chat, body)
}

fn answer(server: &Running, api: Api, body: Value) -> Value {
    let response = server.post(api.path(), &[], &body).response();
    assert_eq!(response.status, 200, "{}", response.text());
    response.json()
}

/// Status and blamed field of what is refused.
fn refused(server: &Running, path: &str, body: &Value) -> (u16, String) {
    let response = server.post(path, &[], body).response();
    let param = &response.json()["error"]["param"];
    (response.status, param.as_str().unwrap_or_default().to_string())
}

fn asked(text: &str) -> Value {
    json!({"messages": [{"role": "user", "content": text}], "temperature": 0, "max_tokens": 200})
}

fn with(mut body: Value, more: Value) -> Value {
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    body
}

#[test]
fn probabilities_are_of_the_answer_alone() {
    let server = serve(session(1), options(Limits::default()));
    let body = with(asked("hello"), json!({"logprobs": true, "enable_thinking": true}));
    let choice = &chat(&server, body)["choices"][0];
    assert!(choice["message"]["reasoning_content"].is_string(), "{choice}");
    let tokens = choice["logprobs"]["content"].as_array().unwrap().iter();
    let spelt: String = tokens.map(|t| t["token"].as_str().unwrap()).collect();
    assert_eq!(spelt, choice["message"]["content"]);
}

#[test]
fn forms_that_take_nothing_end_an_answer_at_once() {
    let server = serve(session(1), options(Limits::default()));
    for (form, thinks) in
        [(json!({"type": "regex", "regex": ""}), true), (json!({"type": "lark", "grammar": "start: "}), false)]
    {
        let body = with(asked("hello"), json!({"response_format": form, "enable_thinking": thinks}));
        let choice = &chat(&server, body)["choices"][0];
        assert_eq!((&choice["message"]["content"], &choice["finish_reason"]), (&json!(""), &json!("stop")));
    }
}

#[test]
fn loops_are_ended_where_the_server_is_told() {
    let script = format!("=== answer repeat\n</think>\n\n{}", "la la la ".repeat(700));
    let finish = |loop_guard: LoopGuard, api: Api| {
        let server = serve_script(session(1), Options { loop_guard, ..options(Limits::default()) }, &script);
        answer(&server, api, api.ask("sing", 1500, false))
    };
    let all = LoopGuard { thinking: true, answer: true };
    let choice = finish(all, Api::Chat)["choices"][0].clone();
    assert_eq!((&choice["finish_reason"], &choice["stop_reason"]), (&json!("stop"), &json!("repetition")));
    assert_eq!(finish(all, Api::Responses)["incomplete_details"]["reason"], "repetition");
    assert_eq!(finish(all, Api::Messages)["stop_details"]["type"], "repetition");
    assert_eq!(finish(LoopGuard::default(), Api::Chat)["choices"][0]["finish_reason"], "length");
}

#[test]
fn what_was_said_can_be_gone_on_with_as_soon_as_its_stream_ends() {
    let server = serve_script(session(1), options(Limits::default()), "=== answer repeat\n</think>\n\nWell.\n");
    let mut body = Api::Responses.ask("hello", 20, true);
    for _ in 0..40 {
        let mut client = server.post(Api::Responses.path(), &[], &body);
        client.stream();
        let end = std::iter::from_fn(|| client.event()).find(|e| e.name == "response.completed").expect("an end");
        let id = end.json()["response"]["id"].clone();
        let stored = server.get(&format!("/v1/responses/{}", id.as_str().unwrap()));
        assert_eq!(stored.status, 200, "{}", stored.text());
        body["previous_response_id"] = id;
    }
}

#[test]
fn stored_input_has_ids_by_which_it_is_found() {
    let server = serve_script(session(1), options(Limits::default()), "=== answer repeat\n</think>\n\nWell.\n");
    let first = answer(&server, Api::Responses, json!({"input": "hello"}));
    let items = server.get(&format!("/v1/responses/{}/input_items", first["id"].as_str().unwrap())).json();
    let id = items["data"][0]["id"].clone();
    assert!(id.is_string() && items["first_id"] == id && items["last_id"] == id, "{items}");
    let again = json!({"input": [{"type": "item_reference", "id": id}, {"role": "user", "content": "and now?"}]});
    assert_eq!(answer(&server, Api::Responses, again)["status"], "completed");
}

#[test]
fn models_say_how_their_weights_are_stored() {
    let server = serve(session(1), options(Limits::default()));
    let model = &server.get("/v1/models").json()["data"][0];
    assert_eq!(model["quantization"], server.session().scheme());
    assert!(!server.session().scheme().is_empty());
}

#[test]
fn every_endpoint_names_what_it_did_not_use() {
    let server = serve(session(1), options(Limits::default()));
    let message = json!({"messages": [{"role": "user", "content": "hi"}], "odd": 1});
    for (path, body) in [
        ("/v1/messages/count_tokens", message),
        ("/tokenize", json!({"prompt": "hi", "odd": 1})),
        ("/detokenize", json!({"tokens": [1], "odd": 1})),
    ] {
        let response = server.post(path, &[], &body).response();
        assert_eq!((response.status, response.header("x-martlet-warning")), (200, Some("not used: odd")), "{path}");
    }
}

#[test]
fn errors_name_the_field_as_the_request_has_it() {
    let server = serve(session(1), options(Limits::default()));
    let deep = (0..70).fold(json!({}), |schema, _| json!({"items": schema}));
    let object = |schema: &Value| json!({"type": "object", "properties": {"a": schema}});
    let schema = object(&json!({"not": {}}));
    let framed = json!({"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}});
    let tools =
        json!([{"type": "web_search"}, {"type": "function", "function": {"name": "f", "parameters": object(&deep)}}]);
    let of_messages = json!([{"name": "g"}, {"name": "f", "input_schema": object(&deep)}]);
    let (long, hi) = ("word ".repeat(9000), asked("hi"));
    let (chat, responses, messages) = (Api::Chat.path(), Api::Responses.path(), Api::Messages.path());
    let cases = [
        (chat, with(hi.clone(), framed), "response_format.json_schema.schema.properties.a.not"),
        (chat, with(hi.clone(), json!({"structured_outputs": {"regex": "("}})), "structured_outputs.regex"),
        (chat, with(hi.clone(), json!({"tools": tools})), "tools[1].function.parameters"),
        (chat, with(hi.clone(), json!({"logit_bias": {"9999999": 1}})), "logit_bias.9999999"),
        (messages, with(hi, json!({"tools": of_messages})), "tools[1].input_schema"),
        (responses, json!({"input": long}), "input"),
        ("/v1/completions", json!({"prompt": long}), "prompt"),
    ];
    for (path, body, field) in cases {
        assert_eq!(refused(&server, path, &body), (400, field.to_string()));
    }
    let odd = server.get("/v1/responses/%ff");
    assert_eq!((odd.status, odd.json()["error"]["code"].as_str()), (400, Some("invalid_path")));
}
