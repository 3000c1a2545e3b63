//! A server with more clients than it has room for, and with clients that go away or do not read.

use martlet_server::Limits;
use martlet_tests::server::{APIS, Api, Running, endless, memory, options, serve, serve_script, session};
use serde_json::{Value, json};
use std::collections::HashMap;
use std::sync::{Arc, Barrier, Mutex};
use std::time::Duration;

const SAID: [&str; 4] = ["hello", "What is the value of a cold robin?", "Count to five.", "Who are you, and why?"];

/// How the tests of this file use the memory and the cores of one process: one after another.
static ALONE: Mutex<()> = Mutex::new(());

fn alone() -> std::sync::MutexGuard<'static, ()> {
    ALONE.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

/// Asks until it is let in; gives the text, and how often it was to come again.
fn answer(server: &Running, api: Api, said: &str, stream: bool) -> (String, usize) {
    for refused in 0.. {
        let mut client = server.post(api.path(), &[("connection", "close")], &api.ask(said, 12, stream));
        if stream {
            let begun = client.begun().expect("an answer");
            if begun.status == 200 {
                return (api.streamed(&client.events()), refused);
            }
            check_refusal(begun.status, begun.header("retry-after"));
        } else {
            let response = client.response();
            if response.status == 200 {
                return (api.text(&response.json()), refused);
            }
            check_refusal(response.status, response.header("retry-after"));
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    unreachable!()
}

fn check_refusal(status: u16, retry_after: Option<&str>) {
    let seconds: u64 = retry_after.and_then(|s| s.parse().ok()).unwrap_or(0);
    assert!(status == 429 && (1..=60).contains(&seconds), "{status}, to come again after {retry_after:?}");
}

#[test]
fn two_hundred_clients_get_the_same_answers_as_one() {
    let _alone = alone();
    let clients = if std::env::var_os("MARTLET_FULL").is_some() { 1000 } else { 200 };
    let server = serve(session(8), options(Limits { requests: 48, connections: 2 * clients, ..Limits::default() }));
    let expected: HashMap<&str, String> =
        SAID.into_iter().map(|said| (said, answer(&server, Api::Chat, said, false).0)).collect();
    let (server, expected, together) = (Arc::new(server), Arc::new(expected), Arc::new(Barrier::new(clients)));
    let threads: Vec<_> = (0..clients)
        .map(|i| {
            let (server, expected, together) = (server.clone(), expected.clone(), together.clone());
            std::thread::spawn(move || {
                let (api, said, stream) = (APIS[i % 3], SAID[i % SAID.len()], i.is_multiple_of(2));
                together.wait();
                let (text, refused) = answer(&server, api, said, stream);
                assert_eq!(text, expected[said], "client {i}: {api:?}, stream {stream}");
                refused
            })
        })
        .collect();
    let refused: usize = threads.into_iter().map(|t| t.join().expect("an answer")).sum();
    println!("{clients} clients, {refused} times to come again, {} KV pages in the cache", server.stats().pages);
    let answered = (clients + SAID.len()) as f64;
    server.until("all answers", |s| s.metric("martlet_finished_total", "") == answered);
    assert_eq!((server.finished("cancelled"), server.finished("error")), (0.0, 0.0));
    server.nothing_is_left();
}

#[test]
fn a_full_queue_says_when_to_come_again_and_recovers() {
    let _alone = alone();
    let server = serve_script(session(1), options(Limits { requests: 2, ..Limits::default() }), &endless());
    let mut running: Vec<_> =
        (0..2).map(|_| server.post(Api::Chat.path(), &[], &Api::Chat.ask("hello", 4000, true))).collect();
    running.iter_mut().for_each(|client| client.stream());
    for api in APIS {
        let refused = server.post(api.path(), &[], &api.ask("hello", 2, false)).response();
        check_refusal(refused.status, refused.header("retry-after"));
        let error = &refused.json()["error"];
        assert_eq!(error["type"], "rate_limit_error", "{error}");
    }
    assert_eq!(server.get("/ready").status, 503);
    assert_eq!(server.get("/health").status, 200);
    drop(running.pop());
    server.until("a free place", |s| s.metric("martlet_turns", "") == 1.0);
    drop(running);
    for api in APIS {
        answer(&server, api, "hello", false);
    }
    assert_eq!(server.finished("cancelled"), 2.0);
    server.nothing_is_left();
}

#[test]
fn who_goes_away_takes_the_work_along() {
    let _alone = alone();
    let server = serve_script(session(1), options(Limits::default()), &endless());
    let mut gone = 0.0;
    let mut is_cancelled = |server: &Running| {
        gone += 1.0;
        server.until("a cancelled turn", |s| s.finished("cancelled") == gone);
    };
    let long = "the birds of the old river sing again today, ".repeat(400);
    for api in APIS {
        // While it decodes.
        let mut client = server.post(api.path(), &[], &api.ask("hello", 6000, true));
        client.stream();
        (0..4).for_each(|_| drop(client.event().expect("an event")));
        drop(client);
        is_cancelled(&server);

        // While it waits for the whole answer.
        let client = server.post(api.path(), &[], &api.ask("hello", 6000, false));
        server.until("a turn that runs", |s| s.metric("martlet_answers", "") == 1.0);
        drop(client);
        is_cancelled(&server);

        // While its prompt is read, and no more of it is read.
        let before = server.stats().prompt_tokens;
        let mut client =
            server.post(api.path(), &[("x-martlet-progress", "1")], &api.ask(&format!("{api:?} {long}"), 6000, true));
        client.stream();
        let total = loop {
            let event = client.event().expect("an event");
            if event.name == "progress" {
                let event = event.json();
                let (done, total) = (event["done"].as_u64().unwrap(), event["total"].as_u64().unwrap());
                assert!(done < total, "the first steps of {total} tokens");
                break total;
            }
        };
        drop(client);
        is_cancelled(&server);
        let read = server.stats().prompt_tokens - before;
        assert!(read < total, "{read} of {total} tokens were read for nobody");

        // While it waits for its turn; the one that runs does not notice.
        let mut runs = server.post(api.path(), &[], &api.ask("hello", 6000, true));
        runs.stream();
        server.until("a turn that runs", |s| s.metric("martlet_engine_running", "") == 1.0);
        let waits = server.post(api.path(), &[], &api.ask("hello", 6000, true));
        server.until("a turn that waits", |s| s.metric("martlet_answers", "") == 2.0);
        drop(waits);
        is_cancelled(&server);
        (0..10).for_each(|_| drop(runs.event().expect("an event")));
        drop(runs);
        is_cancelled(&server);
    }
    assert_eq!(server.finished("length"), 0.0);
    server.nothing_is_left();
}

#[test]
fn who_goes_away_at_once_leaves_nothing() {
    let _alone = alone();
    let server = serve_script(session(4), options(Limits::default()), &endless());
    for i in 0..200 {
        let api = APIS[i % 3];
        drop(server.post(api.path(), &[], &api.ask("hello", 6000, i.is_multiple_of(2))));
    }
    server.until("the end of all turns", |s| s.metric("martlet_turns", "") == 0.0);
    assert_eq!(server.finished("cancelled"), server.metric("martlet_finished_total", ""));
    server.nothing_is_left();
}

/// A request whose every token is a long event.
fn wordy() -> Value {
    let mut body = Api::Chat.ask("hello", 8000, true);
    body["ignore_eos"] = true.into();
    (body["n"], body["logprobs"], body["top_logprobs"]) = (json!(4), json!(true), json!(20));
    body
}

#[test]
fn nobody_waits_for_a_client_that_does_not_read() {
    let _alone = alone();
    let limits = Limits { write_time: Duration::from_millis(500), ..Limits::default() };
    let server = serve(session(5), options(limits));
    let expected = answer(&server, Api::Chat, "hello", false).0;
    let before = memory::resident();
    let mut client = server.post(Api::Chat.path(), &[], &wordy());
    client.stream();
    // Nothing more is read, and the connection stays open.
    let mut answers = 0;
    while server.finished("cancelled") == 0.0 || answers < 3 {
        assert_eq!(answer(&server, Api::Chat, "hello", answers % 2 == 0).0, expected);
        answers += 1;
    }
    server.until("the end of its four turns", |s| s.finished("cancelled") == 4.0);
    let grown = memory::resident().saturating_sub(before) >> 20;
    println!("{answers} answers meanwhile; {grown} MiB more in memory");
    assert!(grown < 96, "{grown} MiB more in memory");
    drop(client);
    server.nothing_is_left();
}

#[test]
fn what_is_kept_for_readers_is_bounded() {
    let _alone = alone();
    let server = serve(session(4), options(Limits { streams: 100 << 10, ..Limits::default() }));
    let mut client = server.post(Api::Chat.path(), &[("x-martlet-resume", "600")], &wordy());
    client.stream();
    let id = Api::Chat.id(&client.event().expect("an event"));
    drop(client);
    // Nobody comes back, and the answer grows beyond what may wait.
    server.until("the end of its four turns", |s| s.finished("cancelled") == 4.0);
    let again = server.post(Api::Chat.path(), &[], &json!({"resume_response_id": id})).response();
    assert_eq!((again.status, again.json()["error"]["code"].as_str()), (404, Some("stream_not_found")));
    server.nothing_is_left();
}
