use super::Suite;
use super::head_rms_norm::layouts;
use super::rows::{RowOp, plain_batch, put};
use super::shapes::ROWS;
use crate::{Device, DeviceError, Heads};

struct SigmoidGate {
    rows: usize,
    width: usize,
    heads: Heads,
    gate: Vec<f32>,
    y: Vec<f32>,
}

impl RowOp for SigmoidGate {
    fn rows(&self) -> usize {
        self.rows
    }

    fn run<D: Device>(&self, d: &mut D, rows: &[usize]) -> Result<Vec<f32>, DeviceError> {
        let b = d.batch(&plain_batch(rows.len()), 1)?;
        let gate = put(d, self.width, &self.gate, rows)?;
        let mut y = put(d, self.heads.count * self.heads.dim, &self.y, rows)?;
        d.sigmoid_gate(&gate, self.heads, &b, &mut y);
        d.read(&y, rows.len())
    }
}

pub(super) fn sigmoid_gate<D: Device, R: Device>(s: &mut Suite<'_, D, R>) {
    for (i, (heads, width)) in layouts().into_iter().enumerate() {
        let (mut random, rows) = (s.random(i as u64), ROWS[i + 1]);
        let gate = (0..rows * width).map(|_| random.normal() * random.pick(&[1.0, 30.0])).collect();
        let y = random.normals(rows * heads.count * heads.dim);
        s.rows(&format!("{rows} rows, {heads:?}"), &SigmoidGate { rows, width, heads, gate, y });
    }
}
