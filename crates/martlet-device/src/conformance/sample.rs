//! Tokens drawn on the device are those that the shared sampler draws.

use super::{Random, Suite};
use crate::sampling::{self, SampleParams, SampleRow};
use crate::{Device, DeviceError};

/// The parts of a row that it borrows.
struct Owned {
    params: SampleParams,
    seen: Vec<(u32, u32, u32)>,
    bias: Vec<(u32, f32)>,
    mask: Option<Vec<u32>>,
    logprobs: Option<usize>,
}

impl Owned {
    fn random(width: usize, random: &mut Random) -> Owned {
        let mask: Vec<u32> = (0..width.div_ceil(32)).map(|_| random.bits() as u32 | 1).collect();
        let some = |n: usize| (0..width as u32).step_by(width.div_ceil(n));
        Owned {
            params: SampleParams {
                temperature: random.pick(&[0.0, 0.7, 1.0]),
                top_k: random.pick(&[0, 1, 20]),
                top_p: random.pick(&[0.8, 1.0]),
                min_p: random.pick(&[0.0, 0.1]),
                repetition_penalty: random.pick(&[1.0, 1.2]),
                presence_penalty: random.pick(&[0.0, 0.5]),
                frequency_penalty: random.pick(&[0.0, 0.1]),
                seed: random.bits(),
                choice: random.below(2) as u32,
            },
            seen: some(9).map(|t| (t, 1, t % 3)).collect(),
            bias: some(4).map(|t| (t, 1.5)).collect(),
            mask: (random.below(3) == 0).then_some(mask),
            logprobs: random.pick(&[None, Some(0), Some(5)]),
        }
    }

    fn row(&self, position: u64) -> SampleRow<'_> {
        SampleRow {
            params: &self.params,
            position,
            seen: &self.seen,
            bias: &self.bias,
            mask: self.mask.as_deref(),
            logprobs: self.logprobs,
        }
    }
}

pub(super) fn sample<D: Device, R: Device>(s: &mut Suite<'_, D, R>) {
    for (rows, width) in [(1, 33), (3, 1000), (40, 384), (2, 50_000)] {
        let mut random = s.random(width as u64);
        let mut logits: Vec<f32> = random.normals(rows * width).iter().map(|l| l * 4.0).collect();
        logits.iter_mut().step_by(7).for_each(|l| *l = l.round()); // ties
        let owned: Vec<Owned> = (0..rows).map(|_| Owned::random(width, &mut random)).collect();
        let asked: Vec<SampleRow<'_>> = owned.iter().enumerate().map(|(i, o)| o.row(i as u64 * 17)).collect();
        let case = format!("{rows} rows of {width}");
        let result = run(&mut (s.make)(), &logits, width, &asked);
        let Some(got) = s.done(&case, result) else { continue };
        for ((got, logits), row) in got.iter().zip(logits.chunks(width)).zip(&asked) {
            let want = sampling::sample(logits, row);
            let what = format!("token {} for {:?}, expected {}", got.token, row.params, want.token);
            s.holds(&case, got.token == want.token, &what);
            let ids = |s: &sampling::Sampled| s.top.iter().map(|t| t.0).collect::<Vec<_>>();
            s.holds(&case, ids(got) == ids(&want), &format!("{:?} at the top, expected {:?}", got.top, want.top));
            let values = |s: &sampling::Sampled| s.logprob.into_iter().chain(s.top.iter().map(|t| t.1)).collect();
            let (got, want): (Vec<f32>, Vec<f32>) = (values(got), values(&want));
            let allowed: Vec<f32> = want.iter().map(|w| s.tolerance().relative * (1.0 + w.abs())).collect();
            s.near(&format!("{case}, log-probabilities"), &got, &want, &allowed);
        }
    }
}

fn run<D: Device>(
    d: &mut D,
    logits: &[f32],
    width: usize,
    rows: &[SampleRow<'_>],
) -> Result<Vec<sampling::Sampled>, DeviceError> {
    let mut buffer = d.buffer(rows.len() + 1, width)?;
    d.write(&mut buffer, 0, logits)?;
    d.sample(&buffer, rows)
}
