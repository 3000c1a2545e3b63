//! One block of 256 keys for some rows of a sequence and all query heads of one kv head: its *pairs* (row, head), row
//! after row.
//!   s_j = scale * (q . k_j);   m = max s_j;   p_j = exp(s_j - m);   l = sum p_j;   o = sum p_j v_j.
//! bytes: keys and values of the block once for all pairs, from memory: 2 * 256 * dim values. They become f32 in a tile
//! of one page, which stays in L2; a part of it that fits L1 is used by all pairs, six at a time, before the next.
//! operations: 2 * 256 * dim fused multiply-adds for each pair; beside them a conversion of each stored value, shared by
//! the pairs, and 256 exponentials for each pair. With six pairs a step is 4 loads and 24 multiply-adds on AVX-512.
//! layout: `kv_block.rs`. In scores a lane is a key, in sums of values it is a dimension: nothing is added across lanes.
//! order: q . k_j = fma(q_d, k_jd, sum) for d in order, from zero; then times scale. m: the largest of the keys that the
//! row sees, what lies past it is never looked at. l: `lanes::total`. o = fma(p_j, v_j, o) for j in order, from zero, and
//! o + 0 when it is merged. Up to the end of the page the keys past a row count as p_j = 0: that changes nothing but the sign of a
//! zero, which the last addition takes away.
//! Blocks merge in order, from M = -inf, L = 0, O = 0: M' = max(M, m), f = exp(M - M'), g = exp(m - M'),
//! L = fma(l, g, L * f), O = fma(o, g, O * f). Last y = O / L. Nothing depends on other rows or heads.
#![allow(unsafe_code)]

use crate::kernels::kv_block;
use crate::lanes::{largest, total};
use crate::simd::Simd;
use martlet_device::{KvScheme, PAGE};
use martlet_tensor::math::exp;

/// Keys of one block.
pub const BLOCK: usize = 256;
/// Largest head size.
pub const MAX_DIM: usize = 512;
/// Columns of values that are worked on at a time: those of a page fit L1.
pub const COLUMNS: usize = 64;
/// Dimensions of keys that are worked on at a time, for the same reason.
const DEPTH: usize = 128;
/// Most pairs whose sums are in registers at the same time.
const SIX: usize = 6;

/// The pairs, and where their keys are.
#[derive(Clone, Copy)]
pub struct Attend<'a> {
    /// Queries as [`pack`] leaves them.
    pub q: &'a [f32],
    pub dim: usize,
    /// Index of the first row, how many there are, and query heads of each.
    pub first: usize,
    pub rows: usize,
    pub group: usize,
    pub scheme: KvScheme,
    /// All pages; see `kv_block.rs`.
    pub bytes: &'a [u8],
    /// The sequence's pages.
    pub pages: &'a [u32],
    /// Keys and values of how many heads a page holds, and which one is read.
    pub kv_heads: usize,
    pub kv_head: usize,
    pub scale: f32,
}

/// Room for one block's work.
#[derive(Default)]
pub struct Scratch {
    /// A page of keys [dim, token], or of values [column / 64, token, 64].
    tile: Vec<f32>,
    /// Scores, then weights, [pair, key].
    s: Vec<f32>,
}

/// Results of some pairs, not yet divided: maxima, sums, and weighted values [pair, width].
pub struct Partial<'a> {
    pub max: &'a mut [f32],
    pub sum: &'a mut [f32],
    pub values: &'a mut [f32],
}

/// `dim` filled up to whole steps of [`COLUMNS`].
pub fn width(dim: usize) -> usize {
    dim.next_multiple_of(COLUMNS)
}

