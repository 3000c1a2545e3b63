//! Products of weights and rows: quantising the rows once, sharing out the outputs over the threads, and the experts.

use crate::acts::{Acts, BLOCK};
use crate::buffer::{Buffer, failed};
use crate::isa::Isa;
use crate::kernel_set::KernelSet;
use crate::kernels::matmul::{Input, Product};
use crate::lanes::LANES;
use crate::pool::{Columns, Pool};
use crate::tiles::{Kind, Scales, TILE_K, Weights};
use martlet_device::{DeviceError, ExpertShape, NO_SLOT};
use martlet_tensor::Matrix;
use std::ops::Range;

/// Rows whose outputs a thread keeps before it writes them out.
pub const ROWS: usize = 128;

/// Rows of activations, as they are and quantised; kept from call to call.
#[derive(Default)]
pub struct Scratch {
    /// In groups of 16, of 32 and of 64.
    acts: [Acts; 3],
    /// 0, 1, 2, ...: all rows, in order.
    all: Vec<u32>,
    /// Outputs of gate and up of the experts, [pairs, 2 * width].
    inner: Vec<f32>,
    /// (slot, pair) of a call, in the order of slots.
    pairs: Vec<(u32, u32)>,
    /// Which rows of x these pairs read.
    used: Vec<bool>,
    /// The rows of x that these pairs read, and the pairs' own numbers.
    rows: Vec<u32>,
    order: Vec<u32>,
}

/// Rows to be multiplied: row r is `values[r * stride..][..cols]`.
#[derive(Clone, Copy)]
struct Rows<'a> {
    values: &'a [f32],
    stride: usize,
    cols: usize,
    count: usize,
}

/// Of `Scratch::acts`: those whose groups are whole tiles.
const TILES: usize = 2;

/// Which activations a matrix wants: an index into `Scratch::acts` (groups of 16, 32, 64), or none for plain floats.
fn wanted(w: &Weights) -> Option<usize> {
    matches!(w.kind, Kind::Codes(..)).then_some(w.act_group.trailing_zeros() as usize - 4)
}

/// Quantises `rows` in every group size that one of `ws` wants: those that are `used`, or all of them if it is empty.
fn quantise<'a>(
    kernels: &KernelSet,
    pool: &Pool,
    acts: &mut [Acts; 3],
    rows: Rows<'_>,
    used: &[bool],
    ws: impl Iterator<Item = &'a Weights> + Clone,
) {
    for (i, acts) in acts.iter_mut().enumerate() {
        if !ws.clone().any(|w| wanted(w) == Some(i)) {
            continue;
        }
        let group = 16 << i;
        acts.shape(rows.count, rows.cols, group);
        let (tiles, groups) = (acts.tiles, acts.groups);
        let mut out: Vec<_> =
            acts.codes.chunks_mut(tiles).zip(acts.d.chunks_mut(groups).zip(acts.ds.chunks_mut(groups))).collect();
        pool.items(&mut out, rows.cols / 4, |r, (codes, (d, ds))| {
            if used.is_empty() || used[r] {
                (kernels.quantise)(&rows.values[r * rows.stride..][..rows.cols], group, codes, d, ds);
            }
        });
        if ws.clone().any(|w| wanted(w) == Some(i) && matches!(w.kind, Kind::Codes(_, Scales::Whole))) {
            acts.starts.resize(rows.count * tiles, [0; TILE_K / LANES]);
            let codes = &acts.codes;
            pool.chunks(&mut acts.starts, tiles, rows.cols / 16, |r, to| {
                (kernels.starts)(&codes[r * tiles..(r + 1) * tiles], to);
            });
        }
    }
}

/// The activations that `w` reads.
fn input<'a>(w: &Weights, acts: &'a [Acts; 3], rows: Rows<'a>) -> Input<'a> {
    match wanted(w) {
        Some(i) => {
            let Acts { codes, blocks, starts, d, ds, tiles, groups } = &acts[i];
            Input::Codes { codes, blocks, starts, d, ds, tiles: *tiles, groups: *groups }
        }
        None => Input::Floats { x: rows.values, stride: rows.stride },
    }
}

/// One strip of outputs of the rows `from`, written to the rows `to` of the table, whose columns hold the strip alone.
fn strip(kernels: &KernelSet, w: &Weights, strip: usize, x: Input<'_>, from: &[u32], to: &[u32], y: &mut Columns<'_>) {
    // Few rows are worth a small array: it is cleared for each strip.
    match from.len() {
        ..=8 => strip_by::<8>(kernels, w, strip, x, from, to, y),
        _ => strip_by::<ROWS>(kernels, w, strip, x, from, to, y),
    }
}

