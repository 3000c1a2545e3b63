//! Virtual vectors of 16 f32 lanes. They fix the bits of every sum on this device: plain Rust never contracts or
//! reorders float operations, so whatever the compiler makes of these loops, on any instruction set, is the same sum.

pub use martlet_tensor::tiles::LANES;

/// One virtual vector.
pub type Lanes = [f32; LANES];

/// The sum over the lanes, as a tree: i + (i + 8), then i + (i + 4), i + (i + 2), i + (i + 1).
#[inline(always)]
pub fn sum(mut v: Lanes) -> f32 {
    for i in 0..8 {
        v[i] += v[i + 8];
    }
    for i in 0..4 {
        v[i] += v[i + 4];
    }
    for i in 0..2 {
        v[i] += v[i + 2];
    }
    v[0] + v[1]
}

/// a . b: lane i takes the elements i, i + 16, ... in order, each by a fused multiply-add; then the tree. A last part
/// of less than 16 is filled up with zeros.
#[inline(always)]
pub fn dot(a: &[f32], b: &[f32]) -> f32 {
    let len = a.len();
    let b = &b[..len];
    let mut acc = [0.0; LANES];
    let mut at = 0;
    while at + LANES <= len {
        fma_lanes(&mut acc, lanes(a, at), lanes(b, at));
        at += LANES;
    }
    if at < len {
        fma_lanes(&mut acc, padded(&a[at..]), padded(&b[at..]));
    }
    sum(acc)
}

/// acc = fma(a, b, acc) in every lane.
#[inline(always)]
pub fn fma_lanes(acc: &mut Lanes, a: Lanes, b: Lanes) {
    for i in 0..LANES {
        acc[i] = a[i].mul_add(b[i], acc[i]);
    }
}

/// The sum of `x`, in the order of [`dot`] with additions in place of multiply-adds.
#[inline(always)]
pub fn total(x: &[f32]) -> f32 {
    let mut acc = [0.0; LANES];
    let mut at = 0;
    while at + LANES <= x.len() {
        add_lanes(&mut acc, lanes(x, at));
        at += LANES;
    }
    if at < x.len() {
        add_lanes(&mut acc, padded(&x[at..]));
    }
    sum(acc)
}

#[inline(always)]
fn add_lanes(acc: &mut Lanes, x: Lanes) {
    for i in 0..LANES {
        acc[i] += x[i];
    }
}

/// x[at..at + N].
#[inline(always)]
pub fn take<const N: usize>(x: &[f32], at: usize) -> [f32; N] {
    let mut v = [0.0; N];
    v.copy_from_slice(&x[at..at + N]);
    v
}

#[inline(always)]
pub fn lanes(x: &[f32], at: usize) -> Lanes {
    take(x, at)
}

/// `x`, shorter than a vector, and zeros.
#[inline(always)]
pub fn padded(x: &[f32]) -> Lanes {
    let mut v = [0.0; LANES];
    for (v, x) in v.iter_mut().zip(x) {
        *v = *x;
    }
    v
}

/// The largest value, NaN left aside; -inf where there is none. The maximum of several numbers is the same in any order.
#[inline(always)]
pub fn largest(x: &[f32]) -> f32 {
    let mut acc = [f32::NEG_INFINITY; LANES];
    let mut at = 0;
    while at + LANES <= x.len() {
        let v = lanes(x, at);
        for i in 0..LANES {
            acc[i] = if v[i] > acc[i] { v[i] } else { acc[i] };
        }
        at += LANES;
    }
    let mut best = f32::NEG_INFINITY;
    for &v in acc.iter().chain(&x[at..]) {
        best = if v > best { v } else { best };
    }
    best
}

/// IEEE half to f32, exact. No subnormal f32 occurs on the way: some processors take a hundred cycles for one.
#[inline(always)]
pub fn widen_f16(h: u16) -> f32 {
    let magnitude = ((h & 0x7fff) as u32) << 13;
    // The exponent's bias differs by 112. A subnormal half is the fraction of 2^-14 (1 + m), which is taken off again.
    let normal = f32::from_bits(magnitude + (112 << 23));
    let subnormal = f32::from_bits(magnitude + (113 << 23)) - f32::from_bits(113 << 23);
    let infinite = f32::from_bits(magnitude | 0x7f80_0000);
    let v = if h & 0x7c00 == 0 { subnormal } else { normal };
    let v = if h & 0x7c00 == 0x7c00 { infinite } else { v };
    f32::from_bits(v.to_bits() | ((h & 0x8000) as u32) << 16)
}

