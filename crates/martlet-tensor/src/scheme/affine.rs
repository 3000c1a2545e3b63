//! MLX affine: groups of 32, 64 or 128 codes (of 16 from ggml) of `bits` bits, value = scale * code + bias.
//!
//! The codes of a row are one little-endian bit stream: code i is bits [i * bits, (i + 1) * bits), so codes of 3, 5
//! and 6 bits cross byte and word borders.

use super::Encoded;
use crate::{Float, Row};

/// Code `i` of a little-endian bit stream of `bits`-bit codes (1 to 8 bits).
#[inline]
pub fn code(stream: &[u8], bits: usize, i: usize) -> u8 {
    let (byte, shift) = (i * bits / 8, i * bits % 8);
    let low = stream[byte] as u16;
    let high = if shift + bits > 8 { stream[byte + 1] as u16 } else { 0 };
    ((low | high << 8) >> shift) as u8 & ((1u16 << bits) - 1) as u8
}

pub(super) fn dequantise(row: &Row<'_>, bits: u8, group: usize, scale: Float, out: &mut [f32]) {
    for (g, values) in out.chunks_mut(group).enumerate() {
        let (s, b) = (scale.get(row.scales, g), scale.get(row.biases, g));
        for (i, y) in values.iter_mut().enumerate() {
            *y = s.mul_add(code(row.codes, bits as usize, g * group + i) as f32, b);
        }
    }
}

/// Encodes one row of finite values (whole groups), appending to `out`. Scale and bias of a group are chosen by a
/// small search for the least squared error, on the values as they are after rounding to `scale`'s type.
pub(super) fn encode(row: &[f32], bits: u8, group: usize, scale: Float, out: &mut Encoded) {
    let mut pack = BitWriter { bytes: &mut out.codes, buffer: 0, filled: 0 };
    let top = ((1u32 << bits) - 1) as f32;
    for values in row.chunks(group) {
        let fit = Fit::search(values, top, scale);
        scale.put(fit.scale, &mut out.scales);
        scale.put(fit.bias, &mut out.biases);
        let inverse = fit.inverse();
        for &v in values {
            pack.push(nearest(v, inverse, fit.bias, top) as u32, bits as u32);
        }
    }
    pack.finish();
}

/// Scale and bias of one group, both as stored, and the sum of squared errors.
#[derive(Clone, Copy)]
struct Fit {
    scale: f32,
    bias: f32,
    error: f32,
}

impl Fit {
    /// Starts from the whole range of the values, tries narrower ranges (an outlier may be worth clipping), then fits
    /// a line through (code, value) of the best.
    fn search(values: &[f32], top: f32, float: Float) -> Fit {
        let low = values.iter().copied().fold(f32::INFINITY, f32::min);
        let high = values.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let mut best = Fit::measure(values, 0.0, float.round(low * 0.5 + high * 0.5), top);
        if low == high {
            return best;
        }
        let step = (high - low) / top;
        for i in 0..4 {
            for j in 0..4 {
                let (a, b) = (low + i as f32 * 0.3 * step, high - j as f32 * 0.3 * step);
                best = best.better(Fit::centred(values, float.round((b - a) / top), (a + b) * 0.5, top, float));
            }
        }
        // A scale rounded down leaves both ends out: try the next one up.
        best = best.better(Fit::centred(values, float.round(step * 1.004), (low + high) * 0.5, top, float));
        for _ in 0..4 {
            let refined = best.refine(values, top, float);
            // False for NaN, which comes of codes that are all alike.
            if refined.error < best.error {
                best = refined;
            } else {
                break;
            }
        }
        best
    }

    fn better(self, other: Fit) -> Fit {
        // False for NaN, which comes of scales that overflow.
        if other.error < self.error { other } else { self }
    }

    /// The codes' middle at `middle`.
    fn centred(values: &[f32], scale: f32, middle: f32, top: f32, float: Float) -> Fit {
        Fit::measure(values, scale, float.round(middle - scale * top * 0.5), top)
    }

    fn inverse(&self) -> f32 {
        inverse(self.scale)
    }

    fn measure(values: &[f32], scale: f32, bias: f32, top: f32) -> Fit {
        let inverse = inverse(scale);
        let mut sums = [0.0f32; 8];
        // Groups are multiples of 32.
        for eight in values.as_chunks::<8>().0 {
            for (sum, &v) in sums.iter_mut().zip(eight) {
                let error = v - (scale * nearest(v, inverse, bias, top) + bias);
                *sum += error * error;
            }
        }
        Fit { scale, bias, error: sums.iter().sum() }
    }

    /// The line of least squares through the codes that this fit gives.
    fn refine(&self, values: &[f32], top: f32, float: Float) -> Fit {
        let (n, inverse) = (values.len() as f32, self.inverse());
        let (mut c, mut cc, mut cv, mut v) = ([0.0f32; 8], [0.0f32; 8], [0.0f32; 8], [0.0f32; 8]);
        for eight in values.as_chunks::<8>().0 {
            for (i, &value) in eight.iter().enumerate() {
                let code = nearest(value, inverse, self.bias, top);
                c[i] += code;
                cc[i] += code * code;
                cv[i] += code * value;
                v[i] += value;
            }
        }
        let sum = |lanes: [f32; 8]| lanes.iter().sum::<f32>();
        let (c, cc, cv, v) = (sum(c), sum(cc), sum(cv), sum(v));
        let scale = float.round((n * cv - c * v) / (n * cc - c * c));
        Fit::measure(values, scale, float.round((v - scale * c) / n), top)
    }
}

