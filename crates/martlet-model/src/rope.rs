//! Rotary position embedding: the tables of cosines and sines that a batch carries.

use martlet_device::Rope;

/// What a config says of the rotation.
#[derive(Clone, Debug, PartialEq)]
pub struct RopeSpec {
    /// Radians per position of each rotating pair: theta^(-2i / rotary width).
    pub inv_freq: Vec<f32>,
    /// Which coordinate (t, h, w) each pair follows; all t for text-only models.
    pub axis: Vec<u8>,
}

impl RopeSpec {
    /// `width` rotating dimensions of each head. `sections` are the interleaved sections of (t, h, w): pair i follows h
    /// where i % 3 == 1 and i < 3 * sections[1], w where i % 3 == 2 and i < 3 * sections[2], else t.
    pub fn new(width: usize, theta: f64, sections: Option<[usize; 3]>) -> RopeSpec {
        let half = width / 2;
        // In f32 step by step, as the models were trained: the exponent, the power, its inverse.
        let inv_freq = (0..half).map(|i| 1.0 / theta.powf(((2 * i) as f32 / width as f32) as f64) as f32).collect();
        let [_, h, w] = sections.unwrap_or_default();
        let axis = (0..half).map(|i| match i % 3 {
            1 if i < 3 * h => 1,
            2 if i < 3 * w => 2,
            _ => 0,
        });
        RopeSpec { inv_freq, axis: axis.collect() }
    }

    /// The tables for rows at `positions` (t, h, w); the three are equal for text.
    pub fn table(&self, positions: impl Iterator<Item = [u32; 3]>) -> Rope {
        let mut rope = Rope { half: self.inv_freq.len(), cos: Vec::new(), sin: Vec::new() };
        for position in positions {
            for (freq, axis) in self.inv_freq.iter().zip(&self.axis) {
                let (sin, cos) = sin_cos((position[*axis as usize] as f32 * freq) as f64);
                rope.cos.push(cos as f32);
                rope.sin.push(sin as f32);
            }
        }
        rope
    }
}

/// Sine and cosine in fused multiply-adds alone, so that every machine makes the same table. For 0 <= x < 2^31; the
/// error is below 1e-15 for x < 2^20, far under half a unit of the f32 that is kept.
fn sin_cos(x: f64) -> (f64, f64) {
    // pi/2 in three parts: 33 bits, 33 bits, the rest; n * part is exact for the first two below 2^20.
    const PARTS: [f64; 3] = [1.570_796_326_734_125_6, 6.077_100_506_303_966e-11, 2.022_266_248_795_950_7e-21];
    let n = (x * std::f64::consts::FRAC_2_PI).round_ties_even();
    let r = PARTS.iter().fold(x, |r, part| n.mul_add(-part, r));
    let z = r * r;
    let series = |first: u32| {
        // sum over i of (-z)^i * first! / (first + 2i)!, by Horner from the smallest term on
        (1..10).rev().fold(1.0, |sum: f64, i| {
            let k = (first + 2 * i) as f64;
            sum.mul_add(-z / (k * (k - 1.0)), 1.0)
        })
    };
    let (sin, cos) = (r * series(1), series(0));
    match (n as i64) & 3 {
        0 => (sin, cos),
        1 => (cos, -sin),
        2 => (-sin, -cos),
        _ => (-cos, sin),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sines_agree_with_the_library_over_a_million_positions() {
        for i in 0..200_000u32 {
            let x = (i as f32 * 5.243) as f64;
            let (sin, cos) = sin_cos(x);
            assert!((sin - x.sin()).abs() < 2e-15 && (cos - x.cos()).abs() < 2e-15, "{x}: {sin} {cos}");
        }
    }

    #[test]
    fn interleaved_sections_count_as_the_config_says() {
        let spec = RopeSpec::new(64, 1e7, Some([11, 11, 10]));
        let count = |a| spec.axis.iter().filter(|x| **x == a).count();
        assert_eq!((count(0), count(1), count(2)), (11, 11, 10));
        assert_eq!(spec.axis[..4], [0, 1, 2, 0]);
    }
}
