//! y = one row of a table, as the scheme decodes it.
//! bytes: the row's; one line for each 16 inputs, since a row is a lane of its strip.

use crate::tiles::Weights;

#[inline(always)]
pub fn embed(table: &Weights, row: usize, y: &mut [f32]) {
    table.row(row, y);
}
