//! One step of the engine: rows of many sequences computed, tokens sampled and drafts checked, new drafts made, states
//! kept.

use crate::draft::policy::{Aim, Candidate, Class, MAX_MTP, MAX_SUFFIX, Place, choose};
use crate::draft::{DrafterChoice, Job, Kind};
use crate::events::EngineError;
use crate::runner::{SeqInput, StepError};
use crate::schedule::{Want, chunk_beside_answers, plan};
use crate::sequence::{Checked, Sequence, Taken};
use crate::worker::Worker;
use martlet_device::sampling::{SampleRow, Sampled};
use martlet_device::{Device, PAGE};
use std::time::{Duration, Instant};

/// The rows of one running sequence in a step.
struct Part {
    /// Its place among the running.
    at: usize,
    rows: usize,
    /// The last known token is among them, so that tokens are sampled.
    last: bool,
    /// It was past its prompt before the step.
    decoding: bool,
}

impl<D: Device> Worker<D> {
    /// Returns the time that the device took.
    pub fn step(&mut self) -> Duration {
        let now = Instant::now();
        let wants: Vec<Want> = self.running.iter().map(|s| s.want(now)).collect();
        let mixed = wants.iter().any(|w| w.decoding) && wants.iter().any(|w| !w.decoding);
        let chunk = self.options.prefill_chunk;
        let gap = self.options.max_gap.as_secs_f64();
        let chunk = if mixed { chunk_beside_answers(chunk, gap, self.row_seconds) } else { chunk };
        let mut rows = plan(&wants, self.runner.max_rows(), chunk);
        self.take_pages(&mut rows);
        if rows.iter().all(|r| *r == 0) && !self.running.is_empty() {
            // Those that rank first have no room, and hold up the one that would get it: who was begun first goes on.
            rows = vec![0; self.running.len()];
            rows[0] = self.running[0].want(now).rows.min(chunk);
            self.take_pages(&mut rows);
        }
        if rows.iter().all(|r| *r == 0) {
            return Duration::ZERO;
        }
        self.compute(&rows).unwrap_or_else(|e| {
            let error = EngineError::from(&e);
            let ends = self.running.iter().map(|_| Some(Err(error.clone()))).collect();
            self.retire(ends);
            Duration::ZERO
        })
    }

    fn compute(&mut self, rows: &[usize]) -> Result<Duration, StepError> {
        let started = Instant::now();
        let parts = self.run_rows(rows)?;
        self.show_prompts(&parts)?;
        let taken = self.check_drafts(&parts)?;
        let time = started.elapsed();
        self.record(&parts, &taken, time);
        self.make_drafts(&parts, &taken)?;
        self.stats.steps += 1;
        let on_device = started.elapsed();
        let mut running = std::mem::take(&mut self.running);
        for part in &parts {
            let sequence = &mut running[part.at];
            if sequence.keep_points.contains(&sequence.computed()) {
                self.keep(sequence);
            }
        }
        self.running = running;
        let mut ends = vec![None; self.running.len()];
        for (part, taken) in parts.iter().zip(taken) {
            ends[part.at] = taken.end;
        }
        self.retire(ends);
        Ok(on_device)
    }

    fn run_rows(&mut self, rows: &[usize]) -> Result<Vec<Part>, StepError> {
        let mut parts = Vec::new();
        let mut tokens = Vec::new();
        for (at, sequence) in self.running.iter_mut().enumerate().filter(|(i, _)| rows[*i] > 0) {
            let decoding = sequence.is_decoding();
            let (rows, last) = sequence.prepare(rows[at]);
            tokens.push(sequence.next_tokens(rows));
            parts.push(Part { at, rows, last, decoding });
        }
        let mut inputs = Vec::new();
        let mut running = self.running.iter_mut().enumerate();
        for (part, tokens) in parts.iter().zip(&tokens) {
            let Some((_, sequence)) = running.find(|(i, _)| *i == part.at) else { continue };
            let tentative = if part.decoding { part.rows - 1 } else { 0 };
            let outputs = if part.last { 1 + tentative } else { 0 };
            inputs.push(SeqInput { seq: sequence.state_mut(), tokens, tentative, outputs });
        }
        self.runner.step(&mut inputs)?;
        Ok(parts)
    }

    /// Shows the draft head the rows of prompts: before the first token goes out, since the second would wait for it.
    fn show_prompts(&mut self, parts: &[Part]) -> Result<(), StepError> {
        let Some(mtp) = &mut self.mtp else { return Ok(()) };
        let prompts = parts.iter().filter(|p| !p.decoding).map(|p| p.at).collect::<Vec<_>>();
        let running = self.running.iter_mut().enumerate();
        mtp.prompt(&mut self.runner, running.filter(|(i, _)| prompts.contains(i)).map(|(_, s)| s).collect())
    }

