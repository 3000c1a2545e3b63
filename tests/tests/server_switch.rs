//! One server, several models, one in memory: who gets which, and what becomes of everybody else.

use martlet_server::{Limits, Options};
use martlet_session::{ModelSource, Session};
use martlet_tests::server::{APIS, Api, Running, endless, opened, options, serve_alone, serve_script, session};
use martlet_tests::shelf::Shelf;
use serde_json::{Value, json};
use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::channel;
use std::sync::{Arc, Barrier, Mutex};
use std::time::{Duration, Instant};

const SAID: [&str; 3] = ["hello", "What is the value of a cold robin?", "Who are you, and why?"];

/// Fledgling, and what is on the shelf.
fn switching(shelf: &Arc<Shelf>, more: Options) -> Running {
    let library = Some(shelf.clone() as Arc<dyn martlet_server::Library>);
    serve_alone(session(2), Options { library, ..more })
}

fn shelf() -> Arc<Shelf> {
    Arc::new(Shelf::new(opened(2)))
}

fn of(model: &str, mut body: Value) -> Value {
    body["model"] = model.into();
    body
}

fn ask(server: &Running, model: &str, api: Api, said: &str) -> (u16, Value) {
    let response = server.post(api.path(), &[], &of(model, api.ask(said, 12, false))).response();
    (response.status, response.json())
}

/// What a model says when nobody else is there.
fn alone(source: ModelSource) -> HashMap<&'static str, String> {
    let session = Session::open(&source, &opened(2), &mut |_, _| {}).unwrap_or_else(|e| panic!("{e}"));
    let server = serve_alone(Arc::new(session), options(Limits::default()));
    let text =
        |said| Api::Chat.text(&server.post(Api::Chat.path(), &[], &Api::Chat.ask(said, 12, false)).response().json());
    SAID.into_iter().map(|said| (said, text(said))).collect()
}

fn loads(server: &Running) -> u64 {
    server.get("/stats").json()["switching"]["loads"].as_u64().expect("a number")
}

fn resident(server: &Running) -> String {
    server.get("/health").json()["model"].as_str().expect("a name").to_string()
}

#[test]
fn a_request_picks_its_model() {
    let shelf = shelf();
    shelf.add("second", 1);
    let expected = [
        ("fledgling", alone(ModelSource::Path(martlet_tests::fixtures::fledgling()))),
        ("second", alone(ModelSource::Path(shelf.path("second")))),
    ];
    assert_ne!(expected[0].1, expected[1].1);
    let server = switching(&shelf, Options { aliases: vec!["other".into()], ..options(Limits::default()) });
    let models = server.get("/v1/models").json();
    let listed: Vec<_> = models["data"].as_array().expect("models").iter().map(|m| (&m["id"], &m["loaded"])).collect();
    let (yes, no) = (json!(true), json!(false));
    assert_eq!(listed, [(&json!("fledgling"), &yes), (&json!("other"), &yes), (&json!("second"), &no)]);
    assert_eq!(models["data"][2]["context_window"], Value::Null, "nobody knows yet");

    for api in APIS {
        for (model, texts) in &expected {
            for said in SAID {
                let (status, response) = ask(&server, model, api, said);
                assert_eq!((status, &response["model"]), (200, &json!(model)), "{api:?}: {response}");
                assert_eq!(api.text(&response), texts[said], "{api:?} {model}");
            }
            assert_eq!(resident(&server), *model);
        }
    }
    assert_eq!(loads(&server), 5);
    assert_eq!(server.get("/v1/models/second").json()["context_window"], 8192);
    assert_eq!(server.get("/v1/models/second").json()["loaded"], true);

    // What is counted is counted for each, and goes on when a model comes back.
    for (model, loads) in [("fledgling", 2.0), ("second", 3.0)] {
        let label = format!("model_name=\"{model}\"");
        assert_eq!(server.metric("martlet_finished_total", &label), 9.0, "{model}");
        assert_eq!(server.metric("martlet_model_load_seconds_count", &label), loads, "{model}");
        assert!(server.metric("martlet_steps_total", &label) >= 27.0, "{model}");
        assert_eq!(server.metric("martlet_engine_running", &label), 0.0);
    }
    let before = generated(&server);
    assert!(before >= 18, "{before}");

    // Names that mean nothing are refused, and nobody's model goes for them. No name means the server's own.
    let (status, response) = ask(&server, "third", Api::Chat, "hello");
    assert_eq!((status, &response["error"]["code"]), (404, &json!("model_not_found")));
    let message = response["error"]["message"].as_str().expect("a message");
    assert!(message.contains("\"fledgling\", \"other\", \"second\""), "{message}");
    let (status, response) = ask(&server, "second", Api::Chat, "hello");
    assert_eq!((status, loads(&server)), (200, 5), "{response}");
    let unreadable = server.post(Api::Chat.path(), &[], &json!({"model": "fledgling", "messages": 7})).response();
    assert_eq!((unreadable.status, resident(&server).as_str()), (400, "second"));
    let (status, response) = ask(&server, "other", Api::Chat, "hello");
    assert_eq!((status, &response["model"], loads(&server)), (200, &json!("fledgling"), 6));
    let body = json!({"model": "second", "messages": [{"role": "user", "content": "hello"}]});
    let count = server.post("/v1/messages/count_tokens", &[], &body).response().json();
    assert!(count["input_tokens"].as_u64().is_some_and(|n| n > 3), "{count}");
    assert_eq!(resident(&server), "second");
    let (status, response) = ask(&server, "", Api::Chat, "hello");
    assert_eq!((status, &response["model"]), (200, &json!("fledgling")));
    assert!(generated(&server) > before, "no count goes back");
}

