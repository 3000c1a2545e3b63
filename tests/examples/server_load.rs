//! What the server does with many clients at once: requests, tokens and memory, for docs/server.md.
//!
//!     cargo run --release -p martlet-tests --example server_load
//!
//! Fledgling in a gibibyte of memory, 8 answers at a time. Each client asks chat completions for 64 tokens, over and over,
//! each time about something else; half of the clients read streams. Server and clients are one process.

use martlet_server::Limits;
use martlet_tests::server::{Api, Running, memory, options, serve, session};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

const TOKENS: usize = 64;
const SEQUENCES: usize = 8;
const TIME: Duration = Duration::from_secs(15);

fn main() {
    martlet_session::return_freed_blocks();
    println!("| clients | requests | requests/s | tokens/s | median | slowest | peak memory |");
    println!("| --- | --- | --- | --- | --- | --- | --- |");
    let server = Arc::new(serve(session(SEQUENCES), options(Limits::default())));
    let asked = Arc::new(AtomicUsize::new(0));
    ask(&server, 0, asked.fetch_add(1, Ordering::Relaxed));
    for clients in [1, 8, 32, 200] {
        memory::forget_peak();
        let began = Instant::now();
        let threads: Vec<_> = (0..clients)
            .map(|i| {
                let (server, asked) = (server.clone(), asked.clone());
                std::thread::spawn(move || {
                    let mut times = Vec::new();
                    while began.elapsed() < TIME {
                        times.push(ask(&server, i, asked.fetch_add(1, Ordering::Relaxed)));
                    }
                    times
                })
            })
            .collect();
        let mut times: Vec<Duration> = threads.into_iter().flat_map(|t| t.join().expect("answers")).collect();
        let took = began.elapsed().as_secs_f64();
        times.sort();
        let (requests, median, slowest) = (times.len(), times[times.len() / 2], times[times.len() - 1]);
        println!(
            "| {clients} | {requests} | {:.1} | {:.0} | {:.2} s | {:.2} s | {} MiB |",
            requests as f64 / took,
            (requests * TOKENS) as f64 / took,
            median.as_secs_f64(),
            slowest.as_secs_f64(),
            memory::peak() >> 20,
        );
    }
}

/// One request and its whole answer.
fn ask(server: &Running, client: usize, number: usize) -> Duration {
    let stream = client.is_multiple_of(2);
    let mut body = Api::Chat.ask(&format!("Tell me about the number {number}."), TOKENS, stream);
    body["ignore_eos"] = true.into();
    let began = Instant::now();
    let mut connection = server.post(Api::Chat.path(), &[("connection", "close")], &body);
    match stream {
        true => {
            connection.stream();
            Api::Chat.streamed(&connection.events());
        }
        false => assert_eq!(connection.response().status, 200),
    }
    began.elapsed()
}
