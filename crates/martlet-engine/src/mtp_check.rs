//! Whether a checkpoint's draft head works, and how it wants its input: found by the acceptance of its drafts.

use crate::runner::{DraftInput, Hidden, Runner, SeqInput, StepError};
use martlet_device::Device;
use martlet_model::MtpConvention;

/// How often the head's first draft was the model's own greedy token.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MtpReport {
    pub convention: MtpConvention,
    pub accepted: usize,
    pub drafts: usize,
    /// Mean natural log-probability that the head gave the model's token: tells apart conventions that differ in few
    /// drafts.
    pub logprob: f64,
}

impl MtpReport {
    pub fn acceptance(&self) -> f64 {
        self.accepted as f64 / self.drafts.max(1) as f64
    }
}

/// Lets the model go on greedily from `prompt` for `tokens` tokens, teacher-forces the draft head over them under each
/// convention, and leaves the model with the best one. Best first.
pub fn check_mtp<D: Device>(
    runner: &mut Runner<D>,
    prompt: &[u32],
    tokens: usize,
) -> Result<Vec<MtpReport>, StepError> {
    let text = continue_greedily(runner, prompt, tokens)?;
    let mut reports = Vec::new();
    for embedding_first in [true, false] {
        for hidden_after_norm in [true, false] {
            let convention = MtpConvention { embedding_first, hidden_after_norm };
            set_convention(runner, convention);
            reports.push(teacher_force(runner, &text, prompt.len(), convention)?);
        }
    }
    // A stable sort: where two are equal, the family's own convention stays in front.
    reports.sort_by(|a, b| b.accepted.cmp(&a.accepted).then(b.logprob.total_cmp(&a.logprob)));
    set_convention(runner, reports[0].convention);
    Ok(reports)
}

fn set_convention<D: Device>(runner: &mut Runner<D>, convention: MtpConvention) {
    if let Some(mtp) = &mut runner.model.mtp {
        mtp.convention = convention;
    }
}

/// `prompt` and the `tokens` greedy tokens after it, end tokens not minded.
fn continue_greedily<D: Device>(runner: &mut Runner<D>, prompt: &[u32], tokens: usize) -> Result<Vec<u32>, StepError> {
    let mut text = prompt.to_vec();
    let mut seq = runner.open()?;
    let chunk = runner.max_rows();
    let result = (|| {
        for chunk in prompt.chunks(chunk) {
            runner.step(&mut [SeqInput { seq: &mut seq, tokens: chunk, tentative: 0, outputs: 1 }])?;
        }
        for _ in 0..tokens {
            let next = argmax(&runner.logits(1)?);
            text.push(next);
            runner.step(&mut [SeqInput { seq: &mut seq, tokens: &[next], tentative: 0, outputs: 1 }])?;
        }
        Ok(())
    })();
    runner.close(seq);
    result.map(|()| text)
}

/// Runs trunk and head side by side over `text`; compares the drafts after `from` with the text's own tokens.
fn teacher_force<D: Device>(
    runner: &mut Runner<D>,
    text: &[u32],
    from: usize,
    convention: MtpConvention,
) -> Result<MtpReport, StepError> {
    let mut report = MtpReport { convention, accepted: 0, drafts: 0, logprob: 0.0 };
    let mut seq = runner.open()?;
    let result = (|| {
        // Row t drafts token t + 2 from token t + 1.
        for t in 0..text.len().saturating_sub(2) {
            runner.step(&mut [SeqInput { seq: &mut seq, tokens: &text[t..t + 1], tentative: 0, outputs: 0 }])?;
            let next = DraftInput { seq: &mut seq, start: t, tokens: &text[t + 1..t + 2], outputs: 1 };
            runner.draft(&mut [next], Hidden::Step)?;
            let logits = runner.draft_logits(1)?;
            // A token that is never drafted tells nothing of conventions.
            if t + 2 > from && (text[t + 2] as usize) < logits.len() {
                report.drafts += 1;
                report.accepted += usize::from(argmax(&logits) == text[t + 2]);
                report.logprob += logprob(&logits, text[t + 2]);
            }
        }
        Ok(())
    })();
    runner.close(seq);
    report.logprob /= report.drafts.max(1) as f64;
    result.map(|()| report)
}

fn logprob(logits: &[f32], token: u32) -> f64 {
    let best = logits[argmax(logits) as usize] as f64;
    let sum: f64 = logits.iter().map(|x| (*x as f64 - best).exp()).sum();
    logits[token as usize] as f64 - best - sum.ln()
}

fn argmax(logits: &[f32]) -> u32 {
    (0..logits.len()).fold(0, |best, i| if logits[i] > logits[best] { i } else { best }) as u32
}
