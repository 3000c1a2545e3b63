//! An open model.

use crate::constraint::{self, Place};
use crate::device::{DeviceKind, Experts, Load, OnDevice, with_device};
use crate::plan::{after_loading, before_loading};
use crate::request::with_defaults;
use crate::{ModelSource, OpenError, Prompt, SessionError, Turn, TurnOptions, default_sampling};
use martlet_chat::{
    ChatModel, ChatModelError, Content, Conversation, Detokenizer, GenerationConfig, OutputParser, Role, SpecialTokens,
};
use martlet_cpu::Isa;
use martlet_device::timed::{Clock, OperationTime, Timed};
use martlet_device::{Device, KvScheme};
use martlet_engine::disk::DiskOptions;
use martlet_engine::{Accept, DrafterChoice, Engine, EngineOptions, Plan, Request, Stats};
use martlet_model::{ExpertProvider, Model, ModelSpec};
use martlet_stream::{Control, LookAhead, StreamStats, Streamed, Trace as ExpertTrace};
use martlet_weights::Checkpoint;
use std::sync::Arc;

/// How a model is opened. Fields will be added: begin with `..Options::default()`.
#[derive(Clone, Debug)]
pub struct Options {
    /// What computes.
    pub device: DeviceKind,
    /// Whether weights of a pack are used where they are mapped, or copied.
    pub load: Load,
    /// Whether experts are in memory or read from disk.
    pub experts: Experts,
    /// Whether experts are read before they are chosen.
    pub look_ahead: LookAhead,
    /// Bytes of memory for everything: weights, buffers, states, keys, values, caches. `None`: what the weights need, and
    /// seven eighths of what is free beside them.
    pub memory: Option<u64>,
    /// Experts are read from disk at most so many bytes a second, as from a slower one.
    pub disk_limit: Option<u64>,
    /// Threads that compute; `None`: one for each core that this process may use.
    pub threads: Option<usize>,
    /// Instructions that the CPU device uses; `None`: the best that the machine has. It never changes a result.
    pub isa: Option<Isa>,
    /// Tokens of the longest sequence, prompt and answer; `None`: what the model was made for, as far as free memory
    /// goes.
    pub context: Option<usize>,
    /// Sequences at a time.
    pub sequences: usize,
    /// Most prompt tokens of one step; less where memory is short. It never changes a result: larger is faster, smaller
    /// is stopped sooner. `None`: 256, or 2048 where experts are read from disk, since each step reads nearly all once.
    pub prefill_chunk: Option<usize>,
    /// How keys and values are kept; `None`: F32 on the reference device, else F16.
    pub kv: Option<KvScheme>,
    /// Keep states of prompts and answers in memory, so that a prompt that begins like an earlier one is computed only
    /// from where it differs.
    pub prefix_cache: bool,
    /// Keep these states on disk too, so that a later process goes on from them: see [`crate::disk_options`]. They hold
    /// what was said, for everybody who can read the folder.
    pub disk: Option<DiskOptions>,
    /// Who guesses the next tokens. It never changes a text.
    pub drafter: DrafterChoice,
    /// When a draft of a sampled answer is right. Anything but the default lets texts depend on drafts.
    pub accept: Accept,
    /// Always so many guesses; `None`: as many as pay, as measured.
    pub draft_depth: Option<usize>,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            device: DeviceKind::Auto,
            load: Load::Map,
            experts: Experts::Auto,
            look_ahead: LookAhead::Auto,
            memory: None,
            disk_limit: None,
            threads: None,
            isa: None,
            context: None,
            sequences: 1,
            prefill_chunk: None,
            kv: None,
            prefix_cache: true,
            disk: None,
            drafter: DrafterChoice::Auto,
            accept: Accept::Same,
            draft_depth: None,
        }
    }
}

/// The engine's side of the options, but for the bytes of its pool and for what only a checkpoint knows.
pub(crate) fn engine_options(options: &Options) -> EngineOptions {
    EngineOptions {
        context: options.context,
        sequences: options.sequences,
        prefill_chunk: options.prefill_chunk.unwrap_or(256),
        kv: options.kv.unwrap_or(options.device.default_kv()),
        free_memory: Some(Arc::new(|| martlet_io::memory::memory().map(|m| (m.free, m.total)))),
        prefix_cache: options.prefix_cache,
        disk: options.disk.clone(),
        drafter: options.drafter,
        accept: options.accept,
        draft_depth: options.draft_depth,
        ..EngineOptions::default()
    }
}

