//! Default bodies of the fused operations: composed of primitives, so that a new device is right before it is fast.

use crate::sampling::{self, SampleRow, Sampled};
use crate::{Device, DeviceError, Heads, Rows};

pub(crate) fn project<D: Device>(
    d: &mut D,
    ws: &[(&D::Matrix, usize)],
    x: &D::Buffer,
    b: &D::Batch,
    y: &mut D::Buffer,
) {
    for &(w, col) in ws {
        d.matmul(w, x, Rows::All, b, y, col);
    }
}

pub(crate) fn norm_project<D: Device>(
    d: &mut D,
    x: &D::Buffer,
    weight: &D::Vector,
    eps: f32,
    ws: &[(&D::Matrix, usize)],
    b: &D::Batch,
    normed: &mut D::Buffer,
    y: &mut D::Buffer,
) {
    d.rms_norm(x, weight, eps, Rows::All, b, normed, 0);
    d.project(ws, normed, b, y);
}

pub(crate) fn project_add<D: Device>(
    d: &mut D,
    w: &D::Matrix,
    y: &D::Buffer,
    b: &D::Batch,
    tmp: &mut D::Buffer,
    x: &mut D::Buffer,
) {
    d.matmul(w, y, Rows::All, b, tmp, 0);
    d.add(tmp, b, x);
}

pub(crate) fn qk_norm_rope_append<D: Device>(
    d: &mut D,
    x: &mut D::Buffer,
    [q, k, v]: [Heads; 3],
    [q_norm, k_norm]: [&D::Vector; 2],
    eps: f32,
    kv: &mut D::Kv,
    b: &D::Batch,
) {
    for (heads, norm) in [(q, q_norm), (k, k_norm)] {
        d.head_rms_norm(x, heads, norm, eps, b);
        d.rope(x, heads, b);
    }
    d.kv_append(x, k, v, kv, b);
}

pub(crate) fn sample<D: Device>(
    d: &mut D,
    logits: &D::Buffer,
    rows: &[SampleRow<'_>],
) -> Result<Vec<Sampled>, DeviceError> {
    let values = d.read(logits, rows.len())?;
    let width = values.len() / rows.len().max(1);
    Ok(rows.iter().zip(values.chunks(width.max(1))).map(|(row, logits)| sampling::sample(logits, row)).collect())
}
