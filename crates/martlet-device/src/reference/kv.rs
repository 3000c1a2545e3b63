//! The pages of one attention layer. Values are held in f32, already rounded to the scheme, so that nothing is rounded
//! when it is read.

use super::DeviceError;
use super::buffer::{failed, zeros};
use crate::{KvScheme, KvSpec, PAGE};
use martlet_tensor::Float;

/// Keys and values, each [pages, token in the page, kv head, dim].
#[derive(Clone, Debug)]
pub struct Kv {
    pub(super) spec: KvSpec,
    keys: Vec<f32>,
    values: Vec<f32>,
}

/// The element type of stored values.
fn float(scheme: KvScheme) -> Float {
    match scheme {
        KvScheme::F32 => Float::F32,
        KvScheme::F16 => Float::F16,
    }
}

/// A value as the scheme stores it: NaN becomes 0, what is beyond the range the largest value, the rest is rounded to
/// nearest even.
pub(super) fn store(scheme: KvScheme, value: f32) -> f32 {
    let largest = match scheme {
        KvScheme::F32 => f32::MAX,
        KvScheme::F16 => 65504.0,
    };
    if value.is_nan() { 0.0 } else { float(scheme).round(value.clamp(-largest, largest)) }
}

impl Kv {
    pub(super) fn new(spec: KvSpec, pages: usize) -> Result<Kv, DeviceError> {
        let dims = [pages, PAGE, spec.kv_heads, spec.dim];
        Ok(Kv { spec, keys: zeros("keys", &dims)?, values: zeros("values", &dims)? })
    }

    /// Values in one page of one plane.
    fn page_len(&self) -> usize {
        PAGE * self.spec.kv_heads * self.spec.dim
    }

    /// Where kv head `h` of the token at `index` of a sequence with these pages begins.
    fn at(&self, pages: &[u32], index: usize, h: usize) -> usize {
        let token = pages[index / PAGE] as usize * PAGE + index % PAGE;
        (token * self.spec.kv_heads + h) * self.spec.dim
    }

    pub(super) fn key(&self, pages: &[u32], index: usize, h: usize) -> &[f32] {
        &self.keys[self.at(pages, index, h)..][..self.spec.dim]
    }

    pub(super) fn value(&self, pages: &[u32], index: usize, h: usize) -> &[f32] {
        &self.values[self.at(pages, index, h)..][..self.spec.dim]
    }

    /// Key and value of kv head `h` at `index`, to be written.
    pub(super) fn place(&mut self, pages: &[u32], index: usize, h: usize) -> [&mut [f32]; 2] {
        let (at, dim) = (self.at(pages, index, h), self.spec.dim);
        [&mut self.keys[at..][..dim], &mut self.values[at..][..dim]]
    }

    pub(super) fn clear(&mut self, page: u32) {
        let (len, at) = (self.page_len(), page as usize * self.page_len());
        self.keys[at..at + len].fill(0.0);
        self.values[at..at + len].fill(0.0);
    }

    pub(super) fn copy(&mut self, from: u32, to: u32) {
        let (len, from) = (self.page_len(), from as usize * self.page_len());
        for plane in [&mut self.keys, &mut self.values] {
            plane.copy_within(from..from + len, to as usize * len);
        }
    }

    pub(super) fn read(&self, pages: &[u32], len: usize) -> Result<[Vec<f32>; 2], DeviceError> {
        if pages.len() * PAGE < len {
            return Err(failed(format!("read {len} tokens of {} pages", pages.len())));
        }
        for &page in pages {
            self.planes(page)?;
        }
        let plane = |get: for<'a> fn(&'a Kv, &[u32], usize, usize) -> &'a [f32]| {
            let places = (0..self.spec.kv_heads).flat_map(|h| (0..len).map(move |i| (h, i)));
            places.flat_map(|(h, i)| get(self, pages, i, h)).copied().collect()
        };
        Ok([plane(Kv::key), plane(Kv::value)])
    }

    /// Keys and values of one page.
    fn planes(&self, page: u32) -> Result<[&[f32]; 2], DeviceError> {
        let (len, at) = (self.page_len(), page as usize * self.page_len());
        match (self.keys.get(at..at + len), self.values.get(at..at + len)) {
            (Some(k), Some(v)) => Ok([k, v]),
            _ => Err(failed(format!("read page {page} of {}", self.keys.len() / len.max(1)))),
        }
    }

    /// Keys, then values, in the scheme's own size.
    pub(super) fn export(&self, page: u32) -> Result<Vec<u8>, DeviceError> {
        let mut bytes = Vec::with_capacity(self.spec.page_bytes());
        for &value in self.planes(page)?.into_iter().flatten() {
            float(self.spec.scheme).put(value, &mut bytes);
        }
        Ok(bytes)
    }

    pub(super) fn import(&mut self, page: u32, bytes: &[u8]) -> Result<(), DeviceError> {
        let (len, at) = (self.page_len(), page as usize * self.page_len());
        self.planes(page)?;
        if bytes.len() != self.spec.page_bytes() {
            return Err(DeviceError::State(format!(
                "a page takes {} bytes, found {}",
                self.spec.page_bytes(),
                bytes.len()
            )));
        }
        let values = martlet_tensor::read_floats(float(self.spec.scheme), bytes);
        if let Some(i) = values.iter().position(|v| !v.is_finite()) {
            return Err(DeviceError::State(format!("value {i} of a page is not finite")));
        }
        self.keys[at..at + len].copy_from_slice(&values[..len]);
        self.values[at..at + len].copy_from_slice(&values[len..]);
        Ok(())
    }
}
