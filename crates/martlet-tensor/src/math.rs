//! Elementary functions with bits of our own.
//!
//! They are made of fused multiply-adds, integer operations and the IEEE operations that round correctly (+, *, /,
//! square root, comparison), so every machine and every vector width gives the same bits, which no libm promises. They
//! have no branches (selects only) and vectorise inside a loop. NaN stays NaN; which NaN is not promised.
//!
//! | function | error, in units of the last place | outside |
//! | --- | --- | --- |
//! | [`exp`] | < 1.1 | 0 below -104, infinite above 88.73; subnormal results are rounded once more |
//! | [`ln`] | < 1.1 | -inf at 0, NaN below |
//! | [`sigmoid`] | < 2.6 | 0 below -88.73, where the true value is below 2^-127 |
//! | [`silu`] | < 2.6 | -0 below -88.73 |
//! | [`softplus`] | < 2.6 | x itself from about 17 on |
//! | [`exp64`], [`ln64`] | < 1.1 | as `exp` and `ln`, at the borders of f64 |
//!
//! `1.0 / x.sqrt()` needs no function of its own: both operations round correctly everywhere.

/// ln 2 in two pieces; the first has so few bits that its product with an exponent is exact.
const LN2: [f32; 2] = [0.693_145_75, 1.428_606_8e-6];
const LN2_64: [f64; 2] = [0.693_147_180_369_123_8, 1.908_214_929_270_587_7e-10];

/// (e^r - 1 - r) / r^2 for |r| <= ln 2 / 2.
const EXP: [f32; 5] = [0.5, 0.166_665_76, 0.041_666_556, 0.008_363_179, 0.001_392_618_4];
const EXP_64: [f64; 11] = [
    0.5,
    0.166_666_666_666_666_7,
    0.041_666_666_666_666_67,
    0.008_333_333_333_326_136,
    0.001_388_888_888_888_374_8,
    0.000_198_412_698_748_206_27,
    2.480_158_732_554_774_3e-5,
    2.755_725_540_020_642e-6,
    2.755_727_364_311_03e-7,
    2.510_521_700_472_074_5e-8,
    2.091_468_696_808_687_6e-9,
];

/// (ln((1 + s) / (1 - s)) / s - 2) / s^2 as a polynomial in s^2, for |s| <= 3 - sqrt 8.
const LN: [f32; 4] = [0.666_666_7, 0.400_001_22, 0.285_508_04, 0.233_309_26];
const LN_64: [f64; 8] = [
    0.666_666_666_666_666_6,
    0.400_000_000_000_008_8,
    0.285_714_285_708_020_8,
    0.222_222_223_922_603_73,
    0.181_817_956_031_192_33,
    0.153_862_417_156_536_42,
    0.132_687_192_437_584_3,
    0.130_871_896_635_536_83,
];

/// e^x.
#[inline(always)]
pub fn exp(x: f32) -> f32 {
    const ROUND: f32 = 12_582_912.0; // 1.5 * 2^23: added, it leaves an integer in the low bits
    let x = if x < -105.0 { -105.0 } else { x };
    let x = if x > 89.0 { 89.0 } else { x };
    let shifted = x.mul_add(std::f32::consts::LOG2_E, ROUND);
    let n = shifted - ROUND;
    let r = n.mul_add(-LN2[1], n.mul_add(-LN2[0], x));
    let mut q = EXP[4];
    q = q.mul_add(r, EXP[3]);
    q = q.mul_add(r, EXP[2]);
    q = q.mul_add(r, EXP[1]);
    q = q.mul_add(r, EXP[0]);
    let y = (r * r).mul_add(q, r) + 1.0;
    // In two halves, so that both powers of two are normal numbers.
    let n = shifted.to_bits().wrapping_sub(ROUND.to_bits()) as i32;
    let half = n >> 1;
    y * power(half) * power(n - half)
}

/// 2^n for -126 <= n <= 127.
#[inline(always)]
fn power(n: i32) -> f32 {
    f32::from_bits((n.wrapping_add(127) as u32) << 23)
}

