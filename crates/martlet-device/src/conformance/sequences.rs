//! Operations on sequences: the same whatever way their rows are cut, mixed, drafted and moved.

use super::{Random, Suite, Tolerance};
use crate::{Batch, Device, DeviceError, PAGE, Rope, SeqRows};

/// Most tentative rows in the plans.
pub(super) const DRAFTS: usize = 5;

/// How the state of a sequence gets to another place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Via {
    Copy,
    Bytes,
}

/// Rows of one sequence in a step. After it the first `accepted` of the tentative rows turn out right; the others were
/// wrong, and got other inputs than the sequence's.
#[derive(Clone, Copy, Debug)]
pub(super) struct Part {
    pub seq: usize,
    pub rows: usize,
    pub certain: usize,
    pub accepted: usize,
}

impl Part {
    fn certain(seq: usize, rows: usize) -> Part {
        Part { seq, rows, certain: rows, accepted: 0 }
    }
}

/// One batch, and whether the states of its sequences are moved before their drafts are settled.
#[derive(Clone, Debug)]
pub(super) struct Step {
    pub parts: Vec<Part>,
    pub via: Option<Via>,
}

/// Where the sequences are while a plan runs.
pub(super) struct Place {
    lengths: Vec<usize>,
    done: Vec<usize>,
    /// Two sets of pages and two slots for each sequence, to move between.
    pages: Vec<[Vec<u32>; 2]>,
    side: Vec<usize>,
}

/// A row of a batch: whose inputs it takes, and whether its result counts.
pub(super) struct RowOf {
    pub seq: usize,
    pub index: usize,
    pub counts: bool,
}

impl Place {
    pub(super) fn new(lengths: &[usize]) -> Place {
        let needed: Vec<usize> = lengths.iter().map(|l| (l + DRAFTS).div_ceil(PAGE)).collect();
        let mut numbers: Vec<u32> = (0..2 * needed.iter().sum::<usize>() as u32).collect();
        Random::new(5).shuffle(&mut numbers);
        let mut take = |n: usize| numbers.split_off(numbers.len() - n);
        let pages = needed.iter().map(|&n| [take(n), take(n)]).collect();
        Place { lengths: lengths.to_vec(), done: vec![0; lengths.len()], pages, side: vec![0; lengths.len()] }
    }

    pub(super) fn page_count(&self) -> usize {
        self.pages.iter().map(|p| p[0].len() + p[1].len()).sum()
    }

    pub(super) fn slot_count(&self) -> usize {
        2 * self.lengths.len()
    }

    pub(super) fn pages(&self, seq: usize) -> &[u32] {
        &self.pages[seq][self.side[seq]]
    }

    pub(super) fn slot(&self, seq: usize) -> u32 {
        (2 * seq + self.side[seq]) as u32
    }

    pub(super) fn batch(&self, step: &Step) -> (Batch, Vec<RowOf>) {
        let seq_rows = |p: &Part| SeqRows {
            rows: p.rows,
            start: self.done[p.seq],
            certain: p.certain,
            pages: self.pages(p.seq).to_vec(),
            state: self.slot(p.seq),
        };
        let rows: Vec<RowOf> = step.parts.iter().flat_map(|p| (0..p.rows).map(move |i| self.row(p, i))).collect();
        let seqs = step.parts.iter().map(seq_rows).collect();
        (Batch { tokens: vec![0; rows.len()], seqs, rope: Rope::default(), outputs: vec![] }, rows)
    }

    fn row(&self, p: &Part, i: usize) -> RowOf {
        let (index, length) = (self.done[p.seq] + i, self.lengths[p.seq]);
        let counts = i < p.certain + p.accepted;
        RowOf { seq: p.seq, index: if counts { index } else { (index * 31 + 7) % length }, counts }
    }

    /// Moves a sequence: its old and new pages, its old and new slot.
    pub(super) fn moved(&mut self, seq: usize) -> ([Vec<u32>; 2], [u32; 2]) {
        let (pages, slot) = (self.pages(seq).to_vec(), self.slot(seq));
        self.side[seq] ^= 1;
        ([pages, self.pages(seq).to_vec()], [slot, self.slot(seq)])
    }

    pub(super) fn advance(&mut self, step: &Step) {
        for p in &step.parts {
            self.done[p.seq] += p.certain + p.accepted;
        }
    }
}

