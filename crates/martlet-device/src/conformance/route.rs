use super::rows::{RowOp, plain_batch, put};
use super::{Random, Suite, Tolerance};
use crate::{Device, DeviceError, RouteSpec};

struct Route {
    rows: usize,
    spec: RouteSpec,
    logits: Vec<f32>,
}

impl RowOp for Route {
    fn rows(&self) -> usize {
        self.rows
    }

    /// For each row the experts, then their weights.
    fn run<D: Device>(&self, d: &mut D, rows: &[usize]) -> Result<Vec<f32>, DeviceError> {
        let b = d.batch(&plain_batch(rows.len()), 1)?;
        let x = put(d, self.spec.experts + 1, &self.logits, rows)?;
        let mut routes = d.routes(rows.len() + 2, self.spec)?;
        d.route(&x, self.spec, &b, &mut routes);
        let r = d.read_routes(&routes, &b)?;
        let pairs = r.experts.chunks(r.chosen).zip(r.weights.chunks(r.chosen));
        Ok(pairs.flat_map(|(e, w)| e.iter().map(|&e| e as f32).chain(w.iter().copied())).collect())
    }

    fn allowed(&self, want: &[f32], t: Tolerance) -> Vec<f32> {
        let k = self.spec.chosen;
        let weight = |i: usize| if i % (2 * k) < k { 0.0 } else { t.relative * want[i] + t.absolute };
        (0..want.len()).map(weight).collect()
    }
}

/// Logits [rows, experts + 1] on a grid, so that many are equal and the others are far apart; the last column is larger
/// than all and belongs to no expert.
pub(super) fn logits(rows: usize, experts: usize, random: &mut Random) -> Vec<f32> {
    let row = |_| {
        let mut row: Vec<f32> = (0..experts).map(|_| (random.normal() * 8.0).round() / 4.0).collect();
        row.push(100.0);
        row
    };
    (0..rows).flat_map(row).collect()
}

pub(super) fn route<D: Device, R: Device>(s: &mut Suite<'_, D, R>) {
    let specs = [(1, 1), (5, 5), (32, 4), (33, 1), (256, 8), (512, 10)];
    for (i, (experts, chosen)) in specs.into_iter().enumerate() {
        for renormalise in [true, false] {
            let (mut random, rows) = (s.random(i as u64), [1, 2, 5, 17, 33, 65][i]);
            let spec = RouteSpec { experts, chosen, renormalise };
            let mut logits = logits(rows, experts, &mut random);
            if i % 2 == 1 {
                logits[..experts].fill(0.5); // a row of equals
            }
            s.rows(&format!("{rows} rows, {spec:?}"), &Route { rows, spec, logits });
        }
    }
}
