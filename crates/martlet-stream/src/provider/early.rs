//! What is read before a router has chosen it, and what becomes of it when the router has.

use super::Streamed;
use crate::ahead::{Guesses, LookAhead};
use crate::slots::{Miss, Name};
use martlet_device::{Device, DeviceError, Routes};
use martlet_io::reader::Done;
use martlet_model::AHEAD_ROWS;
use std::ops::Range;
use std::time::{Duration, Instant};

/// Slots for experts that are read ahead, at most.
pub(super) const AHEAD: usize = 16;

/// Needed experts beside whose reads others are read ahead: the disk is to have something to do while the last one that
/// comes is checked and computed.
const BESIDE: usize = 1;

/// What is read before a router has chosen it, in slots of its own behind the ring.
pub(super) struct Early {
    pub guesses: Guesses,
    /// Number of the first of its slots, and of the one behind them.
    pub slots: Range<u32>,
    /// Those that are empty.
    pub free: Vec<u32>,
    /// Being read for the next layer.
    pub flying: Vec<(u32, Name)>,
    /// Those of them that are there.
    pub came: Vec<Done>,
    /// Being read, and not needed.
    pub strays: Vec<u32>,
    /// Rows of the step.
    pub rows: usize,
    /// When the latest step of few rows began, and how long what steps needed was being read since then.
    token: Instant,
    pub reading: Duration,
}

impl Early {
    /// Behind `ring` slots of `most`.
    pub fn new(mode: LookAhead, layers: usize, ring: usize, most: usize) -> Early {
        let count = if mode == LookAhead::Off { 0 } else { (most / 8).min(AHEAD) };
        let slots = ring as u32..(ring + count) as u32;
        Early {
            guesses: Guesses::new(if count == 0 { LookAhead::Off } else { mode }, layers),
            free: slots.clone().collect(),
            slots,
            flying: Vec::new(),
            came: Vec::new(),
            strays: Vec::new(),
            rows: 0,
            token: Instant::now(),
            reading: Duration::ZERO,
        }
    }

    /// Forgets everything; nothing may be in flight.
    pub fn reset(&mut self) {
        self.guesses.forget();
        self.flying.clear();
        self.came.clear();
        self.strays.clear();
        self.free = self.slots.clone().collect();
    }

    /// A layer of a step begins; `first` is the first that has experts.
    pub fn begin(&mut self, layer: usize, routes: &Routes, first: Option<usize>) {
        self.rows = routes.experts.len() / routes.chosen.max(1);
        if Some(layer) == first && self.rows <= AHEAD_ROWS {
            self.guesses.token(self.token.elapsed(), std::mem::take(&mut self.reading));
            self.token = Instant::now();
        }
    }
}

impl<D: Device> Streamed<D> {
    /// Begins to read what the next layer may need, once hardly anything is on its way that this one needs.
    pub(super) fn submit_ahead(&mut self) -> Result<(), DeviceError> {
        if self.step.flying.len() > BESIDE || !self.step.queue.is_empty() {
            return Ok(());
        }
        while self.step.flying.is_empty()
            && !self.early.strays.is_empty()
            && let Some(done) = self.reader.poll()
        {
            self.came_early(done);
        }
        while let Some(slot) = self.early.free.last().copied()
            && let Some(name) = self.early.guesses.next()
        {
            self.read(slot, name)?;
            self.early.free.pop();
            self.early.flying.push((slot, name));
            self.stats.ahead += 1;
        }
        Ok(())
    }

    /// What was read ahead and is needed goes on as a read of this layer; what is not, is waited for by nobody.
    pub(super) fn adopt(&mut self, layer: u32, misses: &mut Vec<Miss>) {
        for (slot, name) in std::mem::take(&mut self.early.flying) {
            let came = self.early.came.iter().position(|done| done.ticket == u64::from(slot));
            let came = came.map(|at| self.early.came.swap_remove(at));
            match misses.iter().position(|m| name == (layer, m.expert)) {
                Some(at) => {
                    self.step.flying.push((slot, misses.remove(at)));
                    self.step.came.extend(came);
                    self.step.since.get_or_insert_with(Instant::now);
                    self.stats.reads += 1;
                    self.stats.ahead_used += 1;
                }
                None => {
                    self.early.strays.push(slot);
                    self.stats.bytes_wasted += self.layers[name.0 as usize].as_ref().map_or(0, |s| s.bytes);
                    came.into_iter().for_each(|done| self.came_early(done));
                }
            }
        }
    }

    /// Takes what no layer has chosen yet, or will not choose: then it does not matter whether it could be read.
    pub(super) fn came_early(&mut self, done: Done) {
        let slot = done.ticket as u32;
        if self.early.flying.iter().any(|(s, _)| *s == slot) {
            return self.early.came.push(done);
        }
        self.early.strays.retain(|s| *s != slot);
        self.early.free.push(slot);
        self.slots.put(slot, done.slot, None);
    }
}
