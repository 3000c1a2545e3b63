//! y[i] = x[outputs[i]].

use super::Buffer;

pub(super) fn gather(x: &Buffer, outputs: &[u32], y: &mut Buffer) {
    let width = x.cols();
    for (i, &row) in outputs.iter().enumerate() {
        y.row_mut(i)[..width].copy_from_slice(x.row(row as usize));
    }
}