/// Tokens that all engines have generated.
fn generated(server: &Running) -> u64 {
    server.get("/stats").json()["tokens"]["generated"].as_u64().expect("a number")
}

#[test]
fn any_model_means_the_servers_own_where_nothing_has_the_name() {
    let shelf = shelf();
    shelf.add("second", 1);
    let server = switching(&shelf, Options { any_model: true, ..options(Limits::default()) });
    for (model, answers) in [("gpt-9", "fledgling"), ("second", "second"), ("gpt-9", "fledgling")] {
        let (status, response) = ask(&server, model, Api::Messages, "hello");
        assert_eq!((status, &response["model"]), (200, &json!(answers)));
    }
}

#[test]
fn clients_of_two_models_all_get_theirs() {
    let shelf = shelf();
    shelf.add("second", 1);
    let expected = Arc::new(HashMap::from([
        ("fledgling", alone(ModelSource::Path(martlet_tests::fixtures::fledgling()))),
        ("second", alone(ModelSource::Path(shelf.path("second")))),
    ]));
    let (clients, rounds) = (8, 6);
    let server = Arc::new(switching(&shelf, options(Limits::default())));
    let together = Arc::new(Barrier::new(clients));
    let threads: Vec<_> = (0..clients)
        .map(|i| {
            let (server, expected, together) = (server.clone(), expected.clone(), together.clone());
            std::thread::spawn(move || {
                let model = ["fledgling", "second"][i % 2];
                together.wait();
                for round in 0..rounds {
                    let (api, said) = (APIS[(i + round) % 3], SAID[round % SAID.len()]);
                    let mut client = server.post(api.path(), &[], &of(model, api.ask(said, 12, true)));
                    client.stream();
                    assert_eq!(api.streamed(&client.events()), expected[model][said], "client {i}, round {round}");
                }
            })
        })
        .collect();
    threads.into_iter().for_each(|t| t.join().expect("answers"));
    let (loads, all) = (loads(&server), clients * rounds);
    println!("{all} requests, {loads} times a model was loaded");
    // In turn it would have been nearly every time.
    assert!((1..all as u64 / 3).contains(&loads), "{loads} times loaded for {all} requests");
    for model in ["fledgling", "second"] {
        let label = format!("model_name=\"{model}\"");
        server.until("all answers", |s| s.metric("martlet_finished_total", &label) == (all / 2) as f64);
    }
    for gauge in ["martlet_turns", "martlet_answers", "martlet_model_waiting", "vllm:num_requests_waiting"] {
        server.until(gauge, |s| s.metric(gauge, "") == 0.0);
    }
}

#[test]
fn a_model_is_gone_before_the_next_one_is_opened() {
    let shelf = shelf();
    shelf.add("second", 1);
    let first = session(2);
    let (weak, alive) = (Arc::downgrade(&first), Arc::new(AtomicUsize::new(0)));
    let seen = alive.clone();
    shelf.before_opening(move || {
        seen.fetch_add(weak.strong_count() + 100, Ordering::Relaxed);
    });
    let library = Some(shelf.clone() as Arc<dyn martlet_server::Library>);
    let server = serve_alone(first, Options { library, ..options(Limits::default()) });
    assert_eq!(ask(&server, "fledgling", Api::Chat, "hello").0, 200);
    assert_eq!(ask(&server, "second", Api::Chat, "hello").0, 200);
    assert_eq!(alive.load(Ordering::Relaxed), 100, "opened once, and nobody had the first one then");
}

