//! Who runs next: a pure function of the sequences' states.

/// What scheduling needs to know of a sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Want {
    /// Rows that it could use: its last token and drafts while it decodes, else tokens of its prompt.
    pub rows: usize,
    /// The prompt is done.
    pub decoding: bool,
    /// Lower goes first among prompts.
    pub rank: u8,
}

/// Rows for each sequence of `wants` (in order of arrival) in the next step: all that decode get theirs, then prompts by
/// rank and arrival share what is left of `budget`, together at most `chunk` rows. Whenever any wants rows and neither
/// `budget` nor `chunk` is 0, some sequence gets rows, so that every sequence ends.
pub(crate) fn plan(wants: &[Want], budget: usize, chunk: usize) -> Vec<usize> {
    let mut rows = vec![0; wants.len()];
    let mut left = budget;
    for (rows, want) in rows.iter_mut().zip(wants).filter(|(_, w)| w.decoding) {
        *rows = want.rows.min(left);
        left -= *rows;
    }
    let mut prompts: Vec<usize> = (0..wants.len()).filter(|i| !wants[*i].decoding).collect();
    prompts.sort_by_key(|i| wants[*i].rank); // stable: arrival decides among equals
    left = left.min(chunk);
    for i in prompts {
        rows[i] = wants[i].rows.min(left);
        left -= rows[i];
    }
    rows
}

/// Most rows of prompts in a step beside running answers, so that their next tokens do not wait much longer than `gap`
/// seconds; `row` is what a row of a prompt takes, in seconds. Never so few that a prompt hardly moves.
pub(crate) fn chunk_beside_answers(chunk: usize, gap: f64, row: Option<f64>) -> usize {
    const LEAST: usize = 16;
    let fits = row.filter(|r| *r > 0.0).map_or(LEAST, |r| (gap / r) as usize);
    fits.clamp(LEAST.min(chunk), chunk)
}

#[cfg(test)]
mod tests {
    use super::*;

    const DECODING: Want = Want { rows: 1, decoding: true, rank: 0 };

    fn prompt(rows: usize) -> Want {
        Want { rows, decoding: false, rank: 0 }
    }

    #[test]
    fn decoding_goes_first_and_prompts_fill_the_rest() {
        assert_eq!(plan(&[prompt(100), DECODING, prompt(100), DECODING], 64, 50), [50, 1, 0, 1]);
        assert_eq!(plan(&[prompt(30), DECODING, prompt(100)], 64, 50), [30, 1, 20]);
        assert_eq!(plan(&[prompt(3)], 64, 50), [3]);
        assert_eq!(plan(&[DECODING; 3], 2, 8), [1, 1, 0]);
        assert_eq!(plan(&[Want { rows: 4, ..DECODING }, DECODING], 4, 8), [4, 0]);
        assert_eq!(plan(&[], 8, 8), [0; 0]);
    }

    #[test]
    fn rank_goes_before_arrival_among_prompts() {
        let background = Want { rank: 1, ..prompt(40) };
        assert_eq!(plan(&[background, prompt(40), background], 64, 50), [10, 40, 0]);
    }

    #[test]
    fn a_prompt_beside_answers_is_cut_by_time() {
        assert_eq!(chunk_beside_answers(256, 0.2, Some(0.002)), 100);
        assert_eq!(chunk_beside_answers(256, 0.2, Some(0.1)), 16);
        assert_eq!(chunk_beside_answers(256, 0.2, Some(1e-6)), 256);
        assert_eq!(chunk_beside_answers(256, 0.2, None), 16);
        assert_eq!(chunk_beside_answers(8, 0.2, None), 8);
    }
}
