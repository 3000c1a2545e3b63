//! Drafts: guesses of the next tokens, checked by the model several at a time.
//!
//! A draft never changes the text: it is accepted if and only if it is the token that plain sampling gives at its place.
//! What it costs and what it brings is measured as the engine runs ([`policy`]), and what does not pay is left off.

mod mtp;
pub(crate) mod policy;
mod suffix;

pub(crate) use mtp::{Mtp, held_bytes};
pub(crate) use suffix::Suffix;

use crate::runner::{Runner, StepError};
use crate::sequence::Sequence;
use martlet_device::Device;
use martlet_device::sampling::Odds;
use std::fmt;
use std::str::FromStr;
use std::time::Duration;

/// Who drafts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DrafterChoice {
    /// Whatever pays, as measured.
    #[default]
    Auto,
    None,
    /// The checkpoint's multi-token-prediction head.
    Mtp,
    /// What followed the last few tokens where they stood before, in the prompt or in the answer.
    Suffix,
}

impl DrafterChoice {
    pub const ALL: [DrafterChoice; 4] =
        [DrafterChoice::Auto, DrafterChoice::None, DrafterChoice::Mtp, DrafterChoice::Suffix];

    pub fn as_str(self) -> &'static str {
        match self {
            DrafterChoice::Auto => "auto",
            DrafterChoice::None => "none",
            DrafterChoice::Mtp => "mtp",
            DrafterChoice::Suffix => "suffix",
        }
    }
}

impl fmt::Display for DrafterChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FromStr for DrafterChoice {
    type Err = String;

    fn from_str(text: &str) -> Result<DrafterChoice, String> {
        let known = DrafterChoice::ALL.map(DrafterChoice::as_str);
        let found = DrafterChoice::ALL.into_iter().find(|c| c.as_str() == text);
        found.ok_or_else(|| format!("\"{text}\" is no drafter; known are {}", known.join(", ")))
    }
}

/// When a draft of a sampled answer is right.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Accept {
    /// If it is the token that plain sampling gives: the text of a seed does not depend on drafts.
    #[default]
    Same,
    /// By rejection sampling: a few more drafts are accepted, from the same distribution, but the text of a seed depends on
    /// what was drafted. Answers under a constraint accept as [`Accept::Same`].
    Rejection,
}

impl Accept {
    pub const ALL: [Accept; 2] = [Accept::Same, Accept::Rejection];

    pub fn as_str(self) -> &'static str {
        match self {
            Accept::Same => "same",
            Accept::Rejection => "rejection",
        }
    }
}

impl fmt::Display for Accept {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FromStr for Accept {
    type Err = String;

    fn from_str(text: &str) -> Result<Accept, String> {
        let found = Accept::ALL.into_iter().find(|c| c.as_str() == text);
        found.ok_or_else(|| format!("\"{text}\" is no way to accept drafts; known are same, rejection"))
    }
}

/// A source of drafts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Mtp,
    Suffix,
}

/// Tokens that a sequence will have checked in its next step.
#[derive(Clone, Debug, Default)]
pub(crate) struct Drafts {
    pub tokens: Vec<u32>,
    /// What each was drawn from, where that is asked for; none where they were certain.
    pub odds: Vec<Odds>,
    /// Whose they are, for the record; meaningless while there are none.
    pub class: policy::Class,
}

/// A sequence with rows in the step just done.
pub(crate) struct Job<'a> {
    pub sequence: &'a mut Sequence,
    /// Drafts wanted.
    pub depth: usize,
}

/// What drafts took.
#[derive(Default)]
pub(crate) struct Spent {
    /// Rows that were shown to the drafter before it could draft.
    pub rows: usize,
    pub showing: Duration,
    /// Making the drafts.
    pub passes: Duration,
}

/// Makes drafts for sequences. Every sequence whose rows were computed is shown to it, once for each step.
pub(crate) trait Drafter<D: Device> {
    /// Is shown the rows of the latest step of sequences in their prompts, as far as the tokens behind them are known.
    fn prompt(&mut self, runner: &mut Runner<D>, sequences: Vec<&mut Sequence>) -> Result<(), StepError>;

    /// Puts up to `depth` drafts into each job's sequence.
    fn draft(&mut self, runner: &mut Runner<D>, jobs: &mut [Job<'_>]) -> Result<Spent, StepError>;

    /// Sees to it that who goes on from this sequence's state can draft.
    fn fill(&mut self, runner: &mut Runner<D>, sequence: &mut Sequence) -> Result<(), StepError>;
}
