//! How much memory a model may take, and what fits into it.

use crate::device::{Experts, Load, OnDevice, with_device};
use crate::session::engine_options;
use crate::{DeviceKind, ModelSource, OpenError, Options, SessionError};
use martlet_device::Device;
use martlet_engine::disk::DiskOptions;
use martlet_engine::{DrafterChoice, Plan};
use martlet_model::{MixerSpec, ModelSpec, weight_bytes};
use martlet_stream::{StreamError, least_bytes, slot_bytes};
use martlet_weights::{Checkpoint, Layout, pack};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

impl ModelSource {
    /// Where the memory would go if the model were opened now: nothing is loaded. An error where it does not fit.
    pub fn plan(&self, options: &Options) -> Result<Plan, SessionError> {
        let plan = || {
            let checkpoint = self.checkpoint()?;
            let (spec, report) = martlet_model::Model::<martlet_device::reference::Reference>::check(&checkpoint)?;
            let stored = report.bytes;
            let before = Before { spec: &spec, checkpoint: &checkpoint, stored, options };
            with_device(options, before)
        };
        plan().map_err(|e: OpenError| e.of(&self.name()))
    }
}

/// The plan of a model that is not loaded.
struct Before<'a> {
    spec: &'a ModelSpec,
    checkpoint: &'a Checkpoint,
    stored: u64,
    options: &'a Options,
}

impl OnDevice for Before<'_> {
    type Out = Plan;

    fn run<D: Device>(self, d: D) -> Result<Plan, OpenError> {
        before_loading(&d, self.spec, self.checkpoint, self.stored, self.options)
    }
}

/// The plan while `stored` bytes of weights have yet to be loaded.
pub(crate) fn before_loading<D: Device>(
    d: &D,
    spec: &ModelSpec,
    checkpoint: &Checkpoint,
    stored: u64,
    options: &Options,
) -> Result<Plan, OpenError> {
    let mapped = stays_mapped(checkpoint, options);
    let drafts = has_head(checkpoint);
    let weights = if mapped { stored } else { weight_bytes(d, checkpoint, spec)? };
    if options.drafter == DrafterChoice::Mtp && !drafts {
        return Err(OpenError::NoDrafts);
    }
    let free = free_memory().map(|free| (weights + share(free.saturating_sub(weights))).min(free));
    if options.experts != Experts::Stream {
        let resident = plan(d, spec, drafts, weights, options.memory.or(free), options);
        let streams = options.experts == Experts::Auto && options.load == Load::Map && slot_bytes(checkpoint).is_some();
        if resident.is_ok() || !streams {
            return resident;
        }
    }
    streaming(d, spec, checkpoint, drafts, weights, options)
}

/// The plan with experts read from disk: an eighth of what the rest of the weights leaves is for keys, values and kept
/// states, or what the context that was asked for needs, and slots take the rest.
fn streaming<D: Device>(
    d: &D,
    spec: &ModelSpec,
    checkpoint: &Checkpoint,
    drafts: bool,
    weights: u64,
    options: &Options,
) -> Result<Plan, OpenError> {
    /// Prompt tokens of a step where nothing else is asked for.
    const CHUNK: usize = 2048;
    if options.load == Load::Copy {
        return Err(OpenError::CopiedAndStreamed);
    }
    let (_, stacks) = checkpoint.expert_file().ok_or(StreamError::NoPack)?;
    let slot = slot_bytes(checkpoint).ok_or(StreamError::NoPack)?;
    let expert = |s: &pack::Stack| s.gate.bytes + s.up.bytes + s.down.bytes;
    let experts: u64 = stacks.iter().map(|s| s.xxh3.len() as u64 * expert(s)).sum();
    let options = Options { prefill_chunk: options.prefill_chunk.or(Some(CHUNK)), ..options.clone() };
    let memory = options.memory.or(free_memory().map(share));
    let plan = plan(d, spec, drafts, weights.saturating_sub(experts), memory, &options)?;
    let rest = plan.pool.unwrap_or(u64::MAX);
    let sequences = plan.kv_bytes(plan.context).saturating_mul(plan.sequences as u64).saturating_add(4 * plan.states());
    let least = plan.kv_bytes(256);
    let kept = match options.context {
        Some(_) => sequences.min(rest / 2),
        None => sequences.min(rest / 8),
    };
    // All experts, the ring, and what is read ahead: more would lie idle.
    let all = experts.saturating_add(64 * slot);
    let bytes = rest.saturating_sub(kept.max(least)).min(all);
    if bytes < least_bytes(slot) {
        return Err(StreamError::Memory { bytes, least: least_bytes(slot) }.into());
    }
    Ok(plan.with_experts(spec, drafts, bytes, &engine_options(&options))?)
}

