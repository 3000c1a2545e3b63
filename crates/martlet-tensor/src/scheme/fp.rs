//! The small float formats: E2M1 (4 bits), E4M3 (8 bits) and the E8M0 power-of-two scale.

use super::Encoded;
use super::affine::BitWriter;

/// E2M1: 0, 0.5, 1, 1.5, 2, 3, 4, 6; bit 3 is the sign. Bits above 3 are ignored.
#[inline]
pub fn e2m1(code: u8) -> f32 {
    e2m1_halves(code) as f32 * 0.5
}

/// Twice the E2M1 value, an integer in -12..=12: what integer products work on.
#[inline]
pub fn e2m1_halves(code: u8) -> i8 {
    const HALVES: [i8; 16] = [0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12];
    HALVES[(code & 15) as usize]
}

/// E4M3 (finite only): bias 7, subnormals m/8 * 2^-6, NaN at 0x7f and 0xff.
#[inline]
pub fn e4m3(code: u8) -> f32 {
    let (exponent, mantissa) = ((code >> 3) & 15, code & 7);
    let magnitude = match (exponent, mantissa) {
        (15, 7) => f32::NAN,
        (0, m) => m as f32 * f32::from_bits(118 << 23), // m * 2^-9
        (e, m) => f32::from_bits(((e as u32 + 120) << 23) | ((m as u32) << 20)),
    };
    if code & 0x80 != 0 { -magnitude } else { magnitude }
}

/// E8M0: 2^(code - 127); 255 is NaN.
#[inline]
pub fn e8m0(code: u8) -> f32 {
    match code {
        0 => f32::from_bits(1 << 22), // 2^-127, a subnormal
        255 => f32::NAN,
        c => f32::from_bits((c as u32) << 23),
    }
}

/// The nearest E2M1 code, ties to the even code; beyond 6 it is 6.
pub fn to_e2m1(value: f32) -> u8 {
    let x = value.abs();
    // Borders halfway between neighbours; a value on a border goes to the even code.
    const BORDERS: [(f32, bool); 7] =
        [(0.25, false), (0.75, true), (1.25, false), (1.75, true), (2.5, false), (3.5, true), (5.0, false)];
    let code = BORDERS.iter().filter(|(border, up)| x > *border || (*up && x == *border)).count() as u8;
    if value.is_sign_negative() { code | 8 } else { code }
}

/// The nearest E4M3 code, ties to even; beyond 448 it is 448.
pub fn to_e4m3(value: f32) -> u8 {
    let x = value.abs().min(448.0);
    let code = if x < f32::from_bits(121 << 23) {
        // Below 2^-6: multiples of 2^-9; the eighth is the first normal number.
        (x * 512.0).round_ties_even() as u32
    } else {
        let bits = x.to_bits();
        let (kept, rest) = (bits >> 20, bits & 0xf_ffff);
        let up = rest > 0x8_0000 || (rest == 0x8_0000 && kept & 1 == 1);
        kept + up as u32 - (120 << 3)
    };
    // NaN fails every comparison above and becomes 448 by `min`.
    if value.is_sign_negative() { code as u8 | 0x80 } else { code as u8 }
}

/// Encodes a row in groups with a scale of powers of two; `codes` is 4 bits (E2M1) or 8 (E4M3) wide.
pub(super) fn encode_mx(row: &[f32], bits: u32, out: &mut Encoded) {
    let (largest, top) = if bits == 4 { (6.0, e2m1 as fn(u8) -> f32) } else { (448.0, e4m3 as fn(u8) -> f32) };
    let code = if bits == 4 { to_e2m1 } else { to_e4m3 };
    let mut pack = BitWriter { bytes: &mut out.codes, buffer: 0, filled: 0 };
    for values in row.chunks(32) {
        let peak = values.iter().fold(0.0f32, |m, v| m.max(v.abs()));
        // The power of two that just holds the peak, or the one below it, which clips and is finer.
        let bits_of = (peak / largest).to_bits();
        let exponent = ((bits_of >> 23) + (bits_of & 0x7f_ffff != 0) as u32).clamp(1, 254) as u8;
        let scale = best(values, [exponent, exponent - 1], e8m0, code, top);
        out.scales.push(scale);
        values.iter().for_each(|v| pack.push(code(v / e8m0(scale)) as u32, bits));
    }
    pack.finish();
}

