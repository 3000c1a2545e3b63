//! The small float formats: E2M1 (4 bits), E4M3 (8 bits) and the E8M0 power-of-two scale.

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

#[cfg(test)]
mod tests {
    use super::*;

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
}
