//! The definition of the products, in plain scalar steps: what the tests call true.

use super::SLICE;
use crate::acts::{Acts, quantise};
use crate::tiles::{Codes, Kind, Scales, TILE_K, Weights};
use martlet_tensor::scheme::fp;

/// Output `n` of the row x.
pub fn scalar(w: &Weights, x: &[f32], n: usize) -> f32 {
    match w.kind {
        Kind::Codes(..) => scalar_codes(w, x, n),
        Kind::Floats(_) => scalar_floats(w, x, n, SLICE),
        Kind::E4m3 { group } => scalar_floats(w, x, n, group),
    }
}

fn scalar_codes(w: &Weights, x: &[f32], n: usize) -> f32 {
    let mut acts = Acts::default();
    acts.shape(1, w.cols, w.act_group);
    quantise(x, w.act_group, &mut acts.codes, &mut acts.d, &mut acts.ds);
    let Kind::Codes(codes, scales) = w.kind else { return f32::NAN };
    let sum = |k0: usize, zero: i32| -> i32 {
        let all = k0..w.cols.min(k0 + w.group);
        all.map(|k| (w.code(n, k) - zero) * i32::from(acts.codes.as_flattened()[k])).sum()
    };
    let mut y = 0.0f32;
    for slice in (0..w.cols).step_by(SLICE) {
        let mut a = 0.0f32;
        if scales == Scales::Whole {
            for k in (slice..w.cols.min(slice + SLICE)).step_by(TILE_K) {
                let ((d, scales), mut t) = (w.whole(n, k), 0.0);
                for (g, scale) in scales.into_iter().enumerate() {
                    t = f32::from(scale).mul_add(sum(k + g * w.group, 32) as f32, t);
                }
                a = d.mul_add(t * acts.d[k / TILE_K], a);
            }
            y += a;
            continue;
        }
        for k0 in (slice..w.cols.min(slice + SLICE)).step_by(w.group) {
            let (s, b) = w.scale(n, k0);
            a = s.mul_add(sum(k0, 0) as f32 * acts.d[k0 / w.act_group], a);
            if codes != Codes::E2m1 {
                a = b.mul_add(acts.ds[k0 / w.act_group], a);
            }
        }
        y += a;
    }
    y
}

/// `group`: inputs that share a scale, at most a slice. Plain floats have the scale 1 and no step for it.
fn scalar_floats(w: &Weights, x: &[f32], n: usize, group: usize) -> f32 {
    let mut y = 0.0f32;
    for slice in (0..w.cols).step_by(SLICE) {
        let mut a = 0.0f32;
        for k0 in (slice..w.cols.min(slice + SLICE)).step_by(group) {
            let mut g = 0.0f32;
            for k in k0..w.cols.min(k0 + group) {
                g = stored(w, n, k).mul_add(x[k], g);
            }
            a = if group == SLICE { g } else { w.scale(n, k0).0.mul_add(g, a) };
        }
        y += a;
    }
    y
}

/// The stored float itself, without the scale of its group.
fn stored(w: &Weights, n: usize, k: usize) -> f32 {
    match w.kind {
        Kind::E4m3 { .. } => fp::e4m3(w.strip(n / 16)[k * 16 + n % 16]),
        _ => w.value(n, k),
    }
}
