//! Fused operations: right like any other, and bit for bit what the device's own primitives give. That is what lets a
//! model call either.

use super::head_rms_norm::uneven;
use super::matmul::{Inputs, Weights, activations};
use super::rope::{tables, turned};
use super::rows::{RowOp, blank, plain_batch, put};
use super::sequences::largest;
use super::{Random, Suite, Tolerance};
use crate::{Device, DeviceError, Heads, KvScheme, KvSpec, Rope, Rows};
use martlet_tensor::{Float, Scheme};

#[derive(Clone, Copy, Debug, PartialEq)]
enum Kind {
    Project,
    NormProject,
    ProjectAdd,
}

/// Several products of one input.
struct Products {
    kind: Kind,
    fused: bool,
    rows: usize,
    inputs: usize,
    weights: Vec<(Weights, usize)>,
    norm: Vec<f32>,
    x: Vec<f32>,
    /// What a product is added to.
    sum: Vec<f32>,
}

impl Products {
    fn random(kind: Kind, schemes: &[(Scheme, bool)], rows: usize, inputs: usize, random: &mut Random) -> Products {
        let mut weights = Vec::new();
        let mut col = 0;
        for &(scheme, exact) in schemes {
            let outputs = random.pick(&[1, 16, 33, 70]);
            weights.push((Weights::new(scheme, outputs, inputs, exact, random), col));
            col += outputs;
        }
        Products {
            kind,
            fused: true,
            rows,
            inputs,
            norm: random.normals(inputs),
            x: activations(rows, inputs, 0, Inputs::Steps, random),
            sum: random.normals(rows * weights[0].0.outputs),
            weights,
        }
    }

    fn width(&self) -> usize {
        self.weights.iter().map(|(w, col)| w.outputs + col).max().unwrap_or(0)
    }
}

impl RowOp for Products {
    fn rows(&self) -> usize {
        self.rows
    }

    fn run<D: Device>(&self, d: &mut D, rows: &[usize]) -> Result<Vec<f32>, DeviceError> {
        let n = rows.len();
        let b = d.batch(&plain_batch(n), 1)?;
        let x = put(d, self.inputs, &self.x, rows)?;
        let mut matrices = Vec::new();
        for (w, _) in &self.weights {
            matrices.push(d.matrix(&w.matrix.view(), w.exact)?);
        }
        let ws: Vec<(&D::Matrix, usize)> = matrices.iter().zip(&self.weights).map(|(m, (_, col))| (m, *col)).collect();
        let mut y = blank(d, n, self.width())?;
        let products = |d: &mut D, x: &D::Buffer, y: &mut D::Buffer| {
            ws.iter().for_each(|&(w, col)| d.matmul(w, x, Rows::All, &b, y, col));
        };
        match self.kind {
            Kind::Project if self.fused => d.project(&ws, &x, &b, &mut y),
            Kind::Project => products(d, &x, &mut y),
            Kind::NormProject => {
                let weight = d.vector(&self.norm)?;
                let mut normed = blank(d, n, self.inputs)?;
                if self.fused {
                    d.norm_project(&x, &weight, 1e-6, &ws, &b, &mut normed, &mut y);
                } else {
                    d.rms_norm(&x, &weight, 1e-6, Rows::All, &b, &mut normed, 0);
                    products(d, &normed, &mut y);
                }
            }
            Kind::ProjectAdd => {
                let mut sum = put(d, ws[0].1 + self.weights[0].0.outputs, &self.sum, rows)?;
                if self.fused {
                    d.project_add(ws[0].0, &x, &b, &mut y, &mut sum);
                } else {
                    products(d, &x, &mut y);
                    d.add(&y, &b, &mut sum);
                }
                return d.read(&sum, n);
            }
        }
        d.read(&y, n)
    }

    fn allowed(&self, _: &[f32], t: Tolerance) -> Vec<f32> {
        let mut all = Vec::new();
        for row in self.x.chunks(self.inputs) {
            let mut x: Vec<f64> = row.iter().map(|&x| f64::from(x)).collect();
            let mut slack = vec![0.0; self.inputs];
            if self.kind == Kind::NormProject {
                let mean = x.iter().map(|x| x * x).sum::<f64>() / x.len() as f64;
                x.iter_mut().zip(&self.norm).for_each(|(x, &w)| *x *= f64::from(w) / (mean + 1e-6).sqrt());
                slack = x.iter().map(|x| f64::from(t.relative) * x.abs()).collect();
            }
            let steps = self.kind != Kind::NormProject;
            let of = |(w, _): &(Weights, usize)| w.allowed(&x, &slack, steps, t);
            let bounds = self.weights.iter().flat_map(of);
            all.extend(bounds.map(|a| (a + 4.0 * f64::from(t.relative)) as f32));
        }
        all
    }
}