    /// Samples where the known tokens of sequences ended, and behind each draft; settles which drafts were right.
    fn check_drafts(&mut self, parts: &[Part]) -> Result<Vec<Taken>, StepError> {
        let mut checks = Vec::new();
        for part in parts {
            let sequence = &mut self.running[part.at];
            checks.push(if part.last { sequence.checked() } else { Vec::new() });
        }
        let mut sampled = self.draw(parts, &mut checks)?.into_iter();
        let mut all = Vec::new();
        for (part, checks) in parts.iter().zip(&checks) {
            let sequence = &mut self.running[part.at];
            if checks.is_empty() {
                sequence.report_prefill();
                all.push(Taken::default());
                continue;
            }
            let before = sequence.latest_token();
            let taken = sequence.take(sampled.by_ref().take(checks.len()).collect());
            if let (Some(before), Some(now)) = (before, sequence.latest_token()) {
                self.stats.longest_gap = self.stats.longest_gap.max(now - before);
            }
            if part.rows > 1 && part.decoding {
                self.runner.commit(sequence.state_mut(), taken.accepted)?;
            }
            self.stats.generated_tokens += taken.tokens.len() as u64;
            if taken.drafted > 0 {
                self.acceptance.add(taken.class, taken.drafted, taken.right, 64.0);
                let stats = match taken.class.kind() {
                    Kind::Mtp => &mut self.stats.mtp,
                    Kind::Suffix => &mut self.stats.suffix,
                };
                stats.add(taken.drafted, taken.right);
            }
            all.push(taken);
        }
        Ok(all)
    }

    /// The tokens at all checked places, in order.
    fn draw(&mut self, parts: &[Part], checks: &mut [Vec<Checked>]) -> Result<Vec<Sampled>, StepError> {
        let mut sampled = self.draw_once(parts, checks)?;
        // Most answers do by themselves what they must; where one does not, it is drawn again under a mask. All are, since
        // a device draws all rows at once: the others come out as before.
        while self.mask_forbidden(parts, checks, &sampled) {
            sampled = self.draw_once(parts, checks)?;
        }
        let rejecting = checked(&self.running, parts, checks).collect::<Vec<_>>();
        if rejecting.iter().any(|(s, checks)| s.rejects() && checks.len() > 1) {
            let logits = self.runner.logits(sampled.len())?;
            let width = logits.len() / sampled.len();
            let mut row = 0;
            for (sequence, checks) in rejecting {
                let places = row..row + checks.len();
                if sequence.rejects() && checks.len() > 1 {
                    let logits = &logits[places.start * width..places.end * width];
                    sampled[places].clone_from_slice(&sequence.reject(checks, logits));
                }
                row += checks.len();
            }
        }
        Ok(sampled)
    }

    fn draw_once(&mut self, parts: &[Part], checks: &[Vec<Checked>]) -> Result<Vec<Sampled>, StepError> {
        let rows: Vec<SampleRow<'_>> = checked(&self.running, parts, checks)
            .flat_map(|(s, checks)| checks.iter().map(|c| s.sample_row(c)))
            .collect();
        if rows.is_empty() { Ok(Vec::new()) } else { self.runner.sample(&rows) }
    }

    /// Puts a mask where a token was drawn that a constraint forbids; whether there was one.
    fn mask_forbidden(&mut self, parts: &[Part], checks: &mut [Vec<Checked>], sampled: &[Sampled]) -> bool {
        let (mut row, mut any) = (0, false);
        for (part, checks) in parts.iter().zip(checks).filter(|(_, checks)| !checks.is_empty()) {
            let drawn = &sampled[row..row + checks.len()];
            if let Some((place, mask)) = self.running[part.at].forbidden(drawn, checks) {
                checks[place].mask = Some(mask);
                any = true;
            }
            row += checks.len();
        }
        any
    }

    /// Learns what the step cost.
    fn record(&mut self, parts: &[Part], taken: &[Taken], time: Duration) {
        let rows: usize = parts.iter().map(|p| p.rows).sum();
        let prompts: usize = parts.iter().filter(|p| !p.decoding).map(|p| p.rows).sum();
        self.stats.prompt_tokens += prompts as u64;
        if prompts == 0 {
            let (context, tokens) = (self.context(parts), taken.iter().map(|t| t.tokens.len()).sum());
            self.costs.add_step(context, rows, time);
            self.costs.settle(context, parts.len(), tokens, rows > parts.len(), time);
        } else if prompts >= 16 {
            let seconds = time.as_secs_f64() / rows as f64;
            let known = self.row_seconds.get_or_insert(seconds);
            *known += (seconds - *known) / 4.0;
        }
    }

