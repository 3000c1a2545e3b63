//! Who runs next: a pure function of the sequences' states.

/// What scheduling needs to know of a sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Waiting {
    /// Tokens that are known and not yet computed: 1 for a sequence that decodes, the rest of the prompt before.
    pub pending: usize,
    /// The prompt is done.
    pub decoding: bool,
}

/// Rows for each sequence of `seqs` (in order of arrival) in the next step: one for each that decodes, then the rest of
/// the budget to prompts, the oldest first, at most `chunk` rows of each. At least one sequence gets rows when any waits
/// and `budget` is not 0, so every sequence ends.
pub(crate) fn plan(seqs: &[Waiting], budget: usize, chunk: usize) -> Vec<usize> {
    let mut left = budget;
    let mut rows = vec![0; seqs.len()];
    let mut grant = |i: usize, wanted: usize| {
        rows[i] = wanted.min(left);
        left -= rows[i];
    };
    let by_kind = |decoding| seqs.iter().enumerate().filter(move |(_, s)| s.decoding == decoding);
    by_kind(true).for_each(|(i, s)| grant(i, s.pending));
    by_kind(false).for_each(|(i, s)| grant(i, s.pending.min(chunk)));
    rows
}

#[cfg(test)]
mod tests {
    use super::*;

    const DECODING: Waiting = Waiting { pending: 1, decoding: true };

    fn prompt(pending: usize) -> Waiting {
        Waiting { pending, decoding: false }
    }

    #[test]
    fn decoding_goes_first_and_prompts_fill_the_rest() {
        assert_eq!(plan(&[prompt(100), DECODING, prompt(100), DECODING], 64, 50), [50, 1, 12, 1]);
        assert_eq!(plan(&[prompt(3)], 64, 50), [3]);
        assert_eq!(plan(&[DECODING; 3], 2, 8), [1, 1, 0]);
        assert_eq!(plan(&[], 8, 8), [0; 0]);
    }
}