fn strip_by<const N: usize>(
    kernels: &KernelSet,
    w: &Weights,
    strip: usize,
    x: Input<'_>,
    from: &[u32],
    to: &[u32],
    y: &mut Columns<'_>,
) {
    let mut out = [[0.0; LANES]; N];
    for (from, to) in from.chunks(N).zip(to.chunks(N)) {
        (kernels.matmul)(&Product { w, strip, x, rows: from }, &mut out[..from.len()]);
        for (out, &to) in out.iter().zip(to) {
            let y = y.row(to as usize);
            y.copy_from_slice(&out[..y.len()]);
        }
    }
}

/// Columns of strip `i` of a matrix whose outputs begin at column `first`.
fn span(w: &Weights, first: usize, i: usize) -> Range<usize> {
    first + i * LANES..first + w.rows.min((i + 1) * LANES)
}

/// About how many nanoseconds a strip of `cols` inputs takes: 16 products each for `rows` rows.
fn cost(cols: usize, rows: usize) -> usize {
    cols * rows.max(1)
}

fn count_up(all: &mut Vec<u32>, rows: usize) {
    for r in all.len()..rows {
        all.push(r as u32);
    }
}

/// y[r, col..] = w x[r] for each (w, col), columns of different matrices apart.
pub fn project(
    kernels: &KernelSet,
    pool: &Pool,
    scratch: &mut Scratch,
    ws: &[(&Weights, usize)],
    x: &Buffer,
    rows: usize,
    y: &mut Buffer,
) {
    let Some(&(first, _)) = ws.first() else { return };
    assert!(ws.iter().all(|(w, _)| w.cols == first.cols), "matrices of different widths");
    assert!(first.cols <= x.cols && rows <= x.rows(), "{} inputs from {} columns", first.cols, x.cols);
    let x = Rows { values: &x.values, stride: x.cols, cols: first.cols, count: rows };
    quantise(kernels, pool, &mut scratch.acts, x, &[], ws.iter().map(|(w, _)| *w));
    // Only here: the rows of an expert lie apart.
    if kernels.isa == Isa::Amx && rows >= BLOCK && ws.iter().any(|(w, _)| wanted(w) == Some(TILES)) {
        scratch.acts[TILES].arrange(pool);
    }
    count_up(&mut scratch.all, rows);
    let (width, table) = (y.cols, y.first(rows));
    let (acts, all) = (&scratch.acts, &scratch.all[..rows]);

    // In the order of columns, so that each thread gets a run of strips.
    let mut order: Vec<(&Weights, usize)> = ws.to_vec();
    order.sort_by_key(|(_, col)| *col);
    let total = order.iter().map(|(w, _)| w.strips()).sum();
    let find = |mut i: usize| {
        let mut at = 0;
        while i >= order[at].0.strips() {
            i -= order[at].0.strips();
            at += 1;
        }
        (order[at].0, order[at].1, i)
    };
    let columns = |i| {
        let (w, col, i) = find(i);
        span(w, col, i)
    };
    pool.columns(table, width, total, cost(first.cols, rows), columns, |i, y| {
        let (w, _, i) = find(i);
        strip(kernels, w, i, input(w, acts, x), all, all, y);
    });
}

/// Slots for experts of one shape.
pub struct Experts {
    shape: ExpertShape,
    slots: Vec<Option<Expert>>,
}

struct Expert {
    gate: Weights,
    up: Weights,
    down: Weights,
}

impl Experts {
    pub(crate) fn new(shape: ExpertShape, slots: usize) -> Experts {
        Experts { shape, slots: (0..slots).map(|_| None).collect() }
    }

