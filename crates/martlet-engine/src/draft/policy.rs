//! How many drafts pay: from what steps and drafts were measured to cost, and how many were accepted.
//!
//! With a(i) the chance that draft i is accepted, a step of a sequence with k drafts gives 1 + sum over i <= k of a(1) ...
//! a(i) tokens, and takes the time of a step of so many rows and of making the drafts. The number of drafts with the most
//! tokens a second is chosen, often none. Nothing here can change a text.
//!
//! What looks best may be wrong, above all for short answers. So drafts are paid from a purse: a share of the time that
//! answers take goes into it, and what drafts gain, up to a few steps' worth; what they lose is taken out, and who could
//! lose more than there is does not draft. Over any stretch of time they lose no more than the share and those few steps.

use super::Kind;
use std::time::Duration;

/// Most drafts of a step: what a prompt repeats may be long, the head's chain fades.
pub(crate) const MAX_SUFFIX: usize = 12;
pub(crate) const MAX_MTP: usize = 5;

/// Drafts of one origin, which are accepted alike: the head's, and look-ups by the length of the run that occurred before.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Class(usize);

impl Class {
    pub const MTP: Class = Class(0);
    const COUNT: usize = 4;

    /// Look-ups by a run of the length with number `i`.
    pub fn suffix(i: usize) -> Class {
        Class(1 + i)
    }

    pub fn is_mtp(self) -> bool {
        self == Class::MTP
    }

    pub fn kind(self) -> Kind {
        if self.is_mtp() { Kind::Mtp } else { Kind::Suffix }
    }
}

/// A mean that forgets: the newest value weighs `1 / least` at least.
#[derive(Clone, Copy, Debug)]
struct Mean {
    value: f64,
    count: f64,
}

impl Mean {
    const NONE: Mean = Mean { value: 0.0, count: 0.0 };

    fn add(&mut self, x: f64, most: f64) {
        self.count = (self.count + 1.0).min(most);
        self.value += (x - self.value) / self.count;
    }

    fn known(&self) -> Option<f64> {
        (self.count > 0.0).then_some(self.value)
    }
}

/// Chances that a draft is accepted once those before it were.
#[derive(Clone, Debug)]
pub(crate) struct Acceptance([[Mean; MAX_SUFFIX]; Class::COUNT]);

impl Default for Acceptance {
    /// Hopeful, so that everything is tried; a few refusals undo it.
    fn default() -> Self {
        let prior = |p| [Mean { value: p, count: 4.0 }; MAX_SUFFIX];
        Acceptance([prior(0.75), prior(0.9), prior(0.8), prior(0.6)])
    }
}

impl Acceptance {
    /// `accepted` of `drafted` drafts were right.
    pub fn add(&mut self, class: Class, drafted: usize, accepted: usize, memory: f64) {
        let rates = &mut self.0[class.0];
        for rate in &mut rates[..accepted] {
            rate.add(1.0, memory);
        }
        if accepted < drafted {
            rates[accepted].add(0.0, memory);
        }
    }

    /// What another record knows, with less certainty: where a new sequence begins.
    pub fn inherit(&self) -> Acceptance {
        let mut own = self.clone();
        own.0.iter_mut().flatten().for_each(|m| m.count = m.count.min(8.0));
        own
    }

    /// Tokens that a step with 0, 1, .. `most` drafts gives.
    fn tokens(&self, class: Class, most: usize) -> Vec<f64> {
        let (mut all, mut chance, mut sum) = (vec![1.0], 1.0, 1.0);
        for rate in &self.0[class.0][..most] {
            chance *= rate.value;
            sum += chance;
            all.push(sum);
        }
        all
    }
}

/// Rows of a step beyond which no time is kept apart: larger steps are estimated from there.
const ROWS: usize = 64;
/// Upper ends of the ranges of context length whose costs are measured apart.
const RANGES: [usize; 4] = [2048, 8192, 32768, usize::MAX];

/// What steps and drafts take, in seconds.
pub(crate) struct Costs {
    /// By range of context and rows.
    steps: Vec<[Mean; ROWS]>,
    /// One pass of the draft head.
    passes: [Mean; RANGES.len()],
    /// Showing the draft head a row.
    showing: Mean,
    /// Seconds that drafts may lose; `None` before any step was measured.
    purse: Option<f64>,
}

/// What a row adds to a step where no step with so many rows was measured, as a share of the step: in the hope that it
/// pays, so that it is tried; and for fear of what the try may lose.
const HOPE: f64 = 0.04;
const FEAR: f64 = 0.5;

impl Costs {
    fn range(context: usize) -> usize {
        RANGES.iter().position(|end| context <= *end).unwrap_or(RANGES.len() - 1)
    }