/// Encodes a row in groups of 16 with E4M3 scales; the factor of the whole tensor is 1.
pub(super) fn encode_nvfp4(row: &[f32], out: &mut Encoded) {
    let mut pack = BitWriter { bytes: &mut out.codes, buffer: 0, filled: 0 };
    for values in row.chunks(16) {
        let peak = values.iter().fold(0.0f32, |m, v| m.max(v.abs()));
        let near = to_e4m3(peak / 6.0);
        let scales = [near, near.saturating_sub(1), (near + 1).min(0x7e)];
        let scale = best(values, scales, e4m3, to_e2m1, e2m1);
        out.scales.push(scale);
        let s = e4m3(scale);
        values.iter().for_each(|v| pack.push(to_e2m1(if s > 0.0 { v / s } else { 0.0 }) as u32, 4));
    }
    pack.finish();
}

/// The scale of least squared error among `scales`; the first of equals.
fn best<const N: usize>(
    values: &[f32],
    scales: [u8; N],
    scale: fn(u8) -> f32,
    code: fn(f32) -> u8,
    value: fn(u8) -> f32,
) -> u8 {
    let error = |s: u8| -> f32 {
        let s = scale(s);
        let back = |v: f32| if s > 0.0 { value(code(v / s)) * s } else { 0.0 };
        values.iter().map(|&v| (v - back(v)) * (v - back(v))).sum()
    };
    let mut found = (scales[0], error(scales[0]));
    for &s in &scales[1..] {
        let e = error(s);
        if e < found.1 {
            found = (s, e);
        }
    }
    found.0
}

#[cfg(test)]
mod tests {
    use super::super::{Scheme, encode, test_values};
    use super::*;
    use crate::{Matrix, Part};

    #[test]
    fn formats_hit_their_corner_values() {
        assert_eq!(e4m3(0x7e), 448.0);
        assert_eq!(e4m3(0x01), 2f32.powi(-9));
        assert_eq!(e4m3(0x88), -(2f32.powi(-6)));
        assert!(e4m3(0xff).is_nan());
        assert_eq!(e8m0(127), 1.0);
        assert_eq!(e8m0(0), 2f32.powi(-127));
        assert_eq!(e8m0(254), 2f32.powi(127));
        assert_eq!((e2m1(7), e2m1(15), e2m1(9)), (6.0, -6.0, -0.5));
    }

    #[test]
    fn encoders_take_the_nearest_code() {
        let nearest = |x: f32, decode: fn(u8) -> f32, codes: std::ops::Range<u16>| {
            let distance = |c: &u8| (decode(*c) - x).abs();
            let mut codes: Vec<u8> = codes.map(|c| c as u8).filter(|c| !decode(*c).is_nan()).collect();
            // Of two at the same distance, the even one.
            codes.sort_by(|a, b| distance(a).total_cmp(&distance(b)).then((a & 1).cmp(&(b & 1))));
            decode(codes[0])
        };
        for i in 0..20_000 {
            let x = (i - 10_000) as f32 / 1250.0;
            assert_eq!(e2m1(to_e2m1(x)), nearest(x, e2m1, 0..16), "{x}");
        }
        for i in 0..3_000 {
            let x = (i - 1_500) as f32 / 1024.0;
            let x = x * x * x * 160.0;
            assert_eq!(e4m3(to_e4m3(x)), nearest(x, e4m3, 0..256), "{x}");
        }
        for c in 0..=255u8 {
            assert!(e4m3(c).is_nan() || to_e4m3(e4m3(c)) == c, "{c}");
            assert!(e2m1(c & 15) == e2m1(to_e2m1(e2m1(c & 15))));
        }
    }

    #[test]
    fn rows_come_back_close() {
        let values = test_values(256);
        for (scheme, share) in [(Scheme::Mxfp4, 0.02), (Scheme::Mxfp8, 0.001), (Scheme::Nvfp4, 0.015)] {
            let mut e = Encoded::default();
            encode(scheme, &values, &mut e);
            let part = Part::new(1, &e.codes, &e.scales, &e.biases);
            let found = Matrix::new(scheme, 256, vec![part]).unwrap().dequantise();
            let error: f32 = values.iter().zip(&found).map(|(a, b)| (a - b) * (a - b)).sum();
            let power: f32 = values.iter().map(|a| a * a).sum();
            assert!(error < share * power, "{scheme}: {}", error / power);
            let mut zeros = Encoded::default();
            encode(scheme, &[0.0; 32], &mut zeros);
            let part = Part::new(1, &zeros.codes, &zeros.scales, &[]);
            assert_eq!(Matrix::new(scheme, 32, vec![part]).unwrap().dequantise(), [0.0; 32]);
        }
    }
}
