//! What an expert is worth: how often it was chosen, where a choice counts half as much after so many rows.
//!
//! The score of an expert at row t of its layer is log2 of the sum, over the rows r that chose it, of 2^((r - t) / HALF).
//! It falls by 1 / HALF a row, for all experts alike: so only choices change what is stored, and two experts of one layer
//! compare the same at any time. A prompt's last rows count most, and so seed the experts that its answer will use.

use martlet_device::Routes;

/// Rows after which a choice counts half.
const HALF: f64 = 128.0;

pub struct Scores {
    layers: Vec<Layer>,
    /// The layer whose rows every sequence has; the draft head, which only some rows see, goes by its clock.
    trunk: usize,
}

struct Layer {
    /// Rows so far, in half-lives.
    now: f64,
    /// Of each expert: log2 of its sum, as of row 0.
    sums: Vec<f64>,
    draft: bool,
}

impl Scores {
    /// `experts[i]`: the experts of layer i; `trunk`: how many of the layers are not the draft head's.
    pub fn new(experts: &[usize], trunk: usize) -> Scores {
        let layer = |(i, n): (usize, &usize)| Layer { now: 0.0, sums: vec![f64::NEG_INFINITY; *n], draft: i >= trunk };
        let first = experts.iter().position(|n| *n > 0).unwrap_or(0);
        Scores { layers: experts.iter().enumerate().map(layer).collect(), trunk: first }
    }

    /// Counts the choices of a layer's rows. Returns the experts chosen, each once, in order.
    pub fn note(&mut self, layer: usize, routes: &Routes) -> Vec<u32> {
        let trunk = self.layers[self.trunk].now;
        let Layer { now, sums, draft } = &mut self.layers[layer];
        if *draft {
            *now = trunk;
        }
        for row in routes.experts.chunks(routes.chosen.max(1)) {
            for &e in row {
                // log2(2^sum + 2^now), without leaving the range of numbers.
                let sum = &mut sums[e as usize];
                let (high, low) = (sum.max(*now), sum.min(*now));
                *sum = high + (1.0 + (low - high).exp2()).log2();
            }
            if !*draft {
                *now += 1.0 / HALF;
            }
        }
        let mut chosen = routes.experts.clone();
        chosen.sort_unstable();
        chosen.dedup();
        chosen
    }

    /// What is stored of an expert: it changes with its choices alone, and grows with the clock of its layer.
    pub fn sum(&self, layer: u32, expert: u32) -> f64 {
        self.layers[layer as usize].sums[expert as usize]
    }

    /// What an expert is worth now.
    pub fn score(&self, layer: u32, expert: u32) -> f64 {
        let Layer { now, sums, draft } = &self.layers[layer as usize];
        let now = if *draft { self.layers[self.trunk].now } else { *now };
        sums[expert as usize] - now
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn routes(rows: &[[u32; 2]]) -> Routes {
        Routes { chosen: 2, experts: rows.concat(), weights: vec![0.0; 2 * rows.len()] }
    }

    #[test]
    fn scores_are_logarithms_of_decayed_counts() {
        let mut scores = Scores::new(&[0, 4, 4], 2);
        assert_eq!(scores.score(1, 0), f64::NEG_INFINITY);
        assert_eq!(scores.note(1, &routes(&[[2, 0], [3, 0]])), [0, 2, 3]);
        let two = (2f64.powf(-2.0 / HALF) + 2f64.powf(-1.0 / HALF)).log2();
        assert!((scores.score(1, 0) - two).abs() < 1e-9);
        assert!((scores.score(1, 3) + 1.0 / HALF).abs() < 1e-9);
        assert!(scores.score(1, 0) > scores.score(1, 3) && scores.score(1, 3) > scores.score(1, 2));
        // The draft head's rows move no clock, but those of the trunk move the head's.
        scores.note(2, &routes(&[[1, 2]]));
        assert!((scores.score(2, 1)).abs() < 1e-9);
        let many: Vec<[u32; 2]> = vec![[0, 1]; HALF as usize];
        scores.note(1, &routes(&many));
        assert!((scores.score(2, 1) + 1.0).abs() < 1e-9, "half as much after so many rows");
        // A long life stays in range.
        for _ in 0..2000 {
            scores.note(1, &routes(&many));
        }
        assert!(scores.score(1, 0).is_finite() && scores.score(1, 2) < -1000.0);
    }
}
