use super::rows::{RowOp, blank, plain_batch, put};
use super::shapes::ROWS;
use super::{Suite, Tolerance};
use crate::{Device, DeviceError};

struct Gates {
    rows: usize,
    heads: usize,
    x: Vec<f32>,
    a_log: Vec<f32>,
    dt_bias: Vec<f32>,
}

impl Gates {
    fn width(&self) -> usize {
        2 * self.heads + 7
    }
}

impl RowOp for Gates {
    fn rows(&self) -> usize {
        self.rows
    }

    fn run<D: Device>(&self, d: &mut D, rows: &[usize]) -> Result<Vec<f32>, DeviceError> {
        let b = d.batch(&plain_batch(rows.len()), 1)?;
        let x = put(d, self.width(), &self.x, rows)?;
        let (a_log, dt_bias) = (d.vector(&self.a_log)?, d.vector(&self.dt_bias)?);
        let mut y = blank(d, rows.len(), 2 * self.heads + 1)?;
        d.gdn_gates(&x, self.heads + 4, 1, &a_log, &dt_bias, &b, &mut y);
        d.read(&y, rows.len())
    }

    /// The decay is the exponential of a number that is itself rounded: its size counts.
    fn allowed(&self, want: &[f32], t: Tolerance) -> Vec<f32> {
        let size = |w: f32| if w > 0.0 { 1.0 + w.ln().abs() } else { 0.0 };
        want.iter().map(|&w| t.relative * w * size(w) + t.absolute).collect()
    }
}

pub(super) fn gdn_gates<D: Device, R: Device>(s: &mut Suite<'_, D, R>) {
    for (rows, heads) in ROWS.into_iter().zip([1, 2, 3, 16, 32, 48, 64]) {
        let mut random = s.random(heads as u64);
        let x = (0..rows * (2 * heads + 7)).map(|_| random.normal() * random.pick(&[1.0, 8.0, 40.0])).collect();
        let a_log = (0..heads).map(|_| random.between(-4.0, 3.0)).collect();
        let op = Gates { rows, heads, x, a_log, dt_bias: random.normals(heads) };
        s.rows(&format!("{rows} rows, {heads} heads"), &op);
    }
}