/// 1 / scale, or 0 where that is no finite number: all codes become 0.
fn inverse(scale: f32) -> f32 {
    let inverse = 1.0 / scale;
    if inverse.is_finite() { inverse } else { 0.0 }
}

/// The code nearest to `v` as a float, ties to even.
#[inline(always)]
fn nearest(v: f32, inverse: f32, bias: f32, top: f32) -> f32 {
    // Adding and taking away 1.5 * 2^23 rounds to an integer, without a call and eight values at a time.
    const ROUND: f32 = 12_582_912.0;
    let x = (v - bias) * inverse;
    let x = if x > 0.0 { x } else { 0.0 };
    let x = if x < top { x } else { top };
    (x + ROUND) - ROUND
}

/// Appends codes to a little-endian bit stream.
pub(super) struct BitWriter<'a> {
    pub bytes: &'a mut Vec<u8>,
    pub buffer: u64,
    pub filled: u32,
}

impl BitWriter<'_> {
    #[inline]
    pub fn push(&mut self, code: u32, bits: u32) {
        self.buffer |= (code as u64) << self.filled;
        self.filled += bits;
        if self.filled >= 32 {
            self.bytes.extend((self.buffer as u32).to_le_bytes());
            self.buffer >>= 32;
            self.filled -= 32;
        }
    }

    /// Writes what is left, filled up to whole bytes.
    pub fn finish(self) {
        let left = self.filled.div_ceil(8) as usize;
        self.bytes.extend(&self.buffer.to_le_bytes()[..left]);
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Scheme, encode, test_values};
    use super::*;
    use crate::{Matrix, Part};

    fn decode(scheme: Scheme, cols: usize, e: &Encoded) -> Vec<f32> {
        let part = Part::new(1, &e.codes, &e.scales, &e.biases);
        Matrix::new(scheme, cols, vec![part]).unwrap().dequantise()
    }

    fn error(a: &[f32], b: &[f32]) -> f64 {
        a.iter().zip(b).map(|(a, b)| ((a - b) as f64).powi(2)).sum()
    }

    /// Scale and bias from the smallest and largest value, unrounded: what the search must beat.
    fn plain(values: &[f32], bits: u8, group: usize) -> Vec<f32> {
        let top = ((1u32 << bits) - 1) as f32;
        let each = |group: &[f32]| -> Vec<f32> {
            let low = group.iter().copied().fold(f32::INFINITY, f32::min);
            let step = (group.iter().copied().fold(f32::NEG_INFINITY, f32::max) - low) / top;
            group.iter().map(|v| low + step * ((v - low) / step).round()).collect()
        };
        values.chunks(group).flat_map(each).collect()
    }

    #[test]
    fn the_search_beats_the_plain_range() {
        let values = test_values(128 * 40);
        for bits in [1u8, 2, 3, 4, 5, 6, 8] {
            for group in [32u16, 64, 128] {
                let scheme = Scheme::Affine { bits, group, scale: Float::F32 };
                let mut e = Encoded::default();
                encode(scheme, &values, &mut e);
                let found = error(&values, &decode(scheme, values.len(), &e));
                let naive = error(&values, &plain(&values, bits, group as usize));
                assert!(found < naive, "{bits} bits, groups of {group}: {found} against {naive}");
                let bf16 = Scheme::Affine { bits, group, scale: Float::Bf16 };
                let mut e = Encoded::default();
                encode(bf16, &values, &mut e);
                let rounded = error(&values, &decode(bf16, values.len(), &e));
                assert!(rounded < naive * 1.1, "{bits} bits, groups of {group}: {rounded} against {naive}");
            }
        }
    }

    #[test]
    fn values_on_the_grid_come_back_exactly() {
        for bits in [1u8, 2, 3, 4, 5, 6, 8] {
            let top = 1usize << bits;
            // Every group holds the smallest and the largest code.
            let code = |i: usize| match i % 128 {
                0 => 0,
                1 => top - 1,
                _ => (i * 7 + i / 3) % top,
            };
            let values: Vec<f32> = (0..512).map(|i| code(i) as f32 * 0.25 - 3.0).collect();
            let scheme = Scheme::Affine { bits, group: 128, scale: Float::Bf16 };
            let mut e = Encoded::default();
            encode(scheme, &values, &mut e);
            assert_eq!(decode(scheme, 512, &e), values, "{bits} bits");
        }
    }

    #[test]
    fn constant_zero_and_tiny_groups_stay_finite() {
        let scheme = Scheme::Affine { bits: 4, group: 32, scale: Float::F16 };
        let mut values = vec![0.0; 32];
        values.extend(vec![-1.5; 32]);
        values.extend((0..32).map(|i| i as f32 * 1e-42));
        values.extend((0..32).map(|i| if i == 5 { 60000.0 } else { -60000.0 }));
        let mut e = Encoded::default();
        encode(scheme, &values, &mut e);
        let found = decode(scheme, 128, &e);
        assert_eq!(found[..64], values[..64]);
        assert!(found[64..96].iter().all(|v| v.abs() < 1e-6));
        assert!(found[96..].iter().zip(&values[96..]).all(|(a, b)| (a - b).abs() < 4000.0));
    }
}
