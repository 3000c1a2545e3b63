//! The experts of a step, read where they are not there.

mod early;

use crate::ahead::LookAhead;
use crate::control::{Control, StreamStats};
use crate::scores::Scores;
use crate::slots::{Miss, Name, Need, Slots};
use early::{AHEAD, Early};
use martlet_device::{Device, DeviceError, ExpertShape, NO_SLOT};
use martlet_io::disk::FileRead;
use martlet_io::reader::{self, Done, Piece, ReadError, Reader};
use martlet_io::slots::SLOT_ALIGN;
use martlet_io::{Slot, Supply};
use martlet_model::{AHEAD_ROWS, ExpertProvider, MlpSpec, ModelSpec, Run};
use martlet_tensor::Shared;
use martlet_weights::Checkpoint;
use martlet_weights::pack::Stack;
use std::collections::VecDeque;
use std::sync::Arc;
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

/// Experts of a pack, on disk and in a pool of slots.
pub struct Streamed<D: Device> {
    /// Experts of each layer, the draft head's last; `None` for a layer without.
    layers: Vec<Option<Stack>>,
    /// Slot i of the device is slot i here.
    device: D::Experts,
    slots: Slots,
    scores: Scores,
    step: Step,
    early: Early,
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
    /// Those of them that were read ahead and are there.
    came: Vec<Done>,
    /// Slots of the ring that are empty.
    free: Vec<u32>,
    /// Since when anything that the layer needs is being read.
    since: Option<Instant>,
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
    /// Slots of at most `bytes` bytes for the experts of a pack. All are empty at first. A thread takes their memory from
    /// now on; experts are kept in those that are ready, and pass through the ring as long as there are few.
    pub fn new(
        d: &D,
        spec: &ModelSpec,
        checkpoint: &Checkpoint,
        bytes: u64,
        look_ahead: LookAhead,
    ) -> Result<Streamed<D>, StreamError> {
        let (path, stacks) = checkpoint.expert_file().ok_or(StreamError::NoPack)?;
        let slot_bytes = slot_bytes(checkpoint).ok_or(StreamError::NoPack)?;
        let drafts = checkpoint.has("mtp.fc.weight");
        let (layers, shape) = layers(spec, drafts, stacks)?;
        let experts: Vec<usize> = layers.iter().map(|l| l.as_ref().map_or(0, |s| s.xxh3.len())).collect();
        let all = experts.iter().sum::<usize>() + ring(usize::MAX) + AHEAD;
        let least = least_bytes(slot_bytes);
        if bytes < least {
            return Err(StreamError::Memory { bytes, least });
        }
        let most = usize::try_from(bytes / slot_bytes).unwrap_or(usize::MAX).min(all);
        let ring = ring(most);
        let early = Early::new(look_ahead, layers.len(), ring, most);
        let mut first = Slot::many(most, slot_bytes as usize).map_err(|source| StreamError::Slots { bytes, source })?;
        let passing = early.slots.end as usize;
        let supply = Supply::new(first.split_off(passing));
        let control = Arc::new(Control::new(supply, slot_bytes, passing, passing + LEAST_SLOTS / 2..=most));
        Ok(Streamed {
            device: d.experts(shape, most)?,
            slots: Slots::new(first, &experts),
            scores: Scores::new(&experts, spec.layers.len()),
            step: Step { free: (0..ring as u32).collect(), ..Step::default() },
            early,
            reader: Reader::open(&path, READS)?,
            stats: control.stats(),
            control,
            layers,
        })
    }

    /// Reads at most so many bytes a second, as from a slower disk.
    pub fn limit_disk(&mut self, bytes_per_second: u64) {
        self.reader.limit(bytes_per_second);
    }

    /// For those who want to know or to change how much is held.
    pub fn control(&self) -> Arc<Control> {
        self.control.clone()
    }

