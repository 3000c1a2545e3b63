//! Clients that send too much, too slowly, or what is no HTTP.

use martlet_server::{Limits, Options};
use martlet_tests::server::{APIS, Api, Client, Response, Running, memory, options, request, serve, session};
use serde_json::{Value, json};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

const CHAT: &str = "/v1/chat/completions";
const GIB: usize = 1 << 30;
const SHORT: Duration = Duration::from_millis(300);

/// Memory is measured here: one test after another.
static ALONE: Mutex<()> = Mutex::new(());

fn alone(limits: Limits) -> (MutexGuard<'static, ()>, Running) {
    let guard = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    (guard, serve(session(1), Options { ping: Duration::from_secs(1), ..options(limits) }))
}

/// The server still answers, and keeps nothing of what was tried.
fn is_well(server: &Running) {
    let response = server.post(CHAT, &[("connection", "close")], &Api::Chat.ask("hello", 4, false)).response();
    assert_eq!(response.status, 200, "{}", response.text());
    server.nothing_is_left();
}

fn code(response: &Response) -> String {
    response.json()["error"]["code"].as_str().unwrap_or_default().to_string()
}

#[test]
fn bodies_of_a_gibibyte_are_refused_early_and_their_clients_hear_of_it() {
    let (_alone, server) = alone(Limits::default());
    is_well(&server);
    memory::forget_peak();
    let before = memory::peak();
    for api in APIS {
        let head = format!("POST {} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n", api.path());
        // The length is enough to refuse it.
        let mut client = server.client();
        client.send(format!("{head}content-length: {GIB}\r\n\r\n{{\"model\": \"").as_bytes());
        let response = client.response();
        assert_eq!((response.status, code(&response).as_str()), (413, "body_too_large"));

        // So are more bytes than are read, when the length is not said.
        let mut client = server.client();
        client.send(format!("{head}transfer-encoding: chunked\r\n\r\n").as_bytes());
        send_chunks(&mut client, Limits::default().body + (1 << 20));
        let response = client.response();
        assert_eq!((response.status, code(&response).as_str()), (413, "body_too_large"));
    }
    // Who sends all of it before reading gets the answer too.
    for framing in [format!("content-length: {GIB}"), "transfer-encoding: chunked".into()] {
        let mut client = server.client();
        let head =
            format!("POST {CHAT} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n{framing}\r\n\r\n");
        client.send(head.as_bytes());
        match framing.starts_with("content") {
            true => (0..GIB >> 20).for_each(|_| client.send(&[b' '; 1 << 20])),
            false => send_chunks(&mut client, GIB),
        }
        assert_eq!(client.response().status, 413);
    }
    let grown = (memory::peak() - before) >> 20;
    println!("{grown} MiB more in memory at the most");
    assert!(grown < 128, "{grown} MiB more in memory");
    is_well(&server);
}

fn send_chunks(client: &mut Client, bytes: usize) {
    let chunk = [b"100000\r\n", &[b' '; 1 << 20][..], b"\r\n"].concat();
    (0..bytes >> 20).for_each(|_| client.send(&chunk));
}

#[test]
fn small_values_can_not_fill_the_memory() {
    let (_alone, server) = alone(Limits { bodies: 64 << 20, ..Limits::default() });
    is_well(&server);
    memory::forget_peak();
    let before = memory::peak();
    let lists = [b"{\"messages\": [", "{\"\":0},".repeat(4 << 20).as_bytes(), b"0]}"].concat();
    let response = {
        let mut client = server.client();
        client.send(&request(CHAT, &[], &lists));
        client.response()
    };
    assert_eq!((response.status, code(&response).as_str()), (413, "too_many_values"));
    let grown = (memory::peak() - before) >> 20;
    println!("{grown} MiB more in memory at the most");
    assert!(grown < 160, "{grown} MiB more in memory");
    is_well(&server);
}