impl Partial<'_> {
    /// Values of a partial result.
    pub fn len(pairs: usize, dim: usize) -> usize {
        pairs * (2 + width(dim))
    }

    pub fn new(room: &mut [f32], pairs: usize) -> Partial<'_> {
        let (max, rest) = room.split_at_mut(pairs);
        let (sum, values) = rest.split_at_mut(pairs);
        Partial { max, sum, values }
    }

    /// The result of no keys.
    pub fn clear(&mut self) {
        self.max.fill(f32::NEG_INFINITY);
        self.sum.fill(0.0);
        self.values.fill(0.0);
    }
}

impl Attend<'_> {
    pub fn pairs(&self) -> usize {
        self.rows * self.group
    }

    /// How many keys of a block a pair sees.
    fn seen(&self, block: usize, pair: usize) -> usize {
        (self.first + pair / self.group + 1).saturating_sub(block * BLOCK).min(BLOCK)
    }

    /// The first pair that sees a block.
    pub fn skipped(&self, block: usize) -> usize {
        (block * BLOCK).saturating_sub(self.first).min(self.rows) * self.group
    }

    /// Keys (plane 0) or values (plane 1) of one page of the sequence.
    fn stored(&self, page: usize, plane: usize) -> &[u8] {
        let len = PAGE * self.scheme.head_bytes(self.dim);
        let at = ((self.pages[page] as usize * 2 + plane) * self.kv_heads + self.kv_head) * len;
        &self.bytes[at..at + len]
    }
}

/// Pairs are taken in sets of 6, 4, 2 or 1: (first, how many).
fn sets(pairs: usize) -> impl Iterator<Item = (usize, usize)> {
    let mut at = 0;
    std::iter::from_fn(move || {
        let count = [SIX, 4, 2, 1].into_iter().find(|n| at + n <= pairs)?;
        at += count;
        Some((at - count, count))
    })
}

/// Queries [pair][dim] as the kernel takes them: for each set [dim][pair].
pub fn pack<'a>(queries: impl Fn(usize) -> &'a [f32], pairs: usize, dim: usize, packed: &mut Vec<f32>) {
    packed.resize(pairs * dim, 0.0);
    for (first, count) in sets(pairs) {
        let set = &mut packed[first * dim..(first + count) * dim];
        for r in 0..count {
            for (place, q) in set[r..].iter_mut().step_by(count).zip(&queries(first + r)[..dim]) {
                *place = *q;
            }
        }
    }
}

/// The partial result of one block. Of pairs that see nothing of it ([`Attend::skipped`]) nothing is to be used.
#[inline(always)]
pub fn block<S: Simd>(a: &Attend<'_>, block: usize, scratch: &mut Scratch, out: &mut Partial<'_>) {
    let (pairs, width) = (a.pairs(), width(a.dim));
    let Scratch { tile, s } = scratch;
    // Keys take dim rows of 64, values 64 rows of at most `width`.
    tile.resize(tile.len().max(PAGE * width), 0.0);
    s.resize(s.len().max(pairs * BLOCK), 0.0);
    assert!(a.q.len() == pairs * a.dim && out.values.len() == pairs * width, "{pairs} pairs of {}", a.dim);
    assert!(0 < a.dim && a.dim <= MAX_DIM, "{} dimensions", a.dim);
    let pages = a.seen(block, pairs - 1).div_ceil(PAGE);
    for page in 0..pages {
        kv_block::widen_keys::<S>(a.scheme, a.stored(block * BLOCK / PAGE + page, 0), a.dim, tile);
        for from in (0..a.dim).step_by(DEPTH) {
            let depth = from..a.dim.min(from + DEPTH);
            for (first, count) in sets(pairs) {
                if a.seen(block, first + count - 1) > page * PAGE {
                    let keys = &tile[depth.start * PAGE..depth.end * PAGE];
                    let q = &a.q[first * a.dim + depth.start * count..first * a.dim + depth.end * count];
                    let s = &mut s[first * BLOCK + page * PAGE..(first + count) * BLOCK];
                    match count {
                        SIX => scores::<S, SIX>(q, keys, from == 0, s),
                        4 => scores::<S, 4>(q, keys, from == 0, s),
                        2 => scores::<S, 2>(q, keys, from == 0, s),
                        _ => scores::<S, 1>(q, keys, from == 0, s),
                    }
                }
            }
        }
    }
    for pair in a.skipped(block)..pairs {
        let s = &mut s[pair * BLOCK..(pair + 1) * BLOCK];
        (out.max[pair], out.sum[pair]) = weights(s, a.seen(block, pair), a.scale);
    }
    for page in 0..pages {
        let tokens = |pair: usize| a.seen(block, pair).saturating_sub(page * PAGE).min(PAGE);
        kv_block::widen_values::<S>(a.scheme, a.stored(block * BLOCK / PAGE + page, 1), a.dim, tokens(pairs - 1), tile);
        for column in (0..width).step_by(COLUMNS) {
            let values = &tile[column * PAGE..(column + COLUMNS) * PAGE];
            for (first, count) in sets(pairs) {
                let tokens = tokens(first + count - 1);
                if tokens > 0 {
                    let p = &s[first * BLOCK + page * PAGE..(first + count) * BLOCK];
                    let o = &mut out.values[first * width + column..(first + count) * width];
                    match count {
                        SIX => weigh::<S, SIX>(p, tokens, values, page == 0, o, width),
                        4 => weigh::<S, 4>(p, tokens, values, page == 0, o, width),
                        2 => weigh::<S, 2>(p, tokens, values, page == 0, o, width),
                        _ => weigh::<S, 1>(p, tokens, values, page == 0, o, width),
                    }
                }
            }
        }
    }
}

