//! Engines over test checkpoints, and whole answers from them.

use martlet_cpu::{Cpu, CpuOptions};
use martlet_engine::{Engine, EngineOptions, Event, Finish, Handle, Request, Sampling, Timings};
use martlet_model::Model;
use martlet_weights::Checkpoint;

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
