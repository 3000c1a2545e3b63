//! The gated delta rule with borders at every 32nd row of the sequence, one value head and all its rows of a step.
//!
//! Kept of a sequence: S [key_dim, value_dim] at the last border, and for each row j since then k_j, u_j and decay_j.
//!   gamma_t = product of the decays from the border to t;  w[t, j] = product of the decays after j up to t
//!   u_t = beta_t * (v_t - gamma_t S^T k_t - sum over j < t of w[t, j] (k_j . k_t) u_j)
//!   y_t = gamma_t S^T q_t + sum over j <= t of w[t, j] (k_j . q_t) u_j
//!   at a border: S = gamma S + sum over j of w[C, j] k_j u_j^T, and the list is empty.
//! bytes: S read once for up to 4 rows between two borders (`WIDE` columns at a time, so that the sums of 4 rows stay in
//! registers; all columns for 1 row), written once per 32 rows; the list from L1. The states of all heads and layers are
//! more than the second cache holds, so that each line is asked for ahead.
//! order: products run on: gamma = gamma * decay, w = w * decay, never a quotient or an exponential. S^T k and S^T q:
//! a lane is a value dimension; fma(S[i], k[i], acc) for i in order. r = fma(-gamma, S^T k, v), then
//! r = fma(-(w (k_j . k_t)), u_j, r) for j in order; u = beta * r. y = gamma * S^T q, then fma(w (k_j . q_t), u_j, y)
//! for j in order, the own row last with w = 1. Fold: s = gamma * s, then fma(w k_j, u_j, s) for j in order.
//! The dots are `lanes::dot`. So a row depends on S at the border and the rows since, however the rows came.

use crate::lanes::dot;
use crate::pool::Columns;
use crate::simd::prefetch;

/// Rows between borders; divides the 64 tokens of a page.
pub const BORDER: usize = 32;

/// Columns of S whose sums of 4 rows, of k and of q, stay in registers: 16 of AVX-512. AArch64 has a quarter of their
/// width, and 8 columns take 16.
const WIDE: usize = if cfg!(target_arch = "aarch64") { 8 } else { 32 };
/// Rows of S that are asked for ahead: 4 KiB at 128 columns.
const AHEAD: usize = 8;
/// Rows of the list that are asked for ahead.
const LIST_AHEAD: usize = 4;

/// The rows since a border, oldest first.
#[derive(Clone, Copy)]
pub struct Pending<'a> {
    /// [rows, key_dim]
    pub k: &'a [f32],
    /// [rows, value_dim]
    pub u: &'a [f32],
    /// [rows]
    pub decay: &'a [f32],
}

/// The state of one value head.
pub struct Head<'a> {
    /// [key_dim, value_dim]
    pub s: &'a mut [f32],
    /// Room for the list of rows: [capacity, key_dim], [capacity, value_dim], [capacity].
    pub k: &'a mut [f32],
    pub u: &'a mut [f32],
    pub decay: &'a mut [f32],
}

/// All rows of one sequence in a step, for one value head.
pub struct HeadRows<'a, 'b> {
    pub head: Head<'a>,
    pub key_dim: usize,
    pub value_dim: usize,
    /// Rows in the list before the step, all of them certain.
    pub pending: usize,
    pub rows: usize,
    pub certain: usize,
    /// Table of q, k and v from the sequence's first row on, its width, and the columns where this head's begin.
    pub qkv: &'a [f32],
    pub width: usize,
    pub at: [usize; 3],
    /// Table of decays and betas from the sequence's first row on, its width, and their columns.
    pub gates: &'a [f32],
    pub gate_width: usize,
    pub gate_at: [usize; 2],
    /// This head's columns of the sequence's rows.
    pub y: Columns<'b>,
}

