//! Pages of keys and values: [page][keys, values][kv head][one block], rounded when they are written. What a block holds
//! is said in `kernels/kv_block.rs`.

use crate::buffer::{Buffer, failed, unsupported};
use crate::kernel_set::KernelSet;
use crate::kernels::attention::{Attend, MAX_DIM};
use crate::kernels::kv_block;
use crate::pool::Pool;
use martlet_device::{AttentionSpec, Batch, DeviceError, Heads, KvSpec, PAGE};
use martlet_io::Reserve;
use std::ops::Range;

/// The pages of one attention layer.
pub struct Kv {
    spec: KvSpec,
    pages: usize,
    /// Memory is taken from the system as pages are written.
    bytes: Reserve,
}

impl Kv {
    pub(crate) fn new(spec: KvSpec, pages: usize) -> Result<Kv, DeviceError> {
        if spec.dim == 0 || spec.dim > MAX_DIM {
            return Err(unsupported(format!("use attention heads of {} dimensions, only up to {MAX_DIM}", spec.dim)));
        }
        let bytes = pages.saturating_mul(spec.page_bytes());
        let no_memory = |_| DeviceError::Memory { device: crate::NAME, what: "keys and values", bytes };
        Ok(Kv { spec, pages, bytes: Reserve::new(bytes).map_err(no_memory)? })
    }

    /// Bytes of a page.
    fn page(&self, page: u32) -> Range<usize> {
        let len = self.spec.page_bytes();
        page as usize * len..(page as usize + 1) * len
    }

    /// Bytes of the keys (plane 0) or values (plane 1) of one head in a page.
    fn block(&self, page: u32, plane: usize, h: usize) -> Range<usize> {
        let len = PAGE * self.spec.scheme.head_bytes(self.spec.dim);
        let at = self.page(page).start + (plane * self.spec.kv_heads + h) * len;
        at..at + len
    }

    /// Writes keys and values of every row of the batch.
    pub(crate) fn append(&mut self, x: &Buffer, keys: Heads, values: Heads, b: &Batch) {
        let KvSpec { kv_heads, dim, scheme } = self.spec;
        assert!([keys, values].iter().all(|h| h.count == kv_heads && h.dim == dim), "heads of K and V");
        for (first, seq) in b.iter_seqs() {
            for i in 0..seq.rows {
                let index = seq.start + i;
                for h in 0..kv_heads {
                    for (plane, heads) in [keys, values].into_iter().enumerate() {
                        let block = self.block(seq.pages[index / PAGE], plane, h);
                        kv_block::store(scheme, &mut self.bytes[block], index % PAGE, x.head(first + i, heads, h));
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
        let (bytes, scheme) = (&*self.bytes, self.spec.scheme);
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
            (kernels.attention)(&Attend { q, scheme, bytes, pages, kv_heads, kv_head, keys, scale }, y);
        });
    }

    /// Keys and values of the first `len` tokens, two arrays [kv_heads, len, dim].
    pub(crate) fn read(&self, pages: &[u32], len: usize) -> Result<[Vec<f32>; 2], DeviceError> {
        if pages.len() < len.div_ceil(PAGE) || pages.iter().any(|&p| p as usize >= self.pages) {
            let held = self.pages;
            return Err(failed(format!("read {len} tokens from the pages {pages:?}: the cache has {held}")));
        }
        let KvSpec { kv_heads, dim, scheme } = self.spec;
        let plane = |plane| {
            let mut out = vec![0.0; kv_heads * len * dim];
            for (i, place) in out.chunks_exact_mut(dim).enumerate() {
                let (h, t) = (i / len, i % len);
                kv_block::load(scheme, &self.bytes[self.block(pages[t / PAGE], plane, h)], t % PAGE, place);
            }
            out
        };
        Ok([plane(0), plane(1)])
    }

    pub(crate) fn clear(&mut self, page: u32) {
        let page = self.page(page);
        self.bytes[page].fill(0);
    }

    /// Clears a page and gives its memory back.
    pub(crate) fn release(&mut self, page: u32) {
        let page = self.page(page);
        self.bytes.release(page);
    }

    pub(crate) fn copy(&mut self, from: u32, to: u32) {
        let (from, to) = (self.page(from), self.page(to).start);
        self.bytes.copy_within(from, to);
    }

    fn checked(&self, page: u32) -> Result<Range<usize>, DeviceError> {
        if page as usize >= self.pages {
            return Err(failed(format!("use page {page} of {}", self.pages)));
        }
        Ok(self.page(page))
    }

    pub(crate) fn export(&self, page: u32) -> Result<Vec<u8>, DeviceError> {
        Ok(self.bytes[self.checked(page)?].to_vec())
    }

    pub(crate) fn import(&mut self, page: u32, bytes: &[u8]) -> Result<(), DeviceError> {
        let (page, KvSpec { dim, scheme, .. }) = (self.checked(page)?, self.spec);
        let (expected, found) = (page.len(), bytes.len());
        if found != expected {
            return Err(DeviceError::State(format!("a page takes {expected} bytes, found {found}")));
        }
        let mut blocks = bytes.chunks_exact(PAGE * scheme.head_bytes(dim));
        if !blocks.all(|block| kv_block::valid(scheme, block, dim)) {
            return Err(DeviceError::State(format!("a page holds what is no {scheme:?} value")));
        }
        self.bytes[page].copy_from_slice(bytes);
        Ok(())
    }
}
