//! Rejection sampling of drafts: accepts more of them than comparing with plain sampling does, and draws from exactly
//! the same distribution, but what is drawn depends on the drafts (Leviathan, Kalman, Matias: Fast inference from
//! transformers via speculative decoding, 2023).
//!
//! A draft d that was drawn from q is accepted with probability min(1, p(d) / q(d)); otherwise the token is drawn from
//! what p has more of than q, max(0, p - q), normalised. p and q are what penalties, temperature and filters leave. The
//! chance to accept and the draw after a refusal come from streams of their own, so that they do not depend on the noise
//! that drew the draft.

use super::noise::Noise;
use super::{SampleRow, Sampled, adjust, best, filter, finish, sample, weigh};
use martlet_tensor::math;

/// Tokens that may be drawn, with their probabilities, in ascending order of ids.
pub type Odds = Vec<(u32, f64)>;

/// Which stream of noise: part of the key, beside the seed.
const ACCEPT: u64 = 0xacce_97ed_0000_0001;
const REFUSED: u64 = 0x4ef0_5ed0_0000_0001;

/// The distribution that [`super::sample`] draws from; empty where no token is possible. Temperature must not be 0.
pub fn odds(logits: &[f32], row: &SampleRow<'_>) -> Odds {
    let adjusted = adjust(logits, row);
    let Some(best) = best(&adjusted) else { return Odds::new() };
    let mut odds = Odds::new();
    filter(&adjusted, best, row.params, weigh, |c| {
        odds.push((c.token, f64::from(math::exp((c.logit - best.logit) / row.params.temperature))));
    });
    odds.sort_unstable_by_key(|(token, _)| *token);
    let sum: f64 = odds.iter().map(|(_, p)| p).sum();
    odds.iter_mut().for_each(|(_, p)| *p /= sum);
    odds
}

/// The token for a place where `draft` was proposed: the draft itself if it is accepted. `q` is what the draft was drawn
/// from; `None`: it was certain.
pub fn accept(logits: &[f32], row: &SampleRow<'_>, draft: u32, q: Option<&Odds>) -> Sampled {
    let p = odds(logits, row);
    let (params, position) = (row.params, row.position);
    let chance = |odds: &Odds| find(odds, draft);
    let (in_p, in_q) = (chance(&p), q.map_or(1.0, chance));
    let uniform = Noise::new(params.seed ^ ACCEPT, params.choice, position).uniform(0);
    if in_p > 0.0 && uniform * in_q < in_p {
        return finish(logits, row, draft, weigh);
    }
    let noise = Noise::new(params.seed ^ REFUSED, params.choice, position);
    let mut drawn: Option<(u32, f64)> = None;
    for &(token, p) in &p {
        let more = p - q.map_or(f64::from(u8::from(token == draft)), |q| find(q, token));
        if more > 0.0 {
            let score = math::ln64(more) + noise.gumbel(token);
            if drawn.is_none_or(|(_, s)| score > s) {
                drawn = Some((token, score));
            }
        }
    }
    // Where rounding leaves nothing, p and q are the same, and the draft is as good as any.
    match drawn.map(|(token, _)| token).or((in_p > 0.0).then_some(draft)) {
        Some(token) => finish(logits, row, token, weigh),
        None => sample(logits, row), // it says that no token is possible
    }
}

fn find(odds: &Odds, token: u32) -> f64 {
    odds.binary_search_by_key(&token, |(t, _)| *t).map_or(0.0, |i| odds[i].1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sampling::SampleParams;

    fn params(seed: u64) -> SampleParams {
        SampleParams {
            temperature: 0.9,
            top_k: 6,
            top_p: 0.97,
            min_p: 0.02,
            repetition_penalty: 1.2,
            presence_penalty: 0.3,
            frequency_penalty: 0.1,
            seed,
            choice: 0,
        }
    }

    fn row<'a>(params: &'a SampleParams, seen: &'a [(u32, u32, u32)]) -> SampleRow<'a> {
        SampleRow { params, position: 3, seen, bias: &[], mask: None, logprobs: None }
    }

    const P: [f32; 8] = [1.0, 0.2, -0.5, 2.0, 0.0, 1.5, -3.0, 0.7];
    /// Near P, far from it, and with its weight where P has little.
    const QS: [[f32; 8]; 3] =
        [[1.2, 0.1, -0.3, 1.8, 0.1, 1.5, -3.0, 0.5], [0.0; 8], [-1.0, 2.0, 2.0, -1.0, 2.0, -1.0, 0.0, 1.0]];

    /// Pearson's statistic against the exact odds stays below the 0.001 quantile, and drafts are accepted as often as the
    /// two distributions overlap.
    #[test]
    fn what_is_drawn_has_the_odds_of_plain_sampling() {
        const DRAWS: u64 = 30_000;
        let seen = [(3, 1, 2), (5, 1, 0)];
        let exact = odds(&P, &row(&params(0), &seen));
        for (i, q_logits) in QS.iter().map(Some).chain([None]).enumerate() {
            let (mut counts, mut accepted, mut overlap) = ([0u32; 8], 0, 0.0);
            for seed in 0..DRAWS {
                let params = params(seed * 7 + i as u64);
                let row = row(&params, &seen);
                let q = q_logits.map(|logits| odds(logits, &row));
                let draft = q_logits.map_or(5, |logits| sample(logits, &row).token);
                let token = accept(&P, &row, draft, q.as_ref()).token;
                counts[token as usize] += 1;
                accepted += u64::from(token == draft);
                let least =
                    |(t, p): &(u32, f64)| p.min(q.as_ref().map_or(f64::from(u8::from(*t == 5)), |q| find(q, *t)));
                overlap = exact.iter().map(least).sum();
            }
            let mut statistic = 0.0;
            for &(token, p) in &exact {
                let (expected, found) = (p * DRAWS as f64, f64::from(counts[token as usize]));
                statistic += (found - expected) * (found - expected) / expected;
            }
            assert_eq!(u64::from(counts.iter().sum::<u32>()), DRAWS);
            assert_eq!(counts.iter().filter(|c| **c > 0).count(), exact.len(), "only what the filters leave");
            // At most 5 degrees of freedom: 20.5.
            assert!(statistic < 20.5, "draft {i}: {statistic:.1}, {counts:?}");
            let share = accepted as f64 / DRAWS as f64;
            assert!((share - overlap).abs() < 0.015, "draft {i}: {share:.3} accepted, {overlap:.3} in common");
        }
    }

    #[test]
    fn the_odds_are_those_of_sampling() {
        let mut counts = [0u32; 8];
        for seed in 0..30_000 {
            counts[sample(&P, &row(&params(seed), &[])).token as usize] += 1;
        }
        let p = params(0);
        for (token, p) in odds(&P, &row(&p, &[])) {
            assert!((f64::from(counts[token as usize]) / 30_000.0 - p).abs() < 0.012, "token {token}");
        }
    }

    #[test]
    fn odd_rows() {
        let p = params(1);
        let none = accept(&[f32::NAN; 8], &row(&p, &[]), 2, None);
        assert!(none.impossible);
        // A draft that the filters forbid is never accepted.
        let token = accept(&P, &row(&p, &[]), 6, None).token;
        assert_ne!(token, 6);
        let same = odds(&P, &row(&p, &[]));
        assert_eq!(accept(&P, &row(&p, &[]), 3, Some(&same)).token, 3, "the same distribution accepts everything");
    }
}
