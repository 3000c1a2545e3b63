//! Streams that are dropped and taken up again, cancelled, or cut off by the server's end.

use martlet_server::{Limits, Options};
use martlet_tests::server::{APIS, Api, Client, Event, Running, endless, options, serve, serve_script, session};
use serde_json::{Value, json};
use std::net::TcpStream;
use std::time::Duration;

const KEY: (&str, &str) = ("x-api-key", "one");
const OTHER_KEY: (&str, &str) = ("x-api-key", "two");
const KEEP: (&str, &str) = ("x-martlet-resume", "600");

const SCRIPT: &str = r#"=== answer repeat when: look it up
I look.

<tool_call>
<function=look>
<parameter=text>
a "b" \ c
  é 漢 🐦
</parameter>
<parameter=days>
3
</parameter>
</function>
</tool_call>
=== answer repeat when: as JSON
{"city": "Zürich", "days": [1, 22, 333]}
=== answer repeat when: do not think
</think>

Well.
=== answer repeat when: think
so it is
</think>

Well.
"#;

fn scripted(script: &str) -> Running {
    let api_keys = vec![KEY.1.to_string(), OTHER_KEY.1.to_string()];
    serve_script(session(2), Options { api_keys, ..options(Limits::default()) }, script)
}

fn schema() -> Value {
    json!({"type": "object", "required": ["city", "days"], "additionalProperties": false,
        "properties": {"city": {"type": "string"}, "days": {"type": "array", "items": {"type": "integer"}}}})
}

/// What a whole stream must hold.
type Check = fn(Api, &[Event]);

fn cases(api: Api) -> [(Value, Check); 2] {
    let tool: Check = |api, events| {
        assert_eq!(api.streamed(events).trim(), "I look.");
        assert_eq!(api.arguments(events), json!({"text": "a \"b\" \\ c\n  é 漢 🐦", "days": 3}));
    };
    let schema_holds: Check = |api, events| {
        let answer: Value = serde_json::from_str(&api.streamed(events)).expect("JSON");
        assert_eq!(answer, json!({"city": "Zürich", "days": [1, 22, 333]}));
    };
    [
        (api.with_tool(api.ask("look it up", 200, true)), tool),
        (api.with_schema(api.ask("answer as JSON", 200, true), schema()), schema_holds),
    ]
}

/// Reads the first events of a stream that is kept.
fn begun(server: &Running, api: Api, body: &Value, events: usize) -> (Client, Vec<Event>) {
    let mut client = server.post(api.path(), &[KEY, KEEP], body);
    client.stream();
    let events = (0..events).map(|_| client.event().expect("an event")).collect();
    (client, events)
}

fn resumed(server: &Running, api: Api, headers: &[(&str, &str)], body: &Value) -> Vec<Event> {
    let mut client = server.post(api.path(), headers, body);
    client.stream();
    client.events()
}

/// Every event once, in order.
fn numbered(id: &str, events: &[Event]) {
    for (i, event) in events.iter().enumerate() {
        assert_eq!(event.id, format!("{id}:{}", i + 1), "{event:?}");
    }
}

fn is_not_there(server: &Running, path: &str, headers: &[(&str, &str)], body: &Value) {
    let response = server.post(path, headers, body).response();
    assert_eq!(response.status, 404, "{}", response.text());
    assert_eq!(response.json()["error"]["code"], "stream_not_found");
}

#[test]
fn a_dropped_stream_goes_on_behind_the_last_event() {
    let server = scripted(SCRIPT);
    for api in APIS {
        for (body, check) in cases(api) {
            for read in [1, 4, 9] {
                let (client, mut events) = begun(&server, api, &body, read);
                let id = api.id(&events[0]);
                drop(client);
                let last = events[read - 1].id.clone();
                let last = ("last-event-id", last.as_str());
                // Neither by another key nor through another API.
                is_not_there(&server, api.path(), &[OTHER_KEY, last], &body);
                for other in APIS.into_iter().filter(|other| *other != api) {
                    is_not_there(&server, other.path(), &[KEY, last], &body);
                }
                events.extend(resumed(&server, api, &[KEY, last], &body));
                numbered(&id, &events);
                check(api, &events);
                // It was fetched: that was the one time.
                is_not_there(&server, api.path(), &[KEY, last], &body);
                is_not_there(&server, api.path(), &[KEY], &json!({"resume_response_id": id}));
            }
        }
    }
    assert_eq!(server.finished("cancelled"), 0.0);
}