#[test]
fn what_is_no_request_is_a_400_that_says_so() {
    let (_alone, server) = alone(Limits::default());
    let deep = |open: &str, close: &str| format!("{}1{}", open.repeat(10_000), close.repeat(10_000));
    let bodies: [Vec<u8>; 8] = [
        format!("{{\"messages\": {}}}", deep("[", "]")).into(),
        deep("{\"a\":", "}").into(),
        b"{\"messages\": [{\"role\": \"user\", \"content\": \"\xff\xfe\"}]}".to_vec(),
        b"{\"messages\": [{\"role\": \"user\", \"content\": \"\\ud80\"}]}".to_vec(),
        b"{\"messages\": [{\"role\": \"user\", \"con".to_vec(),
        b"{:".to_vec(),
        b"\0\0\0".to_vec(),
        Vec::new(),
    ];
    for api in APIS {
        // All on one connection: a body that is read to its end leaves it in order.
        let mut client = server.client();
        for body in &bodies {
            client.send(&request(api.path(), &[], body));
            let response = client.response();
            let shown: String = String::from_utf8_lossy(body).chars().take(60).collect();
            assert_eq!((response.status, code(&response).as_str()), (400, "invalid_json"), "{shown}");
            let kind = &response.json()["error"]["type"];
            assert_eq!(kind, "invalid_request_error", "{shown}");
        }
    }
    // Nested in a string, where other parsers come to it.
    let arguments = deep("[", "]");
    let mut body = Api::Chat.with_tool(Api::Chat.ask("hello", 2, false));
    body["messages"] = json!([
        {"role": "user", "content": "hello"},
        {"role": "assistant", "content": null, "tool_calls": [
            {"id": "c", "type": "function", "function": {"name": "look", "arguments": arguments}}]},
        {"role": "tool", "tool_call_id": "c", "content": arguments},
    ]);
    let status = server.post(CHAT, &[], &body).response().status;
    assert!(status == 200 || status == 400, "{status}");
    is_well(&server);
}

#[test]
fn who_is_slow_to_ask_is_cut_off() {
    let (_alone, server) = alone(Limits { head_time: SHORT, body_time: SHORT, ..Limits::default() });
    // Nothing, half a head, and one that never ends.
    let mut silent = server.client();
    let mut half = server.client();
    half.send(b"POST /v1/chat/completions HTTP/1.1\r\nhost: local");
    let mut endless = server.client();
    endless.send(b"GET /health HTTP/1.1\r\nhost: localhost\r\n");
    while endless.try_send(b"x: y\r\n").is_ok() {
        std::thread::sleep(Duration::from_millis(20));
    }
    assert!(silent.is_closed() && half.is_closed() && endless.is_closed());
    // A connection that is kept, and not used.
    let mut kept = server.client();
    kept.send(b"GET /health HTTP/1.1\r\nhost: localhost\r\n\r\n");
    assert_eq!(kept.response().status, 200);
    assert!(kept.is_closed());
    // A body that does not come is told so.
    let mut body = server.client();
    body.send(b"POST /v1/messages HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: 9\r\n\r\n{");
    let response = body.response();
    assert_eq!((response.status, code(&response).as_str()), (408, "body_timeout"));
    assert!(body.is_closed());
    // A client that keeps to the times is served as long as it likes.
    is_well(&server);
}

#[test]
fn heads_are_bounded() {
    let (_alone, server) = alone(Limits::default());
    let long = format!("x-long: {}\r\n", "x".repeat(1 << 20));
    let many: String = (0..1000).map(|i| format!("x-{i}: y\r\n")).collect();
    for (headers, what) in [(long, "a long header"), (many, "many headers")] {
        let mut client = server.client();
        client.send(format!("GET /health HTTP/1.1\r\nhost: localhost\r\n{headers}\r\n").as_bytes());
        assert_eq!(client.response().status, 431, "{what}");
        assert!(client.is_closed());
    }
    let mut client = server.client();
    client.send(format!("GET /{} HTTP/1.1\r\nhost: localhost\r\n\r\n", "x".repeat(1 << 20)).as_bytes());
    let status = client.response().status;
    assert!(status == 414 || status == 431, "{status}");
    is_well(&server);
}

