//! The engine's thread: takes commands, opens and ends sequences, and sees that what they hold fits into the budget.

use crate::disk::{DiskCache, Key, Restored, Segment};
use crate::draft::policy::{Acceptance, Costs, Probe};
use crate::draft::{Drafter, DrafterChoice, Drafts, Mtp};
use crate::engine::EngineOptions;
use crate::events::{EngineError, Finish};
use crate::memory::{self, Budget};
use crate::prefix::{Keys, PrefixCache, find_on_disk, keep_points};
use crate::queue::{Inbox, Next};
use crate::runner::{Runner, SeqState, StepError};
use crate::sequence::{Loading, Sequence};
use crate::states::Kept;
use crate::stats::Stats;
use martlet_device::{Device, PAGE};
use std::collections::HashSet;
use std::sync::mpsc::TryRecvError;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

pub(crate) enum Command {
    Run(Box<Sequence>),
    ClearCache,
    /// Somebody changed what `Worker` looks at between steps.
    Wake,
}

/// What came of the attempt to begin a sequence.
enum Begun {
    Runs,
    /// What it waits for comes by itself: its prefix, from disk or from a sequence that computes it.
    Later,
    /// There is neither slot nor pages for it.
    NoRoom,
}

/// The state of the engine's thread.
pub(crate) struct Worker<D: Device> {
    pub runner: Runner<D>,
    inbox: Inbox<Command>,
    /// What the handle shows of `stats`.
    published: Arc<Mutex<Stats>>,
    /// Admitted, not yet begun; in order of arrival.
    #[expect(clippy::vec_box, reason = "they are moved about, and are large")]
    waiting: Vec<Box<Sequence>>,
    /// In the order in which they were begun.
    pub running: Vec<Sequence>,
    pub options: EngineOptions,
    prefix: Option<PrefixCache>,
    disk: Option<DiskCache>,
    keys: Keys,
    budget: Budget,
    /// Tokens between two states that are kept inside a long prompt.
    ladder: usize,
    /// The draft head, where it is used.
    pub mtp: Option<Box<dyn Drafter<D> + Send>>,
    pub costs: Costs,
    /// Of all sequences so far.
    pub acceptance: Acceptance,
    pub probe: Probe,
    /// Seconds that a row of a prompt takes.
    pub row_seconds: Option<f64>,
    pub stats: Stats,
}

impl<D: Device> Worker<D> {
    pub fn new(
        mut runner: Runner<D>,
        inbox: Inbox<Command>,
        published: Arc<Mutex<Stats>>,
        options: EngineOptions,
        budget: Budget,
        disk: Option<DiskCache>,
    ) -> Result<Worker<D>, StepError> {
        let mtp = runner.has_mtp() && matches!(options.drafter, DrafterChoice::Auto | DrafterChoice::Mtp);
        let ladder = runner.ladder()?;
        Ok(Worker {
            keys: Keys::new(&model_key(&mut runner, &options, mtp)),
            disk,
            prefix: options.prefix_cache.then(PrefixCache::new),
            mtp: mtp.then(|| Box::new(Mtp) as Box<dyn Drafter<D> + Send>),
            runner,
            inbox,
            published,
            waiting: Vec::new(),
            running: Vec::new(),
            options,
            budget,
            ladder,
            costs: Costs::default(),
            acceptance: Acceptance::default(),
            probe: Probe::default(),
            row_seconds: None,
            stats: Stats::default(),
        })
    }

    pub fn run(mut self) {
        while self.receive() {
            let started = Instant::now();
            self.end_unwanted(started);
            self.look_at_memory(started);
            self.open_waiting(started);
            let on_device = self.step();
            self.release();
            // Together: one is a share of the other.
            self.stats.device_time += on_device;
            self.stats.step_time += started.elapsed();
            self.publish();
        }
        let left = self.running.drain(..).chain(self.waiting.drain(..).map(|s| *s));
        left.for_each(|s| s.finish(Ok(Finish::Cancelled)));
        if let Some(disk) = &self.disk {
            disk.flush();
        }
    }

    /// Takes all commands that are there, waiting for one when there is nothing to do. False at the end.
    fn receive(&mut self) -> bool {
        let mut some = false;
        loop {
            // Who waits while nobody runs waits for the disk.
            let time = if self.waiting.is_empty() { memory::PERIOD } else { Duration::from_millis(1) };
            let wait = self.running.is_empty() && !some;
            let command = match self.inbox.next(wait.then_some(time)) {
                Next::Command(command) => command,
                Next::Nothing => return true,
                Next::End => return false,
            };
            some = true;
            match command {
                Command::Run(sequence) => self.waiting.push(sequence),
                Command::ClearCache => self.clear_cache(),
                Command::Wake => self.fit(),
            }
        }
    }