    pub fn add_step(&mut self, context: usize, rows: usize, time: Duration) {
        if let Some(mean) = rows.checked_sub(1).and_then(|r| self.steps[Self::range(context)].get_mut(r)) {
            add_time(mean, time);
        }
    }

    pub fn add_passes(&mut self, context: usize, passes: usize, time: Duration) {
        if passes > 0 {
            add_time(&mut self.passes[Self::range(context)], time / passes as u32);
        }
    }

    pub fn add_showing(&mut self, rows: usize, time: Duration) {
        if rows > 0 {
            add_time(&mut self.showing, time / rows as u32);
        }
    }

    /// Seconds of a step of `rows` rows. Between measured sizes on a straight line; beyond them each row adds the share
    /// `beyond`.
    fn step(&self, context: usize, rows: usize, beyond: f64) -> Option<f64> {
        let known = |r: &usize| self.steps[Self::range(context)][*r - 1].known().map(|t| (*r as f64, t));
        let below = (1..=rows.min(ROWS)).rev().find_map(|r| known(&r));
        let above = (rows..=ROWS).find_map(|r| known(&r));
        let rows = rows as f64;
        match (below, above) {
            (Some((r, t)), _) if r == rows => Some(t),
            (Some((r0, t0)), Some((r1, t1))) => Some(t0 + (t1 - t0) * (rows - r0) / (r1 - r0)),
            (Some((r, t)), None) => Some(t * (1.0 + beyond * (rows - r) / (1.0 + beyond * (r - 1.0)))),
            (None, Some((_, t))) => Some(t),
            (None, None) => None,
        }
    }

    /// Seconds of a pass of the head; before any is measured: a share of a step.
    fn pass(&self, context: usize) -> f64 {
        let step = self.step(context, 1, HOPE).unwrap_or(0.0);
        self.passes[Self::range(context)].known().unwrap_or(0.1 * step)
    }

    /// Seconds of showing the head `rows` rows.
    fn show(&self, context: usize, rows: usize) -> f64 {
        rows as f64 * self.showing.known().unwrap_or_else(|| 0.05 * self.pass(context))
    }

    /// Seconds that are lost if drafts are made and none is right.
    fn risk(&self, place: Place, class: Class, depth: usize) -> f64 {
        let step = |rows| self.step(place.context, rows, FEAR).unwrap_or(0.0);
        let extra = step(place.sequences * (1 + depth)) - step(place.sequences);
        extra + if class.is_mtp() { self.drafts(place, depth) + self.show(place.context, place.behind) } else { 0.0 }
    }

    /// Seconds of making `depth` drafts by the head.
    fn drafts(&self, place: Place, depth: usize) -> f64 {
        depth as f64 * self.pass(place.context)
    }

    /// Whether drafts may be tried that lose so much at the worst.
    pub fn affords(&self, place: Place, (class, depth): (Class, usize)) -> bool {
        self.purse.is_some_and(|held| self.risk(place, class, depth) <= held)
    }

    /// Takes what making drafts took out of the purse.
    pub fn spend(&mut self, time: Duration) {
        if let Some(held) = &mut self.purse {
            *held -= time.as_secs_f64();
        }
    }

    /// Settles a step in which each of `sequences` decoded: `tokens` came of it in all, with drafts among its rows or not.
    pub fn settle(&mut self, context: usize, sequences: usize, tokens: usize, drafted: bool, time: Duration) {
        /// Of the time that answers take.
        const SHARE: f64 = 1.0 / 64.0;
        /// Steps that are in the purse at the most; at first there is one.
        const MOST: f64 = 3.0;
        let Some(plain) = self.step(context, sequences, HOPE) else { return };
        let held = self.purse.get_or_insert(plain);
        let time = time.as_secs_f64().min(3.0 * plain);
        let gain = if drafted { tokens as f64 / sequences as f64 * plain - time } else { 0.0 };
        *held = (*held + gain + SHARE * time).min(MOST * plain);
    }
}

impl Default for Costs {
    fn default() -> Self {
        Costs {
            steps: vec![[Mean::NONE; ROWS]; RANGES.len()],
            passes: [Mean::NONE; RANGES.len()],
            showing: Mean::NONE,
            purse: None,
        }
    }
}

/// Takes a time; one that was disturbed (the machine is shared) counts as three usual ones at most.
fn add_time(mean: &mut Mean, time: Duration) {
    let seconds = time.as_secs_f64();
    let bounded = mean.known().map_or(seconds, |usual| seconds.min(3.0 * usual));
    mean.add(bounded, 24.0);
}