#[test]
fn garbage_between_requests_ends_the_connection_alone() {
    let (_alone, server) = alone(Limits::default());
    for garbage in [
        &b"\0\x01\x02 garbage\r\n\r\n"[..],
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\r\n\r\n",
    ] {
        let mut client = server.client();
        client.send(b"GET /health HTTP/1.1\r\nhost: localhost\r\n\r\n");
        assert_eq!(client.response().status, 200);
        client.send(garbage);
        let status = client.try_response().map(|r| r.status);
        assert!(matches!(status, None | Some(400 | 505)), "{status:?}");
        assert!(client.is_closed());
    }
    // Two lengths for one body are a way to smuggle requests.
    let mut client = server.client();
    client.send(b"POST /tokenize HTTP/1.1\r\nhost: localhost\r\ncontent-length: 2\r\ncontent-length: 3\r\n\r\n{}");
    assert_eq!(client.response().status, 400);
    assert!(client.is_closed());
    is_well(&server);
}

#[test]
fn requests_on_one_connection_are_answered_in_order() {
    let (_alone, server) = alone(Limits::default());
    let tokenize = |text: &str| request("/tokenize", &[], json!({"prompt": text}).to_string().as_bytes());
    let ask = |stream| request(CHAT, &[], Api::Chat.ask("hello", 4, stream).to_string().as_bytes());
    let mut client = server.client();
    client.send(&[tokenize("one two three"), ask(true), ask(false), tokenize("one")].concat());
    let count = |response: Response| response.json()["tokens"].as_array().map(Vec::len).expect("tokens");
    let first = count(client.response());
    client.stream();
    let streamed = Api::Chat.streamed(&client.events());
    let whole = Api::Chat.text(&client.response().json());
    let last = count(client.response());
    assert!(first > last && last > 0, "{first} {last}");
    assert_eq!(streamed, whole);
    drop(client);
    is_well(&server);
}

#[test]
fn refusals_leave_no_doubt_about_the_next_request() {
    let (_alone, server) = alone(Limits { body: 64 << 10, ..Limits::default() });
    // The body that was refused is never taken for a request.
    let smuggled = b"GET /health HTTP/1.1\r\nhost: localhost\r\n\r\n".repeat(4000);
    let mut client = server.client();
    client.send(&request(CHAT, &[], &smuggled));
    assert_eq!(client.response().status, 413);
    assert!(client.try_response().is_none(), "the body was taken for requests");
    // Nor is one that nobody wanted to read.
    let mut client = server.client();
    client.send(&request("/nowhere", &[], &smuggled));
    assert_eq!(client.response().status, 404);
    assert!(client.try_response().is_none(), "the body was taken for requests");
    let wrong: Value = server.get("/v1/chat/completions").json();
    assert_eq!(wrong["error"]["code"], "method_not_allowed");
    is_well(&server);
}

#[test]
fn one_connection_too_many_is_told_so() {
    let (_alone, server) = alone(Limits { connections: 2, ..Limits::default() });
    let held: Vec<Client> = (0..2)
        .map(|_| {
            let mut client = server.client();
            client.send(b"GET /health HTTP/1.1\r\nhost: localhost\r\n\r\n");
            assert_eq!(client.response().status, 200);
            client
        })
        .collect();
    let refused = server.get("/health");
    assert_eq!((refused.status, code(&refused).as_str()), (503, "too_many_connections"));
    assert_eq!(refused.header("retry-after"), Some("1"));
    drop(held);
    while server.get("/health").status != 200 {
        std::thread::sleep(Duration::from_millis(10));
    }
    is_well(&server);
}
