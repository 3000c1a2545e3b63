//! The experts of a step, read where they are not there.

use crate::scores::Scores;
use crate::slots::{Miss, Need, Slots};
use crate::trace::Trace;
use martlet_device::{Device, DeviceError, ExpertShape, NO_SLOT};
use martlet_io::Slot;
use martlet_io::disk::FileRead;
use martlet_io::reader::{self, Done, Piece, ReadError, Reader};
use martlet_io::slots::SLOT_ALIGN;
use martlet_model::{ExpertProvider, MlpSpec, ModelSpec, Run};
use martlet_tensor::Shared;
use martlet_weights::Checkpoint;
use martlet_weights::pack::Stack;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

/// Experts that are being read at a time, and threads that read where the system has no io_uring.
pub const READS: usize = 16;

/// Fewer slots than this can not hold what is read and what is computed at the same time.
const LEAST_SLOTS: usize = 4;

/// Why experts can not be streamed.
#[derive(Debug, thiserror::Error)]
pub enum StreamError {
    #[error(
        "experts can be read from disk from a pack alone, and this model is none, or has no experts: make one with \
         `martlet pack SOURCE NEW_FOLDER`"
    )]
    NoPack,
    #[error("{name} has {found} experts, {expected} are expected: make the pack again")]
    Experts { name: String, found: usize, expected: usize },
    #[error("experts of {found:?} beside those of {first:?}: one pool of slots can not hold both")]
    Shapes { first: ExpertShape, found: ExpertShape },
    #[error("{bytes} bytes for experts: at least {least} are needed")]
    Memory { bytes: u64, least: u64 },
    #[error("no address space for {bytes} bytes of experts: {source}")]
    Slots { bytes: u64, source: std::io::Error },
    #[error(transparent)]
    Read(#[from] ReadError),
    #[error(transparent)]
    Device(#[from] DeviceError),
}

/// What was done so far. Counts only grow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct StreamStats {
    /// Experts that fit into the slots, and that lie there.
    pub slots: u64,
    pub held: u64,
    /// Experts that layers of steps needed, each once for all rows; those of them that were there; those that were read.
    pub needed: u64,
    pub hits: u64,
    pub reads: u64,
    pub bytes_read: u64,
    /// For how long anything was being read, and for how long there was nothing to do but wait for it.
    pub busy: Duration,
    pub waited: Duration,
}

impl StreamStats {
    /// What was done since `before`; slots as they are now.
    pub fn since(&self, before: &StreamStats) -> StreamStats {
        StreamStats {
            slots: self.slots,
            held: self.held,
            needed: self.needed - before.needed,
            hits: self.hits - before.hits,
            reads: self.reads - before.reads,
            bytes_read: self.bytes_read - before.bytes_read,
            busy: self.busy - before.busy,
            waited: self.waited - before.waited,
        }
    }
}

/// What others may know and ask while the experts belong to an engine's thread.
#[derive(Debug)]
pub struct Control {
    stats: Mutex<StreamStats>,
    /// Bytes that slots may take from the next step on.
    bytes: AtomicU64,
    /// What routers choose, while somebody wants to know.
    trace: Mutex<Option<Trace>>,
}

impl Control {
    /// What was done as of the latest layer.
    pub fn stats(&self) -> StreamStats {
        self.stats.lock().map(|s| *s).unwrap_or_default()
    }

    /// Begins to record what routers choose; what was recorded before is forgotten.
    pub fn record(&self) {
        *self.trace() = Some(Trace::default());
    }

    /// Ends recording, and gives what was recorded.
    pub fn recorded(&self) -> Trace {
        self.trace().take().unwrap_or_default()
    }

    fn trace(&self) -> MutexGuard<'_, Option<Trace>> {
        self.trace.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// Lets slots take at most so many bytes from the next layer on: never more than at the start, nor fewer than are
    /// needed to go on. Results never change.
    pub fn set_bytes(&self, bytes: u64) {
        self.bytes.store(bytes, Ordering::Relaxed);
    }
}

