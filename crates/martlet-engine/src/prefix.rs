//! The prefix cache in memory: states of sequences after the tokens that led there, for whoever comes with the same
//! tokens.
//!
//! An entry is found by the hash of all tokens before it. Branches share KV pages because a sequence that went on from
//! an entry shares the entry's pages, and its own entries share them in turn. So the entries are the borders of a radix
//! tree whose edges are never stored: to look a prompt up, its prefixes are hashed at the lengths that entries have.

use crate::disk::{DiskCache, Key};
use crate::runner::Runner;
use crate::states::Kept;
use martlet_device::Device;
use std::collections::{BTreeMap, HashMap};

/// Hashes prefixes: a key is BLAKE3 of what the model and its arithmetic are, and of all tokens so far.
#[derive(Clone)]
pub(crate) struct Keys(blake3::Hasher);

impl Keys {
    /// `model` names everything but the tokens that a state depends on.
    pub fn new(model: &[u8]) -> Keys {
        let mut hasher = blake3::Hasher::new_derive_key("martlet prefix cache 1");
        hasher.update(&(model.len() as u64).to_le_bytes());
        hasher.update(model);
        Keys(hasher)
    }

    pub fn of(&self, tokens: &[u32]) -> Key {
        self.at(tokens, [tokens.len()])[0].1
    }

    /// Keys of the prefixes of `tokens` with the lengths `ends`, which ascend and are no longer than `tokens`.
    pub fn at(&self, tokens: &[u32], ends: impl IntoIterator<Item = usize>) -> Vec<(usize, Key)> {
        let mut hasher = self.0.clone();
        let (mut done, mut bytes) = (0, Vec::new());
        let mut keys = Vec::new();
        for end in ends {
            bytes.clear();
            bytes.extend(tokens[done..end].iter().flat_map(|t| t.to_le_bytes()));
            hasher.update(&bytes);
            keys.push((end, *hasher.finalize().as_bytes()));
            done = end;
        }
        keys
    }
}

struct Entry {
    kept: Kept,
    /// Tokens that would have to be computed again, from the entry before it, if this one were lost.
    gain: usize,
    /// Entries with the least worth go first: see [`PrefixCache::worth`].
    worth: f64,
}

/// Entries by key. It holds pages of a [`Runner`], so that every change goes through one.
pub(crate) struct PrefixCache {
    entries: HashMap<Key, Entry>,
    /// How many entries have each length.
    lengths: BTreeMap<usize, usize>,
    /// Bytes of recurrent states.
    state_bytes: usize,
    /// The worth of what was evicted last: newer entries start from there, so that old ones age.
    clock: f64,
}

impl PrefixCache {
    pub fn new() -> PrefixCache {
        PrefixCache { entries: HashMap::new(), lengths: BTreeMap::new(), state_bytes: 0, clock: 0.0 }
    }

    pub fn len(&self) -> usize {
        self.entries.len()
    }

    pub fn state_bytes(&self) -> usize {
        self.state_bytes
    }

    pub fn contains(&self, key: &Key) -> bool {
        self.entries.contains_key(key)
    }

    pub fn get(&self, key: &Key) -> Option<&Kept> {
        self.entries.get(key).map(|e| &e.kept)
    }

    /// The longest entry that `tokens` begin with and go beyond.
    pub fn find(&self, keys: &Keys, tokens: &[u32]) -> Option<(usize, Key)> {
        let ends = self.lengths.range(..tokens.len()).map(|(len, _)| *len);
        keys.at(tokens, ends).into_iter().rev().find(|(_, key)| self.contains(key))
    }

    /// The entry, which somebody wants now.
    pub fn hit(&mut self, key: &Key, page_bytes: usize) -> Option<&Kept> {
        let entry = self.entries.get_mut(key)?;
        entry.worth = Self::worth(self.clock, &entry.kept, entry.gain, page_bytes);
        Some(&entry.kept)
    }

    /// Takes an entry. `gain`: tokens since the entry before it on the same path.
    pub fn insert<D: Device>(&mut self, key: Key, kept: Kept, gain: usize, runner: &mut Runner<D>) {
        if self.contains(&key) {
            self.hit(&key, runner.page_bytes());
            runner.drop_kept(kept);
            return;
        }
        let worth = Self::worth(self.clock, &kept, gain, runner.page_bytes());
        *self.lengths.entry(kept.len).or_default() += 1;
        self.state_bytes += kept.state.len();
        self.entries.insert(key, Entry { kept, gain, worth });
    }

    /// Greedy-dual: the age, and what the entry saves for each byte that it takes beyond the one before it.
    fn worth(clock: f64, kept: &Kept, gain: usize, page_bytes: usize) -> f64 {
        let pages = gain / martlet_device::PAGE;
        clock + gain as f64 / (kept.state.len() + pages * page_bytes).max(1) as f64
    }

