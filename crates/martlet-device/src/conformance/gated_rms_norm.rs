use super::Suite;
use super::head_rms_norm::{layouts, uneven};
use super::rows::{RowOp, plain_batch, put};
use super::shapes::ROWS;
use crate::{Device, DeviceError, Heads};

struct GatedRmsNorm {
    rows: usize,
    width: usize,
    heads: Heads,
    z: Vec<f32>,
    y: Vec<f32>,
    weight: Vec<f32>,
}

impl RowOp for GatedRmsNorm {
    fn rows(&self) -> usize {
        self.rows
    }

    fn run<D: Device>(&self, d: &mut D, rows: &[usize]) -> Result<Vec<f32>, DeviceError> {
        let b = d.batch(&plain_batch(rows.len()), 1)?;
        let z = put(d, self.width, &self.z, rows)?;
        let mut y = put(d, self.heads.count * self.heads.dim, &self.y, rows)?;
        let weight = d.vector(&self.weight)?;
        d.gated_rms_norm(&z, self.heads, &weight, 1e-6, &b, &mut y);
        d.read(&y, rows.len())
    }
}

pub(super) fn gated_rms_norm<D: Device, R: Device>(s: &mut Suite<'_, D, R>) {
    for (i, (heads, width)) in layouts().into_iter().enumerate() {
        let (mut random, rows) = (s.random(i as u64), ROWS[i + 1]);
        let z = (0..rows * width).map(|_| random.normal() * random.pick(&[1.0, 20.0])).collect();
        let y = uneven(rows, heads.count * heads.dim, &mut random);
        let op = GatedRmsNorm { rows, width, heads, z, y, weight: random.normals(heads.dim) };
        s.rows(&format!("{rows} rows, {heads:?}"), &op);
    }
}
