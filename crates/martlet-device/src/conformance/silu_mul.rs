use super::Suite;
use super::rows::{RowOp, blank, plain_batch, put};
use super::shapes::ROWS;
use crate::{Device, DeviceError};

struct SiluMul {
    rows: usize,
    width: usize,
    x: Vec<f32>,
}

impl RowOp for SiluMul {
    fn rows(&self) -> usize {
        self.rows
    }

    fn run<D: Device>(&self, d: &mut D, rows: &[usize]) -> Result<Vec<f32>, DeviceError> {
        let b = d.batch(&plain_batch(rows.len()), 1)?;
        let x = put(d, 2 * self.width + 3, &self.x, rows)?;
        let mut y = blank(d, rows.len(), self.width + 2)?;
        d.silu_mul(&x, self.width, &b, &mut y);
        d.read(&y, rows.len())
    }
}

pub(super) fn silu_mul<D: Device, R: Device>(s: &mut Suite<'_, D, R>) {
    for (rows, width) in ROWS.into_iter().zip([1, 15, 16, 17, 64, 500, 1024]) {
        let mut random = s.random(width as u64);
        let x = (0..rows * (2 * width + 3)).map(|_| random.normal() * random.pick(&[1.0, 30.0])).collect();
        s.rows(&format!("{rows} rows of {width}"), &SiluMul { rows, width, x });
    }
}
