//! The threads of the device: a fork-join pool for work of microseconds.
//!
//! A token takes hundreds of joins, so waking a thread by the kernel each time (10 to 30 us) would cost more than the
//! work. Workers spin for a bounded time after each job, then yield, then park. A job is cut into a few parts that
//! whoever is free takes; the caller takes parts too, and waits only for workers that are in the middle of one. So a
//! worker that the system has put aside costs nothing, and a machine shared with others is no slower than one thread
//! on it. Who computes a part depends on timing; by the law the bits do not.
#![allow(unsafe_code)]

mod join;
#[cfg(test)]
mod model;
mod sync;

pub use join::Pool;

use martlet_device::Heads;
use std::marker::PhantomData;
use std::ops::Range;

/// Nanoseconds of work for which a join is worth it.
const WORTH: usize = 4000;

impl Pool {
    /// Calls `f` on disjoint ranges that cover `0..total`; on the caller alone when `total * cost` is less than a join is
    /// worth. `cost` is in units of about a nanosecond.
    pub fn split(&self, total: usize, cost: usize, f: impl Fn(Range<usize>) + Sync) {
        let (threads, time) = (self.threads(), total.saturating_mul(cost));
        if threads == 1 || total < 2 || time < WORTH {
            return f(0..total);
        }
        // A few parts for each thread, so that one that comes late or is put aside holds up little.
        let parts = (time / WORTH).clamp(threads, 4 * threads).min(total);
        self.run(parts, |i| f(total * i / parts..total * (i + 1) / parts));
    }

    /// `f(i, chunk i of data)` for every chunk of `size` values (the last may be shorter).
    pub fn chunks<T: Send>(&self, data: &mut [T], size: usize, cost: usize, f: impl Fn(usize, &mut [T]) + Sync) {
        assert!(size > 0, "chunks of no size");
        let (len, all) = (data.len(), Slots::new(data));
        self.split(len.div_ceil(size), cost, |range| {
            for i in range {
                let at = i * size;
                // SAFETY: chunks of different i do not overlap, and `split` gives each i to one thread.
                f(i, unsafe { all.slice(at, size.min(len - at)) });
            }
        });
    }

    /// `f(row, head, values)` for every head of every row of a table with rows of `width`.
    pub fn heads(
        &self,
        table: &mut [f32],
        width: usize,
        heads: Heads,
        cost: usize,
        f: impl Fn(usize, usize, &mut [f32]) + Sync,
    ) {
        let Heads { stride, count, dim, .. } = heads;
        assert!(stride >= dim && heads.end() <= width, "{heads:?} in rows of {width}");
        let (rows, all) = (table.len() / width.max(1), Slots::new(table));
        self.split(rows * count, cost, |range| {
            for i in range {
                let (r, h) = (i / count, i % count);
                // SAFETY: heads of a row do not overlap (checked above), rows neither; `split` gives each to one thread.
                f(r, h, unsafe { all.slice(r * width + heads.at(h), dim) });
            }
        });
    }

    /// `f(i, item i)` for every item.
    pub fn items<T: Send>(&self, data: &mut [T], cost: usize, f: impl Fn(usize, &mut T) + Sync) {
        self.chunks(data, 1, cost, |i, item| f(i, &mut item[0]));
    }

    /// The same for items that differ in length or are long: whoever is free takes the next.
    pub fn queue<T: Send>(&self, data: &mut [T], cost: usize, f: impl Fn(usize, &mut T) + Sync) {
        let (len, all) = (data.len(), Slots::new(data));
        // SAFETY: an item is given to one thread, once.
        let one = |i| f(i, &mut unsafe { all.slice(i, 1) }[0]);
        if len < 2 || len.saturating_mul(cost) < WORTH { (0..len).for_each(one) } else { self.run(len, one) }
    }