/// A model that answers. It can be shared between threads; turns run one after another, or side by side as far as
/// [`Options::sequences`] allows. Dropping it ends the turns that still run.
pub struct Session {
    name: String,
    engine: Engine,
    device: &'static str,
    scheme: String,
    plan: Plan,
    streaming: Option<Arc<Control>>,
    /// None when the checkpoint has no tokenizer; then only ids can be prompts.
    text: Option<ChatModel>,
    generation: GenerationConfig,
    clock: Arc<Clock>,
}

/// The token that every template of the family begins a message with.
const MESSAGE_START: &str = "<|im_start|>";

/// A prompt that became token ids.
struct Prepared {
    ids: Vec<u32>,
    /// Where messages begin in it.
    borders: Vec<usize>,
    /// Of conversations: whether the prompt ends inside thinking.
    thinking: Option<bool>,
    /// It does not, but the model may begin to think.
    may_think: bool,
}

impl Session {
    /// Opens a model. `progress` is told (tensors loaded, tensors in all).
    pub fn open(
        source: &ModelSource,
        options: &Options,
        progress: &mut dyn FnMut(usize, usize),
    ) -> Result<Session, SessionError> {
        Session::try_open(source, options, progress).map_err(|e| e.of(&source.name()))
    }

    fn try_open(
        source: &ModelSource,
        options: &Options,
        progress: &mut dyn FnMut(usize, usize),
    ) -> Result<Session, OpenError> {
        let (text, generation) = read_text(source)?;
        martlet_io::memory::return_freed_memory();
        let checkpoint = source.checkpoint()?;
        let start = Start { checkpoint, options, progress };
        let Started { engine, device, scheme, plan, streaming, clock } = with_device(options, start)?;
        Ok(Session { name: source.name(), engine, device, scheme, plan, streaming, text, generation, clock })
    }

    /// The model's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// What the model's config says.
    pub fn spec(&self) -> &ModelSpec {
        self.engine.spec()
    }

    /// Tokens of the longest sequence.
    pub fn context(&self) -> usize {
        self.engine.context()
    }