/// Experts of a pack, on disk and in a pool of slots.
pub struct Streamed<D: Device> {
    /// Experts of each layer, the draft head's last; `None` for a layer without.
    layers: Vec<Option<Stack>>,
    /// Slot i of the device is slot i here.
    device: D::Experts,
    slots: Slots,
    scores: Scores,
    slot_bytes: u64,
    step: Step,
    // Behind the slots: dropped last, it waits for reads in flight.
    reader: Reader,
    control: Arc<Control>,
    stats: StreamStats,
}

/// A layer of a step, from `begin` to the end of `provide`.
#[derive(Default)]
struct Step {
    layer: usize,
    /// Slot of each expert, for the device.
    table: Vec<u32>,
    hits: bool,
    queue: VecDeque<Miss>,
    /// Being read: which, and into which slot.
    flying: Vec<(u32, Miss)>,
    /// Slots of the ring that are empty.
    free: Vec<u32>,
}

/// Bytes of a slot for any expert of a pack; `None` where there is no pack with experts.
pub fn slot_bytes(checkpoint: &Checkpoint) -> Option<u64> {
    let (_, stacks) = checkpoint.expert_file()?;
    stacks.iter().map(|s| s.bytes.next_multiple_of(SLOT_ALIGN as u64)).max()
}

/// How fast the disk gives experts of a pack at its best, as many reads in flight as streaming has; `None` where there is
/// no pack with experts. Takes some seconds.
pub fn disk_speed(checkpoint: &Checkpoint) -> Result<Option<FileRead>, StreamError> {
    let (Some((path, _)), Some(bytes)) = (checkpoint.expert_file(), slot_bytes(checkpoint)) else { return Ok(None) };
    Ok(Some(reader::speed(&path, bytes as usize, READS, 2 << 30)?))
}

/// Fewest bytes of slots that such a pack works with; with some more it is less slow.
pub fn least_bytes(slot_bytes: u64) -> u64 {
    LEAST_SLOTS as u64 * slot_bytes
}

impl<D: Device> Streamed<D> {
    /// Slots of at most `bytes` bytes for the experts of a pack; all are empty at first, and take memory as they are
    /// filled.
    pub fn new(d: &D, spec: &ModelSpec, checkpoint: &Checkpoint, bytes: u64) -> Result<Streamed<D>, StreamError> {
        let (path, stacks) = checkpoint.expert_file().ok_or(StreamError::NoPack)?;
        let slot_bytes = slot_bytes(checkpoint).ok_or(StreamError::NoPack)?;
        let drafts = checkpoint.has("mtp.fc.weight");
        let (layers, shape) = layers(spec, drafts, stacks)?;
        let experts: Vec<usize> = layers.iter().map(|l| l.as_ref().map_or(0, |s| s.xxh3.len())).collect();
        let all = experts.iter().sum::<usize>() + ring(usize::MAX);
        let least = least_bytes(slot_bytes);
        if bytes < least {
            return Err(StreamError::Memory { bytes, least });
        }
        let count = usize::try_from(bytes / slot_bytes).unwrap_or(usize::MAX).min(all);
        let buffers = Slot::many(count, slot_bytes as usize).map_err(|source| StreamError::Slots { bytes, source })?;
        let slots = Slots::new(buffers, &experts, ring(count));
        let step = Step { free: (0..slots.ring() as u32).collect(), ..Step::default() };
        let stats = StreamStats { slots: count as u64, ..StreamStats::default() };
        let control =
            Arc::new(Control { stats: Mutex::new(stats), bytes: AtomicU64::new(u64::MAX), trace: Mutex::default() });
        let (device, reader) = (d.experts(shape, count)?, Reader::open(&path, READS)?);
        let scores = Scores::new(&experts, spec.layers.len());
        Ok(Streamed { layers, device, slots, scores, slot_bytes, step, reader, control, stats })
    }

    /// Reads at most so many bytes a second, as from a slower disk.
    pub fn limit_disk(&mut self, bytes_per_second: u64) {
        self.reader.limit(bytes_per_second);
    }

    /// For those who want to know or to change how much is held.
    pub fn control(&self) -> Arc<Control> {
        self.control.clone()
    }

