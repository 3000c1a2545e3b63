//! The engine: a thread that owns the device and all sequences. Commands in, events out.

use crate::admit::{Refused, Request};
use crate::events::{EngineError, Event, Finish};
use crate::runner::{Capacity, Runner, SeqInput, StepError};
use crate::schedule::plan;
use crate::sequence::Sequence;
use martlet_device::{Device, KvScheme, PAGE};
use martlet_model::{ExpertProvider, Model, ModelSpec};
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::thread::JoinHandle;

/// How much an engine holds and does at a time.
#[derive(Clone, Copy, Debug)]
pub struct EngineOptions {
    /// Tokens of the longest sequence, prompt and answer; `None`: what the model was made for, as far as it fits.
    pub context: Option<usize>,
    /// Sequences at a time; more wait in order of arrival.
    pub sequences: usize,
    /// Most rows of one prompt in a step.
    pub prefill_chunk: usize,
    pub kv: KvScheme,
    /// Bytes that KV caches may take; `None`: unlimited.
    pub kv_bytes: Option<u64>,
}

/// A running engine. Dropping it ends its thread after the step in flight; unfinished requests are cancelled.
pub struct Engine {
    commands: Sender<Command>,
    thread: Option<JoinHandle<()>>,
    stopping: Arc<AtomicBool>,
    spec: ModelSpec,
    context: usize,
}

/// A request that was admitted. Dropping it cancels the request.
pub struct Handle {
    events: Receiver<Event>,
    cancelled: Arc<AtomicBool>,
}

impl Handle {
    /// The next event; blocks. After the last one, and when the engine has died: `Failed(Stopped)`.
    pub fn next(&self) -> Event {
        self.events.recv().unwrap_or(Event::Failed(EngineError::Stopped))
    }

    /// Ends the request after the step in flight; a `Finished` with [`Finish::Cancelled`] follows.
    pub fn cancel(&self) {
        self.cancelled.store(true, Ordering::Relaxed);
    }

    /// A way to cancel from another thread (a signal handler, say).
    pub fn canceller(&self) -> impl Fn() + Send + Sync + Clone + 'static {
        let flag = self.cancelled.clone();
        move || flag.store(true, Ordering::Relaxed)
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.cancel();
    }
}

enum Command {
    Run(Box<Sequence>),
    Stop,
}

impl Engine {
    /// Starts the thread; the device and the model move into it.
    pub fn start<D: Device>(
        d: D,
        model: Model<D>,
        experts: Box<dyn ExpertProvider<D> + Send>,
        options: EngineOptions,
    ) -> Result<Engine, EngineError> {
        let spec = model.spec.clone();
        let context = fit_context(&spec, model.mtp.is_some(), &options)?;
        let sequences = options.sequences.max(1);
        // No prompt is longer than the context, so a larger chunk would be room that is never used.
        let chunk = options.prefill_chunk.clamp(1, context);
        let capacity = Capacity {
            kv: options.kv,
            pages: sequences.saturating_mul(context.div_ceil(PAGE)),
            sequences,
            rows: chunk.saturating_add(sequences),
            outputs: sequences,
        };
        let start = |e: &dyn std::fmt::Display| EngineError::Start(e.to_string());
        let runner = Runner::new(d, model, experts, capacity).map_err(|e| start(&e))?;
        let (commands, inbox) = channel();
        let stopping = Arc::new(AtomicBool::new(false));
        let flag = stopping.clone();
        let thread = std::thread::Builder::new()
            .name("engine".into())
            .spawn(move || Loop { runner, inbox, waiting: VecDeque::new(), running: Vec::new(), chunk, flag }.run())
            .map_err(|e| start(&e))?;
        Ok(Engine { commands, thread: Some(thread), stopping, spec, context })
    }

    pub fn spec(&self) -> &ModelSpec {
        &self.spec
    }

    /// Tokens of the longest sequence.
    pub fn context(&self) -> usize {
        self.context
    }

