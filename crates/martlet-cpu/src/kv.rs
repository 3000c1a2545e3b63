//! Pages of keys and values: [page][keys, values][kv head][token][dim], rounded when they are written.

use crate::buffer::{Buffer, failed, unsupported};
use crate::kernel_set::KernelSet;
use crate::kernels::attention::{Attend, MAX_DIM, Pages};
use crate::lanes::{finite, narrow_f16, widen_f16};
use crate::pool::Pool;
use crate::tiles::allocate;
use martlet_device::{AttentionSpec, Batch, DeviceError, Heads, KvScheme, KvSpec, PAGE};
use std::ops::Range;

/// The pages of one attention layer.
pub struct Kv {
    spec: KvSpec,
    pages: usize,
    store: Store,
}

enum Store {
    F32(Vec<f32>),
    F16(Vec<u16>),
}

impl Kv {
    pub(crate) fn new(spec: KvSpec, pages: usize) -> Result<Kv, DeviceError> {
        if spec.dim == 0 || spec.dim > MAX_DIM {
            return Err(unsupported(format!("use attention heads of {} dimensions, only up to {MAX_DIM}", spec.dim)));
        }
        let len = pages.saturating_mul(2 * PAGE * spec.kv_heads * spec.dim);
        let store = match spec.scheme {
            KvScheme::F32 => Store::F32(allocate("keys and values", len, 0.0)?),
            KvScheme::F16 => Store::F16(allocate("keys and values", len, 0)?),
        };
        Ok(Kv { spec, pages, store })
    }

    /// Stored values of a page.
    fn page(&self, page: u32) -> Range<usize> {
        let len = 2 * PAGE * self.spec.kv_heads * self.spec.dim;
        page as usize * len..(page as usize + 1) * len
    }

    /// Where the key (plane 0) or value (plane 1) of head `h` of the token at `index` lies.
    fn place(&self, pages: &[u32], index: usize, plane: usize, h: usize) -> Range<usize> {
        let KvSpec { kv_heads, dim, .. } = self.spec;
        let at = self.page(pages[index / PAGE]).start + ((plane * kv_heads + h) * PAGE + index % PAGE) * dim;
        at..at + dim
    }

    /// Writes keys and values of every row of the batch.
    pub(crate) fn append(&mut self, x: &Buffer, keys: Heads, values: Heads, b: &Batch) {
        let kv_heads = self.spec.kv_heads;
        assert!([keys, values].iter().all(|h| h.count == kv_heads && h.dim == self.spec.dim), "heads of K and V");
        for (first, seq) in b.iter_seqs() {
            for i in 0..seq.rows {
                for h in 0..kv_heads {
                    for (plane, heads) in [keys, values].into_iter().enumerate() {
                        let place = self.place(&seq.pages, seq.start + i, plane, h);
                        let from = x.head(first + i, heads, h);
                        match &mut self.store {
                            Store::F32(v) => store(&mut v[place], from, |x| finite(x, f32::MAX)),
                            Store::F16(v) => store(&mut v[place], from, narrow_f16),
                        }
                    }
                }
            }
        }
    }

    /// Every query head of every row, shared out over the threads by (row, head).
    pub(crate) fn attention(
        &self,
        kernels: &KernelSet,
        pool: &Pool,
        x: &Buffer,
        queries: Heads,
        spec: AttentionSpec,
        b: &Batch,
        y: &mut Buffer,
    ) {
        let AttentionSpec { heads, kv_heads, dim, scale } = spec;
        assert!(queries.count == heads && queries.dim == dim && dim == self.spec.dim, "heads of the queries");
        assert!(kv_heads == self.spec.kv_heads && heads % kv_heads == 0, "{heads} heads over {kv_heads}");
        let kv = match &self.store {
            Store::F32(values) => Pages::F32(values),
            Store::F16(values) => Pages::F16(values),
        };
        // Where each row belongs: its sequence's pages, and how many keys it sees.
        let rows: Vec<(&[u32], usize)> =
            b.seqs.iter().flat_map(|s| (0..s.rows).map(|i| (s.pages.as_slice(), s.start + i + 1))).collect();
        let all_keys: usize = rows.iter().map(|(_, keys)| keys).sum();
        let cost = (all_keys * dim / 8 / rows.len().max(1)).max(1);
        let (cols, table) = (y.cols, y.first(rows.len()));
        assert!(heads * dim <= cols, "{heads} heads of {dim} in {cols} columns");
        pool.heads(table, cols, Heads::packed(0, heads, dim), cost, |r, h, y| {
            let (pages, keys) = rows[r];
            let q = x.head(r, queries, h);
            let kv_head = h / (heads / kv_heads);
            (kernels.attention)(&Attend { q, kv, pages, kv_heads, kv_head, keys, scale }, y);
        });
    }

