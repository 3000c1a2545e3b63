//! Keys and values of row i of a sequence go to its index t = start + i: page pages[t / 64], place t % 64, rounded as
//! the scheme stores them.

use super::kv::{Kv, store};
use super::{Buffer, Heads};
use crate::Batch;

pub(super) fn kv_append(x: &Buffer, keys: Heads, values: Heads, kv: &mut Kv, b: &Batch) {
    let scheme = kv.spec.scheme;
    for (first, seq) in b.iter_seqs() {
        for i in 0..seq.rows {
            for h in 0..kv.spec.kv_heads {
                let [key, value] = kv.place(&seq.pages, seq.start + i, h);
                for (place, heads) in [(key, keys), (value, values)] {
                    for (y, &x) in place.iter_mut().zip(x.head(first + i, heads, h)) {
                        *y = store(scheme, x);
                    }
                }
            }
        }
    }
}
