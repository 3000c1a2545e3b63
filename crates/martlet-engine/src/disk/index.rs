//! What is stored, in memory: a forest of headers. It does no I/O and knows no clock.

use super::Key;
use super::format::Header;
use std::cmp::{Ordering, Reverse};
use std::collections::{BTreeMap, BinaryHeap, HashMap, HashSet};

/// One stored segment.
#[derive(Clone, Debug)]
pub struct Entry {
    pub header: Header,
    /// Seconds since 1970. Never earlier than that of a child: what is used uses its ancestors.
    pub last_use: u64,
    children: usize,
}

/// **Every entry's parent is in the index**, ends where the entry starts, and has pages of the same size: an entry can
/// be restored as far as the index knows.
#[derive(Debug, Default)]
pub struct Index {
    entries: HashMap<Key, Entry>,
    /// How many entries end after so many tokens.
    lengths: BTreeMap<u64, usize>,
    bytes: u64,
}

impl Index {
    pub fn get(&self, key: &Key) -> Option<&Entry> {
        self.entries.get(key)
    }

    pub fn len(&self) -> usize {
        self.entries.len()
    }

    pub fn entries(&self) -> impl Iterator<Item = &Entry> {
        self.entries.values()
    }

    /// Length of all files.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The distinct ends, ascending.
    pub fn lengths(&self) -> Vec<u64> {
        self.lengths.keys().copied().collect()
    }

    /// The last use of what was not used for longest.
    pub fn oldest_use(&self) -> Option<u64> {
        self.entries.values().map(|e| e.last_use).min()
    }

    /// All headers, parents before their children.
    pub fn headers(&self) -> Vec<Header> {
        let mut headers: Vec<Header> = self.entries.values().map(|e| e.header.clone()).collect();
        headers.sort_by_key(|h| (h.end, h.key));
        headers
    }

    /// Whether a segment continues what is here.
    pub fn accepts(&self, header: &Header) -> bool {
        let Some(parent) = &header.parent else {
            return true;
        };
        let parent = self.entries.get(parent).map(|e| &e.header);
        parent.is_some_and(|p| p.end == header.start && p.page_bytes == header.page_bytes)
    }

    /// Adds a segment, or refuses it where it does not continue what is here. An entry of the same key stays.
    pub fn insert(&mut self, header: Header, last_use: u64) -> bool {
        if !self.accepts(&header) {
            return false;
        }
        if self.entries.contains_key(&header.key) {
            return true;
        }
        let (key, parent) = (header.key, header.parent);
        *self.lengths.entry(header.end).or_default() += 1;
        self.bytes += header.file_bytes();
        self.entries.insert(key, Entry { header, last_use: 0, children: 0 });
        if let Some(parent) = parent.and_then(|p| self.entries.get_mut(&p)) {
            parent.children += 1;
        }
        self.touch(&key, last_use);
        true
    }

    /// Says that an entry was used; time never goes back.
    pub fn touch(&mut self, key: &Key, now: u64) {
        let mut next = Some(*key);
        // Ancestors of what was used later were used later too.
        while let Some(entry) = next.and_then(|k| self.entries.get_mut(&k)).filter(|e| e.last_use < now) {
            entry.last_use = now;
            next = entry.header.parent;
        }
    }

    /// No use lies after `now`: what a clock that was ahead has written would else never grow old.
    pub fn clamp(&mut self, now: u64) {
        self.entries.values_mut().for_each(|e| e.last_use = e.last_use.min(now));
    }

    /// The segments from the root to a key; `None` if it is not stored.
    pub fn chain(&self, key: &Key) -> Option<Vec<Header>> {
        let mut chain = Vec::new();
        let mut next = Some(*key);
        while let Some(key) = next {
            let header = self.entries.get(&key)?.header.clone();
            next = header.parent;
            chain.push(header);
        }
        chain.reverse();
        Some(chain)
    }

