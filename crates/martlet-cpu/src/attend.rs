//! Attention shared out over the threads.
//!
//! A *unit* is a run of rows of one sequence with all query heads of one kv head: it reads each block of keys once. As
//! long as there are enough units, each goes through its blocks in order on one thread. Where there are few (a long
//! context, few sequences) a unit's blocks are shared out too, some at a time, and their results merged in the same
//! order: the same bits.

use crate::buffer::Buffer;
use crate::kernel_set::KernelSet;
use crate::kernels::attention::{self, Attend, BLOCK, Partial};
use crate::kv::Kv;
use crate::pool::{Columns, Pool, blocks};
use martlet_device::{AttentionSpec, Batch, Heads, SeqRows};
use std::sync::{Mutex, PoisonError};

/// Most pairs of row and head in a unit: enough that reading the keys is little beside using them.
const PAIRS: usize = 96;
/// Units for each thread below which blocks are shared out.
const SPREAD: usize = 2;
/// Blocks for each thread that are computed before they are merged.
const WAVE: usize = 8;

/// What threads work in, kept from call to call.
#[derive(Default)]
pub struct Attention {
    spare: Mutex<Vec<Work>>,
    /// Of each unit the result so far, and of some blocks their own.
    all: Vec<f32>,
    parts: Vec<f32>,
}

#[derive(Default)]
struct Work {
    scratch: attention::Scratch,
    q: Vec<f32>,
    all: Vec<f32>,
    next: Vec<f32>,
}

/// Rows of one sequence and one kv head.
struct Unit<'a> {
    seq: &'a SeqRows,
    /// First row inside the batch, and inside the sequence; how many.
    row: usize,
    offset: usize,
    rows: usize,
    kv_head: usize,
    y: Columns<'a>,
}

/// What all units share.
struct Call<'a> {
    kernels: &'a KernelSet,
    x: &'a Buffer,
    queries: Heads,
    kv: &'a Kv,
    spec: AttentionSpec,
}

impl Attention {
    pub fn run(
        &mut self,
        kernels: &KernelSet,
        pool: &Pool,
        x: &Buffer,
        queries: Heads,
        kv: &Kv,
        spec: AttentionSpec,
        b: &Batch,
        y: &mut Buffer,
    ) {
        let AttentionSpec { heads, kv_heads, dim, .. } = spec;
        assert!(queries.count == heads && queries.dim == dim && dim == kv.spec.dim, "heads of the queries");
        assert!(kv_heads == kv.spec.kv_heads && heads.is_multiple_of(kv_heads), "{heads} heads over {kv_heads}");
        assert!(heads * dim <= y.cols, "{heads} heads of {dim} in {} columns", y.cols);
        let call = Call { kernels, x, queries, kv, spec };
        let wanted = SPREAD * pool.threads();
        let most = (PAIRS / call.group()).min((b.rows() * kv_heads).div_ceil(wanted)).max(1);
        let mut units = units(b, kv_heads, call.group() * dim, most, y);
        // The last rows see the most keys: with the longest units first, all threads end at about the same time.
        units.reverse();
        let blocks: usize = units.iter().map(|u| call.blocks(u)).sum();
        // A multiply-add for each value of a key and of a value, 16 at a time.
        let cost = blocks * BLOCK * most * call.group() * dim / 8 / units.len().max(1);
        if units.len() < wanted && blocks > units.len() {
            for unit in &mut units {
                self.spread(&call, pool, unit);
            }
            return;
        }
        pool.queue(&mut units, cost, |_, unit| {
            let mut work = self.take();
            call.whole(unit, &mut work);
            self.give(work);
        });
    }

    fn take(&self) -> Work {
        self.spare.lock().unwrap_or_else(PoisonError::into_inner).pop().unwrap_or_default()
    }

    fn give(&self, work: Work) {
        self.spare.lock().unwrap_or_else(PoisonError::into_inner).push(work);
    }

    /// One unit on all threads, a wave of blocks at a time.
    fn spread(&mut self, call: &Call<'_>, pool: &Pool, unit: &mut Unit<'_>) {
        let (pairs, dim) = (unit.rows * call.group(), call.spec.dim);
        let (len, count) = (Partial::len(pairs, dim), call.blocks(unit));
        let (mut all, mut parts) = (std::mem::take(&mut self.all), std::mem::take(&mut self.parts));
        let mut q = Vec::new();
        call.pack(unit, &mut q);
        let a = call.attend(unit, &q);
        all.resize(len, 0.0);
        parts.resize(len * (WAVE * pool.threads()).min(count), 0.0);
        let mut all_of = Partial::new(&mut all, pairs);
        all_of.clear();
        for wave in (0..count).step_by(WAVE * pool.threads()) {
            let here = (count - wave).min(WAVE * pool.threads());
            let mut parts: Vec<Partial<'_>> =
                parts.chunks_exact_mut(len).take(here).map(|room| Partial::new(room, pairs)).collect();
            pool.queue(&mut parts, BLOCK * pairs * dim / 8, |i, part| {
                let mut work = self.take();
                (call.kernels.attention)(&a, wave + i, &mut work.scratch, part);
                self.give(work);
            });
            for (i, part) in parts.iter().enumerate() {
                (call.kernels.attention_merge)(&mut all_of, part, a.skipped(wave + i));
            }
        }
        call.write(&all_of, unit);
        (self.all, self.parts) = (all, parts);
    }
}

