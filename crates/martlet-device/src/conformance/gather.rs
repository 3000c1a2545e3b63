use super::Suite;
use super::rows::{blank, plain_batch, put};
use crate::{Device, DeviceError};

pub(super) fn gather<D: Device, R: Device>(s: &mut Suite<'_, D, R>) {
    for (rows, width, step) in [(1, 1, 1), (5, 16, 4), (33, 17, 2), (65, 300, 1)] {
        let (case, x) =
            (format!("every {step}. of {rows} rows of {width}"), s.random(rows).normals(rows as usize * width));
        let outputs: Vec<u32> = (0..rows as u32).step_by(step).collect();
        let want: Vec<f32> = outputs.iter().flat_map(|&r| &x[r as usize * width..][..width]).copied().collect();
        let result = run(&mut (s.make)(), &x, width, &outputs);
        if let Some(got) = s.done(&case, result) {
            s.same(&case, &got, &want);
        }
    }
}

fn run<D: Device>(d: &mut D, x: &[f32], width: usize, outputs: &[u32]) -> Result<Vec<f32>, DeviceError> {
    let rows = x.len() / width;
    let mut batch = plain_batch(rows);
    batch.outputs = outputs.to_vec();
    let b = d.batch(&batch, 1)?;
    let x = put(d, width, x, &(0..rows).collect::<Vec<_>>())?;
    let mut y = blank(d, outputs.len(), width)?;
    d.gather(&x, &b, &mut y);
    d.read(&y, outputs.len())
}