    fn publish(&mut self) {
        self.stats.running = self.running.len();
        self.stats.waiting = self.waiting.len();
        self.stats.pages = self.runner.pages.held();
        self.stats.pages_limit = self.runner.pages.limit();
        if let Some(prefix) = &self.prefix {
            self.stats.cache.entries = prefix.len();
            self.stats.cache.state_bytes = prefix.state_bytes() as u64;
        }
        if let Ok(mut stats) = self.published.lock() {
            stats.clone_from(&self.stats);
        }
    }

    // --- beginning and ending -----------------------------------------------------------------------------------

    /// Ends what was cancelled and what is too late.
    fn end_unwanted(&mut self, now: Instant) {
        let end = |s: &Sequence| match () {
            () if s.is_cancelled() => Some(Ok(Finish::Cancelled)),
            () if s.is_late(now) => Some(Ok(Finish::Deadline)),
            () => None,
        };
        let ends = self.running.iter().map(end).collect();
        self.retire(ends);
        let mut ended = Vec::new();
        for sequence in std::mem::take(&mut self.waiting) {
            match end(&sequence) {
                None => self.waiting.push(sequence),
                Some(result) => ended.push((*sequence, result)),
            }
        }
        self.inbox.begun(ended.len());
        self.finish(ended);
    }

    /// Counts sequences that have ended, and sends their last events. Whoever hears one finds it in the statistics, and its
    /// room free.
    fn finish(&mut self, ended: Vec<(Sequence, Result<Finish, EngineError>)>) {
        if ended.is_empty() {
            return;
        }
        for (_, result) in &ended {
            match result {
                Ok(Finish::Cancelled) => self.stats.cancelled += 1,
                Ok(_) => self.stats.finished += 1,
                Err(_) => self.stats.failed += 1,
            }
        }
        self.publish();
        ended.into_iter().for_each(|(sequence, result)| sequence.finish(result));
    }

    /// Begins waiting sequences while there is room, by rank and arrival.
    fn open_waiting(&mut self, now: Instant) {
        if self.waiting.is_empty() || self.runner.slots.free() == 0 {
            return;
        }
        let mut order: Vec<usize> = (0..self.waiting.len()).collect();
        order.sort_by_key(|i| self.waiting[*i].rank(now));
        let mut waiting: Vec<Option<Box<Sequence>>> = std::mem::take(&mut self.waiting).into_iter().map(Some).collect();
        let mut failed = Vec::new();
        for i in order {
            let Some(mut sequence) = waiting[i].take() else { continue };
            match self.begin(&mut sequence) {
                Ok(Begun::Runs) => self.running.push(*sequence),
                Ok(Begun::Later) => waiting[i] = Some(sequence),
                Ok(Begun::NoRoom) => {
                    // Nobody behind it takes what it waits for: a stream of small requests would keep it out for ever.
                    waiting[i] = Some(sequence);
                    break;
                }
                Err(e) => failed.push((*sequence, Err(e))),
            }
        }
        let before = waiting.len();
        self.waiting = waiting.into_iter().flatten().collect();
        self.inbox.begun(before - self.waiting.len());
        self.finish(failed);
    }

