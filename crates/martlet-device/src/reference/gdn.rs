//! The gated delta rule, token by token (the canonical form has a border after every row, C = 1). For value head h with
//! key head h / (value_heads / key_heads) and state S [key_dim, value_dim]:
//!
//!   S = decay * S      u = beta * (v - S^T k)      S = S + k u^T      y = S^T q
//!
//! Sums over key_dim run in index order from zero. Certain rows change the slot's S at once. Tentative rows change a
//! copy, and what they do is remembered; `gdn_commit` does it to S with the same code, so accepted drafts leave the
//! very bits that certain rows leave.

use super::conv_silu::remember;
use super::delta::{Delta, DeltaRow};
use super::{Buffer, DeltaSpec};
use crate::Batch;

pub(super) fn gdn(qkv: &Buffer, gates: &Buffer, state: &mut Delta, b: &Batch, y: &mut Buffer) {
    let spec = state.spec;
    let [q, k, v] = spec.qkv(0);
    for (first, seq) in b.iter_seqs() {
        let slot = state.settled(seq.state, seq.rows - seq.certain, |s| s.rows.len());
        let mut scratch = Vec::new();
        for i in 0..seq.rows {
            let x = qkv.row(first + i);
            let row = DeltaRow {
                k: x[k.first..k.end()].to_vec(),
                v: x[v.first..v.end()].to_vec(),
                gates: gates.row(first + i)[..2 * spec.value_heads].to_vec(),
            };
            if i == seq.certain {
                scratch = slot.s.clone();
            }
            let s = if i < seq.certain { &mut slot.s } else { &mut scratch };
            update(s, &row, &spec);
            read_out(s, &x[q.first..q.end()], &spec, y.row_mut(first + i));
            if i >= seq.certain {
                slot.rows.push(row);
            }
        }
    }
}

/// Settles convolution history and recurrence; see [`super::conv_silu`] for the former.
pub(super) fn gdn_commit(state: &mut Delta, slot: u32, accepted: usize) {
    let spec = state.spec;
    let slot = state.slot_mut(slot);
    let (inputs, rows) = (std::mem::take(&mut slot.inputs), std::mem::take(&mut slot.rows));
    let pending = inputs.len().max(rows.len());
    assert!(pending == 0 || accepted <= pending, "{accepted} accepted of {pending} tentative rows");
    for input in inputs.iter().take(accepted) {
        remember(&mut slot.history, input);
    }
    for row in rows.iter().take(accepted) {
        update(&mut slot.s, row, &spec);
    }
}

/// S = decay * S + k u^T for every value head.
fn update(s: &mut [f32], row: &DeltaRow, spec: &DeltaSpec) {
    let &DeltaSpec { key_dim, value_dim, .. } = spec;
    let group = spec.value_heads / spec.key_heads;
    for (h, s) in s.chunks_mut(key_dim * value_dim).enumerate() {
        let k = &row.k[h / group * key_dim..][..key_dim];
        let v = &row.v[h * value_dim..][..value_dim];
        let (decay, beta) = (row.gates[h], row.gates[spec.value_heads + h]);
        for x in s.iter_mut() {
            *x *= decay;
        }
        let mut u = transposed_times(s, k, value_dim);
        for (u, v) in u.iter_mut().zip(v) {
            *u = beta * (v - *u);
        }
        for (s, k) in s.chunks_mut(value_dim).zip(k) {
            for (s, u) in s.iter_mut().zip(&u) {
                *s += k * u;
            }
        }
    }
}

/// y = S^T q for every value head.
fn read_out(s: &[f32], q: &[f32], spec: &DeltaSpec, y: &mut [f32]) {
    let &DeltaSpec { key_dim, value_dim, .. } = spec;
    let group = spec.value_heads / spec.key_heads;
    for (h, s) in s.chunks(key_dim * value_dim).enumerate() {
        let q = &q[h / group * key_dim..][..key_dim];
        y[h * value_dim..][..value_dim].copy_from_slice(&transposed_times(s, q, value_dim));
    }
}

/// S^T k: for each d the sum over i, in order, of S[i, d] * k[i].
fn transposed_times(s: &[f32], k: &[f32], value_dim: usize) -> Vec<f32> {
    let mut sums = vec![0.0; value_dim];
    for (s, k) in s.chunks(value_dim).zip(k) {
        for (sum, s) in sums.iter_mut().zip(s) {
            *sum += s * k;
        }
    }
    sums
}
