//! y[r] = table[token of row r].

use super::{Buffer, Matrix};

pub(super) fn embed(table: &Matrix, tokens: &[u32], y: &mut Buffer) {
    for (r, &token) in tokens.iter().enumerate() {
        table.read_row(token as usize, &mut y.row_mut(r)[..table.cols()]);
    }
}