/// Now and then another number of drafts than the best one, so that what is known of its neighbours stays true. One for
/// all sequences: most answers are short.
#[derive(Default)]
pub(crate) struct Probe {
    plain: usize,
    drafted: usize,
}

impl Probe {
    /// The choice as it is, or a try beside it; `other` is what could be tried where no drafts were chosen.
    pub fn next(
        &mut self,
        choice: Option<(Class, usize)>,
        other: impl FnOnce() -> Option<(Class, usize)>,
    ) -> Option<(Class, usize)> {
        const PLAIN: usize = 64;
        const DRAFTED: usize = 128;
        let Some((class, depth)) = choice else {
            self.plain += 1;
            return if self.plain.is_multiple_of(PLAIN) { other() } else { None };
        };
        self.drafted += 1;
        // What a plain step takes is what drafts are compared with.
        if self.drafted % DRAFTED == DRAFTED / 2 {
            return None;
        }
        let deeper = usize::from(self.drafted.is_multiple_of(DRAFTED) && depth < MAX_MTP);
        Some((class, depth + if class.is_mtp() { deeper } else { 0 }))
    }
}

/// What a sequence could draft with, and how often that was right so far.
pub(crate) struct Candidate {
    pub class: Class,
    /// Most drafts that make sense.
    pub most: usize,
}

/// Where a choice is made.
#[derive(Clone, Copy)]
pub(crate) struct Place {
    /// Tokens of the sequence, and how many of them are its answer.
    pub context: usize,
    pub answered: usize,
    /// Sequences that decode together, this one included; each is taken to choose alike.
    pub sequences: usize,
    /// Rows that the draft head would have to be shown first.
    pub behind: usize,
}

/// Which drafts may be chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Aim {
    /// Those that gain something, as far as is known, and that the purse can pay.
    Gain,
    /// Those that the purse can pay: to learn.
    Trial,
    /// Any.
    Forced,
}

/// The drafter and the number of drafts with the most tokens a second; `None`: no drafts.
pub(crate) fn choose(
    costs: &Costs,
    acceptance: &Acceptance,
    place: Place,
    candidates: &[Candidate],
    aim: Aim,
) -> Option<(Class, usize)> {
    /// Times are not measured so well that less would be a gain.
    const WORTH: f64 = 1.02;
    let n = place.sequences as f64;
    let plain = match costs.step(place.context, place.sequences, HOPE) {
        Some(seconds) => n / seconds,
        // Nothing is measured yet: begin plainly, so that there is something to compare with.
        None => f64::INFINITY,
    };
    let forced = aim == Aim::Forced;
    let mut best = (if aim == Aim::Gain { WORTH * plain } else { 0.0 }, None);
    for c in candidates {
        // Nobody knows how long an answer will be: as much again as there is.
        let first = if c.class.is_mtp() { costs.show(place.context, place.behind) } else { 0.0 };
        let first = if forced { 0.0 } else { first / place.answered.max(1) as f64 };
        for (depth, tokens) in acceptance.tokens(c.class, c.most).into_iter().enumerate().skip(1) {
            let rows = place.sequences * (1 + depth);
            let step = costs.step(place.context, rows, HOPE).unwrap_or(1.0);
            let drafts = if c.class.is_mtp() { costs.drafts(place, depth) } else { 0.0 };
            let rate = n * tokens / (step + drafts + first);
            if rate > best.0 && (forced || costs.affords(place, (c.class, depth))) {
                best = (rate, Some((c.class, depth)));
            }
        }
    }
    best.1
}

#[cfg(test)]
mod tests {
    use super::*;

    fn costs(step: impl Fn(usize) -> u64, pass: u64) -> Costs {
        let mut costs = Costs::default();
        for rows in 1..=40 {
            costs.add_step(100, rows, Duration::from_micros(step(rows)));
        }
        costs.add_passes(100, 1, Duration::from_micros(pass));
        costs.purse = Some(1.0);
        costs
    }

    fn place(sequences: usize) -> Place {
        Place { context: 100, answered: 10, sequences, behind: 1 }
    }

    fn acceptance(rate: f64) -> Acceptance {
        let mut a = Acceptance::default();
        a.0.iter_mut().flatten().for_each(|m| m.value = rate);
        a
    }

    fn pick(costs: &Costs, rate: f64, sequences: usize) -> usize {
        let place = place(sequences);
        let mtp = [Candidate { class: Class::MTP, most: MAX_MTP }];
        choose(costs, &acceptance(rate), place, &mtp, Aim::Gain).map_or(0, |(_, depth)| depth)
    }