    /// Gives a sequence its state, from the prefix cache as far as it goes.
    fn begin(&mut self, sequence: &mut Sequence) -> Result<Begun, EngineError> {
        if self.runner.slots.free() == 0 {
            return Ok(Begun::NoRoom);
        }
        if self.is_loading(sequence) {
            return Ok(Begun::Later);
        }
        let found = self.prefix.as_ref().and_then(|p| p.find(&self.keys, &sequence.tokens));
        if self.is_computed_elsewhere(sequence, found.map_or(0, |(len, _)| len)) {
            return Ok(Begun::Later);
        }
        let pages = sequence.tokens.len().div_ceil(PAGE);
        if !self.could_hold(pages, found.map(|(_, key)| key)) {
            let room = self.most_pages() * PAGE;
            let error = EngineError::Memory { tokens: sequence.tokens.len(), room };
            return if self.running.is_empty() { Err(error) } else { Ok(Begun::NoRoom) };
        }
        let state = match self.resume(found.map(|(_, key)| key)) {
            Ok(state) => state,
            Err(StepError::Pages { .. }) => return Ok(Begun::NoRoom),
            Err(e) => return Err(EngineError::from(&e)),
        };
        if !self.free_pages(pages - state.pages().len()) {
            self.runner.close(state);
            return Ok(Begun::NoRoom);
        }
        let len = state.len();
        sequence.acceptance = self.acceptance.inherit();
        sequence.accept = self.options.accept;
        if self.prefix.is_some() {
            let borders = &sequence.request.borders;
            sequence.keep_points = keep_points(borders, sequence.tokens.len(), len, self.ladder);
            sequence.kept = len;
            // Not where the entry had to go to make room for its own copy.
            let stored =
                |(found, key): &(usize, Key)| *found == len && self.disk.as_ref().is_some_and(|d| d.contains(key));
            sequence.stored = found.filter(stored).map(|(_, key)| (key, len));
            match (len, &sequence.loading) {
                (0, _) => self.stats.cache.misses += 1,
                (_, Loading::Came) => self.stats.cache.disk_hits += 1,
                _ => self.stats.cache.memory_hits += 1,
            }
        }
        if sequence.counts.generated == 0 {
            sequence.counts.cached = len;
            self.stats.cached_tokens += len as u64;
        }
        sequence.state = Some(state);
        Ok(Begun::Runs)
    }

    /// Whether a longer prefix than memory has is on its way from disk. What came is an entry of the cache in memory.
    fn is_loading(&mut self, sequence: &mut Sequence) -> bool {
        /// Fewer tokens are computed again sooner than read.
        const LEAST: usize = 64;
        let (Some(disk), Some(prefix)) = (&self.disk, &mut self.prefix) else { return false };
        match &sequence.loading {
            Loading::Came | Loading::Missed => false,
            Loading::NotAsked => {
                let known = prefix.find(&self.keys, &sequence.tokens).map_or(0, |(len, _)| len);
                let Some((len, key)) = find_on_disk(disk, &self.keys, &sequence.tokens) else { return false };
                if len < known + LEAST {
                    return false;
                }
                sequence.loading = Loading::Asked { key, len, answer: disk.load(key) };
                true
            }
            Loading::Asked { key, len, answer } => match answer.try_recv() {
                Err(TryRecvError::Empty) => true,
                Ok(Some(restored)) => {
                    let (key, len) = (*key, *len);
                    // Without room for it, or should it not fit this model after all, the prompt is computed.
                    let came = self.adopt(key, len, restored);
                    sequence.loading = if came { Loading::Came } else { Loading::Missed };
                    false
                }
                Ok(None) | Err(TryRecvError::Disconnected) => {
                    sequence.loading = Loading::Missed;
                    false
                }
            },
        }
    }

    /// A state that goes on from an entry of the prefix cache, or an empty one.
    fn resume(&mut self, key: Option<Key>) -> Result<SeqState, StepError> {
        let Some(key) = key else { return self.runner.open() };
        let bytes = self.runner.page_bytes();
        // Room for the copy of its last page. What was just wanted is worth the most, and goes last.
        self.prefix.as_mut().and_then(|p| p.hit(&key, bytes));
        self.free_pages(1);
        match self.prefix.as_mut().and_then(|p| p.hit(&key, bytes)) {
            Some(kept) => match self.runner.resume(kept) {
                Err(StepError::Model(_)) => {
                    // The device does not take this state, whatever it is: it is no state of this prefix.
                    if let Some(prefix) = &mut self.prefix {
                        prefix.remove(&key, &mut self.runner);
                    }
                    self.runner.open()
                }
                resumed => resumed,
            },
            None => self.runner.open(),
        }
    }

    /// Whether another sequence is about to compute more of the same prefix than the cache has (`found` tokens): then it is
    /// made to keep its state there, and the newcomer goes on from it.
    fn is_computed_elsewhere(&mut self, sequence: &Sequence, found: usize) -> bool {
        /// Fewer tokens are computed twice sooner than waited for.
        const LEAST: usize = 64;
        if self.prefix.is_none() {
            return false;
        }
        for other in &mut self.running {
            let common = sequence.tokens.iter().zip(&other.tokens).take_while(|(a, b)| a == b).count();
            let point = common.min(sequence.tokens.len() - 1).min(other.request.prompt.len());
            let ahead = other.counts.generated == 0 && point > other.computed();
            if ahead && point >= found + LEAST && other.request.priority == sequence.request.priority {
                if let Err(at) = other.keep_points.binary_search(&point) {
                    other.keep_points.insert(at, point);
                }
                return true;
            }
        }
        false
    }

