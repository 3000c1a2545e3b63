use super::head_rms_norm::layouts;
use super::rows::{RowOp, plain_batch, put};
use super::shapes::ROWS;
use super::{Random, Suite, Tolerance};
use crate::{Batch, Device, DeviceError, Heads, Rope};

/// Tables of `rows` rows, at random angles.
pub(super) fn tables(rows: usize, half: usize, random: &mut Random) -> Rope {
    let angles: Vec<f32> = (0..rows * half).map(|_| random.between(-3.0, 3.0)).collect();
    Rope { half, cos: angles.iter().map(|a| a.cos()).collect(), sin: angles.iter().map(|a| a.sin()).collect() }
}

/// A batch with some rows of the tables.
pub(super) fn turned(batch: Batch, tables: &Rope, rows: &[usize]) -> Batch {
    let half = tables.half;
    let pick = |t: &[f32]| rows.iter().flat_map(|&r| &t[r * half..(r + 1) * half]).copied().collect();
    Batch { rope: Rope { half, cos: pick(&tables.cos), sin: pick(&tables.sin) }, ..batch }
}

struct Rotation {
    rows: usize,
    width: usize,
    heads: Heads,
    tables: Rope,
    x: Vec<f32>,
}

impl RowOp for Rotation {
    fn rows(&self) -> usize {
        self.rows
    }

    fn run<D: Device>(&self, d: &mut D, rows: &[usize]) -> Result<Vec<f32>, DeviceError> {
        let b = d.batch(&turned(plain_batch(rows.len()), &self.tables, rows), 1)?;
        let mut x = put(d, self.width, &self.x, rows)?;
        d.rope(&mut x, self.heads, &b);
        d.read(&x, rows.len())
    }

    /// Two products may cancel: all is measured by the largest inputs, 3 at most.
    fn allowed(&self, want: &[f32], t: Tolerance) -> Vec<f32> {
        vec![3.0 * t.relative; want.len()]
    }
}

pub(super) fn rope<D: Device, R: Device>(s: &mut Suite<'_, D, R>) {
    for (i, (heads, width)) in layouts().into_iter().enumerate() {
        for half in [heads.dim / 8, heads.dim / 2, heads.dim / 4 - 1] {
            let (mut random, rows) = (s.random(i as u64), ROWS[i + 1]);
            let tables = tables(rows, half, &mut random);
            let op = Rotation { rows, width, heads, tables, x: random.normals(rows * width) };
            s.rows(&format!("{rows} rows, {heads:?}, half {half}"), &op);
        }
    }
}
