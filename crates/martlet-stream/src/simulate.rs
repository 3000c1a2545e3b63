//! How often experts would have been there under a policy: a trace played again, without reading anything.

use crate::scores::Scores;
use crate::trace::Trace;
use martlet_device::Routes;
use std::cmp::Ordering;
use std::collections::{BTreeSet, HashMap};

/// What is put out when there is no room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Policy {
    /// What was used longest ago.
    Lru,
    /// What was chosen least often.
    Lfu,
    /// What was chosen least often, old choices counting less: what [`crate::Streamed`] does.
    Decayed,
    /// The same, each layer with an equal share of the slots.
    DecayedShares,
    /// What will not be used for the longest time: the best that there can be, and only a trace knows it.
    Belady,
}

impl Policy {
    pub const ALL: [Policy; 5] = [Policy::Lru, Policy::Lfu, Policy::Decayed, Policy::DecayedShares, Policy::Belady];

    pub fn name(self) -> &'static str {
        match self {
            Policy::Lru => "LRU",
            Policy::Lfu => "LFU",
            Policy::Decayed => "decayed LFU",
            Policy::DecayedShares => "decayed LFU, equal shares",
            Policy::Belady => "Belady",
        }
    }
}

type Name = (u32, u16);

/// What is held in one pool of slots, the least worth first.
#[derive(Default)]
struct Pool {
    held: HashMap<Name, Worth>,
    order: BTreeSet<(Worth, Name)>,
}

/// A number that is compared as a whole.
#[derive(Clone, Copy, PartialEq)]
struct Worth(f64);

impl Eq for Worth {}

impl PartialOrd for Worth {
    fn partial_cmp(&self, other: &Worth) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Worth {
    fn cmp(&self, other: &Worth) -> Ordering {
        self.0.total_cmp(&other.0)
    }
}

impl Pool {
    fn insert(&mut self, name: Name, worth: Worth) {
        if let Some(old) = self.held.insert(name, worth) {
            self.order.remove(&(old, name));
        }
        self.order.insert((worth, name));
    }

