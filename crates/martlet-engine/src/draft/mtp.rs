//! The checkpoint's own draft head.

use super::{Drafter, Job};
use crate::runner::{DraftInput, Hidden, Runner, SeqState, StepError};
use crate::sequence::Sequence;
use martlet_device::{Device, sampling};

/// With up to this many rows one pass of the head over all of them is cheaper than an append and a pass over the last.
const ONE_PASS: usize = 8;

pub(crate) struct Mtp;

impl<D: Device> Drafter<D> for Mtp {
    /// The head attends to its keys of all earlier tokens, so that every row goes to it; only rows that draft go through
    /// its whole layer.
    fn draft(&mut self, runner: &mut Runner<D>, jobs: &mut [Job<'_>]) -> Result<(), StepError> {
        let mut appended = Vec::new();
        let mut first = Vec::new();
        for job in jobs.iter_mut().filter(|j| !j.next.is_empty()) {
            let whole = job.depth > 0 && job.next.len() <= ONE_PASS;
            let split = if whole { 0 } else { job.next.len() - usize::from(job.depth > 0) };
            let (before, last) = job.next.split_at(split);
            // A state is lent to one input at a time: appended rows first.
            if !before.is_empty() {
                appended.push((&mut *job.sequence, job.start, before));
            }
            if !last.is_empty() {
                first.push((job.start + split, last.to_vec()));
            }
        }
        append(runner, appended)?;
        let drafting: Vec<&mut Job<'_>> = jobs.iter_mut().filter(|j| j.depth > 0 && !j.next.is_empty()).collect();
        chain(runner, drafting, first)
    }
}

fn append<D: Device>(runner: &mut Runner<D>, rows: Vec<(&mut Sequence, usize, &[u32])>) -> Result<(), StepError> {
    let mut inputs: Vec<DraftInput<'_>> = rows
        .into_iter()
        .map(|(sequence, start, tokens)| DraftInput { seq: sequence.state_mut(), start, tokens, outputs: 0 })
        .collect();
    if inputs.is_empty() { Ok(()) } else { runner.draft_append(&mut inputs) }
}

/// One pass for each depth, over the jobs that still want a draft.
fn chain<D: Device>(
    runner: &mut Runner<D>,
    mut jobs: Vec<&mut Job<'_>>,
    mut rows: Vec<(usize, Vec<u32>)>,
) -> Result<(), StepError> {
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
        runner.draft(&mut inputs, if depth == 0 { Hidden::Step } else { Hidden::Drafted })?;
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
