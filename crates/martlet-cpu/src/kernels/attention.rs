//! One query head over the keys 0..keys of its sequence:
//!   s_j = scale * (q . k_j);   y = sum of softmax(s)_j * v_j.
//! bytes: keys and values of one kv head, each once, from memory or, for the heads of one group, from L2.
//! layout: a page holds [kv head][token][dim] of keys, then the same of values.
//! order: blocks of 256 absolute keys. In a block: s_j by `lanes::dot`; m = the largest (what lies past the row is
//! never looked at); p_j = exp(s_j - m); l = `lanes::total` of p; o = fma(p_j, v_j, o) for j in order, from zero.
//! Blocks merge in order, from M = -inf, L = 0, O = 0: M' = max(M, m), f = exp(M - M'), g = exp(m - M'),
//! L = fma(l, g, L * f), O = fma(o, g, O * f). Last y = O / L. Nothing depends on other rows or heads.

use crate::kernels::kv_block;
use crate::lanes::{dot, largest, total};
use martlet_device::{KvScheme, PAGE};
use martlet_tensor::math::exp;

/// Keys of one block.
pub const BLOCK: usize = 256;
/// Largest head size.
pub const MAX_DIM: usize = 512;

/// One query head of one row.
pub struct Attend<'a> {
    pub q: &'a [f32],
    pub scheme: KvScheme,
    /// All pages; see `kv_block.rs`.
    pub bytes: &'a [u8],
    /// The sequence's pages.
    pub pages: &'a [u32],
    /// Keys and values of how many heads a page holds, and which one is read.
    pub kv_heads: usize,
    pub kv_head: usize,
    /// How many keys the row sees: its index + 1.
    pub keys: usize,
    pub scale: f32,
}

#[inline(always)]
pub fn attention(a: &Attend<'_>, y: &mut [f32]) {
    let dim = a.q.len();
    let head = PAGE * a.scheme.head_bytes(dim);
    let plane = a.kv_heads * head;
    let mut row = [0.0; MAX_DIM];
    let mut query = [0.0; MAX_DIM];
    query[..dim].copy_from_slice(a.q);
    let (mut max, mut weight) = (f32::NEG_INFINITY, 0.0f32);
    let mut out = [0.0; MAX_DIM];
    for block in (0..a.keys).step_by(BLOCK) {
        let count = (a.keys - block).min(BLOCK);
        let mut s = [0.0; BLOCK];
        let mut o = [0.0; MAX_DIM];
        for (page, from) in (0..count).step_by(PAGE).enumerate() {
            let at = a.pages[block / PAGE + page] as usize * 2 * plane + a.kv_head * head;
            let (keys, tokens) = (&a.bytes[at..at + head], (count - from).min(PAGE));
            for j in 0..tokens {
                kv_block::load(a.scheme, keys, j, &mut row[..dim]);
                s[from + j] = a.scale * dot(&query[..dim], &row[..dim]);
            }
        }
        let m = largest(&s[..count]);
        for s in &mut s[..count] {
            *s = exp(*s - m);
        }
        let l = total(&s[..count]);
        for (page, from) in (0..count).step_by(PAGE).enumerate() {
            let at = a.pages[block / PAGE + page] as usize * 2 * plane + plane + a.kv_head * head;
            let (values, tokens) = (&a.bytes[at..at + head], (count - from).min(PAGE));
            for j in 0..tokens {
                kv_block::load(a.scheme, values, j, &mut row[..dim]);
                for (o, v) in o.iter_mut().zip(&row[..dim]) {
                    *o = s[from + j].mul_add(*v, *o);
                }
            }
        }
        let merged = if m > max { m } else { max };
        let (f, g) = (exp(max - merged), exp(m - merged));
        weight = l.mul_add(g, weight * f);
        for i in 0..dim {
            out[i] = o[i].mul_add(g, out[i] * f);
        }
        max = merged;
    }
    for i in 0..dim {
        y[i] = out[i] / weight;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::isa::Isa;
    use crate::kernel_set::KernelSet;
    use crate::testing::Random;

    /// The definition, in plain scalar steps; `key(j)` and `value(j)` are what is stored for index j.
    fn scalar(
        q: &[f32],
        keys: usize,
        scale: f32,
        key: impl Fn(usize) -> Vec<f32>,
        value: impl Fn(usize) -> Vec<f32>,
    ) -> Vec<f32> {
        let (mut max, mut weight, mut out) = (f32::NEG_INFINITY, 0.0f32, vec![0.0f32; q.len()]);
        for block in (0..keys).step_by(BLOCK) {
            let here = block..keys.min(block + BLOCK);
            let s: Vec<f32> = here.clone().map(|j| scale * dot(q, &key(j))).collect();
            let m = s.iter().fold(f32::NEG_INFINITY, |m, s| m.max(*s));
            let p: Vec<f32> = s.iter().map(|s| exp(s - m)).collect();
            let mut o = vec![0.0f32; q.len()];
            for (j, p) in here.zip(&p) {
                for (o, v) in o.iter_mut().zip(value(j)) {
                    *o = p.mul_add(v, *o);
                }
            }
            let merged = max.max(m);
            let (f, g) = (exp(max - merged), exp(m - merged));
            weight = total(&p).mul_add(g, weight * f);
            for (out, o) in out.iter_mut().zip(o) {
                *out = o.mul_add(g, *out * f);
            }
            max = merged;
        }
        out.iter().map(|o| o / weight).collect()
    }

    #[test]
    fn every_isa_gives_the_bits_of_scalar() {
        for (dim, keys) in [(16usize, 1usize), (64, 64), (72, 65), (128, 256), (256, 257), (20, 600), (5, 70), (512, 3)]
        {
            let mut r = Random::new((dim + keys) as u64);
            let (kv_heads, kv_head) = (3, 1);
            // Pages in no order, among others.
            let pages: Vec<u32> = (0..keys.div_ceil(PAGE) as u32).map(|p| 2 * (9 - p)).collect();
            let q: Vec<f32> = r.vec(dim).iter().map(|v| 4.0 * v).collect();
            for scheme in [KvScheme::F32, KvScheme::F16, KvScheme::Q8] {
                let head = PAGE * scheme.head_bytes(dim);
                let mut bytes = vec![0; 20 * 2 * kv_heads * head];
                for block in bytes.chunks_exact_mut(head) {
                    (0..PAGE).for_each(|token| kv_block::store(scheme, block, token, &r.vec(dim)));
                }
                let stored = |plane: usize, j: usize| {
                    let block = (pages[j / PAGE] as usize * 2 + plane) * kv_heads + kv_head;
                    let mut row = vec![0.0; dim];
                    kv_block::load(scheme, &bytes[block * head..][..head], j % PAGE, &mut row);
                    row
                };
                let want = scalar(&q, keys, 0.3, |j| stored(0, j), |j| stored(1, j));
                for isa in Isa::ALL.into_iter().filter(|isa| isa.available()) {
                    let mut y = vec![0.0; dim];
                    let (q, bytes, pages) = (&q, &bytes, &pages);
                    let a = Attend { q, scheme, bytes, pages, kv_heads, kv_head, keys, scale: 0.3 };
                    (KernelSet::new(isa).attention)(&a, &mut y);
                    assert_eq!(y, want, "{dim} dimensions, {keys} keys, {scheme:?}, {isa}");
                }
            }
        }
    }
}