#[inline(always)]
pub fn gdn(h: &mut HeadRows<'_, '_>) {
    let (kd, vd) = (h.key_dim, h.value_dim);
    // The list is needed once S has been read.
    let soon = h.pending.min(LIST_AHEAD);
    prefetch(&h.head.k[..soon * kd]);
    prefetch(&h.head.u[..soon * vd]);
    // The list holds `from..len` since the border that `s` stands at.
    let (mut from, mut len) = (0, h.pending);
    // The state past a border that drafts have crossed; empty while there is none.
    let mut crossed: Vec<f32> = Vec::new();
    let mut w = [1.0f32; BORDER];
    let mut gamma = products(&h.head.decay[..len], &mut w);
    // Rows from `r` on for which S has been read.
    let mut ahead = 0;
    for r in 0..h.rows {
        // S^T k and S^T q of the next rows up to the border go into their places of the list and the output.
        if ahead == 0 {
            ahead = (h.rows - r).min(BORDER - (len - from)).min(4);
            let s = if crossed.is_empty() { &*h.head.s } else { &crossed };
            let x = |row: usize| {
                let x = &h.qkv[row * h.width..(row + 1) * h.width];
                (&x[h.at[1]..h.at[1] + kd], &x[h.at[0]..h.at[0] + kd])
            };
            let u = &mut h.head.u[len * vd..(len + ahead) * vd];
            match ahead {
                1 => read_state::<1, { 4 * WIDE }>(s, [x(r)], u, &mut h.y, r),
                2 => read_state::<2, { 2 * WIDE }>(s, [x(r), x(r + 1)], u, &mut h.y, r),
                3 => read_state::<3, WIDE>(s, [x(r), x(r + 1), x(r + 2)], u, &mut h.y, r),
                _ => read_state::<4, WIDE>(s, [x(r), x(r + 1), x(r + 2), x(r + 3)], u, &mut h.y, r),
            }
        }
        ahead -= 1;
        let x = &h.qkv[r * h.width..(r + 1) * h.width];
        let [q, k, v] = h.at;
        let (q, k, v) = (&x[q..q + kd], &x[k..k + kd], &x[v..v + vd]);
        let gates = &h.gates[r * h.gate_width..];
        let (decay, beta) = (gates[h.gate_at[0]], gates[h.gate_at[1]]);

        gamma *= decay;
        for w in &mut w[..len - from] {
            *w *= decay;
        }
        w[len - from] = 1.0;
        h.head.k[len * kd..(len + 1) * kd].copy_from_slice(k);
        h.head.decay[len] = decay;
        let (before, u) = h.head.u.split_at_mut(len * vd);
        let y = &mut h.y.row(r)[..vd];
        row(
            &Row {
                w: &w[..len - from],
                k,
                q,
                keys: &h.head.k[from * kd..len * kd],
                us: &before[from * vd..],
                gamma,
                beta,
            },
            v,
            &mut u[..vd],
            y,
        );
        len += 1;

        if len - from == BORDER {
            let list = Pending {
                k: &h.head.k[from * kd..len * kd],
                u: &h.head.u[from * vd..len * vd],
                decay: &h.head.decay[from..len],
            };
            if r < h.certain {
                fold(h.head.s, list);
                (from, len) = (0, 0);
            } else {
                if crossed.is_empty() {
                    crossed.extend_from_slice(h.head.s);
                }
                fold(&mut crossed, list);
                from = len;
            }
            gamma = 1.0;
        }
    }
}

/// w[j] = product of the decays after row j; the result is the product of all.
#[inline(always)]
fn products(decays: &[f32], w: &mut [f32; BORDER]) -> f32 {
    let mut gamma = 1.0;
    for (t, decay) in decays.iter().enumerate() {
        gamma *= decay;
        for w in &mut w[..t] {
            *w *= decay;
        }
        w[t] = 1.0;
    }
    gamma
}

/// What one row takes from the rows since the border.
struct Row<'a> {
    w: &'a [f32],
    k: &'a [f32],
    q: &'a [f32],
    keys: &'a [f32],
    us: &'a [f32],
    gamma: f32,
    beta: f32,
}