    /// The device that computes.
    pub fn device(&self) -> &'static str {
        self.device
    }

    /// How the checkpoint stores most of its weights, such as `affine4 g64 bf16`.
    pub fn scheme(&self) -> &str {
        &self.scheme
    }

    /// Where the memory goes, as of when the model was opened.
    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    /// What was read of experts so far; `None` where all are in memory.
    pub fn stream_stats(&self) -> Option<StreamStats> {
        self.streaming.as_ref().map(|s| s.stats())
    }

    /// Begins to record which experts routers choose. Whether it does: only where they are read from disk.
    pub fn record_experts(&self) -> bool {
        self.streaming.as_ref().map(|s| s.record()).is_some()
    }

    /// Ends that, and gives what was recorded.
    pub fn recorded_experts(&self) -> ExpertTrace {
        self.streaming.as_ref().map(|s| s.recorded()).unwrap_or_default()
    }

    /// What was done so far, as of the latest step.
    pub fn stats(&self) -> Stats {
        self.engine.stats()
    }

    /// Begins to measure what operations take (`true`, which forgets what was measured before), or stops. It costs some
    /// tens of nanoseconds an operation while it is on, and on devices that work ahead it makes them wait.
    pub fn time_operations(&self, on: bool) {
        self.clock.set(on);
    }

    /// What operations took by kind, while they were measured.
    pub fn operation_times(&self) -> Vec<OperationTime> {
        self.clock.times()
    }

    /// Forgets the states that are kept in memory. Those on disk stay.
    pub fn clear_cache(&self) {
        self.engine.clear_cache();
    }

    /// Lets everything take at most `bytes` bytes from now on, as [`Options::memory`] does at the start; for callers who
    /// learn that memory is short. It takes effect after the step in flight: kept states go first, then turns wait. The
    /// weights stay, but for experts that are read from disk. `u64::MAX`: as much as at the start. Texts never change.
    pub fn set_memory(&self, bytes: u64) {
        let Some(streaming) = &self.streaming else {
            let pool = if bytes == u64::MAX { bytes } else { bytes.saturating_sub(self.plan.fixed()) };
            return self.engine.set_memory(pool);
        };
        // Slots and pool share what is left as they did at the start.
        let (slots, pool) = (self.plan.experts, self.plan.pool.unwrap_or(u64::MAX));
        let left = bytes.saturating_sub(self.plan.fixed() - slots);
        let part = (u128::from(left) * u128::from(slots) / (u128::from(slots) + u128::from(pool)).max(1)) as u64;
        streaming.set_bytes(part);
        self.engine.set_memory(if bytes == u64::MAX { bytes } else { left - part });
    }

    /// Tokenizer and template; `None` when the checkpoint has no tokenizer.
    pub fn text(&self) -> Option<&ChatModel> {
        self.text.as_ref()
    }

    /// Makes what formats and tools need, once: about a second for a vocabulary of 250,000 tokens. Else the first turn that
    /// needs it does. Models without a tokenizer need nothing.
    pub fn prepare_grammars(&self) -> Result<(), SessionError> {
        match &self.text {
            Some(text) => Ok(text.vocabulary()?.warm_up()?),
            None => Ok(()),
        }
    }

    /// Token ids of a prompt.
    pub fn prompt_ids(&self, prompt: &Prompt) -> Result<Vec<u32>, SessionError> {
        Ok(self.prepare(prompt)?.ids)
    }

    /// Begins a turn, or refuses it before any work.
    pub fn start(&self, prompt: &Prompt, options: &TurnOptions) -> Result<Turn, SessionError> {
        options.check()?;
        let prepared = self.prepare(prompt)?;
        let defaults = default_sampling(self.spec(), &self.generation.defaults, prepared.thinking.unwrap_or(false));
        let place = Place {
            text: self.text.as_ref(),
            tools: match prompt {
                Prompt::Chat(chat) => &chat.tools,
                _ => &[],
            },
            thinking: prepared.thinking.unwrap_or(false),
            may_think: prepared.may_think,
        };
        let request = Request {
            prompt: prepared.ids.clone(),
            constraint: constraint::rule(options, &place)?,
            choice: options.choice,
            sampling: with_defaults(&options.sampling, &defaults),
            stop: if options.ignore_eos { Vec::new() } else { self.generation.stop_ids.clone() },
            max_tokens: options.max_tokens,
            logit_bias: options.logit_bias.clone(),
            logprobs: options.logprobs,
            borders: prepared.borders,
            priority: options.priority,
            deadline: options.deadline,
        };
        let handle = self.engine.submit(request)?;
        let tools = if let Prompt::Chat(chat) = prompt { chat.tools.as_slice() } else { &[] };
        let parser = prepared.thinking.map(|open| OutputParser::new(open, tools, &options.tool_choice));
        Ok(Turn::new(handle, prepared.ids, self.detokenizer(), parser, options))
    }

    fn detokenizer(&self) -> Option<Detokenizer> {
        self.text.as_ref().map(|t| t.tokenizer.detokenizer(SpecialTokens::Skip))
    }

    fn prepare(&self, prompt: &Prompt) -> Result<Prepared, SessionError> {
        match prompt {
            Prompt::Ids(ids) => Ok(self.prepared(ids.clone(), None)),
            Prompt::Text(text) => Ok(self.prepared(self.text_needed()?.tokenizer.encode(text)?, None)),
            Prompt::Chat(chat) => self.render(chat),
        }
    }

    fn prepared(&self, ids: Vec<u32>, thinking: Option<bool>) -> Prepared {
        let opening = self.text.as_ref().and_then(|t| t.tokenizer.token_to_id(MESSAGE_START));
        let starts = ids.iter().enumerate().filter(|(_, id)| opening.is_some_and(|o| o == **id));
        let borders = starts.map(|(at, _)| at).collect();
        Prepared { ids, borders, thinking, may_think: false }
    }

    fn render(&self, chat: &Conversation) -> Result<Prepared, SessionError> {
        let text = self.text_needed()?;
        only_text(chat)?;
        let prompt = text.prompt(chat)?;
        // What goes on from the assistant's own words goes on with the answer.
        let goes_on = chat.messages.last().is_some_and(|m| m.role == Role::Assistant);
        let closed = chat.enable_thinking == Some(false) || prompt.text.trim_end().ends_with("</think>");
        let prepared = self.prepared(text.tokenizer.encode(&prompt.text)?, Some(prompt.opens_thinking));
        Ok(Prepared { may_think: !(prompt.opens_thinking || closed || goes_on), ..prepared })
    }

    fn text_needed(&self) -> Result<&ChatModel, SessionError> {
        let missing = || ChatModelError::NoTokenizer { origin: self.name.clone() };
        Ok(self.text.as_ref().ok_or_else(missing)?)
    }
}