/// Values of all sequences, by name.
pub(super) type Arrays = Vec<(&'static str, Vec<f32>)>;

/// One case of an operation that reads and changes sequence state.
pub(super) trait SeqOp {
    /// Tokens of each sequence.
    fn lengths(&self) -> &[usize];

    /// Runs a plan on fresh state: the outputs of all rows that count, and the states in the end.
    fn run<D: Device>(&self, d: &mut D, plan: &[Step]) -> Result<Arrays, DeviceError>;

    fn allowed(&self, name: &str, want: &[f32], t: Tolerance) -> Vec<f32>;
}

impl<D: Device, R: Device> Suite<'_, D, R> {
    /// All at once against the other device, then in other ways against itself.
    pub(super) fn sequences(&mut self, case: &str, op: &impl SeqOp, plans: Vec<(String, Vec<Step>)>) {
        let whole = whole(op.lengths());
        let Ok(want) = op.run(&mut (self.other)(), &whole) else {
            self.report.skip(case, "the device compared with can not");
            return;
        };
        let mut d = (self.make)();
        let result = op.run(&mut d, &whole);
        let Some(got) = self.done(case, result) else { return };
        for ((name, got), (_, want)) in got.iter().zip(&want) {
            self.near(&format!("{case}, {name}"), got, want, &op.allowed(name, want, self.tolerance()));
        }
        for (plan_name, plan) in plans {
            let result = op.run(&mut d, &plan);
            let Some(other) = self.done(&format!("{case}, {plan_name}"), result) else { return };
            for ((name, got), (_, want)) in other.iter().zip(&got) {
                self.same(&format!("{case}, {plan_name}, {name}"), got, want);
            }
        }
    }
}

fn whole(lengths: &[usize]) -> Vec<Step> {
    let parts = lengths.iter().enumerate().map(|(seq, &rows)| Part::certain(seq, rows)).collect();
    vec![Step { parts, via: None }]
}

/// Every way that is tried on long sequences.
pub(super) fn plans(lengths: &[usize], random: &mut Random) -> Vec<(String, Vec<Step>)> {
    let mut plans: Vec<_> = [1, 7, 64, 100].map(|n| (format!("chunks of {n}"), chunks(lengths, n))).into();
    plans.push(("each alone".to_string(), chunks(lengths, usize::MAX)));
    for (drafts, via) in [(false, None), (true, None), (true, Some(Via::Copy)), (true, Some(Via::Bytes))] {
        plans.push((format!("mixed, drafts {drafts}, moved {via:?}"), mixed(lengths, drafts, via, random)));
    }
    plans
}

/// Each sequence alone, in chunks of `n` rows.
fn chunks(lengths: &[usize], n: usize) -> Vec<Step> {
    let of_seq = |(seq, &length): (usize, &usize)| {
        let n = n.min(length);
        (0..length).step_by(n).map(move |at| Step { parts: vec![Part::certain(seq, n.min(length - at))], via: None })
    };
    lengths.iter().enumerate().flat_map(of_seq).collect()
}

/// Random rows of random sequences in random order, until all are done.
fn mixed(lengths: &[usize], drafts: bool, via: Option<Via>, random: &mut Random) -> Vec<Step> {
    let mut left = lengths.to_vec();
    let mut steps = Vec::new();
    while left.iter().any(|&l| l > 0) {
        let mut seqs: Vec<usize> = (0..left.len()).filter(|&s| left[s] > 0).collect();
        random.shuffle(&mut seqs);
        seqs.truncate(1 + random.below(seqs.len()));
        let mut parts = Vec::new();
        for seq in seqs {
            let most = random.pick(&[1, 3, 40, 150]);
            let certain = random.below(left[seq].min(most) + 1);
            let tentative = if drafts { random.below(DRAFTS + 1) } else { 0 };
            let accepted = random.below(tentative.min(left[seq] - certain) + 1);
            left[seq] -= certain + accepted;
            if certain + tentative > 0 {
                parts.push(Part { seq, rows: certain + tentative, certain, accepted });
            }
        }
        if !parts.is_empty() {
            steps.push(Step { parts, via: via.filter(|_| random.below(3) > 0) });
        }
    }
    steps
}

/// For each of `starts`: so many rows, then one certain and some tentative rows of which n are accepted, then the rest.
pub(super) fn accepted_at(length: usize, starts: &[usize]) -> Vec<(String, Vec<Step>)> {
    let step = |part| Step { parts: vec![part], via: None };
    let mut plans = Vec::new();
    for &start in starts.iter().filter(|&&s| s + 1 + DRAFTS < length) {
        for accepted in 0..=DRAFTS {
            let draft = Part { seq: 0, rows: 1 + DRAFTS, certain: 1, accepted };
            let rest = Part::certain(0, length - start - 1 - accepted);
            let plan = vec![step(Part::certain(0, start)), step(draft), step(rest)];
            plans.push((format!("{accepted} of {DRAFTS} accepted at {}", start + 1), plan));
        }
    }
    plans
}

/// The largest magnitude.
pub(super) fn largest(values: &[f32]) -> f32 {
    values.iter().fold(0.0, |m, v| m.max(v.abs()))
}
