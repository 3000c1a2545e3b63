//! Experts of every kind of scheme: all at once, and in two calls as they arrive.

use super::matmul::{Inputs, Weights, activations};
use super::rows::{RowOp, UNTOUCHED, blank, plain_batch, put};
use super::{Random, Suite, Tolerance, route};
use crate::{Device, DeviceError, ExpertShape, NO_SLOT, RouteSpec};
use martlet_tensor::{Float, Scheme};

struct Experts {
    rows: usize,
    shape: ExpertShape,
    spec: RouteSpec,
    experts: Vec<[Weights; 3]>,
    /// Slot of each expert, [`NO_SLOT`] for one that never arrives.
    slots: Vec<u32>,
    /// Slots are given to a call when they are below this; the rest to a second call.
    first_call: u32,
    logits: Vec<f32>,
    x: Vec<f32>,
}

impl Experts {
    fn random(scheme: Scheme, shape: ExpertShape, spec: RouteSpec, rows: usize, random: &mut Random) -> Experts {
        let ExpertShape { hidden, width } = shape;
        let expert = |random: &mut Random| {
            let mut w = |outputs, inputs| Weights::new(scheme, outputs, inputs, false, random);
            [w(width, hidden), w(width, hidden), w(hidden, width)]
        };
        let experts = (0..spec.experts).map(|_| expert(random)).collect();
        let mut slots: Vec<u32> = (0..spec.experts as u32).collect();
        random.shuffle(&mut slots);
        slots[0] = NO_SLOT;
        let logits = route::logits(rows, spec.experts, random);
        let x = activations(rows, hidden, 0, Inputs::Normal, random);
        Experts { rows, shape, spec, experts, slots, first_call: NO_SLOT, logits, x }
    }

    /// Experts of a row, as `route` chooses them.
    fn chosen(&self, row: usize) -> Vec<usize> {
        let logits = &self.logits[row * (self.spec.experts + 1)..][..self.spec.experts];
        let mut order: Vec<usize> = (0..self.spec.experts).collect();
        order.sort_by(|&a, &b| logits[b].total_cmp(&logits[a]));
        order.truncate(self.spec.chosen);
        order
    }
}

impl RowOp for Experts {
    fn rows(&self) -> usize {
        self.rows
    }

    fn run<D: Device>(&self, d: &mut D, rows: &[usize]) -> Result<Vec<f32>, DeviceError> {
        let (hidden, pairs) = (self.shape.hidden, rows.len() * self.spec.chosen);
        let mut experts = d.experts(self.shape, self.spec.experts)?;
        for (e, [gate, up, down]) in self.experts.iter().enumerate() {
            if self.slots[e] != NO_SLOT {
                let (gate, up, down) = (gate.matrix.view(), up.matrix.view(), down.matrix.view());
                d.load_expert(&mut experts, self.slots[e] as usize, &gate, &up, &down)?;
            }
        }
        let b = d.batch(&plain_batch(rows.len()), 1)?;
        let logits = put(d, self.spec.experts + 1, &self.logits, rows)?;
        let mut routes = d.routes(rows.len(), self.spec)?;
        d.route(&logits, self.spec, &b, &mut routes);
        let x = put(d, hidden, &self.x, rows)?;
        let mut y = blank(d, pairs, hidden)?;
        for now in [true, false] {
            let given = |&s: &u32| if s != NO_SLOT && (s < self.first_call) == now { s } else { NO_SLOT };
            let slots: Vec<u32> = self.slots.iter().map(given).collect();
            if slots.iter().any(|&s| s != NO_SLOT) {
                d.experts_forward(&experts, &slots, &x, &routes, &b, &mut y);
            }
        }
        d.read(&y, pairs)
    }

    /// The bound of gate and up passes through silu, whose slope is at most 1.1, and the product, into down.
    fn allowed(&self, _: &[f32], t: Tolerance) -> Vec<f32> {
        let ExpertShape { hidden, width } = self.shape;
        let mut all = Vec::new();
        for (row, x) in self.x.chunks(hidden).enumerate() {
            let x: Vec<f64> = x.iter().map(|&x| f64::from(x)).collect();
            for e in self.chosen(row) {
                if self.slots[e] == NO_SLOT {
                    all.extend(vec![0.0; hidden]);
                    continue;
                }
                let [gate, up, down] = &self.experts[e];
                let none = vec![0.0; hidden];
                let (g, ge) = (gate.product(&x), gate.allowed(&x, &none, false, t));
                let (u, ue) = (up.product(&x), up.allowed(&x, &none, false, t));
                let silu = |x: f64| x / (1.0 + (-x).exp());
                let h: Vec<f64> = (0..width).map(|i| silu(g[i]) * u[i]).collect();
                let slack = |i: usize| {
                    let (dg, size) = (1.1 * ge[i], silu(g[i]).abs());
                    dg * u[i].abs() + (size + dg) * ue[i] + f64::from(t.relative) * size * u[i].abs()
                };
                let slack: Vec<f64> = (0..width).map(slack).collect();
                all.extend(down.allowed(&h, &slack, false, t).iter().map(|&a| a as f32));
            }
        }
        all
    }
}

pub(super) fn experts_forward<D: Device, R: Device>(s: &mut Suite<'_, D, R>) {
    let bf16 = Float::Bf16;
    let cases = [
        (Scheme::Dense(bf16), 96, 40, 1),
        (Scheme::Affine { bits: 4, group: 64, scale: bf16 }, 256, 64, 2),
        (Scheme::Affine { bits: 4, group: 32, scale: Float::F16 }, 96, 32, 17),
        (Scheme::Affine { bits: 6, group: 16, scale: Float::F32 }, 96, 64, 9),
        (Scheme::Symmetric { bits: 4 }, 96, 32, 17),
        (Scheme::KQuant { bits: 4 }, 256, 128, 3),
        (Scheme::KQuant { bits: 6 }, 128, 256, 9),
        (Scheme::Affine { bits: 3, group: 64, scale: bf16 }, 320, 192, 5),
        (Scheme::Affine { bits: 8, group: 64, scale: bf16 }, 64, 320, 65),
        (Scheme::Mxfp4, 288, 96, 33),
        (Scheme::Mxfp8, 64, 32, 5),
        (Scheme::Nvfp4, 80, 48, 17),
        (Scheme::Fp8Block { scale: bf16 }, 130, 70, 5),
    ];
    for (i, (scheme, hidden, width, rows)) in cases.into_iter().enumerate() {
        let mut random = s.random(i as u64);
        let spec = RouteSpec { experts: 9, chosen: 1 + i % 4, renormalise: true };
        let shape = ExpertShape { hidden, width };
        let mut op = Experts::random(scheme, shape, spec, rows, &mut random);
        let case = format!("{scheme}, {rows} rows, {shape:?}, {} of 9 chosen", spec.chosen);
        s.rows(&case, &op);

        let all: Vec<usize> = (0..rows).collect();
        let mut d = (s.make)();
        let whole = op.run(&mut d, &all);
        op.first_call = 4;
        let arriving = op.run(&mut d, &all);
        let (Some(whole), Some(arriving)) = (s.done(&case, whole), s.done(&case, arriving)) else { continue };
        s.same(&format!("{case}, in two calls"), &arriving, &whole);
        let absent = (0..rows).flat_map(|r| op.chosen(r)).enumerate().filter(|(_, e)| *e == 0);
        for (pair, _) in absent {
            let left = whole[pair * hidden..(pair + 1) * hidden].iter().all(|&y| y == UNTOUCHED);
            s.holds(&case, left, "a pair without a slot was written");
        }
    }
}