    /// Admits a request, or refuses it at once.
    pub fn submit(&self, request: Request) -> Result<Handle, Refused> {
        let params = request.check(self.spec.vocabulary, self.context)?;
        let (sender, events) = channel();
        let cancelled = Arc::new(AtomicBool::new(false));
        let sequence = Sequence::new(request, params, self.context, sender, cancelled.clone());
        self.commands.send(Command::Run(Box::new(sequence))).map_err(|_| Refused::Stopped)?;
        Ok(Handle { events, cancelled })
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        self.stopping.store(true, Ordering::Relaxed);
        let _ = self.commands.send(Command::Stop);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// The longest sequence: what was asked for, or else the model's own context as far as the KV budget goes.
fn fit_context(spec: &ModelSpec, drafts: bool, options: &EngineOptions) -> Result<usize, EngineError> {
    const LEAST: usize = 256;
    let per_token = spec.kv_bytes_per_token(drafts, options.kv).max(1) as u64;
    let sequences = options.sequences.max(1) as u64;
    let fits = options.kv_bytes.map_or(usize::MAX, |bytes| (bytes / per_token / sequences) as usize);
    let least = LEAST.min(spec.context);
    let wanted = options.context.unwrap_or(spec.context.min(fits / PAGE * PAGE).max(least));
    if wanted > fits {
        return Err(EngineError::Start(format!(
            "a context of {wanted} tokens takes {} MiB of KV cache for each of {sequences} sequences, and {} MiB are \
             free for all; the longest that fits is {}",
            (u128::from(per_token) * wanted as u128) >> 20,
            options.kv_bytes.unwrap_or(0) >> 20,
            fits / PAGE * PAGE,
        )));
    }
    Ok(wanted.max(1))
}

/// The state of the engine's thread.
struct Loop<D: Device> {
    runner: Runner<D>,
    inbox: Receiver<Command>,
    /// Admitted, not yet begun.
    waiting: VecDeque<Sequence>,
    /// In order of arrival.
    running: Vec<Sequence>,
    chunk: usize,
    flag: Arc<AtomicBool>,
}

impl<D: Device> Loop<D> {
    fn run(mut self) {
        while self.receive() {
            self.start_waiting();
            self.step();
        }
        let left = self.running.drain(..).chain(self.waiting.drain(..));
        left.for_each(|s| s.finish(Ok(Finish::Cancelled)));
    }

    /// Takes all commands that are there, waiting for one when there is nothing to do. False at the end.
    fn receive(&mut self) -> bool {
        loop {
            let idle = self.running.is_empty() && self.waiting.is_empty();
            let command = if idle {
                self.inbox.recv().ok()
            } else {
                match self.inbox.try_recv() {
                    Ok(command) => Some(command),
                    Err(TryRecvError::Empty) => return !self.flag.load(Ordering::Relaxed),
                    Err(TryRecvError::Disconnected) => None,
                }
            };
            match command {
                Some(Command::Run(sequence)) => self.waiting.push_back(*sequence),
                Some(Command::Stop) | None => return false,
            }
        }
    }

    /// Drops what was cancelled, and opens waiting sequences while slots are free.
    fn start_waiting(&mut self) {
        self.retire(|s| s.is_cancelled().then_some(Ok(Finish::Cancelled)));
        self.waiting.retain(|s| {
            let cancelled = s.is_cancelled();
            if cancelled {
                s.finish(Ok(Finish::Cancelled));
            }
            !cancelled
        });
        while let Some(mut sequence) = self.waiting.pop_front() {
            match self.runner.open() {
                Ok(state) => {
                    sequence.state = Some(state);
                    self.running.push(sequence);
                }
                Err(_) => {
                    self.waiting.push_front(sequence);
                    break;
                }
            }
        }
    }

    /// Ends the running sequences for which `end` gives a result.
    fn retire(&mut self, mut end: impl FnMut(&Sequence) -> Option<Result<Finish, EngineError>>) {
        let mut kept = Vec::with_capacity(self.running.len());
        for mut sequence in self.running.drain(..) {
            match end(&sequence) {
                None => kept.push(sequence),
                Some(result) => {
                    // States first: whoever hears the last event may count on free room.
                    if let Some(state) = sequence.state.take() {
                        self.runner.close(state);
                    }
                    sequence.finish(result);
                }
            }
        }
        self.running = kept;
    }

    fn step(&mut self) {
        let waiting: Vec<_> = self.running.iter().map(|s| s.waiting()).collect();
        let rows = plan(&waiting, self.runner.max_rows(), self.chunk);
        if rows.iter().all(|r| *r == 0) {
            return;
        }
        let result = self.compute(&rows);
        if let Err(e) = &result {
            let error = EngineError::from(e);
            self.retire(|_| Some(Err(error.clone())));
        }
    }

    /// Runs the planned rows, samples where a sequence's known tokens ended, and retires what is finished.
    fn compute(&mut self, rows: &[usize]) -> Result<(), StepError> {
        let mut inputs = Vec::new();
        let mut sampled = Vec::new();
        for (i, sequence) in self.running.iter_mut().enumerate().filter(|(i, _)| rows[*i] > 0) {
            let (seq, tokens, last) = sequence.next_rows(rows[i]);
            if last {
                sampled.push(i);
            }
            inputs.push(SeqInput { seq, tokens, tentative: 0, outputs: last as usize });
        }
        self.runner.step(&mut inputs)?;
        let stepped = self.running.iter().zip(rows).filter(|(_, rows)| **rows > 0);
        stepped.filter(|(s, _)| !s.waiting().decoding).for_each(|(s, _)| s.report_prefill());
        let sample_rows: Vec<_> = sampled.iter().map(|i| self.running[*i].sample_row()).collect();
        let tokens = self.runner.sample(&sample_rows)?;
        drop(sample_rows);
        let mut ends = vec![None; self.running.len()];
        for (i, token) in sampled.into_iter().zip(tokens) {
            ends[i] = self.running[i].take(token);
        }
        let mut ends = ends.into_iter();
        self.retire(|_| ends.next().flatten());
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One attention layer of 128 values a token (256 bytes in f16), and the same in the draft head.
    fn spec(context: usize) -> ModelSpec {
        let config = serde_json::json!({
            "model_type": "qwen3_5", "vocab_size": 8, "hidden_size": 64, "num_hidden_layers": 1,
            "num_attention_heads": 1, "num_key_value_heads": 1, "head_dim": 64, "intermediate_size": 64,
            "layer_types": ["full_attention"], "max_position_embeddings": context
        });
        martlet_model::read_config(&config).unwrap()
    }

    fn fit(model_context: usize, drafts: bool, asked: Option<usize>, bytes: Option<u64>) -> Result<usize, String> {
        let options =
            EngineOptions { context: asked, sequences: 2, prefill_chunk: 1, kv: KvScheme::F16, kv_bytes: bytes };
        fit_context(&spec(model_context), drafts, &options).map_err(|e| e.to_string())
    }

    #[test]
    fn the_context_is_the_models_as_far_as_memory_goes() {
        assert_eq!(fit(4096, false, None, None), Ok(4096));
        assert_eq!(fit(4096, false, None, Some(2 * 1000 * 256)), Ok(960), "whole pages");
        assert_eq!(fit(4096, true, None, Some(2 * 1000 * 256)), Ok(448), "the draft head has a cache too");
        assert_eq!(fit(100, false, None, None), Ok(100), "never more than the model was made for");
        assert_eq!(fit(100, false, Some(200), None), Ok(200), "unless it is asked for");
        assert!(fit(4096, false, None, Some(1000)).is_err());
    }

    #[test]
    fn a_context_that_does_not_fit_is_refused_with_the_numbers() {
        let error = fit(4096, false, Some(usize::MAX), Some(64 << 20)).unwrap_err();
        let needed = (u128::from(u64::MAX) * 256) >> 20;
        for part in [format!("takes {needed} MiB"), "64 MiB are free".into(), "fits is 131072".into()] {
            assert!(error.contains(&part), "{error}");
        }
    }
}