/// Tokenizer and template, where there are some, and how answers are sampled.
fn read_text(source: &ModelSource) -> Result<(Option<ChatModel>, GenerationConfig), OpenError> {
    let files = source.text_files()?;
    match ChatModel::load(&files) {
        Ok(text) => {
            let generation = text.generation.clone();
            Ok((Some(text), generation))
        }
        Err(ChatModelError::NoTokenizer { .. }) => Ok((None, GenerationConfig::load(&files)?)),
        Err(e) => Err(e.into()),
    }
}

/// A template would write placeholders for pictures, and the model would answer about what it never saw.
fn only_text(chat: &Conversation) -> Result<(), SessionError> {
    for (m, message) in chat.messages.iter().enumerate() {
        let Some(Content::Parts(parts)) = &message.content else { continue };
        if let Some(p) = parts.iter().position(|p| p.text().is_none()) {
            let kind = parts[p].0.get("type").and_then(|v| v.as_str()).unwrap_or("unknown").to_string();
            return Err(SessionError::NotText { path: format!("messages[{m}].content[{p}]"), kind });
        }
    }
    Ok(())
}

/// Takes a checkpoint to a device and starts the engine there.
struct Start<'a> {
    checkpoint: Checkpoint,
    options: &'a Options,
    progress: &'a mut dyn FnMut(usize, usize),
}

struct Started {
    engine: Engine,
    device: &'static str,
    /// Of most weights.
    scheme: String,
    plan: Plan,
    streaming: Option<Arc<Control>>,
    clock: Arc<Clock>,
}

impl OnDevice for Start<'_> {
    type Out = Started;

    fn run<D: Device>(self, d: D) -> Result<Started, OpenError> {
        let Start { checkpoint: owned, options, progress } = self;
        let checkpoint = &owned;
        let device = d.name();
        let (d, clock) = Timed::new(d);
        let (spec, report) = Model::<D>::check(checkpoint)?;
        // Better an error now than a machine without memory.
        let before = before_loading(&d, &spec, checkpoint, report.bytes, options)?;
        let most = report.schemes.iter().max_by_key(|s| s.weights);
        let scheme = most.map_or(String::new(), |s| s.scheme.clone());
        let (model, experts, plan, streaming) = if before.experts > 0 {
            checkpoint.prefetch();
            let mut experts = Streamed::new(&d, &spec, checkpoint, before.experts, options.look_ahead)?;
            options.disk_limit.iter().for_each(|limit| experts.limit_disk(*limit));
            let (control, model) = (experts.control(), Model::load_dense(&d, checkpoint, spec, progress)?);
            let experts: Box<dyn ExpertProvider<Timed<D>> + Send> = Box::new(experts);
            (model, experts, before, Some(control))
        } else {
            let (model, experts) = Model::load_checked(&d, checkpoint, spec, progress)?;
            let plan = after_loading(&d, &model.spec, checkpoint, report.bytes, options)?;
            let experts: Box<dyn ExpertProvider<Timed<D>> + Send> = Box::new(experts);
            (model, experts, plan, None)
        };
        let model_key = options.disk.as_ref().map_or(Vec::new(), |_| checkpoint.fingerprint().to_vec());
        // Before the engine takes its buffers: the peak is what a model takes of the machine.
        drop(owned);
        martlet_io::memory::return_freed_memory();
        let options = EngineOptions {
            context: Some(plan.context),
            prefill_chunk: plan.prefill_chunk,
            pool_bytes: plan.pool,
            model_key,
            ..engine_options(options)
        };
        let engine = Engine::start(d, model, experts, options)?;
        Ok(Started { engine, device, scheme, plan, streaming, clock })
    }
}
