use super::rows::{RowOp, plain_batch, put};
use super::shapes::ROWS;
use super::{Random, Suite};
use crate::{Device, DeviceError, Heads};

/// Heads as they lie in rows of some width: side by side, or every second one, with columns before and behind.
pub(super) fn layouts() -> [(Heads, usize); 5] {
    [
        (Heads::packed(0, 1, 64), 64),
        (Heads::packed(5, 3, 16), 60),
        (Heads { first: 0, stride: 512, count: 4, dim: 256 }, 2048),
        (Heads { first: 72, stride: 144, count: 2, dim: 72 }, 300),
        (Heads { first: 128, stride: 128, count: 2, dim: 128 }, 400),
    ]
}

/// Values of unlike size.
pub(super) fn uneven(rows: usize, width: usize, random: &mut Random) -> Vec<f32> {
    let mut x = random.normals(rows * width);
    for (r, row) in x.chunks_mut(width).enumerate() {
        row.iter_mut().for_each(|v| *v *= [1.0, 200.0, 1e-3][r % 3]);
    }
    x
}

struct HeadRmsNorm {
    rows: usize,
    width: usize,
    heads: Heads,
    x: Vec<f32>,
    weight: Vec<f32>,
}

impl RowOp for HeadRmsNorm {
    fn rows(&self) -> usize {
        self.rows
    }

    fn run<D: Device>(&self, d: &mut D, rows: &[usize]) -> Result<Vec<f32>, DeviceError> {
        let b = d.batch(&plain_batch(rows.len()), 1)?;
        let mut x = put(d, self.width, &self.x, rows)?;
        let weight = d.vector(&self.weight)?;
        d.head_rms_norm(&mut x, self.heads, &weight, 1e-6, &b);
        d.read(&x, rows.len())
    }
}

pub(super) fn head_rms_norm<D: Device, R: Device>(s: &mut Suite<'_, D, R>) {
    for (i, (heads, width)) in layouts().into_iter().enumerate() {
        let (mut random, rows) = (s.random(i as u64), ROWS[i + 1]);
        let (x, weight) = (uneven(rows, width, &mut random), random.normals(heads.dim));
        s.rows(&format!("{rows} rows, {heads:?}"), &HeadRmsNorm { rows, width, heads, x, weight });
    }
}