#[test]
fn who_knows_only_the_id_gets_all_of_it() {
    let server = scripted(SCRIPT);
    for api in APIS {
        for (body, check) in cases(api) {
            // Also while the old connection is still there, dead or not.
            for keep in [true, false] {
                let (client, events) = begun(&server, api, &body, 3);
                let id = api.id(&events[0]);
                let kept = keep.then_some(client);
                let again = json!({"resume_response_id": id});
                is_not_there(&server, api.path(), &[OTHER_KEY], &again);
                let all = resumed(&server, api, &[KEY], &again);
                assert_eq!(all[..3], events);
                numbered(&id, &all);
                check(api, &all);
                is_not_there(&server, api.path(), &[KEY], &again);
                drop(kept);
            }
        }
    }
}

#[test]
fn a_stream_whose_end_may_not_have_come_can_be_asked_for_its_end() {
    let server = scripted(SCRIPT);
    for api in APIS {
        let (body, check) = &cases(api)[0];
        let (mut client, mut events) = begun(&server, api, body, 1);
        let id = api.id(&events[0]);
        events.extend(client.events());
        check(api, &events);
        let before = events[events.len() - 2].id.as_str();
        assert_eq!(resumed(&server, api, &[KEY, ("last-event-id", before)], body), events[events.len() - 1..]);
        is_not_there(&server, api.path(), &[KEY], &json!({"resume_response_id": id}));
    }
}

#[test]
fn an_id_that_makes_no_sense_is_a_400() {
    let server = scripted(SCRIPT);
    let (body, _) = &cases(Api::Chat)[0];
    let (_client, events) = begun(&server, Api::Chat, body, 1);
    let id = Api::Chat.id(&events[0]);
    for last in [format!("{id}:99999"), format!("{id}:x"), "7".into()] {
        let response = server.post(Api::Chat.path(), &[KEY, ("last-event-id", &last)], body).response();
        assert_eq!(
            (response.status, response.json()["error"]["param"].as_str()),
            (400, Some("last-event-id")),
            "{last}"
        );
    }
}

#[test]
fn a_kept_stream_is_given_up_when_nobody_comes_or_when_its_client_says_so() {
    let server = scripted(&endless());
    let mut ends = 0.0;
    let mut until_cancelled = |detached: f64| {
        ends += 1.0;
        server.until("a cancelled turn", |s| {
            s.finished("cancelled") == ends && s.metric("martlet_streams_detached", "") == detached
        });
    };
    for api in APIS {
        // Nobody comes.
        let mut client = server.post(api.path(), &[KEY, ("x-martlet-resume", "1")], &api.ask("hello", 6000, true));
        client.stream();
        client.event();
        drop(client);
        until_cancelled(0.0);

        // Its client says so.
        let (client, mut events) = begun(&server, api, &api.ask("hello", 6000, true), 6);
        let id = api.id(&events[0]);
        drop(client);
        let path = format!("/v1/responses/{id}/cancel");
        is_not_there(&server, &path, &[OTHER_KEY], &json!({}));
        let response = server.post(&path, &[KEY], &json!({})).response();
        assert_eq!((response.status, &response.json()["status"]), (200, &json!("cancelled")));
        until_cancelled(1.0);
        let again = server.post(&path, &[KEY], &json!({})).response();
        assert_eq!(again.json()["status"], "cancelled");
        // What it said so far is there, and its end.
        let last = events[5].id.clone();
        events.extend(resumed(&server, api, &[KEY, ("last-event-id", &last)], &json!({})));
        numbered(&id, &events);
        api.streamed(&events);
        match api {
            Api::Chat => {
                let choice = &events[events.len() - 2].json()["choices"][0];
                assert_eq!((&choice["finish_reason"], &choice["stop_reason"]), (&json!("stop"), &json!("cancelled")));
            }
            Api::Responses => assert_eq!(events[events.len() - 1].json()["response"]["status"], "cancelled"),
            Api::Messages => {}
        }
        is_not_there(&server, &path, &[KEY], &json!({}));
    }
}

