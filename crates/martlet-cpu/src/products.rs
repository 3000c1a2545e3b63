//! Products of weights and rows: quantising the rows once, sharing out the outputs over the threads, and the experts.

use crate::acts::{Acts, BLOCK};
use crate::buffer::{Buffer, failed};
use crate::isa::Isa;
use crate::kernel_set::KernelSet;
use crate::kernels::matmul::{Input, Product, STRIPS};
use crate::lanes::LANES;
use crate::pool::{Columns, Pool};
use crate::tiles::{Kind, Memory, Scales, TILE_K, Weights};
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

/// Strips of one matrix that are computed together.
#[derive(Clone, Copy)]
struct Strips<'a> {
    w: &'a Weights,
    first: usize,
    count: usize,
}

impl<'a> Strips<'a> {
    /// The `i`-th `each` strips of a matrix, or as many as there are.
    fn of(w: &'a Weights, i: usize, each: usize) -> Strips<'a> {
        Strips { w, first: i * each, count: each.min(w.strips() - i * each) }
    }

    /// Their columns, where the matrix' outputs begin at column `first`.
    fn columns(self, first: usize) -> Range<usize> {
        first + self.first * LANES..first + self.w.rows.min((self.first + self.count) * LANES)
    }

    /// Where their weights begin.
    fn bytes(self) -> &'a [u8] {
        self.w.strip(self.first)
    }
}

/// Strips of outputs of the rows `from`, written to the rows `to` of the table, whose columns hold these strips alone.
/// `next`: what will be read after them.
fn multiply(
    kernels: &KernelSet,
    (strips, next): (Strips<'_>, &[u8]),
    x: Input<'_>,
    (from, to): (&[u32], &[u32]),
    y: &mut Columns<'_>,
) {
    // Few rows are worth a small array: it is cleared for each call.
    match from.len() {
        ..=2 => multiply_by::<2>(kernels, (strips, next), x, (from, to), y),
        3..=8 => multiply_by::<8>(kernels, (strips, next), x, (from, to), y),
        _ => multiply_by::<ROWS>(kernels, (strips, next), x, (from, to), y),
    }
}

fn multiply_by<const N: usize>(
    kernels: &KernelSet,
    (strips, next): (Strips<'_>, &[u8]),
    x: Input<'_>,
    (from, to): (&[u32], &[u32]),
    y: &mut Columns<'_>,
) {
    let Strips { w, first: strip, count: strips } = strips;
    let mut out = [[[0.0; LANES]; N]; STRIPS];
    for (from, to) in from.chunks(N).zip(to.chunks(N)) {
        let out = &mut out.as_flattened_mut()[..strips * from.len()];
        (kernels.matmul)(&Product { w, strip, strips, next, x, rows: from }, out);
        for (i, &to) in to.iter().enumerate() {
            let of_row = out.iter().skip(i).step_by(from.len());
            y.row(to as usize).chunks_mut(LANES).zip(of_row).for_each(|(y, out)| y.copy_from_slice(&out[..y.len()]));
        }
    }
}

/// How many strips of so many are computed together: two, where that leaves a few pairs for each thread.
fn together(strips: usize, pool: &Pool) -> usize {
    if strips >= 4 * STRIPS * pool.threads() { STRIPS } else { 1 }
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
    let each = together(ws.iter().map(|(w, _)| w.strips()).sum(), pool);
    let mut order: Vec<_> = ws.iter().map(|(w, col)| (*w, *col, w.strips().div_ceil(each))).collect();
    order.sort_by_key(|(_, col, _)| *col);
    let total = order.iter().map(|(_, _, items)| items).sum();
    let find = |mut i: usize| {
        let mut at = 0;
        while i >= order[at].2 {
            i -= order[at].2;
            at += 1;
        }
        let (w, col, _) = order[at];
        (Strips::of(w, i, each), col)
    };
    let columns = |i| {
        let (strips, col) = find(i);
        strips.columns(col)
    };
    pool.columns(table, width, total, cost(each * first.cols, rows), columns, |i, y| {
        let (strips, next) = (find(i).0, find((i + 1) % total).0.bytes());
        multiply(kernels, (strips, next), input(strips.w, acts, x), (all, all), y);
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
        (memory, copy): (&Memory, bool),
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
        let load = |m| Weights::load(m, false, copy, memory, pool);
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
    let each = together(2 * width.div_ceil(LANES), pool);
    let per_half = width.div_ceil(LANES).div_ceil(each);
    // The weights of group `g` that item i multiplies: of its gate, or of its up.
    let strips = |i: usize, g: usize| {
        let expert = groups[g].0;
        Strips::of(if i < per_half { &expert.gate } else { &expert.up }, i % per_half, each)
    };
    let columns = |i| strips(i, 0).columns(i / per_half * width);
    let (quantised, total) = (&*acts, 2 * per_half);
    pool.columns(inner, 2 * width, total, cost(each * hidden, pairs.len()), columns, |i, y| {
        for (g, (_, run)) in groups.iter().enumerate() {
            let (here, next) = (strips(i, g), after((i, total), (g, groups.len()), strips));
            let rows = (&rows[run.clone()], &all[run.clone()]);
            multiply(kernels, (here, next), input(here.w, quantised, input_rows), rows, y);
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
    let each = together(hidden.div_ceil(LANES), pool);
    let total = hidden.div_ceil(LANES).div_ceil(each);
    let strips = |i: usize, g: usize| Strips::of(&groups[g].0.down, i, each);
    let quantised = &*acts;
    let columns = |i| strips(i, 0).columns(0);
    pool.columns(table, cols, total, cost(each * width, pairs.len()), columns, |i, y| {
        for (g, (_, run)) in groups.iter().enumerate() {
            let (here, next) = (strips(i, g), after((i, total), (g, groups.len()), strips));
            let rows = (&all[run.clone()], &order[run.clone()]);
            multiply(kernels, (here, next), input(here.w, quantised, inner_rows), rows, y);
        }
    });
}

/// What a thread reads after item i of group g, of so many: the same item of the next group, then the next item.
fn after<'a>(
    (i, items): (usize, usize),
    (g, groups): (usize, usize),
    strips: impl Fn(usize, usize) -> Strips<'a>,
) -> &'a [u8] {
    if g + 1 < groups { strips(i, g + 1) } else { strips((i + 1) % items, 0) }.bytes()
}

/// Ranges of pairs that share a slot.
fn runs(pairs: &[(u32, u32)]) -> impl Iterator<Item = Range<usize>> {
    let mut at = 0;
    pairs.chunk_by(|a, b| a.0 == b.0).map(move |run| {
        at += run.len();
        at - run.len()..at
    })
}
