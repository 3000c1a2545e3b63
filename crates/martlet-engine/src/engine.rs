//! The engine: a thread that owns the device and all sequences. Commands in, events out.

use crate::admit::{Refused, Request};
use crate::disk::{DiskCache, DiskOptions};
use crate::draft::policy::MAX_SUFFIX;
use crate::draft::{Accept, DrafterChoice};
use crate::events::{EngineError, Event};
use crate::memory::{Budget, FreeMemory};
use crate::queue::{self, NotSent, Outbox};
use crate::runner::{Capacity, Runner};
use crate::sequence::Sequence;
use crate::stats::Stats;
use crate::worker::{Command, Worker};
use martlet_device::{Device, KvScheme, PAGE};
use martlet_model::{ExpertProvider, Model, ModelSpec};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, SystemTime};

/// How much an engine holds and does at a time. Nothing but `kv` and `accept` changes a result.
#[derive(Clone)]
pub struct EngineOptions {
    /// Tokens of the longest sequence, prompt and answer; `None`: what the model was made for, as far as it fits.
    pub context: Option<usize>,
    /// Sequences at a time; more wait.
    pub sequences: usize,
    /// Requests that may wait; more are refused.
    pub queue: usize,
    /// Most rows of prompts in a step.
    pub prefill_chunk: usize,
    /// While answers run, prompts are computed in pieces that take about so long.
    pub max_gap: Duration,
    pub kv: KvScheme,
    /// Bytes for keys, values and kept states of all sequences and of the prefix cache; `None`: what the sequences may need,
    /// and as much for the cache.
    pub pool_bytes: Option<u64>,
    /// Asked now and then how much memory is free, so that the pool gives way; `None`: it never does.
    pub free_memory: Option<FreeMemory>,
    /// Keep states of prompts and answers for prompts that begin alike.
    pub prefix_cache: bool,
    /// Where kept states are stored beyond the life of the process; works with `prefix_cache` alone.
    pub disk: Option<DiskOptions>,
    /// What names the model: stored states of another one are never used. The engine adds its arithmetic.
    pub model_key: Vec<u8>,
    pub drafter: DrafterChoice,
    /// When a draft of a sampled answer is right. Anything but the default lets texts depend on drafts.
    pub accept: Accept,
    /// Always so many drafts, where there are any; `None`: as many as pay.
    pub draft_depth: Option<usize>,
    /// Puts another token in the place of a draft of the draft head: (position, draft) -> draft. For measuring what drafts
    /// bring at a given acceptance.
    #[doc(hidden)]
    pub replace_draft: Option<Arc<dyn Fn(usize, u32) -> u32 + Send + Sync>>,
}

impl Default for EngineOptions {
    fn default() -> Self {
        EngineOptions {
            context: None,
            sequences: 1,
            queue: 1024,
            prefill_chunk: 256,
            max_gap: Duration::from_millis(250),
            kv: KvScheme::F16,
            pool_bytes: None,
            free_memory: None,
            prefix_cache: true,
            disk: None,
            model_key: Vec::new(),
            drafter: DrafterChoice::Auto,
            accept: Accept::Same,
            draft_depth: None,
            replace_draft: None,
        }
    }
}

/// A running engine. Dropping it ends its thread after the step in flight; unfinished requests are cancelled.
pub struct Engine {
    commands: Outbox<Command>,
    thread: Option<JoinHandle<()>>,
    stats: Arc<Mutex<Stats>>,
    asked: Arc<AtomicU64>,
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