#[test]
fn usage_comes_with_every_chunk_where_it_is_asked_for() {
    let server = serve(session(1), options(Limits::default()));
    let chat = Api::Chat.ask("hello", 20, true);
    let completion =
        json!({"prompt": "one two", "max_tokens": 20, "temperature": 0, "stream": true, "ignore_eos": true});
    for (path, mut body) in [(Api::Chat.path(), chat), ("/v1/completions", completion)] {
        body["n"] = 2.into();
        body["stream_options"] = json!({"continuous_usage_stats": true});
        let mut client = server.post(path, &[("connection", "close")], &body);
        client.stream();
        let events = client.events();
        let usages: Vec<Value> = events[..events.len() - 1].iter().map(|e| e.json()["usage"].clone()).collect();
        let counts: Vec<u64> = usages.iter().map(|u| u["completion_tokens"].as_u64().expect("a count")).collect();
        assert!(counts.is_sorted() && counts.len() > 4, "{counts:?}");
        assert!(counts[counts.len() / 2] > 0 && counts[0] < counts[counts.len() - 1], "{counts:?}");
        let whole = &usages[usages.len() - 1];
        assert_eq!(
            usages[usages.len() - 2]["completion_tokens"],
            whole["completion_tokens"],
            "all tokens were counted"
        );
        for usage in &usages {
            assert_eq!(usage["prompt_tokens"], whole["prompt_tokens"]);
        }
        assert!(whole["completion_tokens_details"]["reasoning_tokens"].is_u64(), "{whole}");
        body["stream"] = false.into();
        assert_eq!(
            server.post(path, &[], &body).response().json()["usage"]["completion_tokens"],
            whole["completion_tokens"]
        );
    }
}

#[test]
fn the_token_that_closes_the_thinking_is_none_of_it() {
    let server = scripted(SCRIPT);
    let reasoning = |said: &str| {
        let mut body = Api::Chat.ask(said, 100, false);
        body["enable_thinking"] = true.into();
        let response = server.post(Api::Chat.path(), &[KEY], &body).response().json();
        assert_eq!(response["choices"][0]["message"]["content"].as_str().map(str::trim), Some("Well."), "{response}");
        response["usage"]["completion_tokens_details"]["reasoning_tokens"].as_u64().expect("a count")
    };
    assert_eq!(reasoning("do not think"), 0);
    assert!(reasoning("think") > 0);
}

/// Streams of all APIs, one after another, and a request that is no stream.
fn busy(server: &Running, tokens: usize) -> (Vec<Client>, Client) {
    let streams = APIS.map(|api| {
        let mut client = server.post(api.path(), &[], &api.ask("hello", tokens, true));
        client.stream();
        client
    });
    let whole = server.post(Api::Chat.path(), &[], &Api::Chat.ask("hello", tokens, false));
    server.until("all turns", |s| s.metric("martlet_answers", "") == 4.0 || s.finished("length") > 0.0);
    (streams.into(), whole)
}

#[test]
fn a_server_that_ends_lets_requests_end() {
    let server = serve_script(
        session(1),
        options(Limits { drain_time: Duration::from_secs(600), ..Limits::default() }),
        &endless(),
    );
    let mut idle = server.client();
    idle.send(b"GET /health HTTP/1.1\r\nhost: localhost\r\n\r\n");
    assert_eq!(idle.response().status, 200);
    let (streams, mut whole) = busy(&server, 150);
    server.stop.stop();
    for (api, mut client) in APIS.into_iter().zip(streams) {
        assert!(!api.streamed(&client.events()).is_empty());
        assert!(client.is_closed());
    }
    let answer = whole.response().json();
    assert_eq!(answer["usage"]["completion_tokens"], 150);
    assert!(idle.is_closed());
    let address = server.address;
    server.join();
    assert!(TcpStream::connect(address).is_err(), "nobody listens any more");
}

#[test]
fn a_server_that_must_end_does_not_wait_for_ever() {
    let short = Limits { drain_time: Duration::from_millis(300), ..Limits::default() };
    let long = Limits { drain_time: Duration::from_secs(3600), ..Limits::default() };
    for (limits, stops) in [(short, 1), (long, 2)] {
        let server = serve_script(session(1), options(limits), &endless());
        let (streams, mut whole) = busy(&server, 6000);
        let session = server.session().clone();
        (0..stops).for_each(|_| server.stop.stop());
        server.join();
        for mut client in streams {
            let cut = std::iter::from_fn(|| client.try_event().transpose()).find(Result::is_err);
            assert!(cut.is_some(), "what was cut off must not look whole");
        }
        assert!(whole.try_response().is_none());
        while session.stats().running + session.stats().waiting > 0 {
            std::thread::sleep(Duration::from_millis(5));
        }
        assert_eq!((session.stats().cancelled, session.stats().finished), (4, 0));
    }
}