    /// Drops the entry of least worth; false when there is none.
    pub fn evict<D: Device>(&mut self, runner: &mut Runner<D>) -> bool {
        let least = self.entries.iter().min_by(|(ka, a), (kb, b)| a.worth.total_cmp(&b.worth).then(ka.cmp(kb)));
        let Some((key, worth)) = least.map(|(k, e)| (*k, e.worth)) else { return false };
        self.clock = self.clock.max(worth);
        self.remove(&key, runner);
        true
    }

    pub fn remove<D: Device>(&mut self, key: &Key, runner: &mut Runner<D>) {
        let Some(entry) = self.entries.remove(key) else { return };
        let len = entry.kept.len;
        self.state_bytes -= entry.kept.state.len();
        if let Some(count) = self.lengths.get_mut(&len) {
            *count -= 1;
            if *count == 0 {
                self.lengths.remove(&len);
            }
        }
        runner.drop_kept(entry.kept);
    }

    pub fn clear<D: Device>(&mut self, runner: &mut Runner<D>) {
        while self.evict(runner) {}
    }
}

/// The longest segment on disk that `tokens` begin with and go beyond.
pub(crate) fn find_on_disk(disk: &DiskCache, keys: &Keys, tokens: &[u32]) -> Option<(usize, Key)> {
    let ends = disk.lengths().into_iter().map(|end| end as usize).take_while(|end| *end < tokens.len());
    keys.at(tokens, ends).into_iter().rev().find(|(_, key)| disk.contains(key))
}

/// Where a prompt's states are kept while it is computed, ascending and below its length.
///
/// `borders` are the starts of its messages. Whoever comes back has the same messages up to some border: all but the
/// answer's opening (the same question again, or the next turn of a client that drops the reasoning), all but the last
/// question (an edited one), or only the first message (another conversation under the same instructions). Inside long
/// stretches a state every `ladder` tokens bounds what a change in their middle costs.
pub(crate) fn keep_points(borders: &[usize], prompt: usize, from: usize, ladder: usize) -> Vec<usize> {
    /// Fewer tokens than this are not worth a state of their own.
    const LEAST: usize = 16;
    let inside: Vec<usize> = borders.iter().copied().filter(|b| *b > 0 && *b < prompt).collect();
    let ends = [inside.first(), inside.len().checked_sub(2).and_then(|i| inside.get(i)), inside.last()];
    let rungs = (1..).map(|i| i * ladder).take_while(|r| r + ladder / 2 < prompt);
    let mut points: Vec<usize> = ends.into_iter().flatten().copied().collect();
    points.sort_unstable();
    points.dedup();
    // A rung close before a border would be of no use.
    let rungs: Vec<usize> = rungs.filter(|r| points.iter().all(|p| p.abs_diff(*r) >= ladder / 2)).collect();
    points.extend(rungs);
    points.sort_unstable();
    let last = points.last().copied();
    let mut kept = Vec::new();
    let mut before = from;
    for p in points {
        if p >= before + LEAST || (Some(p) == last && p > before) {
            kept.push(p);
            before = p;
        }
    }
    kept
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prefix_has_the_key_that_it_has_alone() {
        let keys = Keys::new(b"model");
        let tokens: Vec<u32> = (0..100).collect();
        let at = keys.at(&tokens, [1, 7, 64, 100]);
        for (end, key) in &at {
            assert_eq!(*key, keys.of(&tokens[..*end]));
        }
        assert_ne!(keys.of(&tokens), Keys::new(b"other").of(&tokens));
        let all: std::collections::HashSet<Key> = at.iter().map(|(_, k)| *k).collect();
        assert_eq!(all.len(), 4);
    }

    #[test]
    fn states_are_kept_where_conversations_come_back_to() {
        // System up to 40, a question up to 60, an answer up to 90, a question up to 120, then the answer's opening.
        let borders = [0, 40, 60, 90, 120];
        assert_eq!(keep_points(&borders, 125, 0, 1000), [40, 90, 120]);
        assert_eq!(keep_points(&borders, 125, 90, 1000), [120]);
        assert_eq!(keep_points(&borders, 125, 110, 1000), [120], "the last border is worth it at any distance");
        assert_eq!(keep_points(&[0, 20, 25], 28, 0, 1000), [20, 25]);
        assert_eq!(keep_points(&[], 100, 0, 1000), [0; 0]);
    }

    #[test]
    fn long_stretches_have_a_ladder() {
        assert_eq!(keep_points(&[0, 3900], 4000, 0, 1000), [1000, 2000, 3000, 3900], "no rung beside a border");
        assert_eq!(keep_points(&[], 2600, 0, 1000), [1000, 2000]);
        assert_eq!(keep_points(&[], 2600, 1500, 1000), [2000]);
    }
}