#[test]
fn a_broken_model_is_told_to_those_who_asked_for_it() {
    let shelf = shelf();
    let cut = shelf.add("cut", 1).join("model.safetensors");
    let half = std::fs::metadata(&cut).expect("a file").len() / 2;
    std::fs::OpenOptions::new().write(true).open(&cut).and_then(|f| f.set_len(half)).expect("a shorter file");
    // This one is found out only when it is opened.
    std::fs::write(shelf.add("mute", 2).join("tokenizer.json"), "{").expect("a file");
    let server = switching(&shelf, options(Limits::default()));
    for (model, comes_back) in [("cut", 0), ("mute", 1)] {
        for api in APIS {
            let (status, response) = ask(&server, model, api, "hello");
            assert_eq!((status, &response["error"]["code"]), (500, &json!("model_unusable")), "{response}");
            let message = response["error"]["message"].as_str().expect("a message");
            assert!(message.contains(&format!("cannot open model \"{model}\"")), "{message}");
        }
        let (status, response) = ask(&server, "fledgling", Api::Chat, "hello");
        assert_eq!((status, loads(&server)), (200, comes_back), "{response}");
    }
    assert_eq!(server.metric("martlet_model_load_failures_total", ""), 3.0);
}

#[test]
fn what_runs_is_waited_for_and_a_model_may_be_deleted_meanwhile() {
    let shelf = shelf();
    shelf.add("second", 1);
    shelf.add("third", 2);
    let library = Some(shelf.clone() as Arc<dyn martlet_server::Library>);
    let server = serve_script(session(2), Options { library, ..options(Limits::default()) }, &endless());
    let mut running = server.post(Api::Chat.path(), &[], &Api::Chat.ask("hello", 4000, true));
    running.stream();
    assert!(running.event().is_some());
    let mut deleted = server.post(Api::Chat.path(), &[], &of("second", Api::Chat.ask("hello", 4, false)));
    server.until("one waits", |s| s.metric("martlet_model_waiting", "") == 1.0);
    let mut left = server.post(Api::Chat.path(), &[], &of("third", Api::Chat.ask("hello", 4, false)));
    server.until("two wait", |s| s.metric("martlet_model_waiting", "") == 2.0);
    assert_eq!((resident(&server).as_str(), loads(&server)), ("fledgling", 0));
    let ready = server.get("/ready");
    assert_eq!(ready.status, 200);
    shelf.remove("second");
    // Its client goes, and with it its answer.
    drop(running);
    let response = deleted.response();
    assert_eq!(response.status, 404, "{}", response.text());
    assert!(response.text().contains("is not installed any more"), "{}", response.text());
    assert_eq!(left.response().status, 200);
    assert_eq!((resident(&server).as_str(), loads(&server)), ("third", 1));
}

#[test]
fn a_client_that_leaves_has_nothing_loaded() {
    let shelf = shelf();
    shelf.add("second", 1);
    let library = Some(shelf.clone() as Arc<dyn martlet_server::Library>);
    let server = serve_script(session(2), Options { library, ..options(Limits::default()) }, &endless());
    let mut running = server.post(Api::Chat.path(), &[], &Api::Chat.ask("hello", 4000, true));
    running.stream();
    let waits = server.post(Api::Chat.path(), &[], &of("second", Api::Chat.ask("hello", 4, true)));
    server.until("one waits", |s| s.metric("martlet_model_waiting", "") == 1.0);
    // Behind it, since its turn has come: when it goes, this one is let in though the first one runs on.
    std::thread::sleep(Duration::from_millis(300));
    let mut behind = server.post(Api::Chat.path(), &[], &Api::Chat.ask("hello", 4, false));
    server.until("two wait", |s| s.metric("martlet_model_waiting", "") == 2.0);
    drop(waits);
    assert_eq!(behind.response().status, 200);
    drop(running);
    server.until("the end of all turns", |s| s.metric("martlet_turns", "") == 0.0);
    assert_eq!((resident(&server).as_str(), loads(&server)), ("fledgling", 0));
}

#[test]
fn other_files_under_the_same_name_are_loaded() {
    let shelf = shelf();
    shelf.add("second", 1);
    let server = switching(&shelf, options(Limits::default()));
    let text = || Api::Chat.text(&ask(&server, "second", Api::Chat, "hello").1);
    let (before, again) = (text(), text());
    assert_eq!((&before, loads(&server)), (&again, 1));
    shelf.remove("second");
    shelf.add("second", 7);
    shelf.change();
    assert_ne!(text(), before);
    assert_eq!(loads(&server), 2);
}