/// Scores to weights, of which those past `seen` are zero: (maximum, sum).
#[inline(always)]
fn weights(s: &mut [f32], seen: usize, scale: f32) -> (f32, f32) {
    let (s, past) = s.split_at_mut(seen);
    s.iter_mut().for_each(|s| *s *= scale);
    let max = largest(s);
    s.iter_mut().for_each(|s| *s = exp(*s - max));
    past.fill(0.0);
    (max, total(s))
}

/// s[r][j] (+)= the sum over d of q[d][r] * keys[d][j], for the 64 keys of a page; rows of s are a block apart.
#[inline(always)]
fn scores<S: Simd, const R: usize>(q: &[f32], keys: &[f32], fresh: bool, s: &mut [f32]) {
    match S::COLUMNS {
        1 => scores_by::<S, R, 1>(q, keys, fresh, s),
        2 => scores_by::<S, R, 2>(q, keys, fresh, s),
        _ => scores_by::<S, R, 4>(q, keys, fresh, s),
    }
}

#[inline(always)]
fn scores_by<S: Simd, const R: usize, const C: usize>(q: &[f32], keys: &[f32], fresh: bool, s: &mut [f32]) {
    let depth = keys.len() / PAGE;
    assert!(keys.len() == depth * PAGE && q.len() == depth * R && s.len() >= (R - 1) * BLOCK + PAGE, "{depth} deep");
    for at in (0..PAGE).step_by(C * S::WIDTH) {
        // SAFETY: the kernel runs where the instruction set is. Key d of `depth` has 64 values, of which these are at
        // `at` to `at + C * WIDTH`, at most 64; the query has R for each d; row r of s holds 64 values at r * BLOCK.
        unsafe {
            let mut acc = [[S::splat(0.0); C]; R];
            if !fresh {
                for r in 0..R {
                    for c in 0..C {
                        acc[r][c] = S::load(s.as_ptr().add(r * BLOCK + at + c * S::WIDTH));
                    }
                }
            }
            let (mut k, mut q) = (keys.as_ptr().add(at), q.as_ptr());
            for _ in 0..depth {
                let mut key = [S::splat(0.0); C];
                for c in 0..C {
                    key[c] = S::load(k.add(c * S::WIDTH));
                }
                for r in 0..R {
                    let query = S::splat(*q.add(r));
                    for c in 0..C {
                        acc[r][c] = S::fma(query, key[c], acc[r][c]);
                    }
                }
                (k, q) = (k.wrapping_add(PAGE), q.add(R));
            }
            for r in 0..R {
                for c in 0..C {
                    S::store(s.as_mut_ptr().add(r * BLOCK + at + c * S::WIDTH), acc[r][c]);
                }
            }
        }
    }
}

