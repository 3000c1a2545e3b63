use super::Suite;
use super::head_rms_norm::{layouts, uneven};
use super::rows::{RowOp, plain_batch, put};
use super::shapes::ROWS;
use crate::{Device, DeviceError, Heads};

struct HeadL2Norm {
    rows: usize,
    width: usize,
    heads: Heads,
    x: Vec<f32>,
}

impl RowOp for HeadL2Norm {
    fn rows(&self) -> usize {
        self.rows
    }

    fn run<D: Device>(&self, d: &mut D, rows: &[usize]) -> Result<Vec<f32>, DeviceError> {
        let b = d.batch(&plain_batch(rows.len()), 1)?;
        let mut x = put(d, self.width, &self.x, rows)?;
        d.head_l2_norm(&mut x, self.heads, 1e-6, 0.125, &b);
        d.read(&x, rows.len())
    }
}

pub(super) fn head_l2_norm<D: Device, R: Device>(s: &mut Suite<'_, D, R>) {
    for (i, (heads, width)) in layouts().into_iter().enumerate() {
        let (mut random, rows) = (s.random(i as u64), ROWS[i + 1]);
        let x = uneven(rows, width, &mut random);
        s.rows(&format!("{rows} rows, {heads:?}"), &HeadL2Norm { rows, width, heads, x });
    }
}