impl Call<'_> {
    /// Query heads of one kv head.
    fn group(&self) -> usize {
        self.spec.heads / self.spec.kv_heads
    }

    /// Blocks that the last row of a unit sees.
    fn blocks(&self, unit: &Unit<'_>) -> usize {
        (unit.seq.start + unit.offset + unit.rows).div_ceil(BLOCK)
    }

    fn pack(&self, unit: &Unit<'_>, q: &mut Vec<f32>) {
        let group = self.group();
        let query =
            |pair: usize| self.x.head(unit.row + pair / group, self.queries, unit.kv_head * group + pair % group);
        attention::pack(query, unit.rows * group, self.spec.dim, q);
    }

    fn attend<'a>(&'a self, unit: &Unit<'a>, q: &'a [f32]) -> Attend<'a> {
        let AttentionSpec { kv_heads, dim, scale, .. } = self.spec;
        Attend {
            q,
            dim,
            first: unit.seq.start + unit.offset,
            rows: unit.rows,
            group: self.group(),
            scheme: self.kv.spec.scheme,
            bytes: &self.kv.bytes,
            pages: &unit.seq.pages,
            kv_heads,
            kv_head: unit.kv_head,
            scale,
        }
    }

    /// All blocks of a unit, one after another.
    fn whole(&self, unit: &mut Unit<'_>, work: &mut Work) {
        let (pairs, dim) = (unit.rows * self.group(), self.spec.dim);
        let Work { scratch, q, all, next } = work;
        self.pack(unit, q);
        let a = self.attend(unit, q);
        for room in [&mut *all, &mut *next] {
            room.resize(Partial::len(pairs, dim), 0.0);
        }
        let (mut all, mut next) = (Partial::new(all, pairs), Partial::new(next, pairs));
        all.clear();
        for block in 0..self.blocks(unit) {
            (self.kernels.attention)(&a, block, scratch, &mut next);
            (self.kernels.attention_merge)(&mut all, &next, a.skipped(block));
        }
        self.write(&all, unit);
    }

    fn write(&self, all: &Partial<'_>, unit: &mut Unit<'_>) {
        let (group, dim) = (self.group(), self.spec.dim);
        let width = attention::width(dim);
        for row in 0..unit.rows {
            for (g, y) in unit.y.row(row).chunks_exact_mut(dim).enumerate() {
                let pair = row * group + g;
                for (y, value) in y.iter_mut().zip(&all.values[pair * width..]) {
                    *y = value / all.sum[pair];
                }
            }
        }
    }
}

/// Units of at most `most` rows, in order of rows; `columns` of y for each kv head.
fn units<'a>(b: &'a Batch, kv_heads: usize, columns: usize, most: usize, y: &'a mut Buffer) -> Vec<Unit<'a>> {
    let mut runs = Vec::new();
    for (first, seq) in b.iter_seqs() {
        runs.extend((0..seq.rows).step_by(most).map(|offset| (seq, first, offset, most.min(seq.rows - offset))));
    }
    let width = y.cols;
    let rows = runs.iter().map(|&(_, first, offset, rows)| first + offset..first + offset + rows);
    let parts = blocks(y.first(b.rows()), width, rows, (0..kv_heads).map(|h| h * columns..(h + 1) * columns));
    let places = runs.iter().flat_map(|run| (0..kv_heads).map(move |kv_head| (run, kv_head)));
    let unit =
        |((&(seq, first, offset, rows), kv_head), y)| Unit { seq, row: first + offset, offset, rows, kv_head, y };
    places.zip(parts).map(unit).collect()
}

#[cfg(test)]
mod tests {
    use crate::testing::Random;
    use crate::{Cpu, CpuOptions};
    use martlet_device::{AttentionSpec, Batch, Device, Heads, KvScheme, KvSpec, PAGE, SeqRows};

    /// More blocks than one wave takes, by any number of threads, and the same row among others.
    #[test]
    fn blocks_shared_out_merge_to_the_same_bits() {
        const LEN: usize = 4500;
        let (dim, pages) = (16, (0..LEN.div_ceil(PAGE) as u32).rev().collect::<Vec<_>>());
        let spec = AttentionSpec { heads: 2, kv_heads: 1, dim, scale: 1.0 };
        let x = Random::new(3).vec(LEN * 4 * dim);
        let row = |threads: usize, rows: usize| {
            let mut cpu = Cpu::new(CpuOptions { threads: Some(threads), isa: None }).expect("a CPU device");
            let mut kv = cpu.kv(KvSpec { kv_heads: 1, dim, scheme: KvScheme::F16 }, pages.len()).expect("pages");
            let batch = |start: usize| {
                let rows = LEN - start;
                let seq = SeqRows { rows, start, certain: rows, pages: pages.clone(), state: 0 };
                Batch { tokens: vec![0; rows], seqs: vec![seq], ..Batch::default() }
            };
            let mut all = cpu.buffer(LEN, 4 * dim).expect("a buffer");
            cpu.write(&mut all, 0, &x).expect("room for all rows");
            let (keys, values) = (Heads::packed(2 * dim, 1, dim), Heads::packed(3 * dim, 1, dim));
            cpu.kv_append(&all, keys, values, &mut kv, &batch(0));
            let mut last = cpu.buffer(rows, 4 * dim).expect("a buffer");
            cpu.write(&mut last, 0, &x[(LEN - rows) * 4 * dim..]).expect("room for the last rows");
            let mut y = cpu.buffer(rows, 2 * dim).expect("a buffer");
            cpu.attention(&last, Heads::packed(0, 2, dim), &kv, spec, &batch(LEN - rows), &mut y);
            y.row(rows - 1).iter().map(|y| y.to_bits()).collect::<Vec<_>>()
        };
        let alone = row(1, 1);
        for (threads, rows) in [(2, 1), (5, 1), (1, 300), (3, 7)] {
            assert_eq!(row(threads, rows), alone, "{threads} threads, {rows} rows");
        }
    }
}