    /// Ends the running sequences that have an end, one entry of `ends` for each.
    pub fn retire(&mut self, ends: Vec<Option<Result<Finish, EngineError>>>) {
        let mut ended = Vec::new();
        for (mut sequence, end) in std::mem::take(&mut self.running).into_iter().zip(ends) {
            let Some(result) = end else {
                self.running.push(sequence);
                continue;
            };
            if result.is_ok() {
                self.keep_at_end(&mut sequence);
            }
            if let Some(state) = sequence.state.take() {
                self.runner.close(state);
            }
            ended.push((sequence, result));
        }
        self.finish(ended);
    }

    // --- what is kept -------------------------------------------------------------------------------------------

    fn keep_at_end(&mut self, sequence: &mut Sequence) {
        /// Fewer tokens are computed again sooner than kept.
        const LEAST: usize = 16;
        if sequence.computed() >= sequence.kept + LEAST {
            self.keep(sequence);
        }
    }

    /// Puts the state of a sequence into the prefix cache. Without room nothing is kept.
    pub fn keep(&mut self, sequence: &mut Sequence) {
        let Some(prefix) = &mut self.prefix else { return };
        // Whoever goes on from here may draft. What can not be shown to the head or exported is not kept; the sequence itself
        // goes on.
        if self.mtp.as_mut().is_some_and(|mtp| mtp.fill(&mut self.runner, sequence).is_err()) {
            return;
        }
        let Some(state) = &sequence.state else { return };
        let len = state.len();
        let key = self.keys.of(&sequence.tokens[..len]);
        let gain = len - sequence.kept.min(len);
        sequence.kept = len;
        if prefix.contains(&key) {
            prefix.hit(&key, self.runner.page_bytes());
            return;
        }
        let Ok(kept) = self.runner.keep(state) else { return };
        if let Some(disk) = &self.disk {
            store(disk, &mut self.runner, &kept, key, &mut sequence.stored);
        }
        prefix.insert(key, kept, gain, &mut self.runner);
        self.fit();
    }

    /// Makes what came from disk an entry in memory; false when there is no room for it.
    fn adopt(&mut self, key: Key, len: usize, restored: Restored) -> bool {
        if !self.could_hold(restored.pages.len(), None) || !self.free_pages(restored.pages.len()) {
            return false;
        }
        let Ok(kept) = self.runner.adopt(len, &restored.pages, restored.state) else { return false };
        if let Some(prefix) = &mut self.prefix {
            prefix.insert(key, kept, len, &mut self.runner);
            self.fit();
        }
        true
    }

    fn clear_cache(&mut self) {
        if let Some(prefix) = &mut self.prefix {
            prefix.clear(&mut self.runner);
        }
        self.fit();
        self.runner.release_idle();
    }

    // --- memory -------------------------------------------------------------------------------------------------

    /// Brings the limit of pages in line with the budget and the kept states; evicts what is beyond it.
    fn fit(&mut self) {
        let page = self.runner.page_bytes().max(1) as u64;
        loop {
            let states = self.prefix.as_ref().map_or(0, |p| p.state_bytes() as u64);
            let limit = self.budget.limit();
            self.runner.pages.set_limit((limit.saturating_sub(states) / page) as usize);
            let fits = states <= limit && self.runner.pages.held() <= self.runner.pages.limit();
            if fits || !self.evict() {
                return;
            }
        }
    }

    /// Pages that may be held when no states are kept.
    fn most_pages(&self) -> usize {
        ((self.budget.limit() / self.runner.page_bytes().max(1) as u64) as usize).min(self.runner.pages.total())
    }

    /// Whether a sequence of so many pages, the first of them those of the entry `key`, fits beside the running ones once
    /// all else is evicted. Asked first, so that nothing is evicted in vain.
    fn could_hold(&self, pages: usize, key: Option<Key>) -> bool {
        let states = self.running.iter().filter_map(|s| s.state.as_ref());
        let held: HashSet<u32> = states.flat_map(|s| s.pages()).copied().collect();
        let kept = key.and_then(|key| self.prefix.as_ref()?.get(&key));
        let shared = kept.map_or(0, |k| k.pages()[..k.len / PAGE].iter().filter(|p| held.contains(p)).count());
        held.len() + pages - shared <= self.most_pages()
    }

