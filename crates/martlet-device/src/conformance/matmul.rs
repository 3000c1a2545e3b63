//! Products with matrices of every scheme, with and without quantised activations.

use super::rows::{RowOp, UNTOUCHED, blank, plain_batch, put};
use super::{Random, RandomMatrix, Suite, Tolerance, on_edge_shapes, schemes};
use crate::{Device, DeviceError, Rows};
use martlet_tensor::Scheme;

/// Columns of x behind the inputs, and of y before the outputs.
const BEHIND: usize = 3;
const BEFORE: usize = 2;

/// What the activations look like.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Inputs {
    Normal,
    /// Multiples of 1/127 of each group's largest magnitude, which is a power of two times 127: quantised to 8 bits
    /// without error.
    Steps,
}

/// A matrix, and what a product with it may be away from the truth.
pub(super) struct Weights {
    pub matrix: RandomMatrix,
    pub scheme: Scheme,
    pub exact: bool,
    pub outputs: usize,
    pub inputs: usize,
    values: Vec<f32>,
    magnitudes: Vec<f32>,
}

impl Weights {
    pub(super) fn new(scheme: Scheme, outputs: usize, inputs: usize, exact: bool, random: &mut Random) -> Weights {
        let parts = random.pick(&[1, 1, 3]);
        let matrix = RandomMatrix::new(scheme, outputs, inputs, parts, random);
        let (values, magnitudes) = (matrix.view().dequantise(), matrix.magnitudes());
        Weights { matrix, scheme, exact, outputs, inputs, values, magnitudes }
    }

    /// The product in double precision.
    pub(super) fn product(&self, x: &[f64]) -> Vec<f64> {
        let row = |w: &[f32]| w.iter().zip(x).map(|(&w, x)| f64::from(w) * x).sum();
        self.values.chunks(self.inputs).map(row).collect()
    }

    /// What each output for the row `x` may be away from the product, when x itself is only known to `slack` for each
    /// value: rounding, relative to the magnitudes summed; |w| times half a step of the activations; |w| times slack.
    pub(super) fn allowed(&self, x: &[f64], slack: &[f64], steps: bool, t: Tolerance) -> Vec<f64> {
        let quantised = t.int8_activations && !self.exact && !matches!(self.scheme, Scheme::Dense(_));
        let group = self.scheme.activation_group();
        let mut unsure = slack.to_vec();
        for (unsure, x) in unsure.chunks_mut(group).zip(x.chunks(group)) {
            let largest = x.iter().zip(&*unsure).fold(0.0, |m, (x, u)| f64::max(m, x.abs() + u));
            // Half a step, and a little for how it is rounded.
            let half = if quantised && !steps { largest / 254.0 * 1.001 } else { 0.0 };
            unsure.iter_mut().for_each(|u| *u += half);
        }
        let of_row = |(w, m): (&[f32], &[f32])| {
            let bound =
                |k: usize| f64::from(t.relative) * f64::from(m[k]) * x[k].abs() + f64::from(w[k].abs()) * unsure[k];
            (0..self.inputs).map(bound).sum::<f64>() + f64::from(t.absolute)
        };
        self.values.chunks(self.inputs).zip(self.magnitudes.chunks(self.inputs)).map(of_row).collect()
    }
}

/// Activations [rows, inputs + behind].
pub(super) fn activations(rows: usize, inputs: usize, behind: usize, kind: Inputs, random: &mut Random) -> Vec<f32> {
    let width = inputs + behind;
    let mut x = random.normals(rows * width);
    for (r, row) in x.chunks_mut(width).enumerate() {
        for (g, group) in row.chunks_mut(64).enumerate() {
            if kind == Inputs::Steps {
                group.iter_mut().for_each(|x| *x = (*x * 40.0).round().clamp(-127.0, 127.0));
                group.chunks_mut(16).for_each(|part| part[0] = 127.0);
            }
            // Groups of unlike size, a group of zeros, a row of zeros.
            let size = match (g % 7, r % 6) {
                (5, _) | (_, 4) => 0.0,
                (1, _) => 0.0625,
                (3, 2) => 64.0,
                _ => 1.0,
            };
            group.iter_mut().for_each(|x| *x *= size);
        }
    }
    x
}

struct Matmul {
    rows: usize,
    which: Rows,
    kind: Inputs,
    weights: Weights,
    x: Vec<f32>,
}

impl RowOp for Matmul {
    fn rows(&self) -> usize {
        self.rows
    }

    fn run<D: Device>(&self, d: &mut D, rows: &[usize]) -> Result<Vec<f32>, DeviceError> {
        let (w, n) = (&self.weights, rows.len());
        let mut batch = plain_batch(if self.which == Rows::All { n } else { n + 3 });
        if self.which == Rows::Outputs {
            batch.outputs = (0..n as u32).map(|i| i + 1).collect();
        }
        let b = d.batch(&batch, 1)?;
        let matrix = d.matrix(&w.matrix.view(), w.exact)?;
        let x = put(d, w.inputs + BEHIND, &self.x, rows)?;
        let mut y = blank(d, n, BEFORE + w.outputs + 1)?;
        d.matmul(&matrix, &x, self.which, &b, &mut y, BEFORE);
        d.read(&y, n)
    }

    fn allowed(&self, _: &[f32], t: Tolerance) -> Vec<f32> {
        let w = &self.weights;
        let mut all = Vec::new();
        for x in self.x.chunks(w.inputs + BEHIND) {
            let x: Vec<f64> = x[..w.inputs].iter().map(|&x| f64::from(x)).collect();
            all.extend([0.0; BEFORE]);
            let steps = self.kind == Inputs::Steps;
            all.extend(w.allowed(&x, &vec![0.0; w.inputs], steps, t).iter().map(|&a| a as f32));
            all.push(0.0);
        }
        all
    }
}

pub(super) fn matmul<D: Device, R: Device>(s: &mut Suite<'_, D, R>) {
    for (i, scheme) in schemes().into_iter().enumerate() {
        let mut random = s.random(i as u64);
        let mut case = 0;
        on_edge_shapes(scheme, |shape| {
            case += 1;
            let exact = case % 3 == 0;
            let kind = if case % 2 == 0 { Inputs::Steps } else { Inputs::Normal };
            let which = if case % 4 == 3 { Rows::Outputs } else { Rows::All };
            let weights = Weights::new(scheme, shape.outputs, shape.inputs, exact, &mut random);
            let x = activations(shape.rows, shape.inputs, BEHIND, kind, &mut random);
            let op = Matmul { rows: shape.rows, which, kind, weights, x };
            s.rows(&format!("{scheme}, {shape:?}, exact {exact}, {kind:?} inputs, {which:?}"), &op);
        });
    }
    untouched(s);
}

/// The reference writes no column but its own: then no device that agrees with it does.
fn untouched<D: Device, R: Device>(s: &mut Suite<'_, D, R>) {
    let mut random = s.random(1000);
    let weights = Weights::new(schemes()[0], 20, 64, true, &mut random);
    let x = activations(2, 64, BEHIND, Inputs::Normal, &mut random);
    let op = Matmul { rows: 2, which: Rows::All, kind: Inputs::Normal, weights, x };
    let Ok(y) = op.run(&mut (s.other)(), &[0, 1]) else { return };
    let outside = y.chunks(BEFORE + 21).all(|y| [y[0], y[1], y[22]] == [UNTOUCHED; 3]);
    s.holds("columns beside the outputs", outside, "were written");
}
