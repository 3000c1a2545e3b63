use super::Suite;
use super::rows::{RowOp, blank, plain_batch, put};
use super::shapes::ROWS;
use crate::{Device, DeviceError, Rows};

struct RmsNorm {
    rows: usize,
    width: usize,
    which: Rows,
    x: Vec<f32>,
    weight: Vec<f32>,
}

impl RowOp for RmsNorm {
    fn rows(&self) -> usize {
        self.rows
    }

    fn run<D: Device>(&self, d: &mut D, rows: &[usize]) -> Result<Vec<f32>, DeviceError> {
        let n = rows.len();
        let mut batch = plain_batch(if self.which == Rows::All { n } else { 2 * n });
        if self.which == Rows::Outputs {
            batch.outputs = (0..n as u32).map(|i| 2 * i + 1).collect();
        }
        let b = d.batch(&batch, 1)?;
        let x = put(d, self.width, &self.x, rows)?;
        let weight = d.vector(&self.weight)?;
        let mut y = blank(d, n, self.width + 5)?;
        d.rms_norm(&x, &weight, 1e-6, self.which, &b, &mut y, 3);
        d.read(&y, n)
    }
}

pub(super) fn rms_norm<D: Device, R: Device>(s: &mut Suite<'_, D, R>) {
    for (i, width) in [1, 15, 16, 17, 256, 300, 2048].into_iter().enumerate() {
        let mut random = s.random(i as u64);
        for which in [Rows::All, Rows::Outputs] {
            let rows = ROWS[i];
            let mut x = random.normals(rows * width);
            // Rows of other sizes: large, tiny (eps counts), zero.
            for (r, row) in x.chunks_mut(width).enumerate() {
                let factor = [1.0, 1e4, 1e-4, 0.0][r % 4];
                row.iter_mut().for_each(|v| *v *= factor);
            }
            let op = RmsNorm { rows, width, which, x, weight: random.normals(width) };
            s.rows(&format!("{rows} rows of {width}, {which:?}"), &op);
        }
    }
}