    /// Closes or opens slots as it was asked for.
    fn resize(&mut self, d: &mut D) {
        let asked = self.control.bytes.load(Ordering::Relaxed) / self.slot_bytes;
        let least = self.slots.ring() + LEAST_SLOTS / 2;
        let open = usize::try_from(asked).unwrap_or(usize::MAX).max(least).min(self.slots.len());
        for slot in open..self.slots.open() {
            if self.slots.forget(slot as u32) {
                d.unload_expert(&mut self.device, slot);
            }
        }
        if open != self.slots.open() {
            self.slots.set_open(open);
            self.stats.slots = open as u64;
        }
    }

    /// Begins as many reads as there is room for, in order.
    fn submit(&mut self) -> Result<(), DeviceError> {
        let Some(stack) = &self.layers[self.step.layer] else { return Ok(()) };
        while self.step.flying.len() < READS {
            let Some(miss) = self.step.queue.front().copied() else { break };
            let Some(slot) = miss.slot.or_else(|| self.step.free.pop()) else { break };
            self.step.queue.pop_front();
            let Some(buffer) = self.slots.take(slot) else {
                return Err(failed(format!("a device keeps the expert in slot {slot}, which it was to let go of")));
            };
            let e = miss.expert as usize;
            let (offset, xxh3) = (stack.place(e), Some(stack.xxh3[e].0));
            let bytes = stack.bytes as usize;
            self.step.flying.push((slot, miss));
            self.reader.submit(Piece { ticket: slot.into(), offset, bytes, xxh3 }, buffer);
            self.stats.reads += 1;
            self.stats.bytes_read += stack.bytes;
        }
        Ok(())
    }

    /// Waits for an expert, and takes all that have come to the device. Returns their slots; in the table are they alone.
    fn arrive(&mut self, d: &mut D) -> Result<Vec<(u32, Miss)>, DeviceError> {
        self.step.table.fill(NO_SLOT);
        let started = Instant::now();
        let mut done = Some(self.reader.wait());
        self.stats.waited += started.elapsed();
        let mut arrived = Vec::new();
        while let Some(next) = done {
            arrived.push(self.land(d, next)?);
            done = self.reader.poll();
        }
        Ok(arrived)
    }

    /// Takes one expert to the device.
    fn land(&mut self, d: &mut D, done: Done) -> Result<(u32, Miss), DeviceError> {
        let Done { ticket, slot: buffer, result } = done;
        let at = self.step.flying.iter().position(|(slot, _)| u64::from(*slot) == ticket);
        let (slot, miss) = self.step.flying.swap_remove(at.expect("what comes was asked for"));
        let layer = self.step.layer;
        let holds = miss.slot.map(|_| (layer as u32, miss.expert));
        let bytes = self.slots.put(slot, buffer, holds.filter(|_| result.is_ok()));
        result.map_err(|e| failed(e.to_string()))?;
        let stack = self.layers[layer].as_ref().expect("only layers with experts read any");
        let [gate, up, down] = stack.matrices(&Shared::new(bytes)).map_err(|e| failed(e.to_string()))?;
        d.load_expert(&mut self.device, slot as usize, &gate, &up, &down)?;
        self.step.table[miss.expert as usize] = slot;
        Ok((slot, miss))
    }

    /// Empties the slots of those that only pass through.
    fn pass(&mut self, d: &mut D, arrived: &[(u32, Miss)]) {
        for (slot, miss) in arrived {
            if miss.slot.is_none() {
                d.unload_expert(&mut self.device, *slot as usize);
                self.step.free.push(*slot);
            }
        }
    }

    /// After an error: waits for what is in flight, and forgets the step.
    fn abandon(&mut self, d: &mut D) {
        while !self.step.flying.is_empty() {
            let done = self.reader.wait();
            self.step.flying.retain(|(slot, _)| u64::from(*slot) != done.ticket);
            self.slots.put(done.ticket as u32, done.slot, None);
        }
        self.step.queue.clear();
        for slot in 0..self.slots.ring() {
            d.unload_expert(&mut self.device, slot);
        }
        self.step.free = (0..self.slots.ring() as u32).collect();
    }

