//! (x1, x2) -> (x1 cos - x2 sin, x2 cos + x1 sin) with x1 = dimension i and x2 = dimension half + i of each head, for
//! i < half; the dimensions from 2 * half on stay.

use super::{Buffer, Heads};
use crate::Rope;

pub(super) fn rope(x: &mut Buffer, heads: Heads, rope: &Rope, rows: usize) {
    let half = rope.half;
    for r in 0..rows {
        let (cos, sin) = (&rope.cos[r * half..][..half], &rope.sin[r * half..][..half]);
        for h in 0..heads.count {
            let (x1, rest) = x.head_mut(r, heads, h).split_at_mut(half);
            for i in 0..half {
                let (a, b) = (x1[i], rest[i]);
                x1[i] = a * cos[i] - b * sin[i];
                rest[i] = b * cos[i] + a * sin[i];
            }
        }
    }
}
