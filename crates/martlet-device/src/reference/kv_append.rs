//! Keys and values of row i of a sequence go to its index t = start + i: page pages[t / 64], place t % 64, rounded as
//! the scheme stores them.

use super::kv::Kv;
use super::{Buffer, Heads};
use crate::Batch;

pub(super) fn kv_append(x: &Buffer, keys: Heads, values: Heads, kv: &mut Kv, b: &Batch) {
    for (first, seq) in b.iter_seqs() {
        for i in 0..seq.rows {
            for h in 0..kv.spec.kv_heads {
                for (plane, heads) in [keys, values].into_iter().enumerate() {
                    kv.put(plane, &seq.pages, seq.start + i, h, x.head(first + i, heads, h));
                }
            }
        }
    }
}