    /// The longest context of a step: what its cost is filed under.
    fn context(&self, parts: &[Part]) -> usize {
        parts.iter().map(|p| self.running[p.at].tokens.len()).max().unwrap_or(0)
    }

    /// Has the draft head hold the rows that stay, and drafts made where they pay.
    fn make_drafts(&mut self, parts: &[Part], taken: &[Taken]) -> Result<(), StepError> {
        if self.options.drafter == DrafterChoice::None {
            return Ok(());
        }
        let context = self.context(parts);
        let goes_on = |s: &Sequence, t: &Taken| t.end.is_none() && s.is_decoding();
        let sequences = parts.iter().zip(taken).filter(|(p, t)| goes_on(&self.running[p.at], t)).count();
        let place = Place { context, sequences, answered: 0, behind: 0 };
        let mut depths = Vec::new();
        for (part, taken) in parts.iter().zip(taken) {
            let wanted = goes_on(&self.running[part.at], taken);
            depths.push(if wanted { self.choose_drafts(part.at, place) } else { 0 });
        }
        let Some(mtp) = &mut self.mtp else { return Ok(()) };
        let mut jobs = Vec::new();
        let mut running = self.running.iter_mut().enumerate();
        for (part, &depth) in parts.iter().zip(&depths) {
            let Some((_, sequence)) = running.find(|(i, _)| *i == part.at) else { continue };
            jobs.push(Job { sequence, depth });
        }
        let spent = mtp.draft(&mut self.runner, &mut jobs)?;
        let passes = depths.iter().copied().max().unwrap_or(0);
        if passes > 0 {
            self.costs.add_showing(spent.rows, spent.showing);
            self.costs.add_passes(context, passes, spent.passes);
            self.costs.spend(spent.showing + spent.passes);
        }
        if let Some(replace) = &self.options.replace_draft {
            for sequence in self.running.iter_mut().filter(|s| s.drafts.class.is_mtp()) {
                let at = sequence.tokens.len();
                sequence.drafts.tokens.iter_mut().enumerate().for_each(|(i, t)| *t = replace(at + i, *t));
            }
        }
        Ok(())
    }

    /// Chooses who drafts for the running sequence `at`. Look-ups are done at once; for the draft head it gives the number
    /// of drafts to make.
    fn choose_drafts(&mut self, at: usize, place: Place) -> usize {
        // Drafts are no reason to take room from others: they use the pages that are there.
        let spare = self.runner.pages.free() / self.running.len();
        let sequence = &mut self.running[at];
        let behind = sequence.behind().1.len();
        let place = Place { answered: sequence.counts.generated, behind, ..place };
        let held = sequence.state_mut().pages().len();
        let room = ((held + spare) * PAGE).saturating_sub(sequence.tokens.len());
        let share = (self.runner.max_outputs() - self.options.sequences) / place.sequences;
        let most = sequence.tokens_left().saturating_sub(1).min(room).min(share);
        let mut candidates = Vec::new();
        let mut found = 0;
        if self.options.drafter != DrafterChoice::Mtp
            && let Some((end, class)) = sequence.suffix.find(&sequence.tokens)
        {
            found = end;
            candidates.push(Candidate { class, most: most.min(MAX_SUFFIX).min(sequence.tokens.len() - end) });
        }
        if self.mtp.is_some() {
            candidates.push(Candidate { class: Class::MTP, most: most.min(MAX_MTP) });
        }
        let choice = match self.options.draft_depth {
            Some(depth) => candidates.first().map(|c| (c.class, depth.min(c.most))),
            None => {
                let force = self.options.drafter != DrafterChoice::Auto;
                let choose = |aim| choose(&self.costs, &sequence.acceptance, place, &candidates, aim);
                let choice = choose(if force { Aim::Forced } else { Aim::Gain });
                match self.probe.next(choice, || choose(Aim::Trial)) {
                    None if force => choice,
                    Some(probe) if !force && !self.costs.affords(place, probe) => choice,
                    probe => probe,
                }
            }
        };
        let Some((class, depth)) = choice.map(|(class, depth)| (class, depth.min(most))).filter(|(_, d)| *d > 0) else {
            return 0;
        };
        sequence.drafts.class = class;
        if class.is_mtp() {
            return depth;
        }
        sequence.drafts.tokens = sequence.tokens[found..found + depth].to_vec();
        0
    }
}

/// The sequences for which tokens are drawn, with the places.
fn checked<'a>(
    running: &'a [Sequence],
    parts: &'a [Part],
    checks: &'a [Vec<Checked>],
) -> impl Iterator<Item = (&'a Sequence, &'a [Checked])> {
    let drawn = parts.iter().zip(checks).filter(|(_, checks)| !checks.is_empty());
    drawn.map(|(part, checks)| (&running[part.at], checks.as_slice()))
}