    /// Keys and values of the first `len` tokens, two arrays [kv_heads, len, dim].
    pub(crate) fn read(&self, pages: &[u32], len: usize) -> Result<[Vec<f32>; 2], DeviceError> {
        if pages.len() < len.div_ceil(PAGE) || pages.iter().any(|&p| p as usize >= self.pages) {
            let held = self.pages;
            return Err(failed(format!("read {len} tokens from the pages {pages:?}: the cache has {held}")));
        }
        let plane = |plane| {
            let mut out = Vec::with_capacity(len * self.spec.kv_heads * self.spec.dim);
            for h in 0..self.spec.kv_heads {
                for t in 0..len {
                    let place = self.place(pages, t, plane, h);
                    match &self.store {
                        Store::F32(v) => out.extend_from_slice(&v[place]),
                        Store::F16(v) => out.extend(v[place].iter().map(|&v| widen_f16(v))),
                    }
                }
            }
            out
        };
        Ok([plane(0), plane(1)])
    }

    pub(crate) fn clear(&mut self, page: u32) {
        let page = self.page(page);
        match &mut self.store {
            Store::F32(v) => v[page].fill(0.0),
            Store::F16(v) => v[page].fill(0),
        }
    }

    pub(crate) fn copy(&mut self, from: u32, to: u32) {
        let (from, to) = (self.page(from), self.page(to).start);
        match &mut self.store {
            Store::F32(v) => v.copy_within(from, to),
            Store::F16(v) => v.copy_within(from, to),
        }
    }

    fn checked(&self, page: u32) -> Result<Range<usize>, DeviceError> {
        if page as usize >= self.pages {
            return Err(failed(format!("use page {page} of {}", self.pages)));
        }
        Ok(self.page(page))
    }

    pub(crate) fn export(&self, page: u32) -> Result<Vec<u8>, DeviceError> {
        let page = self.checked(page)?;
        Ok(match &self.store {
            Store::F32(v) => v[page].iter().flat_map(|v| v.to_le_bytes()).collect(),
            Store::F16(v) => v[page].iter().flat_map(|v| v.to_le_bytes()).collect(),
        })
    }

    pub(crate) fn import(&mut self, page: u32, bytes: &[u8]) -> Result<(), DeviceError> {
        let page = self.checked(page)?;
        let expected = self.spec.page_bytes();
        if bytes.len() != expected {
            return Err(DeviceError::State(format!("a page takes {expected} bytes, found {}", bytes.len())));
        }
        match &mut self.store {
            Store::F32(v) => {
                let words = bytes.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]]));
                if words.clone().any(|w| !w.is_finite()) {
                    return Err(DeviceError::State("a page holds values that are not finite".to_owned()));
                }
                v[page].iter_mut().zip(words).for_each(|(v, word)| *v = word);
            }
            Store::F16(v) => {
                let words = bytes.chunks_exact(2).map(|b| u16::from_le_bytes([b[0], b[1]]));
                if words.clone().any(|w| w & 0x7c00 == 0x7c00) {
                    return Err(DeviceError::State("a page holds values that are not finite".to_owned()));
                }
                v[page].iter_mut().zip(words).for_each(|(v, word)| *v = word);
            }
        }
        Ok(())
    }
}

fn store<T>(place: &mut [T], from: &[f32], round: impl Fn(f32) -> T) {
    for (place, x) in place.iter_mut().zip(from) {
        *place = round(*x);
    }
}