/// o[r][column] (+)= the sum over j < tokens of p[r][j] * values[j][column], for 64 columns; rows of p are a block apart,
/// those of o `stride`.
#[inline(always)]
fn weigh<S: Simd, const R: usize>(p: &[f32], tokens: usize, values: &[f32], fresh: bool, o: &mut [f32], stride: usize) {
    match S::COLUMNS {
        1 => weigh_by::<S, R, 1>(p, tokens, values, fresh, o, stride),
        2 => weigh_by::<S, R, 2>(p, tokens, values, fresh, o, stride),
        _ => weigh_by::<S, R, 4>(p, tokens, values, fresh, o, stride),
    }
}

#[inline(always)]
fn weigh_by<S: Simd, const R: usize, const C: usize>(
    p: &[f32],
    tokens: usize,
    values: &[f32],
    fresh: bool,
    o: &mut [f32],
    stride: usize,
) {
    assert!(tokens <= PAGE && values.len() == PAGE * COLUMNS && p.len() >= (R - 1) * BLOCK + PAGE, "{tokens} tokens");
    assert!(o.len() >= (R - 1) * stride + COLUMNS, "{} values", o.len());
    for at in (0..COLUMNS).step_by(C * S::WIDTH) {
        // SAFETY: the kernel runs where the instruction set is. Row r of o holds 64 values at r * stride, row j of
        // `values` 64, of which these are at `at` to `at + C * WIDTH`, at most 64; row r of p holds 64 at r * BLOCK.
        unsafe {
            let mut acc = [[S::splat(0.0); C]; R];
            if !fresh {
                for r in 0..R {
                    for c in 0..C {
                        acc[r][c] = S::load(o.as_ptr().add(r * stride + at + c * S::WIDTH));
                    }
                }
            }
            let (mut v, mut p) = (values.as_ptr().add(at), p.as_ptr());
            for _ in 0..tokens {
                let mut value = [S::splat(0.0); C];
                for c in 0..C {
                    value[c] = S::load(v.add(c * S::WIDTH));
                }
                for r in 0..R {
                    let weight = S::splat(*p.add(r * BLOCK));
                    for c in 0..C {
                        acc[r][c] = S::fma(weight, value[c], acc[r][c]);
                    }
                }
                (v, p) = (v.wrapping_add(COLUMNS), p.add(1));
            }
            for r in 0..R {
                for c in 0..C {
                    S::store(o.as_mut_ptr().add(r * stride + at + c * S::WIDTH), acc[r][c]);
                }
            }
        }
    }
}

/// Adds the next block's result to that of the blocks before it, for all pairs but the first `skipped`.
#[inline(always)]
pub fn merge(all: &mut Partial<'_>, next: &Partial<'_>, skipped: usize) {
    let pairs = all.max.len();
    let width = all.values.len() / pairs;
    for pair in skipped..pairs {
        let (max, m) = (all.max[pair], next.max[pair]);
        let merged = if m > max { m } else { max };
        let (f, g) = (exp(max - merged), exp(m - merged));
        all.max[pair] = merged;
        all.sum[pair] = next.sum[pair].mul_add(g, all.sum[pair] * f);
        let row = pair * width..(pair + 1) * width;
        for (all, next) in all.values[row.clone()].iter_mut().zip(&next.values[row]) {
            *all = (next + 0.0).mul_add(g, *all * f);
        }
    }
}

#[cfg(test)]
mod tests;
