//! Causal grouped-query attention. For the row at index t of its sequence and query head h, with kv head
//! h / (heads / kv_heads) and all keys j <= t:
//!
//!   s_j = scale * (q . k_j)                        p = softmax of s                  y = sum over j of p_j v_j
//!
//! Keys are taken in blocks of 256 absolute indices. A block gives m = max s_j, l = sum exp(s_j - m) and
//! a = sum exp(s_j - m) v_j over its keys in index order. Blocks are merged in index order, (m, l, a) with (m', l', a')
//! to M = max(m, m'), l exp(m - M) + l' exp(m' - M), a exp(m - M) + a' exp(m' - M); at the end y = a / l. Keys behind t
//! are left out before the maximum is taken. A block is the same for every row that sees all of it, so a row may be
//! computed with any others.

use super::{AttentionSpec, Buffer, Heads, Kv, dot};
use crate::{Batch, SeqRows};
use std::ops::Range;

/// Absolute indices of one block of keys.
const BLOCK: usize = 256;

/// Softmax over some keys, not yet divided: maximum, sum, weighted values.
struct Partial {
    max: f32,
    sum: f32,
    values: Vec<f32>,
}

pub(super) fn attention(x: &Buffer, queries: Heads, kv: &Kv, spec: AttentionSpec, b: &Batch, y: &mut Buffer) {
    let group = spec.heads / spec.kv_heads;
    for (first, seq) in b.iter_seqs() {
        for i in 0..seq.rows {
            for h in 0..spec.heads {
                let q = x.head(first + i, queries, h);
                let mut all = Partial { max: f32::NEG_INFINITY, sum: 0.0, values: vec![0.0; spec.dim] };
                let keys = seq.start + i + 1;
                for start in (0..keys).step_by(BLOCK) {
                    all.merge(&block(q, kv, seq, h / group, spec.scale, start..keys.min(start + BLOCK)));
                }
                for (y, a) in y.row_mut(first + i)[h * spec.dim..][..spec.dim].iter_mut().zip(&all.values) {
                    *y = a / all.sum;
                }
            }
        }
    }
}

fn block(q: &[f32], kv: &Kv, seq: &SeqRows, head: usize, scale: f32, keys: Range<usize>) -> Partial {
    let score = |j| scale * dot(q, kv.key(&seq.pages, j, head));
    let scores: Vec<f32> = keys.clone().map(score).collect();
    let max = scores.iter().fold(f32::NEG_INFINITY, |m, &s| m.max(s));
    let (mut sum, mut values) = (0.0, vec![0.0; q.len()]);
    for (j, s) in keys.zip(scores) {
        let p = (s - max).exp();
        sum += p;
        for (a, v) in values.iter_mut().zip(kv.value(&seq.pages, j, head)) {
            *a += p * v;
        }
    }
    Partial { max, sum, values }
}

impl Partial {
    fn merge(&mut self, next: &Partial) {
        let max = self.max.max(next.max);
        let (old, new) = ((self.max - max).exp(), (next.max - max).exp());
        self.max = max;
        self.sum = self.sum * old + next.sum * new;
        for (a, b) in self.values.iter_mut().zip(&next.values) {
            *a = *a * old + b * new;
        }
    }
}