    /// Takes out entries and all that depends on them; descendants come first.
    pub fn remove(&mut self, keys: &[Key]) -> Vec<Header> {
        let mut keys: HashSet<Key> = keys.iter().filter(|k| self.entries.contains_key(*k)).copied().collect();
        let mut gone = Vec::new();
        if !keys.is_empty() {
            // Parents come before children here.
            for header in self.headers() {
                if keys.contains(&header.key) || header.parent.is_some_and(|p| keys.contains(&p)) {
                    keys.insert(header.key);
                    gone.push(header);
                }
            }
        }
        gone.reverse();
        gone.iter().for_each(|header| self.take(header));
        gone
    }

    fn take(&mut self, header: &Header) {
        self.entries.remove(&header.key);
        self.bytes -= header.file_bytes();
        if let Some(count) = self.lengths.get_mut(&header.end) {
            *count -= 1;
            if *count == 0 {
                self.lengths.remove(&header.end);
            }
        }
        if let Some(parent) = header.parent.and_then(|p| self.entries.get_mut(&p)) {
            parent.children -= 1;
        }
    }

    /// Takes out what was last used before `oldest`.
    pub fn expire(&mut self, oldest: u64) -> Vec<Header> {
        let old = self.entries.values().filter(|e| e.last_use < oldest);
        let mut gone: Vec<Header> = old.map(|e| e.header.clone()).collect();
        // A parent is used whenever its child is: the children of what is old are here too, and go first.
        gone.sort_by_key(|h| (Reverse(h.end), h.key));
        gone.iter().for_each(|header| self.take(header));
        gone
    }

    /// Takes out leaves until at most `bytes` are left: first those that save the fewest tokens for each byte, the
    /// less the longer they were not used. `keep` and its ancestors stay. `None`, and nothing is taken out, if that
    /// does not suffice.
    pub fn evict(&mut self, bytes: u64, keep: Option<&Key>, now: u64) -> Option<Vec<Header>> {
        let kept: HashSet<Key> = keep.and_then(|k| self.chain(k)).into_iter().flatten().map(|h| h.key).collect();
        let candidate = |e: &Entry| Candidate { worth: worth(e, now), key: e.header.key };
        let mut children: HashMap<Key, usize> = HashMap::new();
        let mut leaves: BinaryHeap<Candidate> =
            self.entries.values().filter(|e| e.children == 0 && !kept.contains(&e.header.key)).map(candidate).collect();
        let (mut left, mut gone) = (self.bytes, Vec::new());
        while left > bytes {
            let header = self.entries[&leaves.pop()?.key].header.clone();
            left -= header.file_bytes();
            if let Some(parent) = header.parent.and_then(|p| self.entries.get(&p)) {
                let count = children.entry(parent.header.key).or_insert(parent.children);
                *count -= 1;
                if *count == 0 && !kept.contains(&parent.header.key) {
                    leaves.push(candidate(parent));
                }
            }
            gone.push(header);
        }
        gone.iter().for_each(|header| self.take(header));
        Some(gone)
    }

    pub fn clear(&mut self) {
        *self = Index::default();
    }
}

/// Tokens saved for each byte, halved after an hour without use, a third after two, ...
fn worth(entry: &Entry, now: u64) -> f64 {
    let hours = now.saturating_sub(entry.last_use) as f64 / 3600.0;
    entry.header.new_tokens() as f64 / entry.header.file_bytes() as f64 / (1.0 + hours)
}

/// The least worthy is the greatest; equals are told apart by key.
struct Candidate {
    worth: f64,
    key: Key,
}

impl Ord for Candidate {
    fn cmp(&self, other: &Candidate) -> Ordering {
        other.worth.total_cmp(&self.worth).then_with(|| other.key.cmp(&self.key))
    }
}