    /// Makes room among `slots` slots for what is worth `worth`, or not where all is worth more; `needed` stays.
    fn has_room(&mut self, slots: usize, worth: Option<Worth>, needed: &[Name]) -> bool {
        if self.held.len() < slots {
            return true;
        }
        let least = self.order.iter().find(|(_, name)| !needed.contains(name)).copied();
        let Some((out, name)) = least.filter(|(least, _)| worth.is_none_or(|w| w > *least)) else { return false };
        self.held.remove(&name);
        self.order.remove(&(out, name))
    }
}

/// Of what answers needed, the share that `slots` slots for all layers would have held. Experts of `skip` tokens at the
/// beginning fill the slots and are not counted; prompts neither fill nor count.
pub fn hit_rate(trace: &Trace, policy: Policy, slots: usize, skip: usize) -> f64 {
    let layers = trace.tokens().map(|c| c.layer as usize + 1).max().unwrap_or(0);
    let experts = 1 + trace.tokens().flat_map(|c| &c.experts).copied().max().unwrap_or(0) as usize;
    let first = trace.tokens().map(|c| c.layer).next();
    let next_uses = next_uses(trace);
    let mut scores = Scores::new(&vec![experts; layers], layers);
    let mut counts: HashMap<Name, u64> = HashMap::new();
    let shares = policy == Policy::DecayedShares;
    let (mut pools, room) = match shares {
        true => ((0..layers).map(|_| Pool::default()).collect(), slots / layers.max(1)),
        false => (vec![Pool::default()], slots),
    };
    let (mut token, mut hits, mut needed) = (0, 0usize, 0usize);
    for (now, choice) in trace.tokens().enumerate() {
        token += usize::from(Some(choice.layer) == first);
        let row: Vec<u32> = choice.experts.iter().map(|e| u32::from(*e)).collect();
        scores.note(choice.layer as usize, &Routes { chosen: row.len(), weights: vec![0.0; row.len()], experts: row });
        let names: Vec<Name> = choice.experts.iter().map(|e| (choice.layer, *e)).collect();
        let pool: &mut Pool = &mut pools[if shares { choice.layer as usize } else { 0 }];
        if token > skip {
            hits += names.iter().filter(|name| pool.held.contains_key(*name)).count();
            needed += names.len();
        }
        for (name, next) in names.iter().zip(&next_uses[now]) {
            let count = counts.entry(*name).or_default();
            *count += 1;
            let worth = Worth(match policy {
                Policy::Lru => now as f64,
                Policy::Lfu => *count as f64,
                Policy::Decayed | Policy::DecayedShares => scores.sum(name.0, u32::from(name.1)),
                Policy::Belady => -(*next as f64),
            });
            // With LRU what comes always stays; else what is worth less than all that is held passes through.
            let rival = (policy != Policy::Lru).then_some(worth);
            if pool.held.contains_key(name) || pool.has_room(room, rival, &names) {
                pool.insert(*name, worth);
            }
        }
    }
    hits as f64 / needed.max(1) as f64
}

/// For each choice and expert of answers: at which choice it is used again; `usize::MAX`: never.
fn next_uses(trace: &Trace) -> Vec<Vec<usize>> {
    let choices: Vec<_> = trace.tokens().collect();
    let mut next: HashMap<Name, usize> = HashMap::new();
    let mut all: Vec<Vec<usize>> = Vec::new();
    for (now, choice) in choices.iter().enumerate().rev() {
        let uses = choice.experts.iter().map(|e| next.insert((choice.layer, *e), now).unwrap_or(usize::MAX));
        all.push(uses.collect());
    }
    all.reverse();
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One layer, one expert a token.
    fn trace(experts: &[u32]) -> Trace {
        let mut trace = Trace::default();
        for &e in experts {
            trace.add(0, &Routes { chosen: 1, experts: vec![e], weights: vec![0.0] });
        }
        trace
    }

    #[test]
    fn policies_put_out_what_they_say() {
        let rate = |experts: &[u32], policy, slots| hit_rate(&trace(experts), policy, slots, 0);
        // 0 is chosen often, then three others in turn: with two slots LRU forgets 0, LFU does not.
        let mixed = [0, 0, 0, 1, 2, 0, 1, 2, 0, 1, 2, 0];
        assert_eq!(rate(&mixed, Policy::Lru, 2), 2.0 / 12.0);
        assert_eq!(rate(&mixed, Policy::Lfu, 2), 7.0 / 12.0);
        // What was chosen just now counts a little more: 1 and 2 put each other out.
        assert_eq!(rate(&mixed, Policy::Decayed, 2), 5.0 / 12.0);
        // Belady keeps 0 and 1, and lets 2 pass through.
        assert_eq!(rate(&mixed, Policy::Belady, 2), 7.0 / 12.0);
        for policy in Policy::ALL {
            assert_eq!(rate(&mixed, policy, 3), 9.0 / 12.0, "{}: all fit", policy.name());
            assert_eq!(rate(&[], policy, 3), 0.0);
        }
        assert_eq!(hit_rate(&trace(&mixed), Policy::Lru, 3, 6), 1.0, "after six tokens all are there");
    }

    #[test]
    fn shares_keep_layers_apart() {
        let mut trace = Trace::default();
        for token in 0..8u32 {
            // Layer 0 goes through eight experts, two at a time; layer 1 has one.
            let pair = [token % 4 * 2, token % 4 * 2 + 1];
            trace.add(0, &Routes { chosen: 2, experts: pair.to_vec(), weights: vec![0.0; 2] });
            trace.add(1, &Routes { chosen: 1, experts: vec![0], weights: vec![0.0] });
        }
        assert_eq!(hit_rate(&trace, Policy::DecayedShares, 2, 1), 1.0 / 3.0, "layer 1 always");
        assert_eq!(hit_rate(&trace, Policy::Lru, 2, 1), 0.0);
    }
}
