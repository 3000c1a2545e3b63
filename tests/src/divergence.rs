//! How far the next-token distributions of one run lie from those of another, over the same given tokens.

use crate::{argmax, fixtures, prefill_and_decode, runner};
use martlet_device::{Device, KvScheme};
use martlet_tensor::Float;
use martlet_weights::Checkpoint;
use martlet_weights::quantise::{Mode, Options};

/// Rows of a step.
const ROWS: usize = 256;

/// Distributions after every token, in one row each.
pub struct Logits {
    values: Vec<f32>,
    vocabulary: usize,
}

impl Logits {
    /// Those of another engine over the same tokens: f32, little-endian, row after row.
    pub fn like(&self, bytes: &[u8]) -> Logits {
        let (found, expected) = (bytes.len(), 4 * self.values.len());
        assert_eq!(found, expected, "bytes of logits; {} values after every token are expected", self.vocabulary);
        Logits { values: martlet_tensor::read_floats(Float::F32, bytes), vocabulary: self.vocabulary }
    }
}

/// A figure for each token, in one order everywhere.
pub struct Divergence {
    /// KL(p || q) in nats.
    pub kl: Vec<f64>,
    /// Whether both have the same most likely token.
    pub same: Vec<bool>,
}

/// A mean over tokens with its standard error, as if tokens were independent.
#[derive(Clone, Copy, Debug)]
pub struct Mean {
    pub value: f64,
    pub error: f64,
}

/// Conversations with fledgling, its greedy answers included, the shortest first, until they have `tokens` tokens; the
/// last one is cut.
pub fn texts(tokens: usize) -> Vec<Vec<u32>> {
    let mut all: Vec<Vec<u32>> = fixtures::prompts()
        .into_iter()
        .map(|(name, mut ids)| {
            let case = fixtures::json(&format!("tests/fixtures/fledgling-golden/{name}.json"));
            let answer = case["greedy_ids"].as_array().expect("ids").iter().filter_map(|v| v.as_u64());
            ids.extend(answer.map(|id| id as u32));
            ids
        })
        .collect();
    all.sort_by_key(Vec::len);
    let mut left = tokens;
    all.retain_mut(|ids| {
        ids.truncate(left);
        left -= ids.len();
        !ids.is_empty()
    });
    all
}

/// Every packed format that `martlet quantise` writes, from 2 bits on.
pub fn schemes() -> Vec<Options> {
    let affine = |bits| [32, 64, 128].map(|group| Options { bits, group, mode: Mode::Affine });
    let fixed = [(4, 32, Mode::Mxfp4), (4, 16, Mode::Nvfp4), (8, 32, Mode::Mxfp8)];
    let fixed = fixed.map(|(bits, group, mode)| Options { bits, group, mode });
    [2, 3, 4, 5, 6, 8].into_iter().flat_map(affine).chain(fixed).collect()
}

/// Logits after every token, each text in a sequence of its own.
pub fn logits<D: Device>(d: D, checkpoint: &Checkpoint, kv: KvScheme, texts: &[Vec<u32>]) -> Logits {
    let mut runner = runner(d, checkpoint, kv, ROWS);
    let vocabulary = runner.spec().vocabulary;
    let values = texts.iter().flat_map(|ids| prefill_and_decode(&mut runner, ids, ROWS, 1).0).collect();
    Logits { values, vocabulary }
}

/// KL(p || q), token by token.
pub fn divergence(p: &Logits, q: &Logits) -> Divergence {
    assert_eq!((p.values.len(), p.vocabulary), (q.values.len(), q.vocabulary), "runs over different tokens");
    let pairs = || p.values.chunks_exact(p.vocabulary).zip(q.values.chunks_exact(q.vocabulary));
    let kl = pairs().map(|(p, q)| kl(p, q)).collect();
    Divergence { kl, same: pairs().map(|(p, q)| argmax(p) == argmax(q)).collect() }
}

impl Divergence {
    pub fn mean(&self) -> Mean {
        Mean::of(&self.kl)
    }

    /// What this one has more than `other`, token by token.
    pub fn over(&self, other: &Divergence) -> Mean {
        assert_eq!(self.kl.len(), other.kl.len(), "different tokens");
        Mean::of(&self.kl.iter().zip(&other.kl).map(|(a, b)| a - b).collect::<Vec<_>>())
    }

    /// Share of tokens with the same most likely token.
    pub fn equal(&self) -> f64 {
        self.same.iter().filter(|s| **s).count() as f64 / self.same.len() as f64
    }
}

impl Mean {
    fn of(values: &[f64]) -> Mean {
        let n = values.len() as f64;
        let value = values.iter().sum::<f64>() / n;
        let variance = values.iter().map(|v| (v - value).powi(2)).sum::<f64>() / (n - 1.0);
        Mean { value, error: (variance / n).sqrt() }
    }
}

fn kl(p: &[f32], q: &[f32]) -> f64 {
    let (norm_p, norm_q) = (log_sum(p), log_sum(q));
    let terms = p.iter().zip(q).map(|(p, q)| {
        let (p, q) = (f64::from(*p) - norm_p, f64::from(*q) - norm_q);
        p.exp() * (p - q)
    });
    terms.sum()
}

/// ln of the sum of exp.
fn log_sum(logits: &[f32]) -> f64 {
    let max = f64::from(logits.iter().copied().fold(f32::MIN, f32::max));
    max + logits.iter().map(|x| (f64::from(*x) - max).exp()).sum::<f64>().ln()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(rows: &[[f32; 2]]) -> Logits {
        Logits { values: rows.as_flattened().to_vec(), vocabulary: 2 }
    }

    #[test]
    fn two_tokens_by_hand() {
        // p = (1/2, 1/2) and (3/4, 1/4), q = (1/4, 3/4) and p again: logits may be shifted.
        let ln3 = 3f32.ln();
        let found = divergence(&of(&[[0.0, 0.0], [ln3, 0.0]]), &of(&[[0.0, ln3], [ln3 + 5.0, 5.0]]));
        let by_hand = 0.5 * (4f64 / 3.0).ln();
        assert!((found.kl[0] - by_hand).abs() < 1e-6 && found.kl[1].abs() < 1e-6, "{:?}", found.kl);
        assert_eq!(found.same, [false, true]);
        assert_eq!(found.equal(), 0.5);
        let mean = found.mean();
        assert!((mean.value - by_hand / 2.0).abs() < 1e-6 && (mean.error - by_hand / 2.0).abs() < 1e-6, "{mean:?}");
    }

    #[test]
    fn texts_have_the_tokens_asked_for() {
        let all = texts(500);
        assert_eq!(all.iter().map(Vec::len).sum::<usize>(), 500);
        assert!(all.len() > 8, "{} conversations", all.len());
    }
}