/// Natural logarithm.
#[inline(always)]
pub fn ln(x: f32) -> f32 {
    let (y, e) = if x < f32::MIN_POSITIVE { (x * 33_554_432.0, -25) } else { (x, 0) };
    // y = m * 2^e with m between sqrt(1/2) and sqrt(2).
    let bits = y.to_bits();
    let shift = (bits.wrapping_sub(0x3f35_04f3) as i32) >> 23;
    let f = f32::from_bits(bits.wrapping_sub((shift as u32) << 23)) - 1.0;
    let e = (shift + e) as f32;
    let s = f / (2.0 + f);
    let z = s * s;
    let mut r = LN[3];
    r = r.mul_add(z, LN[2]);
    r = r.mul_add(z, LN[1]);
    r = r.mul_add(z, LN[0]);
    let half = 0.5 * f * f;
    let tail = s.mul_add(z.mul_add(r, half), e * LN2[1]);
    let y = e.mul_add(LN2[0], f - (half - tail));
    let y = if x == f32::INFINITY { x } else { y };
    let y = if x == 0.0 { f32::NEG_INFINITY } else { y };
    if x >= 0.0 { y } else { f32::NAN }
}

/// 1 / (1 + e^-x).
#[inline(always)]
pub fn sigmoid(x: f32) -> f32 {
    1.0 / (1.0 + exp(-x))
}

/// x * sigmoid(x).
#[inline(always)]
pub fn silu(x: f32) -> f32 {
    let above = if x < -128.0 { -128.0 } else { x };
    above / (1.0 + exp(-x))
}

/// ln(1 + e^x).
#[inline(always)]
pub fn softplus(x: f32) -> f32 {
    let y = exp(-x.abs());
    // ln(1 + y): the second term is what 1 + y lost in rounding.
    let u = 1.0 + y;
    let low = ln(u) + (y - (u - 1.0)) / u;
    let high = if x < 0.0 { 0.0 } else { x };
    high + low
}

/// e^x in double precision.
#[inline(always)]
pub fn exp64(x: f64) -> f64 {
    const ROUND: f64 = 6_755_399_441_055_744.0; // 1.5 * 2^52
    let x = if x < -747.0 { -747.0 } else { x };
    let x = if x > 710.0 { 710.0 } else { x };
    let shifted = x.mul_add(std::f64::consts::LOG2_E, ROUND);
    let n = shifted - ROUND;
    let r = n.mul_add(-LN2_64[1], n.mul_add(-LN2_64[0], x));
    let q = EXP_64.iter().rev().fold(0.0f64, |q, &c| q.mul_add(r, c));
    let y = (r * r).mul_add(q, r) + 1.0;
    let n = shifted.to_bits().wrapping_sub(ROUND.to_bits()) as i64;
    let half = n >> 1;
    y * power64(half) * power64(n - half)
}

/// 2^n for -1022 <= n <= 1023.
#[inline(always)]
fn power64(n: i64) -> f64 {
    f64::from_bits((n.wrapping_add(1023) as u64) << 52)
}

