//! Engines over test checkpoints, and whole answers from them.

use crate::{fixtures, random};
use martlet_cpu::{Cpu, CpuOptions};
use martlet_engine::disk::DiskOptions;
use martlet_engine::{DrafterChoice, Engine, EngineOptions, Event, Finish, Handle, Request, Sampling, Timings};
use martlet_model::Model;
use martlet_weights::Checkpoint;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

/// Ends every message of fledgling's; begins every message.
pub const END: u32 = 4098;
pub const START: u32 = 4097;
/// Bytes of a page of fledgling in f16: 2 layers and the draft head, 1 head of 256, keys and values, 64 tokens.
pub const PAGE_BYTES: u64 = 196_608;

/// Fledgling in 4 bits.
pub fn fledgling() -> Checkpoint {
    random::quantised(&Checkpoint::open(&fixtures::fledgling()).unwrap(), 4, 64)
}

/// One sequence at a time, nothing kept, nothing drafted.
pub fn plain() -> EngineOptions {
    EngineOptions {
        pool_bytes: Some(256 << 20),
        context: Some(1024),
        prefix_cache: false,
        drafter: DrafterChoice::None,
        ..EngineOptions::default()
    }
}

/// A disk tier in `dir` that hardly anything limits.
pub fn disk(dir: &Path) -> DiskOptions {
    DiskOptions {
        dir: dir.to_path_buf(),
        bytes: 1 << 30,
        ttl: Duration::from_secs(3600),
        daily_writes: 1 << 40,
        queue_bytes: 256 << 20,
        log: Arc::new(|line| eprintln!("{line}")),
    }
}

/// A request whose messages begin at [`START`] and whose answer ends at [`END`].
pub fn request(prompt: &[u32], sampling: Sampling, tokens: usize) -> Request {
    let starts = prompt.iter().enumerate().filter(|(_, t)| **t == START);
    Request {
        prompt: prompt.to_vec(),
        sampling,
        stop: vec![END],
        max_tokens: Some(tokens),
        borders: starts.map(|(at, _)| at).collect(),
        logprobs: Some(2),
        ..Request::default()
    }
}

/// Submits all at once; their answers in order.
pub fn all(engine: &Engine, requests: &[Request]) -> Vec<Outcome> {
    let handles: Vec<_> = requests.iter().map(|r| engine.submit(r.clone()).unwrap()).collect();
    handles.iter().map(|h| outcome(h).0).collect()
}

pub fn compare(found: &[Outcome], expected: &[Outcome], what: &str) {
    assert_eq!(found.len(), expected.len());
    for (i, (found, expected)) in found.iter().zip(expected).enumerate() {
        assert!(found == expected, "{what}: request {i} differs:\n{found:?}\n{expected:?}");
    }
}

/// An engine on the CPU device.
pub fn start(checkpoint: &Checkpoint, threads: usize, options: EngineOptions) -> Engine {
    let cpu = Cpu::new(CpuOptions { threads: Some(threads), isa: None }).unwrap_or_else(|e| panic!("{e}"));
    start_on(cpu, checkpoint, options)
}

pub fn start_on(cpu: Cpu, checkpoint: &Checkpoint, options: EngineOptions) -> Engine {
    let (model, experts) = Model::load(&cpu, checkpoint, &mut |_, _| {}).unwrap_or_else(|e| panic!("{e}"));
    Engine::start(cpu, model, Box::new(experts), options).unwrap_or_else(|e| panic!("{e}"))
}

/// What a request gave: everything that may not depend on how it was served.
#[derive(Clone, Debug, PartialEq)]
pub struct Outcome {
    pub tokens: Vec<u32>,
    /// Bits of the log-probabilities, where asked for.
    pub logprobs: Vec<u32>,
    pub finish: Finish,
}

/// Waits for the end of a request.
pub fn outcome(handle: &Handle) -> (Outcome, Timings) {
    let mut outcome = Outcome { tokens: Vec::new(), logprobs: Vec::new(), finish: Finish::Cancelled };
    loop {
        match handle.next() {
            Event::Prefill { .. } => {}
            Event::Token(token) | Event::End(token) => {
                outcome.tokens.push(token.id);
                outcome.logprobs.extend(token.logprob.map(f32::to_bits));
            }
            Event::Finished { reason, timings } => return (Outcome { finish: reason, ..outcome }, timings),
            Event::Failed(e) => panic!("{e}"),
        }
    }
}

/// Submits a request and waits for its end.
pub fn run(engine: &Engine, request: Request) -> (Outcome, Timings) {
    outcome(&engine.submit(request).unwrap_or_else(|e| panic!("{e}")))
}

pub fn greedy() -> Sampling {
    Sampling { temperature: Some(0.0), seed: Some(0), ..Sampling::default() }
}

/// Sampling with filters and penalties.
pub fn sampled(seed: u64) -> Sampling {
    Sampling {
        temperature: Some(0.8),
        top_k: Some(40),
        top_p: Some(0.95),
        min_p: Some(0.01),
        repetition_penalty: Some(1.1),
        presence_penalty: Some(0.2),
        frequency_penalty: Some(0.1),
        seed: Some(seed),
    }
}