    /// The next event, if one comes within `time`.
    pub fn next_within(&self, time: Duration) -> Option<Event> {
        match self.events.recv_timeout(time) {
            Ok(event) => Some(event),
            Err(RecvTimeoutError::Timeout) => None,
            Err(RecvTimeoutError::Disconnected) => Some(Event::Failed(EngineError::Stopped)),
        }
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

impl Engine {
    /// Starts the thread; the device and the model move into it.
    pub fn start<D: Device>(
        d: D,
        model: Model<D>,
        experts: Box<dyn ExpertProvider<D> + Send>,
        mut options: EngineOptions,
    ) -> Result<Engine, EngineError> {
        let spec = model.spec.clone();
        if options.drafter == DrafterChoice::Mtp && model.mtp.is_none() {
            return Err(EngineError::Start("the drafter mtp needs a draft head, and the checkpoint has none".into()));
        }
        let drafts = model.mtp.is_some();
        let context = fit_context(&spec, drafts, &options)?;
        options.sequences = options.sequences.max(1);
        // No prompt is longer than the context, so a larger chunk would be room that is never used.
        options.prefill_chunk = options.prefill_chunk.clamp(1, context);
        let pool = pool_bytes(&spec, drafts, context, &options);
        let capacity = capacity(&spec, drafts, context, pool, &options);
        let start = |e: &dyn std::fmt::Display| EngineError::Start(e.to_string());
        let runner = Runner::new(d, model, experts, capacity).map_err(|e| start(&e))?;
        let (commands, inbox) = queue::channel(options.queue);
        let stats = Arc::new(Mutex::new(Stats::default()));
        let asked = Arc::new(AtomicU64::new(u64::MAX));
        let budget = Budget::new(pool, asked.clone(), options.free_memory.clone());
        if options.disk.is_some() && options.model_key.is_empty() {
            return Err(EngineError::Start("states can only be stored under a key that names the model".into()));
        }
        let disk = options.disk.take().filter(|_| options.prefix_cache);
        let disk = disk.map(|d| DiskCache::open(d, Arc::new(SystemTime::now))).transpose().map_err(|e| start(&e))?;
        let worker = Worker::new(runner, inbox, stats.clone(), options, budget, disk).map_err(|e| start(&e))?;
        let thread =
            std::thread::Builder::new().name("engine".into()).spawn(move || worker.run()).map_err(|e| start(&e))?;
        Ok(Engine { commands, thread: Some(thread), stats, asked, spec, context })
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
        self.commands.request(Command::Run(Box::new(sequence))).map_err(|e| match e {
            NotSent::Full(waiting) => Refused::Busy { waiting, limit: self.commands.limit() },
            NotSent::Ended => Refused::Stopped,
        })?;
        Ok(Handle { events, cancelled })
    }

    /// What was done so far, as of the latest step.
    pub fn stats(&self) -> Stats {
        self.stats.lock().map(|s| s.clone()).unwrap_or_default()
    }

    /// Lets keys, values and kept states take at most `bytes` from now on: kept states go first, then sequences wait.
    /// `u64::MAX`: as much as at the start.
    pub fn set_memory(&self, bytes: u64) {
        self.asked.store(bytes, Ordering::Relaxed);
        self.commands.tell(Command::Wake);
    }

    /// Forgets all kept states.
    pub fn clear_cache(&self) {
        self.commands.tell(Command::ClearCache);
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        self.commands.stop();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

pub(crate) fn page_bytes(spec: &ModelSpec, drafts: bool, kv: KvScheme) -> u64 {
    spec.page_bytes(drafts, kv).iter().sum::<usize>().max(1) as u64
}

/// Bytes of the pool.
fn pool_bytes(spec: &ModelSpec, drafts: bool, context: usize, options: &EngineOptions) -> u64 {
    let pages = context.div_ceil(PAGE) as u64 * page_bytes(spec, drafts, options.kv);
    let each = pages.saturating_mul(2).saturating_add(8 * spec.state_bytes() as u64);
    options.pool_bytes.unwrap_or(each.saturating_mul(options.sequences as u64))
}

/// What the runner is made for.
fn capacity(spec: &ModelSpec, drafts: bool, context: usize, pool: u64, options: &EngineOptions) -> Capacity {
    let pages = (pool / page_bytes(spec, drafts, options.kv)).min(u32::MAX.into()) as usize;
    let (rows, outputs) = step_size(options);
    Capacity { kv: options.kv, pages: pages.max(context.div_ceil(PAGE)), sequences: options.sequences, rows, outputs }
}

/// Rows of the largest step, and how many of them have logits: it checks drafts beside the prompts. Many sequences fill
/// a step by themselves, so that their drafts are fewer.
pub(crate) fn step_size(options: &EngineOptions) -> (usize, usize) {
    const MOST: usize = 48;
    let drafts = match options.drafter {
        DrafterChoice::None => 0,
        _ => options.sequences.saturating_mul(MAX_SUFFIX).min(MOST.max(options.sequences)),
    };
    let outputs = options.sequences.saturating_add(drafts);
    (options.prefill_chunk.saturating_add(outputs), outputs)
}

/// Tokens that any engine must have room for.
pub(crate) const LEAST_CONTEXT: usize = 256;

/// The longest sequence: what was asked for, or else the model's own context as far as the pool goes.
pub(crate) fn fit_context(spec: &ModelSpec, drafts: bool, options: &EngineOptions) -> Result<usize, EngineError> {
    let page = page_bytes(spec, drafts, options.kv);
    let fits = options.pool_bytes.map_or(usize::MAX, |bytes| (bytes / page).min(u32::MAX.into()) as usize * PAGE);
    let least = LEAST_CONTEXT.min(spec.context);
    let wanted = options.context.unwrap_or(spec.context.min(fits).max(least));
    if wanted > fits {
        return Err(EngineError::Start(format!(
            "a context of {wanted} tokens takes {} MiB of KV cache, and {} MiB are free for it; the longest that fits is \
             {fits}",
            (u128::from(page) * wanted as u128 / PAGE as u128) >> 20,
            options.pool_bytes.unwrap_or(0) >> 20,
        )));
    }
    Ok(wanted.max(1))
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
        let options = EngineOptions { context: asked, pool_bytes: bytes, ..EngineOptions::default() };
        fit_context(&spec(model_context), drafts, &options).map_err(|e| e.to_string())
    }

    #[test]
    fn the_context_is_the_models_as_far_as_memory_goes() {
        assert_eq!(fit(4096, false, None, None), Ok(4096));
        assert_eq!(fit(4096, false, None, Some(1000 * 256)), Ok(960), "whole pages");
        assert_eq!(fit(4096, true, None, Some(1000 * 256)), Ok(448), "the draft head has a cache too");
        assert_eq!(fit(100, false, None, None), Ok(100), "never more than the model was made for");
        assert_eq!(fit(100, false, Some(200), None), Ok(200), "unless it is asked for");
        assert!(fit(4096, false, None, Some(1000)).is_err());
    }

    #[test]
    fn a_context_that_does_not_fit_is_refused_with_the_numbers() {
        let error = fit(4096, false, Some(usize::MAX), Some(32 << 20)).unwrap_err();
        let needed = (u128::from(u64::MAX) * 256) >> 20;
        for part in [format!("takes {needed} MiB"), "32 MiB are free".into(), "fits is 131072".into()] {
            assert!(error.contains(&part), "{error}");
        }
    }
}
