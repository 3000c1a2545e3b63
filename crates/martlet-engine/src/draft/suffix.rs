//! Suffix look-up: what followed the last few tokens where they stood before. Good where an answer repeats its prompt, as
//! edits of code do.

use super::policy::Class;
use std::collections::HashMap;

/// Lengths of the runs that are looked up, the longest first.
const RUNS: [usize; 3] = [16, 8, 4];

/// Where runs of tokens ended last, in one sequence.
#[derive(Default)]
pub(crate) struct Suffix {
    /// For each length of [`RUNS`]: hash of the run -> index behind its last occurrence.
    ends: [HashMap<u64, u32>; RUNS.len()],
    /// Runs that end at or before this index are known.
    done: usize,
}

impl Suffix {
    /// Where the text goes on from an earlier occurrence of its last tokens, and how long the run is that occurred.
    /// Earlier tokens must not have changed since the last call.
    pub fn find(&mut self, tokens: &[u32]) -> Option<(usize, Class)> {
        for end in self.done + 1..tokens.len() {
            for (ends, run) in self.ends.iter_mut().zip(RUNS) {
                if end >= run {
                    ends.insert(hash(&tokens[end - run..end]), end as u32);
                }
            }
        }
        self.done = self.done.max(tokens.len().saturating_sub(1));
        RUNS.iter().enumerate().find_map(|(i, &run)| {
            let last = &tokens[tokens.len().checked_sub(run)?..];
            let end = *self.ends[i].get(&hash(last))? as usize;
            // Different runs may share a hash.
            (tokens[end - run..end] == *last).then_some((end, Class::suffix(i)))
        })
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
