//! The checkpoint's own draft head.
//!
//! It attends to its keys of all earlier tokens, so that every row goes to it: those of a prompt before its first token is
//! drawn, which they delay by a small share of the prompt's own time. But an answer of a few tokens does not earn back what
//! its rows take. So these are held until a draft is wanted, the state is kept, or there are too many of them.

use super::{Drafter, Job, Spent};
use crate::runner::{DraftInput, Hidden, Runner, SeqState, StepError};
use crate::sequence::Sequence;
use martlet_device::{Device, sampling};
use std::time::Instant;

/// With up to this many rows one pass of the head over all of them is cheaper than an append and a pass over the last.
const ONE_PASS: usize = 8;
/// Most rows of a sequence that are held after a step.
const HELD: usize = 256;

/// Most bytes of held rows of one sequence; `rows`: most of a step.
pub(crate) fn held_bytes(hidden: usize, rows: usize) -> u64 {
    4 * (hidden as u64).saturating_mul(HELD.saturating_add(rows) as u64)
}

pub(crate) struct Mtp;

impl<D: Device> Drafter<D> for Mtp {
    fn prompt(&mut self, runner: &mut Runner<D>, mut sequences: Vec<&mut Sequence>) -> Result<(), StepError> {
        let rows: Vec<_> = sequences.iter().map(|s| s.behind()).collect();
        let inputs = sequences.iter_mut().zip(&rows).filter(|(_, (_, tokens))| !tokens.is_empty());
        let mut inputs: Vec<_> = inputs
            .map(|(s, (start, tokens))| DraftInput { seq: s.state_mut(), start: *start, tokens, outputs: 0 })
            .collect();
        if inputs.is_empty() { Ok(()) } else { runner.draft_append_step(&mut inputs) }
    }

    fn draft(&mut self, runner: &mut Runner<D>, jobs: &mut [Job<'_>]) -> Result<Spent, StepError> {
        let mut states: Vec<_> = jobs.iter_mut().map(|j| j.sequence.state_mut()).collect();
        runner.hold(&mut states)?;
        let mut spent = Spent::default();
        let started = Instant::now();
        for Job { sequence, depth } in jobs.iter_mut() {
            let rows = sequence.behind().1.len();
            let held = match *depth {
                0 if rows <= HELD => continue,
                0 => 0,
                _ if rows <= ONE_PASS => continue,
                _ => 1,
            };
            append(runner, sequence, rows - held)?;
            spent.rows += if *depth > 0 { rows - held } else { 0 };
        }
        spent.showing = started.elapsed();
        let started = Instant::now();
        chain(runner, jobs.iter_mut().filter(|j| j.depth > 0).collect())?;
        spent.passes = started.elapsed();
        Ok(spent)
    }

    fn fill(&mut self, runner: &mut Runner<D>, sequence: &mut Sequence) -> Result<(), StepError> {
        let rows = sequence.behind().1.len();
        append(runner, sequence, rows)
    }
}

/// Shows the head the first `rows` rows that are held of a sequence.
fn append<D: Device>(runner: &mut Runner<D>, sequence: &mut Sequence, rows: usize) -> Result<(), StepError> {
    let (mut start, tokens) = sequence.behind();
    for tokens in tokens[..rows].chunks(runner.max_rows()) {
        runner.draft_append(&mut [DraftInput { seq: sequence.state_mut(), start, tokens, outputs: 0 }])?;
        start += tokens.len();
    }
    Ok(())
}

/// One pass for each depth, over the jobs that still want a draft.
fn chain<D: Device>(runner: &mut Runner<D>, mut jobs: Vec<&mut Job<'_>>) -> Result<(), StepError> {
    let mut rows: Vec<(usize, Vec<u32>)> = jobs.iter().map(|j| j.sequence.behind()).collect();
    let mut depth = 0;
    while !jobs.is_empty() {
        let mut inputs: Vec<DraftInput<'_>> = jobs
            .iter_mut()
            .zip(&rows)
            .map(|(job, (start, tokens))| DraftInput {
                seq: job.sequence.state_mut() as &mut SeqState,
                start: *start,
                tokens,
                outputs: 1,
            })
            .collect();
        runner.draft(&mut inputs, if depth == 0 { Hidden::Held } else { Hidden::Drafted })?;
        let sampled = runner.sample_drafts(&jobs.iter().map(|j| j.sequence.draft_row()).collect::<Vec<_>>())?;
        if jobs.iter().any(|j| j.sequence.rejects()) {
            keep_odds(runner, &mut jobs)?;
        }
        depth += 1;
        let mut next = Vec::new();
        let mut left = Vec::new();
        for ((job, (start, tokens)), drafted) in jobs.into_iter().zip(rows).zip(sampled) {
            job.sequence.add_draft(drafted.token);
            // A deeper pass reads the outputs of this one, so that all jobs of a pass go on together.
            if job.depth > depth {
                next.push((start + tokens.len(), vec![drafted.token]));
                left.push(job);
            }
        }
        (jobs, rows) = (left, next);
    }
    Ok(())
}

/// Notes what the drafts of this pass were drawn from, for sequences that accept by it.
fn keep_odds<D: Device>(runner: &mut Runner<D>, jobs: &mut [&mut Job<'_>]) -> Result<(), StepError> {
    let logits = runner.draft_logits(jobs.len())?;
    let width = logits.len() / jobs.len();
    for (job, logits) in jobs.iter_mut().zip(logits.chunks(width)).filter(|(j, _)| j.sequence.rejects()) {
        let odds = sampling::odds(logits, &job.sequence.draft_row());
        job.sequence.drafts.odds.push(odds);
    }
    Ok(())
}