    /// Closes slots as it was asked for, or opens those whose memory is there.
    fn resize(&mut self, d: &mut D) -> Result<(), DeviceError> {
        let (kept_slots, supply) = (self.control.kept(), self.control.supply());
        while self.slots.kept() > kept_slots
            && let Some(slot) = self.slots.last()
        {
            d.unload_expert(&mut self.device, slot as usize);
            supply.give_back(self.slots.close().ok_or_else(|| kept(slot))?);
        }
        while self.slots.kept() < kept_slots
            && let Some(buffer) = supply.take()
        {
            self.slots.open(buffer);
        }
        self.stats.slots = (self.early.slots.end as usize + kept_slots) as u64;
        Ok(())
    }

    /// Begins as many reads as there is room for, in order.
    fn submit(&mut self) -> Result<(), DeviceError> {
        while self.step.flying.len() < READS {
            let Some(miss) = self.step.queue.front().copied() else { break };
            let Some(slot) = miss.slot.or_else(|| self.step.free.pop()) else { break };
            self.step.queue.pop_front();
            self.read(slot, (self.step.layer as u32, miss.expert))?;
            self.step.flying.push((slot, miss));
            self.step.since.get_or_insert_with(Instant::now);
            self.stats.reads += 1;
        }
        Ok(())
    }

    /// Begins to read an expert into a slot.
    fn read(&mut self, slot: u32, (layer, expert): Name) -> Result<(), DeviceError> {
        let buffer = self.slots.take(slot).ok_or_else(|| kept(slot))?;
        let stack = self.layers[layer as usize].as_ref().expect("only layers with experts read any");
        let (offset, xxh3) = (stack.place(expert as usize), Some(stack.xxh3[expert as usize].0));
        self.reader.submit(Piece { ticket: slot.into(), offset, bytes: stack.bytes as usize, xxh3 }, buffer);
        self.stats.bytes_read += stack.bytes;
        Ok(())
    }

    /// Waits for an expert, and takes all that have come to the device. Returns their slots; in the table are they alone.
    fn arrive(&mut self, d: &mut D) -> Result<Vec<(u32, Miss)>, DeviceError> {
        self.step.table.fill(NO_SLOT);
        let mut done = self.step.came.pop();
        if done.is_none() {
            let started = Instant::now();
            done = Some(self.reader.wait());
            self.stats.waited += started.elapsed();
        }
        let mut arrived = Vec::new();
        while let Some(next) = done {
            let needed = self.step.flying.iter().any(|(slot, _)| u64::from(*slot) == next.ticket);
            match needed {
                true => arrived.push(self.land(d, next)?),
                false => self.came_early(next),
            }
            done = self.step.came.pop().or_else(|| self.reader.poll());
        }
        if self.step.flying.is_empty() && self.step.queue.is_empty() {
            self.early.reading += self.step.since.take().map_or(Duration::ZERO, |since| since.elapsed());
        }
        Ok(arrived)
    }

