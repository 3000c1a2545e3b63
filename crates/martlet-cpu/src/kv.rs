//! Pages of keys and values: [page][keys, values][kv head][one block], rounded when they are written. What a block holds
//! is said in `kernels/kv_block.rs`.

use crate::buffer::{Buffer, failed, unsupported};
use crate::kernels::attention::MAX_DIM;
use crate::kernels::kv_block::{self, Plane};
use martlet_device::{Batch, DeviceError, Heads, KvSpec, PAGE};
use martlet_io::Reserve;
use std::ops::Range;

/// The pages of one attention layer.
pub struct Kv {
    pub(crate) spec: KvSpec,
    pages: usize,
    /// Memory is taken from the system as pages are written.
    pub(crate) bytes: Reserve,
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

    /// Bytes of the keys or values of one head in a page.
    fn block(&self, page: u32, plane: Plane, h: usize) -> Range<usize> {
        let len = PAGE * self.spec.scheme.head_bytes(self.spec.dim);
        let at = self.page(page).start + (plane as usize * self.spec.kv_heads + h) * len;
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
                    for (plane, heads) in [(Plane::Keys, keys), (Plane::Values, values)] {
                        let block = self.block(seq.pages[index / PAGE], plane, h);
                        let block = &mut self.bytes[block];
                        kv_block::store(scheme, plane, block, index % PAGE, x.head(first + i, heads, h));
                    }
                }
            }
        }
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
                let block = &self.bytes[self.block(pages[t / PAGE], plane, h)];
                kv_block::load(scheme, plane, block, t % PAGE, place);
            }
            out
        };
        Ok([plane(Plane::Keys), plane(Plane::Values)])
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
