//! The pages of one attention layer. Values are held in f32, already rounded to the scheme, so that nothing is rounded
//! when it is read.

use super::DeviceError;
use super::buffer::{failed, zeros};
use crate::{KvScheme, KvSpec, PAGE};
use martlet_tensor::Float;
use std::ops::Range;

/// Keys and values.
#[derive(Clone, Debug)]
pub struct Kv {
    pub(super) spec: KvSpec,
    pages: usize,
    planes: [Plane; 2],
}

/// Keys, or values.
#[derive(Clone, Debug)]
struct Plane {
    /// [pages, token in the page, kv head, dim]
    values: Vec<f32>,
    /// Of [`KvScheme::Q8`], [pages, token in the page, kv head]: value = code * scale.
    scales: Vec<f32>,
}

/// `x` as something finite.
fn held(scheme: KvScheme, x: f32) -> f32 {
    if x.is_nan() { 0.0 } else { x.clamp(-scheme.largest(), scheme.largest()) }
}

/// One head as the scheme stores it, into `place`; for [`KvScheme::Q8`] the scale too.
pub(super) fn store(scheme: KvScheme, x: &[f32], place: &mut [f32]) -> f32 {
    let x = x.iter().map(|&x| held(scheme, x));
    match scheme {
        KvScheme::F32 => place.iter_mut().zip(x).for_each(|(y, x)| *y = x),
        KvScheme::F16 => place.iter_mut().zip(x).for_each(|(y, x)| *y = Float::F16.round(x)),
        KvScheme::Q8 => {
            let max = x.clone().fold(0.0, |m: f32, x| m.max(x.abs()));
            let scale = if max / 127.0 < f32::MIN_POSITIVE { 0.0 } else { max / 127.0 };
            for (y, x) in place.iter_mut().zip(x) {
                let code = if scale == 0.0 { 0 } else { (x / scale).round_ties_even() as i8 };
                *y = f32::from(code) * scale;
            }
            return scale;
        }
    }
    0.0
}

/// The code of a stored value: the quotient is off by rounding alone, far less than to another whole number.
fn code(value: f32, scale: f32) -> i8 {
    if scale == 0.0 { 0 } else { (value / scale).round() as i8 }
}

impl Kv {
    pub(super) fn new(spec: KvSpec, pages: usize) -> Result<Kv, DeviceError> {
        let heads = [pages, PAGE, spec.kv_heads];
        let plane = |what| -> Result<Plane, DeviceError> {
            let scales = if spec.scheme == KvScheme::Q8 { zeros(what, &heads)? } else { Vec::new() };
            Ok(Plane { values: zeros(what, &[pages, PAGE, spec.kv_heads, spec.dim])?, scales })
        };
        Ok(Kv { spec, pages, planes: [plane("keys")?, plane("values")?] })
    }

    /// Which of all stored heads is head `h` of the token at `index` of a sequence with these pages.
    fn at(&self, pages: &[u32], index: usize, h: usize) -> usize {
        let token = pages[index / PAGE] as usize * PAGE + index % PAGE;
        token * self.spec.kv_heads + h
    }

    fn head(&self, plane: usize, at: usize) -> &[f32] {
        &self.planes[plane].values[at * self.spec.dim..][..self.spec.dim]
    }

    pub(super) fn key(&self, pages: &[u32], index: usize, h: usize) -> &[f32] {
        self.head(0, self.at(pages, index, h))
    }

    pub(super) fn value(&self, pages: &[u32], index: usize, h: usize) -> &[f32] {
        self.head(1, self.at(pages, index, h))
    }

    /// Stores key (plane 0) or value (plane 1) of head `h` at `index`.
    pub(super) fn put(&mut self, plane: usize, pages: &[u32], index: usize, h: usize, x: &[f32]) {
        let (at, KvSpec { dim, scheme, .. }) = (self.at(pages, index, h), self.spec);
        let plane = &mut self.planes[plane];
        let scale = store(scheme, x, &mut plane.values[at * dim..][..dim]);
        if let Some(place) = plane.scales.get_mut(at) {
            *place = scale;
        }
    }

    /// The stored heads of a page.
    fn heads(&self, page: u32) -> Range<usize> {
        let len = PAGE * self.spec.kv_heads;
        page as usize * len..(page as usize + 1) * len
    }

    /// Of each array the part of a page, with the length of one head in it: keys, their scales, values, their scales.
    fn arrays(&mut self) -> [(&mut Vec<f32>, usize); 4] {
        let scales = usize::from(self.spec.scheme == KvScheme::Q8);
        let [keys, values] = &mut self.planes;
        let dim = self.spec.dim;
        [(&mut keys.values, dim), (&mut keys.scales, scales), (&mut values.values, dim), (&mut values.scales, scales)]
    }

