//! What the pages hold: rounding on writing, copies, bytes.

use super::Suite;
use super::rows::put;
use crate::{Batch, Device, DeviceError, Heads, KvScheme, KvSpec, SeqRows};

/// Tokens written: they end inside the second page.
const LEN: usize = 70;

/// Pages of the written sequence.
const PAGES: [u32; 2] = [3, 1];

pub(super) fn kv<D: Device, R: Device>(s: &mut Suite<'_, D, R>) {
    for (i, (kv_heads, dim)) in [(1, 64), (2, 256), (3, 72)].into_iter().enumerate() {
        for scheme in [KvScheme::F32, KvScheme::F16, KvScheme::Q8] {
            let spec = KvSpec { kv_heads, dim, scheme };
            let x = values(s, i as u64, 2 * kv_heads * dim + 1);
            let case = format!("{spec:?}");
            let mut other = (s.other)();
            let Ok(want) = written(&mut other, spec, &x).and_then(|kv| read(&mut other, &kv, &PAGES)) else {
                continue;
            };
            let mut d = (s.make)();
            let result = written(&mut d, spec, &x);
            let Some(mut kv) = s.done(&case, result) else { continue };
            let result = read(&mut d, &kv, &PAGES);
            let Some(got) = s.done(&case, result) else { continue };
            s.same(&format!("{case}, appended"), &got, &want);
            let result = moved(s, &case, &mut d, &mut kv, &got);
            s.done(&case, result);
        }
    }
}

/// Rows [LEN, cols], with the values that a scheme must take care of.
fn values<D: Device, R: Device>(s: &Suite<'_, D, R>, case: u64, cols: usize) -> Vec<f32> {
    const ODD: [f32; 12] = [
        f32::NAN,
        f32::INFINITY,
        f32::NEG_INFINITY,
        f32::MAX,
        65504.0,
        65519.9,
        -65520.0,
        -0.0,
        2.98e-8,
        2.99e-8,
        -6.1e-5,
        1.0 + 1.0 / 2048.0,
    ];
    const TINY: [f32; 5] = [0.0, -0.0, 1e-40, -1.17e-38, f32::MIN_POSITIVE];
    let mut random = s.random(case);
    let mut x = random.normals(LEN * cols);
    for (row, x) in x.chunks_exact_mut(cols).enumerate() {
        match row % 4 {
            0 => x.iter_mut().step_by(5).for_each(|x| *x = random.pick(&ODD)),
            // Half steps of a scale of 1 for each head.
            1 => x.iter_mut().enumerate().for_each(|(i, x)| *x = 127.0 - 0.5 * (i % 64) as f32),
            2 => x.iter_mut().for_each(|x| *x = random.pick(&TINY)),
            _ => {}
        }
    }
    x
}

/// Six pages, with a sequence in two of them.
fn written<D: Device>(d: &mut D, spec: KvSpec, x: &[f32]) -> Result<D::Kv, DeviceError> {
    let mut kv = d.kv(spec, 6)?;
    let seq = SeqRows { rows: LEN, start: 0, certain: LEN, pages: PAGES.to_vec(), state: 0 };
    let batch = Batch { tokens: vec![0; LEN], seqs: vec![seq], ..Batch::default() };
    let b = d.batch(&batch, 1)?;
    let x = put(d, x.len() / LEN, x, &(0..LEN).collect::<Vec<_>>())?;
    let keys = Heads::packed(1, spec.kv_heads, spec.dim);
    let values = Heads::packed(keys.end(), spec.kv_heads, spec.dim);
    d.kv_append(&x, keys, values, &mut kv, &b);
    Ok(kv)
}

fn read<D: Device>(d: &mut D, kv: &D::Kv, pages: &[u32]) -> Result<Vec<f32>, DeviceError> {
    Ok(d.read_kv(kv, pages, LEN)?.concat())
}

/// Pages by copy and through bytes; bytes that are no page; cleared pages.
fn moved<D: Device, R: Device>(
    s: &mut Suite<'_, D, R>,
    case: &str,
    d: &mut D,
    kv: &mut D::Kv,
    want: &[f32],
) -> Result<(), DeviceError> {
    let (first, second) = (d.kv_export(kv, PAGES[0])?, d.kv_export(kv, PAGES[1])?);
    d.kv_copy(kv, PAGES[0], 0);
    d.kv_import(kv, 5, &second)?;
    s.same(&format!("{case}, copied and imported"), &read(d, kv, &[0, 5])?, want);
    s.holds(case, d.kv_export(kv, 0)? == first, "the bytes of a copied page differ");

    let longer = [second.as_slice(), &[0]].concat();
    for wrong in [&second[1..], &longer, &[]] {
        let refused = d.kv_import(kv, 0, wrong).is_err();
        s.holds(case, refused, &format!("{} bytes were taken for a page of {}", wrong.len(), second.len()));
    }
    s.holds(case, d.kv_export(kv, 0)? == first, "a refused import changed the page");

    let blank = d.kv_export(kv, 2)?;
    d.kv_clear(kv, PAGES[0]);
    d.kv_release(kv, PAGES[1]);
    s.same(&format!("{case}, cleared"), &read(d, kv, &PAGES)?, &vec![0.0; want.len()]);
    for page in PAGES {
        s.holds(case, d.kv_export(kv, page)? == blank, "a cleared page is not like one never written");
    }
    s.same(&format!("{case}, after others were cleared"), &read(d, kv, &[0, 5])?, want);
    d.kv_import(kv, PAGES[0], &first)?;
    d.kv_import(kv, PAGES[1], &second)?;
    s.same(&format!("{case}, written again"), &read(d, kv, &PAGES)?, want);
    Ok(())
}
