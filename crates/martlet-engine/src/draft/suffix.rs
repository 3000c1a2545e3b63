//! Suffix look-up: what followed the last few tokens where they stood before. Good where an answer repeats its prompt, as
//! edits of code do.

use super::policy::Class;
use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

/// Lengths of runs that count as equally good, the longest first. Runs of the last length are indexed.
const RUNS: [usize; 3] = [16, 8, 4];
const SHORTEST: usize = RUNS[RUNS.len() - 1];
/// Occurrences that are looked at, the latest first.
const LOOKED_AT: usize = 16;

/// Where runs of tokens ended, in one sequence.
#[derive(Default)]
pub(crate) struct Suffix {
    /// Hash of a run -> index behind its last occurrence.
    last: HashMap<u64, u32, BuildHasherDefault<AsItIs>>,
    /// For the run that ends at index i + SHORTEST: index behind the occurrence before it; 0: there is none.
    before: Vec<u32>,
}

impl Suffix {
    /// Where the text goes on from an earlier occurrence of its last tokens, and how long the run is that occurred.
    /// Earlier tokens must not have changed since the last call.
    pub fn find(&mut self, tokens: &[u32]) -> Option<(usize, Class)> {
        for end in self.before.len() + SHORTEST..tokens.len() {
            let before = self.last.insert(hash(&tokens[end - SHORTEST..end]), end as u32);
            self.before.push(before.unwrap_or(0));
        }
        let last = tokens.len().checked_sub(SHORTEST)?;
        let mut end = *self.last.get(&hash(&tokens[last..]))? as usize;
        let mut best = None;
        for _ in 0..LOOKED_AT {
            // Different runs may share a hash.
            let common =
                (0..RUNS[0].min(end)).take_while(|i| tokens[end - 1 - i] == tokens[tokens.len() - 1 - i]).count();
            let class = RUNS.iter().position(|run| common >= *run);
            if class.is_some_and(|class| best.is_none_or(|(_, known)| class < known)) {
                best = class.map(|class| (end, class));
            }
            end = self.before[end - SHORTEST] as usize;
            if end == 0 || best.is_some_and(|(_, class)| class == 0) {
                break;
            }
        }
        best.map(|(end, class)| (end, Class::suffix(class)))
    }
}

/// Keys are hashes already.
#[derive(Default)]
struct AsItIs(u64);

impl Hasher for AsItIs {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|b| self.0 = self.0 << 8 | u64::from(*b));
    }

    fn write_u64(&mut self, hash: u64) {
        self.0 = hash;
    }
}

fn hash(run: &[u32]) -> u64 {
    run.iter()
        .fold(0xcbf2_9ce4_8422_2325, |h, t| (h ^ u64::from(*t)).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_latest_occurrence_of_the_longest_run_goes_on() {
        let mut text: Vec<u32> = (0..20).collect();
        let mut suffix = Suffix::default();
        assert_eq!(suffix.find(&text), None);
        text.extend(4..12);
        assert_eq!(suffix.find(&text), Some((12, Class::suffix(1))), "eight tokens stood before 12");
        text.extend([90, 8, 9, 10, 11, 91, 8, 9, 10, 11]);
        assert_eq!(suffix.find(&text), Some((33, Class::suffix(2))), "the latest place of four");
        text.push(92);
        assert_eq!(suffix.find(&text), None);
        assert_eq!(suffix.find(&[1, 2]), None, "shorter than any run");
    }

    #[test]
    fn looking_up_step_by_step_finds_the_same() {
        let text: Vec<u32> = (0..400u32).map(|i| (i * i) % 7).collect();
        let mut stepwise = Suffix::default();
        for end in 1..text.len() {
            assert_eq!(stepwise.find(&text[..end]), Suffix::default().find(&text[..end]), "at {end}");
        }
    }
}