/// The plan with the weights in place: what is free is measured. `stored`: bytes of them in the files.
pub(crate) fn after_loading<D: Device>(
    d: &D,
    spec: &ModelSpec,
    checkpoint: &Checkpoint,
    stored: u64,
    options: &Options,
) -> Result<Plan, OpenError> {
    let (drafts, mapped) = (has_head(checkpoint), stays_mapped(checkpoint, options));
    let weights = if mapped { stored } else { weight_bytes(d, checkpoint, spec)? };
    // The system counts mapped weights as free, since it may drop them.
    let taken = if mapped { weights } else { 0 };
    let free = free_memory().map(|free| weights + share(free.saturating_sub(taken)));
    plan(d, spec, drafts, weights, options.memory.or(free), options)
}

fn plan<D: Device>(
    d: &D,
    spec: &ModelSpec,
    drafts: bool,
    weights: u64,
    memory: Option<u64>,
    options: &Options,
) -> Result<Plan, OpenError> {
    let slot = |mixer: MixerSpec| match mixer {
        MixerSpec::Attention(_) => 0,
        MixerSpec::GatedDelta(g) => d.delta_slot_bytes(g) as u64,
    };
    let state = spec.cached_layers(drafts).map(|l| slot(l.mixer)).sum();
    let mut plan = Plan::new(spec, drafts, weights, state, memory, &engine_options(options))?;
    if options.memory.is_none() && options.device.takes_all_room() {
        // Nobody asked for so much: enough for the sequences, and as much for what is kept.
        let each = plan.kv_bytes(plan.context).saturating_mul(2).saturating_add(8 * state);
        plan.pool = plan.pool.map(|pool| pool.min(each.saturating_mul(plan.sequences as u64)));
        plan.memory = plan.pool.map(|pool| plan.fixed() + pool);
    }
    Ok(plan)
}

/// What is taken of the memory that is free; the rest of the machine goes on working.
fn share(free: u64) -> u64 {
    free / 8 * 7
}

/// Bytes that this process can take without swapping, limits of its control group respected; `None` where the system
/// does not say.
pub fn free_memory() -> Option<u64> {
    martlet_io::memory::memory().map(|m| m.free)
}

fn has_head(checkpoint: &Checkpoint) -> bool {
    checkpoint.has("mtp.fc.weight")
}

/// Whether the device works on the files' own pages.
fn stays_mapped(checkpoint: &Checkpoint, options: &Options) -> bool {
    checkpoint.layout() == Layout::Pack && options.load == Load::Map && options.device != DeviceKind::Reference
}

/// Settings of a disk cache in `dir` of at most `bytes` bytes: a state that nobody used for 30 days is deleted, at most
/// 16 GiB a day are written, and what waits to be written takes at most an eighth of the memory that is free now, and at
/// most 1 GiB. Problems are told to nobody: set `log` to hear of them.
pub fn disk_options(dir: PathBuf, bytes: u64) -> DiskOptions {
    const GIB: u64 = 1 << 30;
    DiskOptions {
        dir,
        bytes,
        ttl: Duration::from_secs(30 * 24 * 60 * 60),
        daily_writes: 16 * GIB,
        queue_bytes: free_memory().map_or(GIB / 4, |free| (free / 8).min(GIB)),
        log: Arc::new(|_| ()),
    }
}