    /// Gives memory back that is beyond the limit.
    fn release(&mut self) {
        let pages = &self.runner.pages;
        if pages.touched() > pages.limit().max(pages.held()) {
            self.runner.release_idle();
        }
    }

    fn evict(&mut self) -> bool {
        let evicted = self.prefix.as_mut().is_some_and(|p| p.evict(&mut self.runner));
        self.stats.cache.evicted += u64::from(evicted);
        evicted
    }

    /// Evicts until `pages` pages are free; false when there is nothing left to evict.
    fn free_pages(&mut self, pages: usize) -> bool {
        while self.runner.pages.free() < pages {
            if !self.evict() {
                return false;
            }
            self.fit();
        }
        true
    }

    fn look_at_memory(&mut self, now: Instant) {
        let states = self.prefix.as_ref().map_or(0, |p| p.state_bytes());
        let used = self.runner.pages.held() * self.runner.page_bytes() + states;
        if self.budget.look(now, used as u64) {
            self.fit();
            self.runner.release_idle();
        }
    }

    /// Takes the pages for the next `rows[i]` rows of each running sequence. Where none is free, kept states go, then the
    /// sequences that were begun last give their room away and are computed again later. Sequences that still have no
    /// room get no rows.
    pub fn take_pages(&mut self, rows: &mut Vec<usize>) {
        let mut i = 0;
        while i < self.running.len() {
            if rows[i] > 0 && !self.take_pages_of(i, rows) {
                rows[i] = 0;
                // Those it would check later come on top of what others draft meanwhile: more than a step has room for.
                self.running[i].drafts = Drafts::default();
                if i == 0 {
                    let sequence = &self.running[0];
                    let room = self.runner.pages.limit() * PAGE;
                    let error = EngineError::Memory { tokens: sequence.tokens.len(), room };
                    let mut ends = vec![None; self.running.len()];
                    ends[0] = Some(Err(error));
                    self.retire(ends);
                    rows.remove(0);
                    continue;
                }
            }
            i += 1;
        }
    }

    fn take_pages_of(&mut self, i: usize, rows: &mut Vec<usize>) -> bool {
        loop {
            let tokens = self.running[i].computed() + rows[i];
            if self.runner.take_pages(self.running[i].state_mut(), tokens).is_ok() {
                return true;
            }
            if rows[i] > 1 && self.running[i].is_decoding() {
                rows[i] = 1; // drafts are no reason to take room from others
                continue;
            }
            if self.evict() {
                self.fit();
                continue;
            }
            let last = self.running.len() - 1;
            if last == i {
                return false;
            }
            rows.pop();
            self.preempt(last);
        }
    }

    /// Sends a running sequence back to wait; what it had is computed again, with the same result.
    fn preempt(&mut self, i: usize) {
        let mut sequence = self.running.remove(i);
        if let Some(state) = sequence.state.take() {
            self.runner.close(state);
        }
        sequence.drafts = Drafts::default();
        self.stats.preempted += 1;
        self.inbox.again();
        self.waiting.insert(0, Box::new(sequence));
    }
}

/// Gives what a sequence has added since `stored` to the disk.
fn store<D: Device>(
    disk: &DiskCache,
    runner: &mut Runner<D>,
    kept: &Kept,
    key: Key,
    stored: &mut Option<(Key, usize)>,
) {
    if disk.contains(&key) {
        *stored = Some((key, kept.len));
        return;
    }
    let (parent, start) = stored.map_or((None, 0), |(key, len)| (Some(key), len));
    let new = &kept.pages()[start / PAGE..];
    if (new.len() * runner.page_bytes() + kept.state.len()) as u64 > disk.room() {
        return;
    }
    let pages: Result<Vec<Vec<u8>>, StepError> = new.iter().map(|p| runner.export_page(*p)).collect();
    if let Ok(pages) = pages {
        let (start, end, state) = (start as u64, kept.len as u64, kept.state.clone());
        disk.put(key, Segment { parent, start, end, pages, state });
        *stored = Some((key, kept.len));
    }
}

/// All that a state depends on beside tokens.
fn model_key<D: Device>(runner: &mut Runner<D>, options: &EngineOptions, mtp: bool) -> Vec<u8> {
    let arithmetic = runner.device().arithmetic_id();
    let drafts = runner.has_mtp();
    let rest = format!("{arithmetic}; kv {:?}; draft head {drafts}, filled {mtp}", options.kv);
    [&options.model_key[..], rest.as_bytes()].concat()
}