    pub(super) fn clear(&mut self, page: u32) {
        let heads = self.heads(page);
        for (array, one) in self.arrays() {
            array[heads.start * one..heads.end * one].fill(0.0);
        }
    }

    pub(super) fn copy(&mut self, from: u32, to: u32) {
        let (from, to) = (self.heads(from), self.heads(to).start);
        for (array, one) in self.arrays() {
            array.copy_within(from.start * one..from.end * one, to * one);
        }
    }

    pub(super) fn read(&self, pages: &[u32], len: usize) -> Result<[Vec<f32>; 2], DeviceError> {
        if pages.len() * PAGE < len {
            return Err(failed(format!("read {len} tokens of {} pages", pages.len())));
        }
        for &page in pages {
            self.check(page)?;
        }
        let plane = |get: for<'a> fn(&'a Kv, &[u32], usize, usize) -> &'a [f32]| {
            let places = (0..self.spec.kv_heads).flat_map(|h| (0..len).map(move |i| (h, i)));
            places.flat_map(|(h, i)| get(self, pages, i, h)).copied().collect()
        };
        Ok([plane(Kv::key), plane(Kv::value)])
    }

    fn check(&self, page: u32) -> Result<(), DeviceError> {
        if (page as usize) < self.pages { Ok(()) } else { Err(failed(format!("use page {page} of {}", self.pages))) }
    }

    /// All heads of the keys, then of the values: their values in the scheme's own size, or scale and codes.
    pub(super) fn export(&self, page: u32) -> Result<Vec<u8>, DeviceError> {
        self.check(page)?;
        let mut bytes = Vec::with_capacity(self.spec.page_bytes());
        for (plane, at) in (0..2).flat_map(|plane| self.heads(page).map(move |at| (plane, at))) {
            let values = self.head(plane, at);
            match self.spec.scheme {
                KvScheme::F32 => values.iter().for_each(|&v| Float::F32.put(v, &mut bytes)),
                KvScheme::F16 => values.iter().for_each(|&v| Float::F16.put(v, &mut bytes)),
                KvScheme::Q8 => {
                    let scale = self.planes[plane].scales[at];
                    Float::F32.put(scale, &mut bytes);
                    bytes.extend(values.iter().map(|&v| code(v, scale) as u8));
                }
            }
        }
        Ok(bytes)
    }

    pub(super) fn import(&mut self, page: u32, bytes: &[u8]) -> Result<(), DeviceError> {
        self.check(page)?;
        let (expected, found) = (self.spec.page_bytes(), bytes.len());
        if found != expected {
            return Err(DeviceError::State(format!("a page takes {expected} bytes, found {found}")));
        }
        let (heads, scheme) = (self.heads(page), self.spec.scheme);
        let stored = bytes.chunks_exact(scheme.head_bytes(self.spec.dim)).map(|b| decode(scheme, b));
        let stored = stored.collect::<Option<Vec<_>>>();
        let stored = stored.ok_or_else(|| DeviceError::State(format!("a page holds what is no {scheme:?} value")))?;
        let places = (0..2).flat_map(|plane| heads.clone().map(move |at| (plane, at)));
        let dim = self.spec.dim;
        for ((plane, at), (scale, values)) in places.zip(stored) {
            let plane = &mut self.planes[plane];
            plane.values[at * dim..][..dim].copy_from_slice(&values);
            if let Some(place) = plane.scales.get_mut(at) {
                *place = scale;
            }
        }
        Ok(())
    }
}

/// Scale and values of one stored head; `None` where they are not what the scheme stores.
fn decode(scheme: KvScheme, bytes: &[u8]) -> Option<(f32, Vec<f32>)> {
    let (scale, values) = match scheme {
        KvScheme::F32 => (0.0, martlet_tensor::read_floats(Float::F32, bytes)),
        KvScheme::F16 => (0.0, martlet_tensor::read_floats(Float::F16, bytes)),
        KvScheme::Q8 => {
            let (scale, codes) = bytes.split_at(size_of::<f32>());
            let scale = Float::F32.get(scale, 0);
            let normal = (f32::MIN_POSITIVE..=scheme.largest() / 127.0).contains(&scale);
            if !(normal || scale.to_bits() == 0) || codes.contains(&(i8::MIN as u8)) {
                return None;
            }
            (scale, codes.iter().map(|&c| f32::from(c as i8) * scale).collect())
        }
    };
    values.iter().all(|v| v.is_finite()).then_some((scale, values))
}