#[test]
fn responses_streams_and_states_on_disk_outlive_a_model() {
    let dir = tempfile::tempdir().expect("a folder");
    let disk = martlet_session::disk_options(dir.path().to_path_buf(), 1 << 30);
    let open = martlet_session::Options { disk: Some(disk), ..opened(2) };
    let shelf = Arc::new(Shelf::new(open.clone()));
    shelf.add("second", 1);
    let source = ModelSource::Path(martlet_tests::fixtures::fledgling());
    let first = Session::open(&source, &open, &mut |_, _| {}).unwrap_or_else(|e| panic!("{e}"));
    let library = Some(shelf.clone() as Arc<dyn martlet_server::Library>);
    let server = serve_alone(Arc::new(first), Options { library, ..options(Limits::default()) });

    let long = "A robin sits on a fence and looks at the garden. ".repeat(40);
    let cached = |model: &str| {
        let (status, response) = ask(&server, model, Api::Chat, &long);
        assert_eq!(status, 200, "{response}");
        let tokens = response["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64().expect("a number");
        (tokens, Api::Chat.text(&response))
    };
    let (none, text) = cached("fledgling");
    let (others, other_text) = cached("second");
    let (some, again) = cached("fledgling");
    assert_eq!((none, others, &text), (0, 0, &again), "never the states of another model");
    assert!(some > 64, "{some} tokens from disk");
    let (some, again) = cached("second");
    assert!(some > 64 && again == other_text, "{some} tokens from disk");

    // A response of one model goes on with another.
    let body = json!({"model": "fledgling", "input": "hello", "max_output_tokens": 8, "temperature": 0});
    let stored = server.post("/v1/responses", &[], &body).response().json();
    let next = json!({"model": "second", "input": "and you?", "max_output_tokens": 8, "temperature": 0,
        "previous_response_id": stored["id"]});
    let response = server.post("/v1/responses", &[], &next).response();
    assert_eq!((response.status, &response.json()["model"]), (200, &json!("second")));
    let kept = server.get(&format!("/v1/responses/{}", stored["id"].as_str().expect("an id")));
    assert_eq!(kept.json()["output"], stored["output"]);

    // So does a stream whose reader is lost: it ends before its model goes, and can be read afterwards.
    let mut client = server.post(
        Api::Chat.path(),
        &[("x-martlet-resume", "600")],
        &of("fledgling", Api::Chat.ask("Count to five.", 64, true)),
    );
    client.stream();
    let id = Api::Chat.id(&client.event().expect("an event"));
    drop(client);
    assert_eq!(ask(&server, "second", Api::Chat, "hello").0, 200);
    assert_eq!(resident(&server), "second");
    let mut body = of("fledgling", Api::Chat.ask("Count to five.", 64, true));
    body["resume_response_id"] = json!(id);
    let mut client = server.post(Api::Chat.path(), &[], &body);
    client.stream();
    let events = client.events();
    assert_eq!(events[0].json()["model"], "fledgling");
    assert!(!Api::Chat.streamed(&events).is_empty());
    assert_eq!(resident(&server), "second", "reading loads nothing");
}

#[test]
fn a_server_that_is_stopped_while_it_loads_ends_at_once() {
    let shelf = shelf();
    shelf.add("second", 1);
    let (begun, opening) = channel();
    let (go_on, wait) = channel::<()>();
    let (begun, wait) = (Mutex::new(begun), Mutex::new(wait));
    shelf.before_opening(move || {
        let _ = begun.lock().expect("no panic").send(());
        // Until the end of the test.
        let _ = wait.lock().expect("no panic").recv();
    });
    let server = switching(&shelf, options(Limits::default()));
    let mut asks = server.post(Api::Chat.path(), &[], &of("second", Api::Chat.ask("hello", 4, true)));
    opening.recv().expect("it is opened");
    let health = server.get("/health").json();
    assert_eq!((&health["model"], &health["loading"]), (&json!("second"), &json!(true)));
    assert_eq!(server.get("/stats").json()["switching"]["loading"], true);
    let began = Instant::now();
    server.stop.stop();
    let response = asks.response();
    assert_eq!(response.status, 503);
    assert!(response.text().contains("\"code\":\"draining\""), "{}", response.text());
    server.join();
    assert!(began.elapsed() < Duration::from_secs(10), "{:?}", began.elapsed());
    drop(go_on);
}