    #[test]
    fn deep_where_rows_are_cheap_and_drafts_are_right() {
        let cheap = costs(|r| 1000 + 30 * r as u64, 50);
        assert_eq!(pick(&cheap, 0.95, 1), 5);
        assert!((1..5).contains(&pick(&cheap, 0.6, 1)));
        assert_eq!(pick(&cheap, 0.05, 1), 0, "two rows and a pass cost more than a twentieth of a token brings");
    }

    #[test]
    fn none_where_rows_are_dear() {
        let dear = costs(|r| 1000 * r as u64, 50);
        assert_eq!(pick(&dear, 0.95, 1), 0);
        // Many sequences fill the machine by themselves.
        let full = costs(|r| if r <= 8 { 1000 } else { 125 * r as u64 }, 50);
        assert!(pick(&full, 0.8, 1) > 0);
        assert_eq!(pick(&full, 0.8, 8), 0);
    }

    #[test]
    fn begins_plainly_and_then_tries() {
        let mut costs = Costs::default();
        assert_eq!(pick(&costs, 0.75, 1), 0);
        costs.add_step(100, 1, Duration::from_millis(1));
        costs.settle(100, 1, 1, false, Duration::from_millis(1));
        assert!(pick(&costs, 0.75, 1) > 0, "rows are hoped to be cheap until they are measured");
        let place = place(1);
        let suffix = [Candidate { class: Class::suffix(0), most: 3 }];
        let dear = self::costs(|r| 1000 * r as u64, 50);
        assert_eq!(choose(&dear, &acceptance(0.1), place, &suffix, Aim::Gain), None);
        assert_eq!(choose(&dear, &acceptance(0.1), place, &suffix, Aim::Forced), Some((Class::suffix(0), 1)));
    }

    #[test]
    fn acceptance_is_conditional_and_forgets() {
        let mut a = Acceptance::default();
        for _ in 0..200 {
            a.add(Class::MTP, 3, 1, 32.0);
        }
        let tokens = a.tokens(Class::MTP, 3);
        assert!(tokens[1] > 1.95 && tokens[2] < tokens[1] + 0.05, "{tokens:?}");
        let mut new = a.inherit();
        for _ in 0..20 {
            new.add(Class::MTP, 3, 3, 32.0);
        }
        assert!(new.tokens(Class::MTP, 3)[3] > 2.4, "a new sequence is not bound by the old ones");
    }

    #[test]
    fn a_disturbed_time_hardly_counts() {
        let mut costs = Costs::default();
        (0..32).for_each(|_| costs.add_step(1, 1, Duration::from_millis(1)));
        costs.add_step(1, 1, Duration::from_secs(5));
        assert!(costs.step(1, 1, HOPE).unwrap() < 1.1e-3);
        assert_eq!(costs.step(40_000, 1, HOPE), None, "other ranges of context have costs of their own");
    }

    /// Whatever is believed of them, drafts that are never right lose a share of the time and a few steps.
    #[test]
    fn drafts_lose_little_even_if_all_are_wrong() {
        let (step, pass) = (|rows: u64| Duration::from_micros(700 + 300 * rows), Duration::from_micros(50));
        let mut costs = Costs::default();
        let mtp = [Candidate { class: Class::MTP, most: MAX_MTP }];
        let (mut lost, mut tried) = (Duration::ZERO, 0);
        for answered in 1..=2000 {
            // As if each were the first of its kind: hopes are never disappointed.
            let hope = Acceptance::default();
            let place = Place { answered, ..place(1) };
            let depth = choose(&costs, &hope, place, &mtp, Aim::Gain).map_or(0, |(_, depth)| depth);
            let (time, drafts) = (step(1 + depth as u64), pass * depth as u32);
            costs.add_passes(100, depth, drafts);
            costs.spend(drafts);
            costs.add_step(100, 1 + depth, time);
            costs.settle(100, 1, 1, depth > 0, time);
            lost += time + drafts - step(1);
            tried += usize::from(depth > 0);
        }
        assert!(tried > 10, "{tried}");
        let most = step(1) * (2000 / 64 + 4);
        assert!(lost < most, "{lost:?} of {most:?}");
    }

    #[test]
    fn what_the_head_has_to_be_shown_first_must_pay() {
        let mut costs = costs(|r| 1000 + 30 * r as u64, 50);
        costs.add_showing(100, Duration::from_millis(3));
        let depth = |answered, behind| {
            let mtp = [Candidate { class: Class::MTP, most: MAX_MTP }];
            choose(&costs, &acceptance(0.8), Place { answered, behind, ..place(1) }, &mtp, Aim::Gain)
        };
        assert!(depth(1, 10).is_some(), "0.3 ms for more than half of 1 ms at each token");
        assert_eq!(depth(2, 200), None, "6 ms, and nobody knows whether the answer goes on for so long");
        assert!(depth(50, 200).is_some());
    }
}
