//! The router's choice for each row, from its logits x[r, ..experts]:
//!
//!   p = softmax(x)     the `chosen` experts of largest p, ties to the lower index     w = p, or p / sum of the chosen p
//!
//! Softmax keeps the order, so the choice compares the logits themselves: it can not depend on how an exponential is
//! rounded. A NaN is never preferred to a number. The sum for p runs over all experts in index order, that of the
//! renormalisation over the ranks.

use super::{Buffer, RouteSpec};
use crate::Routes;
use std::cmp::Ordering;

/// The choices of the rows of a batch.
#[derive(Clone, Debug)]
pub struct RouteTable {
    pub(super) chosen: usize,
    /// [rows, chosen]
    pub(super) experts: Vec<u32>,
    /// [rows, chosen]
    pub(super) weights: Vec<f32>,
}

impl RouteTable {
    pub(super) fn new(rows: usize, spec: RouteSpec) -> RouteTable {
        RouteTable { chosen: spec.chosen, experts: vec![0; rows * spec.chosen], weights: vec![0.0; rows * spec.chosen] }
    }

    pub(super) fn first(&self, rows: usize) -> Routes {
        Routes {
            chosen: self.chosen,
            experts: self.experts[..rows * self.chosen].to_vec(),
            weights: self.weights[..rows * self.chosen].to_vec(),
        }
    }
}

pub(super) fn route(x: &Buffer, spec: RouteSpec, rows: usize, routes: &mut RouteTable) {
    assert_eq!(spec.chosen, routes.chosen, "experts chosen for each row");
    for r in 0..rows {
        let logits = &x.row(r)[..spec.experts];
        let max = logits.iter().fold(f32::NEG_INFINITY, |m, &l| m.max(l));
        let mut p: Vec<f32> = logits.iter().map(|l| (l - max).exp()).collect();
        let sum: f32 = p.iter().sum();
        p.iter_mut().for_each(|p| *p /= sum);

        let mut order: Vec<usize> = (0..spec.experts).collect();
        order.sort_by(|&a, &b| larger_first(logits[a], logits[b]));
        let chosen = &order[..spec.chosen];
        let total: f32 = chosen.iter().map(|&e| p[e]).sum();
        for (rank, &e) in chosen.iter().enumerate() {
            let at = r * spec.chosen + rank;
            routes.experts[at] = e as u32;
            routes.weights[at] = if spec.renormalise { p[e] / total } else { p[e] };
        }
    }
}

/// Larger numbers first, NaN last; equal ones are left in order by a stable sort.
fn larger_first(a: f32, b: f32) -> Ordering {
    b.partial_cmp(&a).unwrap_or(a.is_nan().cmp(&b.is_nan()))
}