/// On entry `u` = S^T k and `y` = S^T q; on return they are the row's u and output.
#[inline(always)]
fn row(r: &Row<'_>, v: &[f32], u: &mut [f32], y: &mut [f32]) {
    let vd = v.len();
    let y = &mut y[..vd];
    let u = &mut u[..vd];
    for i in 0..vd {
        u[i] = (-r.gamma).mul_add(u[i], v[i]);
        y[i] *= r.gamma;
    }
    let kd = r.k.len();
    for (j, w) in r.w.iter().enumerate() {
        if j + LIST_AHEAD < r.w.len() {
            prefetch(&r.keys[(j + LIST_AHEAD) * kd..(j + LIST_AHEAD + 1) * kd]);
            prefetch(&r.us[(j + LIST_AHEAD) * vd..(j + LIST_AHEAD + 1) * vd]);
        }
        let (key, other) = (&r.keys[j * kd..(j + 1) * kd], &r.us[j * vd..(j + 1) * vd]);
        let (in_u, in_y) = (-(w * dot(key, r.k)), w * dot(key, r.q));
        for i in 0..vd {
            u[i] = in_u.mul_add(other[i], u[i]);
            y[i] = in_y.mul_add(other[i], y[i]);
        }
    }
    let own = dot(r.k, r.q);
    for i in 0..vd {
        u[i] *= r.beta;
        y[i] = own.mul_add(u[i], y[i]);
    }
}

/// S^T k into `u` [R, value_dim] and S^T q into y's rows from `r` on, for the (k, q) of R rows; W columns at a time, so
/// that their sums stay in registers.
#[inline(always)]
fn read_state<const R: usize, const W: usize>(
    s: &[f32],
    rows: [(&[f32], &[f32]); R],
    u: &mut [f32],
    y: &mut Columns<'_>,
    r: usize,
) {
    let vd = u.len() / R;
    let mut at = 0;
    while at + W <= vd {
        columns::<R, W>(s, vd, at, rows, u, y, r);
        at += W;
    }
    while W > 16 && at + 16 <= vd {
        columns::<R, 16>(s, vd, at, rows, u, y, r);
        at += 16;
    }
    while at < vd {
        columns::<R, 1>(s, vd, at, rows, u, y, r);
        at += 1;
    }
}

#[inline(always)]
fn columns<const R: usize, const W: usize>(
    s: &[f32],
    vd: usize,
    at: usize,
    rows: [(&[f32], &[f32]); R],
    u: &mut [f32],
    y: &mut Columns<'_>,
    first: usize,
) {
    let kd = rows[0].0.len();
    let rows = rows.map(|(k, q)| (&k[..kd], &q[..kd]));
    let (mut a, mut b) = ([[0.0f32; W]; R], [[0.0f32; W]; R]);
    for i in 0..kd {
        if at == 0 && i + AHEAD < kd {
            prefetch(&s[(i + AHEAD) * vd..(i + AHEAD + 1) * vd]);
        }
        let state = &s[i * vd + at..i * vd + at + W];
        for (r, (k, q)) in rows.iter().enumerate() {
            for l in 0..W {
                a[r][l] = state[l].mul_add(k[i], a[r][l]);
                b[r][l] = state[l].mul_add(q[i], b[r][l]);
            }
        }
    }
    for r in 0..R {
        u[r * vd + at..r * vd + at + W].copy_from_slice(&a[r]);
        y.row(first + r)[at..at + W].copy_from_slice(&b[r]);
    }
}