    pub(crate) fn load(
        &mut self,
        pool: &Pool,
        copy: bool,
        slot: usize,
        [gate, up, down]: [&Matrix<'_>; 3],
    ) -> Result<(), DeviceError> {
        let ExpertShape { hidden, width } = self.shape;
        let slots = self.slots.len();
        let wants = [[width, hidden], [width, hidden], [hidden, width]];
        for ((name, m), want) in [("gate", gate), ("up", up), ("down", down)].into_iter().zip(wants) {
            if [m.rows(), m.cols()] != want {
                let (rows, cols) = (m.rows(), m.cols());
                return Err(failed(format!("load an expert: {name} is [{rows}, {cols}], expected {want:?}")));
            }
        }
        let Some(place) = self.slots.get_mut(slot) else {
            return Err(failed(format!("load an expert into slot {slot} of {slots}")));
        };
        let load = |m| Weights::load(m, false, copy, pool);
        *place = Some(Expert { gate: load(gate)?, up: load(up)?, down: load(down)? });
        Ok(())
    }

    pub(crate) fn unload(&mut self, slot: usize) {
        self.slots[slot] = None;
    }

    fn expert(&self, slot: u32) -> &Expert {
        match &self.slots[slot as usize] {
            Some(expert) => expert,
            None => panic!("slot {slot} was never filled"),
        }
    }
}

/// y[pair] = down(silu(gate x) * up x) for every (row, rank) pair whose expert has a slot. Pairs are taken in the order
/// of slots, so that a slot's weights are read once; each thread computes some outputs of all pairs.
pub fn experts(
    kernels: &KernelSet,
    pool: &Pool,
    scratch: &mut Scratch,
    experts: &Experts,
    slots: &[u32],
    x: &Buffer,
    (chosen, picked): (usize, &[u32]),
    y: &mut Buffer,
) {
    let ExpertShape { hidden, width } = experts.shape;
    let Scratch { acts, all, inner, pairs, used, rows, order } = scratch;
    pairs.clear();
    for (pair, &e) in picked.iter().enumerate() {
        let slot = slots[e as usize];
        if slot != NO_SLOT {
            pairs.push((slot, pair as u32));
        }
    }
    if pairs.is_empty() {
        return;
    }
    pairs.sort_unstable();
    rows.clear();
    rows.extend(pairs.iter().map(|(_, pair)| pair / chosen as u32));
    order.clear();
    order.extend(pairs.iter().map(|(_, pair)| *pair));
    count_up(all, pairs.len());
    let (pairs, rows, order, all) = (&*pairs, &*rows, &*order, &all[..pairs.len()]);
    // Runs of pairs with the same slot.
    let groups: Vec<(&Expert, Range<usize>)> =
        runs(pairs).map(|run| (experts.expert(pairs[run.start].0), run)).collect();
    let of_all = |pick: fn(&Expert) -> &Weights| groups.iter().map(move |(e, _)| pick(e));

    let batch = picked.len() / chosen.max(1);
    // Where experts come one by one, each call reads few of the rows.
    used.clear();
    used.resize(batch, false);
    rows.iter().for_each(|r| used[*r as usize] = true);
    let input_rows = Rows { values: &x.values, stride: x.cols, cols: hidden, count: batch };
    quantise(kernels, pool, acts, input_rows, used, of_all(|e| &e.gate).chain(of_all(|e| &e.up)));
    inner.resize(pairs.len() * 2 * width, 0.0);
    let strips = width.div_ceil(LANES);
    let half = |i: usize| (i / strips, i % strips);
    let columns = |i| {
        let (second, i) = half(i);
        second * width + i * LANES..second * width + width.min((i + 1) * LANES)
    };
    let quantised = &*acts;
    pool.columns(inner, 2 * width, 2 * strips, cost(hidden, pairs.len()), columns, |i, y| {
        let (second, i) = half(i);
        for (e, run) in &groups {
            let w = if second == 0 { &e.gate } else { &e.up };
            strip(kernels, w, i, input(w, quantised, input_rows), &rows[run.clone()], &all[run.clone()], y);
        }
    });
    pool.chunks(inner, 2 * width, width, |_, row| {
        let (gate, up) = row.split_at_mut(width);
        (kernels.silu_mul_in_place)(gate, up);
    });

    let inner_rows = Rows { values: inner, stride: 2 * width, cols: width, count: pairs.len() };
    quantise(kernels, pool, acts, inner_rows, &[], of_all(|e| &e.down));
    let last = order.iter().max().map_or(0, |m| *m as usize + 1);
    let (cols, table) = (y.cols, y.first(last));
    let quantised = &*acts;
    let columns = |i| i * LANES..hidden.min((i + 1) * LANES);
    pool.columns(table, cols, hidden.div_ceil(LANES), cost(width, pairs.len()), columns, |i, y| {
        for (e, run) in &groups {
            let x = input(&e.down, quantised, inner_rows);
            strip(kernels, &e.down, i, x, &all[run.clone()], &order[run.clone()], y);
        }
    });
}

/// Ranges of pairs that share a slot.
fn runs(pairs: &[(u32, u32)]) -> impl Iterator<Item = Range<usize>> {
    let mut at = 0;
    pairs.chunk_by(|a, b| a.0 == b.0).map(move |run| {
        at += run.len();
        at - run.len()..at
    })
}