    /// Takes one expert to the device.
    fn land(&mut self, d: &mut D, done: Done) -> Result<(u32, Miss), DeviceError> {
        let Done { ticket, slot: buffer, result } = done;
        let at = self.step.flying.iter().position(|(slot, _)| u64::from(*slot) == ticket);
        let (read_into, miss) = self.step.flying.swap_remove(at.expect("what comes was asked for"));
        if let Err(e) = result {
            self.slots.put(read_into, buffer, None);
            return Err(failed(e.to_string()));
        }
        let (slot, layer) = (miss.slot.unwrap_or(read_into), self.step.layer);
        if slot != read_into {
            // It was read ahead, and stays: its bytes change places with those of the slot that made room.
            let Some(other) = self.slots.take(slot) else {
                self.slots.put(read_into, buffer, None);
                return Err(kept(slot));
            };
            self.slots.put(read_into, other, None);
            self.early.free.push(read_into);
        }
        let bytes = self.slots.put(slot, buffer, miss.slot.map(|_| (layer as u32, miss.expert)));
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
                let ahead = self.early.slots.contains(slot);
                if ahead { self.early.free.push(*slot) } else { self.step.free.push(*slot) }
            }
        }
    }

    /// After an error: waits for what is in flight, and forgets the step.
    fn abandon(&mut self, d: &mut D) {
        let mut came: Vec<Done> = self.step.came.drain(..).chain(self.early.came.drain(..)).collect();
        let all = self.step.flying.len() + self.early.flying.len() + self.early.strays.len();
        came.extend((came.len()..all).map(|_| self.reader.wait()));
        for done in came {
            self.slots.put(done.ticket as u32, done.slot, None);
        }
        self.early.reset();
        for slot in 0..self.early.slots.end {
            d.unload_expert(&mut self.device, slot as usize);
        }
        let free = (0..self.early.slots.start).collect();
        self.step = Step { layer: self.step.layer, free, ..Step::default() };
    }

    fn compute(&mut self, d: &mut D, run: Run<'_, D>) -> Result<(), DeviceError> {
        if self.step.hits {
            run(d, &self.device, &self.step.table);
        }
        while !self.step.flying.is_empty() || !self.step.queue.is_empty() {
            let arrived = self.arrive(d)?;
            // The next are read while these are computed.
            self.submit()?;
            self.submit_ahead()?;
            run(d, &self.device, &self.step.table);
            self.pass(d, &arrived);
            self.submit()?;
        }
        Ok(())
    }

    fn publish(&mut self) {
        self.stats.busy = self.reader.busy();
        self.control.publish(self.stats);
    }
}

impl<D: Device> Drop for Streamed<D> {
    fn drop(&mut self) {
        // Others may hold the control for longer.
        self.control.supply().allow(0);
    }
}

impl<D: Device> ExpertProvider<D> for Streamed<D> {
    fn begin(&mut self, d: &mut D, layer: usize, routes: &D::Routes, b: &D::Batch) -> Result<(), DeviceError> {
        let Some(Some(stack)) = self.layers.get(layer) else {
            return Err(failed(format!("layer {layer} has no experts in this pack")));
        };
        let count = stack.xxh3.len();
        self.resize(d)?;
        let routes = d.read_routes(routes, b)?;
        if let Some(trace) = self.control.trace().as_mut() {
            trace.add(layer, &routes);
        }
        self.early.begin(layer, &routes, self.layers.iter().position(Option::is_some));
        let chosen = self.scores.note(layer, &routes);
        let Need { hits, mut misses, emptied } = self.slots.need(layer as u32, &chosen, &self.scores);
        for slot in emptied {
            d.unload_expert(&mut self.device, slot as usize);
        }
        self.stats.needed += chosen.len() as u64;
        self.stats.hits += hits.len() as u64;
        if let Some(outcome) = self.early.guesses.settle(layer as u32, &chosen) {
            self.stats.guess_missing += misses.len() as u64;
            self.stats.guesses += outcome.guessed;
            self.stats.guesses_right += outcome.right;
        }
        self.adopt(layer as u32, &mut misses);
        let step = &mut self.step;
        (step.layer, step.hits, step.queue) = (layer, !hits.is_empty(), misses.into());
        step.table.clear();
        step.table.resize(count, NO_SLOT);
        hits.into_iter().for_each(|(expert, slot)| step.table[expert as usize] = slot);
        self.submit().inspect_err(|_| self.abandon(d))
    }

    fn looks_ahead(&self) -> bool {
        self.early.rows <= AHEAD_ROWS && self.early.guesses.guessing()
    }

    fn ahead(&mut self, d: &mut D, layer: usize, routes: &D::Routes, b: &D::Batch) -> Result<(), DeviceError> {
        let routes = d.read_routes(routes, b)?;
        self.early.guesses.guess(layer as u32, &routes, |e| !self.slots.has((layer as u32, e)));
        self.submit_ahead().inspect_err(|_| self.abandon(d))
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

fn kept(slot: u32) -> DeviceError {
    failed(format!("a device keeps the expert in slot {slot}, which it was to let go of"))
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
