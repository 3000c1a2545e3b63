//! Operations on single rows: right for every row, and the same whatever rows stand beside it.

use super::{Suite, Tolerance};
use crate::{Batch, Device, DeviceError, Rope, SeqRows};

/// What outputs hold before an operation writes: columns that it must leave alone show it.
pub(super) const UNTOUCHED: f32 = 7.5;

/// One case of an operation, with its inputs for a number of rows.
pub(super) trait RowOp {
    fn rows(&self) -> usize;

    /// Computes the given rows of the case in one batch: whole output rows, one after the other.
    fn run<D: Device>(&self, d: &mut D, rows: &[usize]) -> Result<Vec<f32>, DeviceError>;

    /// What each value for all rows may be away from `want`.
    fn allowed(&self, want: &[f32], t: Tolerance) -> Vec<f32> {
        want.iter().map(|w| t.relative * w.abs() + t.absolute).collect()
    }
}

impl<D: Device, R: Device> Suite<'_, D, R> {
    /// All rows against the other device, then in other company against themselves.
    pub(super) fn rows(&mut self, case: &str, op: &impl RowOp) {
        let n = op.rows();
        let all: Vec<usize> = (0..n).collect();
        let Ok(want) = op.run(&mut (self.other)(), &all) else {
            self.report.skip(case, "the device compared with can not");
            return;
        };
        let mut d = (self.make)();
        let result = op.run(&mut d, &all);
        let Some(got) = self.done(case, result) else { return };
        self.near(case, &got, &want, &op.allowed(&want, self.tolerance()));
        let width = got.len() / n;
        for (name, batches) in groupings(n) {
            let case = format!("{case}, {name}");
            for batch in batches {
                let result = op.run(&mut d, &batch);
                let Some(part) = self.done(&case, result) else { return };
                let want: Vec<f32> = batch.iter().flat_map(|&r| &got[r * width..(r + 1) * width]).copied().collect();
                self.same(&case, &part, &want);
            }
        }
    }
}

/// Other ways to compute some of n rows.
fn groupings(n: usize) -> Vec<(&'static str, Vec<Vec<usize>>)> {
    if n == 1 {
        return vec![("again", vec![vec![0]])];
    }
    let all: Vec<usize> = (0..n).collect();
    let mut ends = vec![0, n / 2, n - 1];
    ends.dedup();
    vec![
        ("a row alone", ends.into_iter().map(|r| vec![r]).collect()),
        ("seven rows", [&all[..n.min(7)], &all[n.saturating_sub(7)..]].map(<[usize]>::to_vec).into()),
        ("rows backwards", vec![all.iter().rev().copied().collect()]),
        ("one row fewer", vec![all[1..].to_vec()]),
        ("two copies of a row", vec![vec![n / 2, n / 2]]),
    ]
}

/// A batch of `rows` rows in three sequences, for operations that do not look at sequences.
pub(super) fn plain_batch(rows: usize) -> Batch {
    let mut left = rows;
    let seqs = [rows.min(1), rows / 2, rows].into_iter().enumerate().filter_map(|(i, n)| {
        let (rows, start) = (n.min(left), 61 * i);
        left -= rows;
        let pages = (start + rows).div_ceil(64) as u32;
        let pages = (0..pages).map(|p| p + 10 * i as u32).collect();
        (rows > 0).then_some(SeqRows { rows, start, certain: rows, pages, state: i as u32 })
    });
    Batch { seqs: seqs.collect(), tokens: vec![0; rows], rope: Rope::default(), outputs: vec![] }
}

/// A buffer with the given rows of `values` [_, cols], and room for a few more.
pub(super) fn put<D: Device>(d: &mut D, cols: usize, values: &[f32], rows: &[usize]) -> Result<D::Buffer, DeviceError> {
    let mut buffer = d.buffer(rows.len() + 3, cols)?;
    let chosen: Vec<f32> = rows.iter().flat_map(|&r| &values[r * cols..(r + 1) * cols]).copied().collect();
    d.write(&mut buffer, 0, &chosen)?;
    Ok(buffer)
}

/// A buffer of rows that nobody has written.
pub(super) fn blank<D: Device>(d: &mut D, rows: usize, cols: usize) -> Result<D::Buffer, DeviceError> {
    let mut buffer = d.buffer(rows + 1, cols)?;
    d.write(&mut buffer, 0, &vec![UNTOUCHED; (rows + 1) * cols])?;
    Ok(buffer)
}
