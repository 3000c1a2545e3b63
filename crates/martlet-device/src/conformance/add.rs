use super::Suite;
use super::rows::{RowOp, plain_batch, put};
use super::shapes::ROWS;
use crate::{Device, DeviceError};

struct Add {
    rows: usize,
    width: usize,
    x: Vec<f32>,
    y: Vec<f32>,
}

impl RowOp for Add {
    fn rows(&self) -> usize {
        self.rows
    }

    fn run<D: Device>(&self, d: &mut D, rows: &[usize]) -> Result<Vec<f32>, DeviceError> {
        let b = d.batch(&plain_batch(rows.len()), 1)?;
        let mut x = put(d, self.width, &self.x, rows)?;
        let y = put(d, self.width + 4, &self.y, rows)?;
        d.add(&y, &b, &mut x);
        d.read(&x, rows.len())
    }
}

pub(super) fn add<D: Device, R: Device>(s: &mut Suite<'_, D, R>) {
    for (rows, width) in ROWS.into_iter().zip([1, 15, 16, 17, 31, 256, 1000]) {
        let mut random = s.random(width as u64);
        let op = Add { rows, width, x: random.normals(rows * width), y: random.normals(rows * (width + 4)) };
        s.rows(&format!("{rows} rows of {width}"), &op);
    }
}
