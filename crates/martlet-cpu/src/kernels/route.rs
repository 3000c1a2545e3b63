//! A router's choice: p = softmax of the logits; the largest logits, ties to the lower index, NaN after all numbers.
//! bytes: logits once. order: e = exp(x - max); their sum is `lanes::total`; p = e / sum. Renormalised weights are
//! p / (sum of the chosen p, in rank order from zero). The choice compares logits, so no rounding has a part in it.

use crate::lanes::{largest, total};
use martlet_tensor::math::exp;

/// Room for one row.
#[derive(Default)]
pub struct Scratch {
    p: Vec<f32>,
    keys: Vec<i32>,
}

/// An integer that orders as the logit does; NaN lies below all numbers.
#[inline(always)]
fn key(x: f32) -> i32 {
    let bits = (x + 0.0).to_bits() as i32; // -0 becomes 0
    let ordered = bits ^ ((bits >> 31) as u32 >> 1) as i32;
    if x.is_nan() { TAKEN + 1 } else { ordered }
}

/// Below every key.
const TAKEN: i32 = i32::MIN;

/// Fills `experts` and `weights` (as many as are chosen), largest first.
#[inline(always)]
pub fn route(x: &[f32], scratch: &mut Scratch, renormalise: bool, experts: &mut [u32], weights: &mut [f32]) {
    let Scratch { p, keys } = scratch;
    let max = largest(x);
    p.clear();
    keys.clear();
    for &x in x {
        p.push(x);
        keys.push(key(x));
    }
    for v in p.iter_mut() {
        *v = exp(*v - max);
    }
    let sum = total(p);
    for (expert, weight) in experts.iter_mut().zip(weights.iter_mut()) {
        let most = keys.iter().fold(TAKEN, |most, k| most.max(*k));
        let best = keys.iter().position(|k| *k == most).unwrap_or(0);
        (*expert, *weight) = (best as u32, p[best] / sum);
        keys[best] = TAKEN;
    }
    if renormalise {
        let chosen = weights.iter().fold(0.0, |sum, w| sum + w);
        for w in weights.iter_mut() {
            *w /= chosen;
        }
    }
}