/// S = gamma S + sum over the rows of w k u^T; at most [`BORDER`] rows.
#[inline(always)]
pub fn fold(s: &mut [f32], list: Pending<'_>) {
    let rows = list.decay.len();
    if rows == 0 {
        return;
    }
    let (kd, vd) = (list.k.len() / rows, list.u.len() / rows);
    let mut w = [1.0; BORDER];
    let gamma = products(list.decay, &mut w);
    for i in 0..kd {
        let s = &mut s[i * vd..(i + 1) * vd];
        for s in s.iter_mut() {
            *s *= gamma;
        }
        for j in 0..rows {
            let (wk, u) = (w[j] * list.k[j * kd + i], &list.u[j * vd..(j + 1) * vd]);
            for (s, u) in s.iter_mut().zip(u) {
                *s = wk.mul_add(*u, *s);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::isa::Isa;
    use crate::kernel_set::KernelSet;
    use crate::pool::blocks;
    use crate::testing::Random;

    /// One row as the definition takes it, in plain scalar steps: the row's (u, y).
    fn scalar_row(
        s: &[f32],
        list: &[(Vec<f32>, Vec<f32>, f32)],
        q: &[f32],
        k: &[f32],
        v: &[f32],
        decay: f32,
        beta: f32,
    ) -> [Vec<f32>; 2] {
        let decays: Vec<f32> = list.iter().map(|row| row.2).chain([decay]).collect();
        let product = |from: usize| decays[from..].iter().fold(1.0, |w, d| w * d);
        let in_state = |x: &[f32], c: usize| (0..k.len()).fold(0.0, |a, i| s[i * v.len() + c].mul_add(x[i], a));
        let mut out = [vec![], vec![]];
        for c in 0..v.len() {
            let mut r = (-product(0)).mul_add(in_state(k, c), v[c]);
            let mut y = product(0) * in_state(q, c);
            for (j, (key, u, _)) in list.iter().enumerate() {
                r = (-(product(j + 1) * dot(key, k))).mul_add(u[c], r);
                y = (product(j + 1) * dot(key, q)).mul_add(u[c], y);
            }
            out[0].push(r * beta);
            out[1].push(dot(k, q).mul_add(r * beta, y));
        }
        out
    }

    fn scalar_fold(s: &mut [f32], list: &[(Vec<f32>, Vec<f32>, f32)], vd: usize) {
        let product = |from: usize| list[from..].iter().fold(1.0, |w, row| w * row.2);
        for (at, s) in s.iter_mut().enumerate() {
            *s *= product(0);
            for (j, (k, u, _)) in list.iter().enumerate() {
                *s = (product(j + 1) * k[at / vd]).mul_add(u[at % vd], *s);
            }
        }
    }

    #[test]
    fn every_isa_gives_the_bits_of_scalar() {
        for (kd, vd) in [(128, 128), (16, 80), (20, 7), (64, 1)] {
            let (rows, mut r) = (70, Random::new((kd + vd) as u64));
            let width = 2 * kd + vd;
            let qkv: Vec<f32> = r.vec(rows * width).iter().map(|x| x / (kd as f32).sqrt()).collect();
            let gates: Vec<f32> = r.vec(rows * 2).iter().map(|x| 0.8 + 0.2 * x).collect();

            let (mut s, mut list, mut want) = (vec![0.0; kd * vd], Vec::new(), Vec::new());
            for (x, gates) in qkv.chunks(width).zip(gates.chunks(2)) {
                let (q, k, v) = (&x[..kd], &x[kd..2 * kd], &x[2 * kd..]);
                let [u, y] = scalar_row(&s, &list, q, k, v, gates[0], gates[1]);
                list.push((k.to_vec(), u, gates[0]));
                want.extend(y);
                if list.len() == BORDER {
                    scalar_fold(&mut s, &list, vd);
                    list.clear();
                }
            }

            for isa in Isa::ALL.into_iter().filter(|isa| isa.available()) {
                // All rows certain, and all but the first 20 tentative: the same outputs, and S past the borders or not.
                for certain in [rows, 20] {
                    let (mut state, mut got) = (vec![0.0; kd * vd], vec![0.0; rows * vd]);
                    let (mut k, mut u, mut decay) = (vec![0.0; 99 * kd], vec![0.0; 99 * vd], vec![0.0; 99]);
                    let y = blocks(&mut got, vd, std::iter::once(0..rows), std::iter::once(0..vd)).remove(0);
                    let mut job = HeadRows {
                        head: Head { s: &mut state, k: &mut k, u: &mut u, decay: &mut decay },
                        key_dim: kd,
                        value_dim: vd,
                        pending: 0,
                        rows,
                        certain,
                        qkv: &qkv,
                        width,
                        at: [0, kd, 2 * kd],
                        gates: &gates,
                        gate_width: 2,
                        gate_at: [0, 1],
                        y,
                    };
                    (KernelSet::new(isa).gdn)(&mut job);
                    let fresh = vec![0.0; kd * vd];
                    assert!(got == want, "{kd} x {vd}, {isa}: outputs");
                    assert!(&state == if certain == rows { &s } else { &fresh }, "{kd} x {vd}, {isa}: state");
                }
            }
        }
    }
}