impl PartialOrd for Candidate {
    fn partial_cmp(&self, other: &Candidate) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Candidate {
    fn eq(&self, other: &Candidate) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Candidate {}

#[cfg(test)]
mod tests {
    use super::*;

    fn header(key: u8, parent: Option<u8>, start: u64, end: u64, state_bytes: u64) -> Header {
        let parent = parent.map(|p| [p; 32]);
        Header {
            key: [key; 32],
            parent,
            start,
            end,
            page_bytes: 10,
            state_bytes,
            pages_hash: [0; 32],
            state_hash: [0; 32],
        }
    }

    /// 1 - 2 - 3 and 1 - 4, used at 100, 200, 300, 150.
    fn index() -> Index {
        let mut index = Index::default();
        assert!(index.insert(header(1, None, 0, 64, 0), 100));
        assert!(index.insert(header(2, Some(1), 64, 128, 0), 200));
        assert!(index.insert(header(3, Some(2), 128, 129, 0), 300));
        assert!(index.insert(header(4, Some(1), 64, 129, 0), 150));
        index
    }

    fn keys(headers: &[Header]) -> Vec<u8> {
        headers.iter().map(|h| h.key[0]).collect()
    }

    #[test]
    fn only_what_continues_something_goes_in() {
        let mut index = index();
        assert!(!index.insert(header(9, Some(8), 64, 128, 0), 0), "no such parent");
        assert!(!index.insert(header(9, Some(1), 63, 128, 0), 0), "the parent ends at 64");
        assert!(!index.insert(Header { page_bytes: 11, ..header(9, Some(1), 64, 128, 0) }, 0), "other pages");
        assert_eq!((index.len(), index.lengths()), (4, vec![64, 128, 129]));
        assert_eq!(keys(&index.chain(&[3; 32]).unwrap()), [1, 2, 3]);
        assert!(index.chain(&[9; 32]).is_none());
    }

    #[test]
    fn removal_takes_what_depends_on_it() {
        let mut index = index();
        assert_eq!(keys(&index.remove(&[[2; 32]])), [3, 2]);
        assert_eq!(index.lengths(), [64, 129]);
        assert!(index.remove(&[[2; 32]]).is_empty());
        assert_eq!(keys(&index.remove(&[[1; 32]])), [4, 1]);
        assert_eq!((index.len(), index.bytes(), index.lengths()), (0, 0, vec![]));
    }

    #[test]
    fn a_use_counts_for_the_ancestors() {
        let mut index = index();
        let used = |index: &Index| [1, 2, 3, 4].map(|k| index.get(&[k; 32]).unwrap().last_use);
        assert_eq!(used(&index), [300, 300, 300, 150]);
        index.touch(&[4; 32], 400);
        assert_eq!(used(&index), [400, 300, 300, 400]);
        index.touch(&[3; 32], 50);
        index.clamp(350);
        assert_eq!(used(&index), [350, 300, 300, 350]);
        assert_eq!(keys(&index.expire(320)), [3, 2]);
        assert_eq!(keys(&index.expire(351)), [4, 1]);
    }

    #[test]
    fn the_least_worthy_leaf_goes_first() {
        let mut index = index();
        let total = index.bytes();
        // 3 saves one token, its parent then is a leaf; 4 saves 65 for 236 bytes, 2 saves 64 for 226.
        assert!(index.evict(total, None, 300).unwrap().is_empty());
        assert_eq!(keys(&index.evict(total - 1, None, 300).unwrap()), [3]);
        assert_eq!(keys(&index.evict(total - 227, None, 300).unwrap()), [4]);
        assert!(index.evict(100, Some(&[2; 32]), 300).is_none(), "the chain of 2 is to be kept");
        assert_eq!(index.len(), 2);
        assert_eq!(keys(&index.evict(0, None, 300).unwrap()), [2, 1]);
    }

    #[test]
    fn what_was_not_used_for_long_is_worth_less() {
        let mut index = Index::default();
        index.insert(header(1, None, 0, 64, 1000), 7200);
        index.insert(header(2, None, 0, 64, 100), 0);
        // 326 bytes against 1226: four times the worth; after more than three hours it is less.
        assert_eq!(keys(&index.evict(1500, None, 7200).unwrap()), [1]);
        index.insert(header(1, None, 0, 64, 1000), 36000);
        assert_eq!(keys(&index.evict(1500, None, 36000).unwrap()), [2]);
    }
}