    fn compute(&mut self, d: &mut D, run: Run<'_, D>) -> Result<(), DeviceError> {
        if self.step.hits {
            run(d, &self.device, &self.step.table);
        }
        while !self.step.flying.is_empty() || !self.step.queue.is_empty() {
            let arrived = self.arrive(d)?;
            // The next are read while these are computed.
            self.submit()?;
            run(d, &self.device, &self.step.table);
            self.pass(d, &arrived);
            self.submit()?;
        }
        Ok(())
    }

    fn publish(&mut self) {
        self.stats.busy = self.reader.busy();
        if let Ok(mut stats) = self.control.stats.lock() {
            *stats = self.stats;
        }
    }
}

impl<D: Device> ExpertProvider<D> for Streamed<D> {
    fn begin(&mut self, d: &mut D, layer: usize, routes: &D::Routes, b: &D::Batch) -> Result<(), DeviceError> {
        let Some(Some(stack)) = self.layers.get(layer) else {
            return Err(failed(format!("layer {layer} has no experts in this pack")));
        };
        let count = stack.xxh3.len();
        self.resize(d);
        let routes = d.read_routes(routes, b)?;
        if let Some(trace) = self.control.trace().as_mut() {
            trace.add(layer, &routes);
        }
        let chosen = self.scores.note(layer, &routes);
        let Need { hits, misses, emptied } = self.slots.need(layer as u32, &chosen, &self.scores);
        for slot in emptied {
            d.unload_expert(&mut self.device, slot as usize);
        }
        self.stats.needed += chosen.len() as u64;
        self.stats.hits += hits.len() as u64;
        let step = &mut self.step;
        (step.layer, step.hits, step.queue) = (layer, !hits.is_empty(), misses.into());
        step.table.clear();
        step.table.resize(count, NO_SLOT);
        hits.into_iter().for_each(|(expert, slot)| step.table[expert as usize] = slot);
        self.submit().inspect_err(|_| self.abandon(d))
    }

    fn provide(&mut self, d: &mut D, _layer: usize, run: Run<'_, D>) -> Result<(), DeviceError> {
        let result = self.compute(d, run);
        if result.is_err() {
            self.abandon(d);
        }
        if self.step.layer == 0 || result.is_err() {
            self.stats.held = self.slots.held() as u64;
        }
        self.publish();
        result
    }
}

/// Slots for passing through, of so many in all.
fn ring(slots: usize) -> usize {
    // As many again as are being read: some are computed meanwhile.
    (slots / 4).clamp(LEAST_SLOTS / 2, 2 * READS)
}

fn failed(what: String) -> DeviceError {
    DeviceError::Failed { device: "disk", what }
}

/// The experts of each layer, in the order of layers, and the shape that all have.
fn layers(spec: &ModelSpec, drafts: bool, stacks: &[Stack]) -> Result<(Vec<Option<Stack>>, ExpertShape), StreamError> {
    let (mut layers, mut shape) = (Vec::new(), None);
    let trunk = spec.layers.len();
    for (i, layer) in spec.all_layers().enumerate().filter(|(i, _)| *i < trunk || drafts) {
        let MlpSpec::Experts { route, width, .. } = layer.mlp else {
            layers.push(None);
            continue;
        };
        let name = if i < trunk { format!("layers.{i}.mlp.experts") } else { "mtp.layers.0.mlp.experts".to_string() };
        let stack = stacks.iter().find(|s| s.name == name);
        let (found, expected) = (stack.map_or(0, |s| s.xxh3.len()), route.experts);
        let Some(stack) = stack.filter(|_| found == expected) else {
            return Err(StreamError::Experts { name, found, expected });
        };
        let found = ExpertShape { hidden: spec.hidden, width };
        match shape {
            Some(first) if first != found => return Err(StreamError::Shapes { first, found }),
            _ => shape = Some(found),
        }
        layers.push(Some(stack.clone()));
    }
    Ok((layers, shape.ok_or(StreamError::NoPack)?))
}
