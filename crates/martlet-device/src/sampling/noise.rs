//! Gumbel noise as a function of (seed, choice, position, token): counter-based, nothing is stored between tokens.
//!
//! The generator is splitmix64 (Steele, Lea, Flood: Fast splittable pseudorandom number generators, 2014), its output
//! function used as the mixer: with M that function and g = 0x9e3779b97f4a7c15,
//!
//! ```text
//! key = M((M((M(seed + g) ^ choice) + g) ^ position) + g)          bits(token) = M(key + g * (token + 1))
//! ```
//!
//! so the tokens of one position see one splitmix64 stream. The upper 52 bits b give w = (2b + 1) / 2^53, strictly
//! between 0 and 1 and exact, also next to 1, where large noise comes from; e = -ln w is exponentially distributed and
//! -ln e is the noise. It lies between -3.7 and 36.8.

use martlet_tensor::math::ln64;

const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;

/// A little more than ln 2: bounds are to stay bounds after rounding.
const LN2_ABOVE: f64 = std::f64::consts::LN_2 * (1.0 + 1e-9);

/// The noise of one position.
#[derive(Clone, Copy, Debug)]
pub(super) struct Noise {
    key: u64,
}

/// splitmix64's output function.
fn mix(z: u64) -> u64 {
    let z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

impl Noise {
    pub(super) fn new(seed: u64, choice: u32, position: u64) -> Noise {
        let absorb = |key: u64, x: u64| mix((key ^ x).wrapping_add(GOLDEN));
        Noise { key: absorb(absorb(absorb(0, seed), u64::from(choice)), position) }
    }

    /// 2b + 1, an odd integer below 2^53.
    fn odd(self, token: u32) -> u64 {
        let bits = mix(self.key.wrapping_add(GOLDEN.wrapping_mul(u64::from(token) + 1)));
        (bits >> 12) * 2 + 1
    }

    /// Strictly between 0 and 1.
    pub(super) fn uniform(self, token: u32) -> f64 {
        self.odd(token) as f64 * 2f64.powi(-53)
    }

    pub(super) fn gumbel(self, token: u32) -> f64 {
        -ln64(-ln64(self.uniform(token)))
    }

    /// A quick upper bound of the noise: -ln w >= 1 - w = r / 2^53 with r >= 2^k, so -ln(-ln w) <= (53 - k) ln 2.
    pub(super) fn at_most(self, token: u32) -> f64 {
        let r = (1u64 << 53) - self.odd(token);
        f64::from(53 - r.ilog2()) * LN2_ABOVE
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_stream_of_seed_0_is_splitmix64s() {
        // The generator's first outputs from state 0, as its authors' program prints them.
        let stream = |i: u64| mix(GOLDEN.wrapping_mul(i));
        assert_eq!(stream(1), 0xe220_a839_7b1d_cdaf);
        assert_eq!(stream(2), 0x6e78_9e6a_a1b9_65f4);
    }

    #[test]
    fn noise_has_the_moments_of_a_gumbel_variable_and_stays_below_its_bound() {
        let n = 400_000u32;
        let (mut sum, mut squares, mut largest) = (0.0, 0.0, f64::NEG_INFINITY);
        for i in 0..n {
            let noise = Noise::new(7, 0, u64::from(i / 1000));
            let g = noise.gumbel(i % 1000);
            assert!(g <= noise.at_most(i % 1000) && g >= -3.7);
            (sum, squares) = (sum + g, squares + g * g);
            largest = f64::max(largest, g);
        }
        let mean = sum / f64::from(n);
        let variance = squares / f64::from(n) - mean * mean;
        assert!((mean - 0.577_216).abs() < 0.01, "mean {mean}"); // 5 standard errors
        assert!((variance - 1.644_934).abs() < 0.03, "variance {variance}");
        assert!(largest > 10.0 && largest < 20.0, "largest {largest}"); // ln n is 12.9
    }

    #[test]
    fn every_part_of_the_key_matters() {
        let all = [
            Noise::new(0, 0, 0),
            Noise::new(1, 0, 0),
            Noise::new(0, 1, 0),
            Noise::new(0, 0, 1),
            Noise::new(1, 1, 0),
            Noise::new(0, 1, 1),
        ];
        let mut noise: Vec<f64> = all.iter().flat_map(|n| [n.gumbel(0), n.gumbel(1)]).collect();
        noise.sort_by(f64::total_cmp);
        noise.dedup();
        assert_eq!(noise.len(), 12);
    }
}