    /// Work whose item i fills the columns `span(i)` of a table with rows of `width`; spans ascend and do not overlap.
    /// `f` gets an item and the table, of which it may touch this item's columns.
    pub fn columns(
        &self,
        table: &mut [f32],
        width: usize,
        total: usize,
        cost: usize,
        span: impl Fn(usize) -> Range<usize> + Sync,
        f: impl Fn(usize, &mut Columns<'_>) + Sync,
    ) {
        self.columns_of([(table, width)], total, cost, span, |i, [table]| f(i, table));
    }

    /// The same for several tables (values, width): an item fills the same columns of each.
    pub fn columns_of<'a, const N: usize>(
        &self,
        tables: [(&'a mut [f32], usize); N],
        total: usize,
        cost: usize,
        span: impl Fn(usize) -> Range<usize> + Sync,
        f: impl Fn(usize, [&mut Columns<'a>; N]) + Sync,
    ) {
        let least = tables.iter().map(|(_, width)| *width).min().unwrap_or(0);
        let mut end = 0;
        for i in 0..total {
            let here = span(i);
            assert!(end <= here.start && here.start <= here.end && here.end <= least, "columns {here:?} of {least}");
            end = here.end;
        }
        let tables = tables.map(|(table, width)| {
            assert!(width > 0 && table.len().is_multiple_of(width), "{} values in rows of {width}", table.len());
            (table.len() / width, width, Slots::new(table))
        });
        self.split(total, cost, |range| {
            for i in range {
                // Spans do not overlap (checked above), and `split` gives each item to one thread.
                let columns = span(i);
                let mut here =
                    tables.map(|(rows, width, all)| Columns { all, width, rows: 0..rows, columns: columns.clone() });
                f(i, here.each_mut());
            }
        });
    }
}

/// A mutable slice whose parts several threads fill at the same time.
#[derive(Clone, Copy)]
pub struct Slots<'a, T> {
    start: *mut T,
    len: usize,
    life: PhantomData<&'a mut [T]>,
}

// SAFETY: it hands out parts only through unsafe methods, whose callers promise that no two parts overlap.
unsafe impl<T: Send> Sync for Slots<'_, T> {}
// SAFETY: as above.
unsafe impl<T: Send> Send for Slots<'_, T> {}

impl<'a, T> Slots<'a, T> {
    pub fn new(data: &'a mut [T]) -> Slots<'a, T> {
        Slots { start: data.as_mut_ptr(), len: data.len(), life: PhantomData }
    }

    /// Values `at..at + len`.
    ///
    /// # Safety
    /// While the slice lives, no other part that overlaps it may be in use.
    pub unsafe fn slice(&self, at: usize, len: usize) -> &'a mut [T] {
        assert!(at <= self.len && len <= self.len - at, "{len} values at {at} of {}", self.len);
        // SAFETY: in bounds, as just checked; unique, as the caller promises.
        unsafe { std::slice::from_raw_parts_mut(self.start.add(at), len) }
    }
}

/// Some columns of some rows of a table.
pub struct Columns<'a> {
    all: Slots<'a, f32>,
    width: usize,
    rows: Range<usize>,
    columns: Range<usize>,
}

impl Columns<'_> {
    /// The columns of one of the rows, the first of them being row 0.
    pub fn row(&mut self, row: usize) -> &mut [f32] {
        let at = self.place(row);
        // SAFETY: these values are this one's alone (its maker saw to that), and the borrow of `self` keeps the slice
        // the only one.
        unsafe { self.all.slice(at, self.columns.len()) }
    }

    /// The same, to read.
    pub fn get(&self, row: usize) -> &[f32] {
        // SAFETY: as in `row`; nobody writes while `self` is borrowed.
        unsafe { self.all.slice(self.place(row), self.columns.len()) }
    }

    fn place(&self, row: usize) -> usize {
        assert!(row < self.rows.len(), "row {row} of {}", self.rows.len());
        (self.rows.start + row) * self.width + self.columns.start
    }
}

/// Cuts a table with rows of `width` into blocks: all `columns` of the first of `rows`, then of the second, and so on.
/// Both kinds of range must ascend without overlap.
pub fn blocks<'a>(
    table: &'a mut [f32],
    width: usize,
    rows: impl Iterator<Item = Range<usize>>,
    columns: impl Iterator<Item = Range<usize>> + Clone,
) -> Vec<Columns<'a>> {
    let (held, all) = (table.len() / width.max(1), Slots::new(table));
    let (mut out, mut below) = (Vec::new(), 0);
    for rows in rows {
        assert!(below <= rows.start && rows.start <= rows.end && rows.end <= held, "rows {rows:?} of {held}");
        below = rows.end;
        let mut left = 0;
        for columns in columns.clone() {
            let fits = left <= columns.start && columns.start <= columns.end && columns.end <= width;
            assert!(fits, "columns {columns:?} of {width}");
            left = columns.end;
            out.push(Columns { all, width, rows: rows.clone(), columns });
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::panic::{AssertUnwindSafe, catch_unwind};
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::thread;
    use std::time::Duration;

    #[test]
    fn every_share_is_done_once() {
        for threads in 1..6 {
            let pool = Pool::new(threads).unwrap();
            for total in [0, 1, 2, 3, 7, 64, 1000] {
                let mut seen = vec![0u8; total];
                pool.items(&mut seen, 10_000, |i, s| *s += 1 + (i % 2) as u8);
                assert!(seen.iter().enumerate().all(|(i, &s)| s == 1 + (i % 2) as u8), "{threads} {total}");
            }
        }
    }

    /// Many joins, with pauses that let the workers reach every stage of waiting, on more threads than the machine has.
    #[test]
    fn joins_under_stress() {
        for threads in [2, 3, 8] {
            let pool = Pool::new(threads).unwrap();
            let sum = AtomicUsize::new(0);
            let rounds = if threads == 2 { 100_000 } else { 10_000 };
            for round in 0..rounds {
                pool.run(threads, |i| {
                    sum.fetch_add(i + round, Ordering::Relaxed);
                });
                if round % 997 == 0 {
                    thread::sleep(Duration::from_micros((round % 5) as u64 * 150));
                }
            }
            let expected = rounds * threads * (threads - 1) / 2 + threads * rounds * (rounds - 1) / 2;
            assert_eq!(sum.into_inner(), expected);
        }
    }

    /// Parts long enough that workers take some, and the caller has to wait for them.
    #[test]
    fn the_caller_waits_for_parts_that_others_took() {
        let pool = Pool::new(4).unwrap();
        let mut others = 0;
        for _ in 0..50 {
            let mut by = vec![None; 8];
            pool.items(&mut by, 1_000_000, |_, by| {
                thread::sleep(Duration::from_micros(300));
                *by = Some(thread::current().id());
            });
            others += by.iter().filter(|by| by.expect("a part was left out") != thread::current().id()).count();
        }
        assert!(others > 0, "the workers took no part");
    }

    #[test]
    fn several_callers_take_turns() {
        let pool = Pool::new(3).unwrap();
        let sum = AtomicUsize::new(0);
        thread::scope(|s| {
            for _ in 0..4 {
                s.spawn(|| {
                    for _ in 0..500 {
                        pool.run(3, |_| {
                            sum.fetch_add(1, Ordering::Relaxed);
                        });
                    }
                });
            }
        });
        assert_eq!(sum.into_inner(), 4 * 500 * 3);
    }

    #[test]
    fn a_panic_surfaces_and_the_pool_lives_on() {
        let pool = Pool::new(3).unwrap();
        for round in 0..100 {
            let culprit = round % 7;
            let caught = catch_unwind(AssertUnwindSafe(|| pool.run(7, |i| assert!(i != culprit, "part {i}"))));
            let panic = caught.expect_err("the panic was lost");
            assert_eq!(panic.downcast_ref::<String>(), Some(&format!("part {culprit}")));
        }
        let sum = AtomicUsize::new(0);
        pool.run(3, |i| {
            sum.fetch_add(i, Ordering::Relaxed);
        });
        assert_eq!(sum.into_inner(), 3);
    }

    #[test]
    fn pools_end_whatever_their_workers_wait_for() {
        for pause in [0, 50, 500] {
            let pool = Pool::new(4).unwrap();
            pool.run(4, |_| {});
            thread::sleep(Duration::from_micros(pause));
            drop(pool);
        }
    }
}
