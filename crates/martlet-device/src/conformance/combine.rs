use super::rows::{RowOp, plain_batch, put};
use super::{Suite, Tolerance, route};
use crate::{Device, DeviceError, RouteSpec};

struct Combine {
    rows: usize,
    hidden: usize,
    spec: RouteSpec,
    logits: Vec<f32>,
    y: Vec<f32>,
    shared: Vec<f32>,
    gate: Vec<f32>,
    x: Vec<f32>,
}

impl RowOp for Combine {
    fn rows(&self) -> usize {
        self.rows
    }

    fn run<D: Device>(&self, d: &mut D, rows: &[usize]) -> Result<Vec<f32>, DeviceError> {
        let (spec, hidden) = (self.spec, self.hidden);
        let b = d.batch(&plain_batch(rows.len()), 1)?;
        let logits = put(d, spec.experts + 1, &self.logits, rows)?;
        let mut routes = d.routes(rows.len(), spec)?;
        d.route(&logits, spec, &b, &mut routes);
        let pairs: Vec<usize> = rows.iter().flat_map(|r| (0..spec.chosen).map(move |k| r * spec.chosen + k)).collect();
        let y = put(d, hidden, &self.y, &pairs)?;
        let shared = put(d, hidden, &self.shared, rows)?;
        let gate = put(d, 3, &self.gate, rows)?;
        let mut x = put(d, hidden, &self.x, rows)?;
        d.combine(&y, &routes, &shared, &gate, 2, &b, &mut x);
        d.read(&x, rows.len())
    }

    /// Terms may cancel: all is measured by the largest, 3, and weights sum to 1 at most.
    fn allowed(&self, want: &[f32], t: Tolerance) -> Vec<f32> {
        vec![9.0 * t.relative; want.len()]
    }
}

pub(super) fn combine<D: Device, R: Device>(s: &mut Suite<'_, D, R>) {
    let cases = [(1, 1, 1), (2, 16, 4), (17, 65, 10), (33, 256, 2), (65, 31, 8)];
    for (i, (rows, hidden, chosen)) in cases.into_iter().enumerate() {
        let mut random = s.random(i as u64);
        let spec = RouteSpec { experts: 16, chosen, renormalise: i % 2 == 0 };
        let op = Combine {
            rows,
            hidden,
            spec,
            logits: route::logits(rows, spec.experts, &mut random),
            y: random.normals(rows * chosen * hidden),
            shared: random.normals(rows * hidden),
            gate: random.normals(rows * 3),
            x: random.normals(rows * hidden),
        };
        s.rows(&format!("{rows} rows of {hidden}, {spec:?}"), &op);
    }
}