fn products<D: Device, R: Device>(s: &mut Suite<'_, D, R>, kind: Kind) {
    let bf16 = Float::Bf16;
    let affine = |bits, group| Scheme::Affine { bits, group, scale: bf16 };
    let cases = [
        (1, 256, vec![(affine(4, 64), false), (affine(8, 64), true), (Scheme::Dense(bf16), false)]),
        (5, 320, vec![(affine(4, 64), false), (affine(4, 64), false)]),
        (17, 96, vec![(affine(6, 32), false), (Scheme::Mxfp4, false)]),
        (9, 384, vec![(Scheme::KQuant { bits: 5 }, false), (Scheme::KQuant { bits: 6 }, false)]),
        (33, 300, vec![(Scheme::Dense(bf16), true), (Scheme::Fp8Block { scale: bf16 }, false)]),
        (65, 512, vec![(affine(4, 128), false), (Scheme::Nvfp4, false), (Scheme::Dense(Float::F32), true)]),
    ];
    for (i, (rows, inputs, mut schemes)) in cases.into_iter().enumerate() {
        if kind == Kind::ProjectAdd {
            schemes.truncate(1);
        }
        let mut random = s.random(i as u64);
        let mut op = Products::random(kind, &schemes, rows, inputs, &mut random);
        let case = format!("{kind:?}, {rows} rows of {inputs}, {} matrices", schemes.len());
        s.rows(&case, &op);
        let all: Vec<usize> = (0..rows).collect();
        let mut d = (s.make)();
        let fused = op.run(&mut d, &all);
        op.fused = false;
        let composed = op.run(&mut d, &all);
        if let (Some(fused), Some(composed)) = (s.done(&case, fused), s.done(&case, composed)) {
            s.same(&format!("{case}, fused and composed"), &fused, &composed);
        }
    }
}

pub(super) fn project<D: Device, R: Device>(s: &mut Suite<'_, D, R>) {
    products(s, Kind::Project);
}

pub(super) fn norm_project<D: Device, R: Device>(s: &mut Suite<'_, D, R>) {
    products(s, Kind::NormProject);
}

pub(super) fn project_add<D: Device, R: Device>(s: &mut Suite<'_, D, R>) {
    products(s, Kind::ProjectAdd);
}

/// Queries with gates between them, keys, values.
struct Append {
    rows: usize,
    heads: [Heads; 3],
    norms: [Vec<f32>; 2],
    tables: Rope,
    scheme: KvScheme,
    x: Vec<f32>,
}

impl Append {
    /// The rows, then what the pages of the batch's last sequence hold.
    fn run<D: Device>(&self, d: &mut D, fused: bool) -> Result<[Vec<f32>; 2], DeviceError> {
        let [q, k, v] = self.heads;
        let order: Vec<usize> = (0..self.rows).collect();
        let batch = turned(plain_batch(self.rows), &self.tables, &order);
        let b = d.batch(&batch, 1)?;
        let mut x = put(d, v.end(), &self.x, &order)?;
        let mut kv = d.kv(KvSpec { kv_heads: k.count, dim: k.dim, scheme: self.scheme }, 30)?;
        let (q_norm, k_norm) = (d.vector(&self.norms[0])?, d.vector(&self.norms[1])?);
        if fused {
            d.qk_norm_rope_append(&mut x, [q, k, v], [&q_norm, &k_norm], 1e-6, &mut kv, &b);
        } else {
            for (heads, norm) in [(q, &q_norm), (k, &k_norm)] {
                d.head_rms_norm(&mut x, heads, norm, 1e-6, &b);
                d.rope(&mut x, heads, &b);
            }
            d.kv_append(&x, k, v, &mut kv, &b);
        }
        let stored = match batch.seqs.last() {
            Some(seq) => d.read_kv(&kv, &seq.pages, seq.start + seq.rows)?.concat(),
            None => Vec::new(),
        };
        Ok([d.read(&x, self.rows)?, stored])
    }
}

pub(super) fn qk_norm_rope_append<D: Device, R: Device>(s: &mut Suite<'_, D, R>) {
    let cases = [
        (1, 2, 1, 64, KvScheme::F32),
        (5, 8, 2, 256, KvScheme::F16),
        (33, 4, 4, 128, KvScheme::F16),
        (33, 4, 4, 128, KvScheme::Q8),
    ];
    for (i, (rows, heads, kv_heads, dim, scheme)) in cases.into_iter().enumerate() {
        let mut random = s.random(i as u64);
        let q = Heads { first: 0, stride: 2 * dim, count: heads, dim };
        let k = Heads::packed(2 * heads * dim, kv_heads, dim);
        let v = Heads::packed(k.end(), kv_heads, dim);
        let op = Append {
            rows,
            heads: [q, k, v],
            norms: [random.normals(dim), random.normals(dim)],
            tables: tables(rows, dim / 8, &mut random),
            scheme,
            x: uneven(rows, v.end(), &mut random),
        };
        let case = format!("{rows} rows, {heads} heads on {kv_heads} of {dim}, {scheme:?}");
        let Ok([want, stored]) = op.run(&mut (s.other)(), false) else { continue };
        let mut d = (s.make)();
        let (fused, composed) = (op.run(&mut d, true), op.run(&mut d, false));
        let (Some(fused), Some(composed)) = (s.done(&case, fused), s.done(&case, composed)) else { continue };
        let t = s.tolerance();
        // Normed heads are at most a few times the root of their size; the gates, which stay, are larger.
        let allowed: Vec<f32> = want.iter().map(|w| t.relative * w.abs().max(10.0)).collect();
        s.near(&case, &fused[0], &want, &allowed);
        // One rounding may go the other way.
        let most = largest(&stored);
        let step = |w: f32| match scheme {
            _ if t == Tolerance::EXACT => 0.0,
            KvScheme::F32 => 10.0 * t.relative * w.abs(),
            KvScheme::F16 => w.abs() / 1024.0,
            KvScheme::Q8 => most / 126.0,
        };
        let allowed: Vec<f32> = stored.iter().map(|&w| step(w) + 10.0 * t.relative).collect();
        s.near(&format!("{case}, stored"), &fused[1], &stored, &allowed);
        s.same(&format!("{case}, fused and composed"), &fused.concat(), &composed.concat());
    }
}