/// Natural logarithm in double precision.
#[inline(always)]
pub fn ln64(x: f64) -> f64 {
    let (y, e) = if x < f64::MIN_POSITIVE { (x * 18_014_398_509_481_984.0, -54) } else { (x, 0) };
    let bits = y.to_bits();
    let shift = (bits.wrapping_sub(0x3fe6_a09e_667f_3bcd) as i64) >> 52;
    let f = f64::from_bits(bits.wrapping_sub((shift as u64) << 52)) - 1.0;
    let e = (shift + e) as f64;
    let s = f / (2.0 + f);
    let z = s * s;
    let r = LN_64.iter().rev().fold(0.0f64, |r, &c| r.mul_add(z, c));
    let half = 0.5 * f * f;
    let tail = s.mul_add(z.mul_add(r, half), e * LN2_64[1]);
    let y = e.mul_add(LN2_64[0], f - (half - tail));
    let y = if x == f64::INFINITY { x } else { y };
    let y = if x == 0.0 { f64::NEG_INFINITY } else { y };
    if x >= 0.0 { y } else { f64::NAN }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every 509th float and its neighbours: all exponents, both signs.
    fn floats() -> impl Iterator<Item = f32> {
        (0..=u32::MAX).step_by(509).map(f32::from_bits).filter(|x| x.is_finite())
    }

    /// Error of `got` in units of the last place of `want`; subnormal results count in units of the smallest.
    fn ulps(got: f32, want: f64) -> f64 {
        let unit = f64::max(2f64.powi(want.abs().log2().floor() as i32 - 23), 2f64.powi(-149));
        (f64::from(got) - want).abs() / unit
    }

    fn check(name: &str, bound: f64, f: fn(f32) -> f32, want: fn(f64) -> f64, inside: fn(f32) -> bool) {
        let mut worst = (0.0, 0.0f32);
        for x in floats().filter(|&x| inside(x)) {
            let (got, want) = (f(x), want(f64::from(x)));
            if want == 0.0 || !(want as f32).is_finite() {
                assert_eq!(got, want as f32, "{name}({x})");
                continue;
            }
            let error = ulps(got, want);
            if error > worst.0 || error.is_nan() {
                worst = (error, x);
            }
        }
        println!("{name}: {:.3} ULP at {:e}", worst.0, worst.1);
        assert!(worst.0 < bound, "{name}: {} ULP at {:e}", worst.0, worst.1);
    }

    fn sigmoid_ref(x: f64) -> f64 {
        1.0 / (1.0 + (-x).exp())
    }

    #[test]
    fn errors_stay_below_what_is_stated() {
        check("exp", 1.1, exp, f64::exp, |_| true);
        check("ln", 1.1, ln, f64::ln, |x| x > 0.0);
        check("sigmoid", 2.6, sigmoid, sigmoid_ref, |x| x > -87.0);
        check("silu", 2.6, silu, |x| x * sigmoid_ref(x), |x| x > -87.0);
        let softplus_ref = |x: f64| x.max(0.0) + (-x.abs()).exp().ln_1p();
        check("softplus", 2.6, softplus, softplus_ref, |_| true);
    }

    #[test]
    fn limits_are_right() {
        let (inf, nan) = (f32::INFINITY, f32::NAN);
        assert_eq!((exp(-inf), exp(inf), exp(0.0), exp(-0.0)), (0.0, inf, 1.0, 1.0));
        assert_eq!((exp(88.73), exp(f32::MAX), exp(-104.0), exp(f32::MIN)), (inf, inf, 0.0, 0.0));
        assert_eq!((ln(0.0), ln(-0.0), ln(inf), ln(1.0)), (-inf, -inf, inf, 0.0));
        assert!(ln(-1.0).is_nan() && ln(-inf).is_nan());
        assert_eq!((sigmoid(-inf), sigmoid(inf), sigmoid(0.0)), (0.0, 1.0, 0.5));
        assert_eq!((silu(-inf), silu(inf), silu(-200.0)), (0.0, inf, 0.0));
        assert_eq!((softplus(-inf), softplus(inf), softplus(100.0)), (0.0, inf, 100.0));
        for f in [exp, ln, sigmoid, silu, softplus] {
            assert!(f(nan).is_nan());
        }
        assert!(exp64(f64::NAN).is_nan() && ln64(f64::NAN).is_nan() && ln64(-1.0).is_nan());
        assert_eq!((exp64(f64::NEG_INFINITY), exp64(f64::INFINITY), exp64(0.0)), (0.0, f64::INFINITY, 1.0));
        assert_eq!((ln64(0.0), ln64(f64::INFINITY), ln64(1.0)), (f64::NEG_INFINITY, f64::INFINITY, 0.0));
    }

    /// Softmax relies on it: a larger score never gets a smaller weight.
    #[test]
    fn exp_never_falls() {
        let mut last = 0.0;
        for i in (0..0x42d4_0000u32).rev().step_by(61) {
            let y = exp(-f32::from_bits(i));
            assert!(y >= last, "exp({})", -f32::from_bits(i));
            last = y;
        }
    }

    /// The standard library's double functions are within a unit of the last place on the platforms that run this.
    #[test]
    fn double_functions_agree_with_the_standard_library() {
        let mut state = 1u64;
        for _ in 0..2_000_000 {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let unit = (state >> 11) as f64 * 2f64.powi(-53);
            let far = |got: f64, want: f64| (got.to_bits() as i64).wrapping_sub(want.to_bits() as i64).abs();
            let x = unit * 1400.0 - 700.0;
            assert!(far(exp64(x), x.exp()) <= 2, "exp64({x})");
            for x in [unit, unit * 4.0, f64::from_bits(state >> 1)] {
                if x > 0.0 && x.is_finite() {
                    assert!(far(ln64(x), x.ln()) <= 2, "ln64({x})");
                }
            }
        }
    }
}