/// E4M3 to f32, exact, in the same way.
#[inline(always)]
pub fn widen_e4m3(code: u8) -> f32 {
    let (code, magnitude) = (code as u32, ((code & 0x7f) as u32) << 20);
    let normal = f32::from_bits(magnitude + (120 << 23));
    let subnormal = f32::from_bits(magnitude + (121 << 23)) - f32::from_bits(121 << 23);
    let v = if code & 0x78 == 0 { subnormal } else { normal };
    let v = if code & 0x7f == 0x7f { f32::NAN } else { v };
    f32::from_bits(v.to_bits() | (code & 0x80) << 24)
}

/// Twice the value of an E2M1 code (4 bits), in the same way.
#[inline(always)]
pub fn twice_e2m1(code: u32) -> f32 {
    let magnitude = (code & 7) << 22;
    let normal = f32::from_bits(magnitude + (127 << 23));
    let subnormal = f32::from_bits(magnitude + (128 << 23)) - 2.0;
    let v = if code & 6 == 0 { subnormal } else { normal };
    f32::from_bits(v.to_bits() | (code & 8) << 28)
}

/// bfloat16 to f32, exact.
#[inline(always)]
pub fn widen_bf16(b: u16) -> f32 {
    f32::from_bits((b as u32) << 16)
}

/// The half nearest to x, ties to even; what is beyond the range becomes the largest half, NaN becomes 0.
#[inline(always)]
pub fn narrow_f16(x: f32) -> u16 {
    let x = finite(x, 65504.0);
    let (bits, sign) = (x.to_bits() & 0x7fff_ffff, (x.to_bits() >> 16) as u16 & 0x8000);
    // Normal halves: round the lowest 13 bits off. Subnormal ones: an addition in f32 rounds at the right place.
    let normal = (bits.wrapping_sub(112 << 23).wrapping_add(0xfff + ((bits >> 13) & 1))) >> 13;
    let subnormal = (f32::from_bits(bits) + 0.5).to_bits().wrapping_sub(0.5f32.to_bits());
    sign | (if bits < (113 << 23) { subnormal } else { normal }) as u16
}

/// x held within +-max; NaN becomes 0.
#[inline(always)]
pub fn finite(x: f32, max: f32) -> f32 {
    let x = if x > max { max } else { x };
    let x = if x < -max { -max } else { x };
    if x.is_nan() { 0.0 } else { x }
}

#[cfg(test)]
mod tests {
    use super::*;
    use martlet_tensor::Float;
    use martlet_tensor::scheme::fp;

    #[test]
    fn halves_convert_as_the_standard_says() {
        for h in 0..=u16::MAX {
            let (got, want) = (widen_f16(h), Float::F16.get(&h.to_le_bytes(), 0));
            assert!(got.to_bits() == want.to_bits() || got.is_nan() && want.is_nan(), "{h:#x}: {got} {want}");
        }
        for bits in (0..=u32::MAX).step_by(97) {
            let x = f32::from_bits(bits);
            let stored = widen_f16(narrow_f16(x));
            let want = if x.is_nan() { 0.0 } else { Float::F16.round(x.clamp(-65504.0, 65504.0)) };
            assert_eq!(stored.to_bits(), want.to_bits(), "{x}");
        }
    }

    #[test]
    fn small_floats_convert_as_their_codecs_say() {
        for code in 0..=255u8 {
            let (got, want) = (widen_e4m3(code), fp::e4m3(code));
            assert!(got.to_bits() == want.to_bits() || got.is_nan() && want.is_nan(), "{code:#x}: {got} {want}");
        }
        for code in 0..16u8 {
            assert_eq!(twice_e2m1(code.into()), f32::from(fp::e2m1_halves(code)));
        }
    }

    #[test]
    fn sums_have_the_stated_order() {
        for len in [0, 1, 15, 16, 17, 32, 100] {
            let a: Vec<f32> = (0..len).map(|i| (i as f32 * 0.7).sin()).collect();
            let b: Vec<f32> = (0..len).map(|i| (i as f32 * 1.3).cos()).collect();
            let mut lane = [0.0f32; 16];
            for i in 0..len {
                lane[i % 16] = a[i].mul_add(b[i], lane[i % 16]);
            }
            let mut step = 8;
            while step > 0 {
                for i in 0..step {
                    lane[i] += lane[i + step];
                }
                step /= 2;
            }
            assert_eq!(dot(&a, &b).to_bits(), lane[0].to_bits(), "{len}");
            let largest_plain = a.iter().fold(f32::NEG_INFINITY, |m, &x| m.max(x));
            assert_eq!(largest(&a), largest_plain);
        }
    }
}
