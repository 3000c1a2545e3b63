//! Appending and attending, over pages and blocks of keys.

use super::sequences::{Arrays, Place, SeqOp, Step, Via, accepted_at, largest, plans};
use super::{Random, Suite, Tolerance};
use crate::{AttentionSpec, Device, DeviceError, Heads, KvScheme, KvSpec};

struct Attention {
    lengths: Vec<usize>,
    spec: AttentionSpec,
    scheme: KvScheme,
    /// Of each sequence [length, columns]: queries with a gap behind each, then keys and values.
    x: Vec<Vec<f32>>,
}

impl Attention {
    fn random(lengths: &[usize], spec: AttentionSpec, scheme: KvScheme, random: &mut Random) -> Attention {
        let mut op = Attention { lengths: lengths.to_vec(), spec, scheme, x: Vec::new() };
        let [.., values] = op.heads();
        op.x = lengths.iter().map(|l| random.normals(l * values.end())).collect();
        op
    }

    fn heads(&self) -> [Heads; 3] {
        let AttentionSpec { heads, kv_heads, dim, .. } = self.spec;
        let queries = Heads { first: 0, stride: 2 * dim, count: heads, dim };
        let keys = Heads::packed(2 * heads * dim, kv_heads, dim);
        [queries, keys, Heads::packed(keys.end(), kv_heads, dim)]
    }
}

impl SeqOp for Attention {
    fn lengths(&self) -> &[usize] {
        &self.lengths
    }

    fn run<D: Device>(&self, d: &mut D, plan: &[Step]) -> Result<Arrays, DeviceError> {
        let AttentionSpec { heads, kv_heads, dim, .. } = self.spec;
        let [queries, keys, values] = self.heads();
        let (width, cols) = (heads * dim, values.end());
        let mut place = Place::new(&self.lengths);
        let mut kv = d.kv(KvSpec { kv_heads, dim, scheme: self.scheme }, place.page_count())?;
        let mut outputs = vec![Vec::new(); self.lengths.len()];
        for step in plan {
            let (batch, rows) = place.batch(step);
            let b = d.batch(&batch, 1)?;
            let mut x = d.buffer(rows.len(), cols)?;
            let of_row = rows.iter().flat_map(|r| &self.x[r.seq][r.index * cols..][..cols]);
            d.write(&mut x, 0, &of_row.copied().collect::<Vec<_>>())?;
            let mut y = d.buffer(rows.len(), width)?;
            d.kv_append(&x, keys, values, &mut kv, &b);
            d.attention(&x, queries, &kv, self.spec, &b, &mut y);
            for (row, y) in rows.iter().zip(d.read(&y, rows.len())?.chunks(width)) {
                if row.counts {
                    outputs[row.seq].extend(y);
                }
            }
            for part in &step.parts {
                if let Some(via) = step.via {
                    let ([from, to], _) = place.moved(part.seq);
                    for (from, to) in from.into_iter().zip(to) {
                        move_page(d, &mut kv, from, to, via)?;
                    }
                }
            }
            place.advance(step);
        }
        let mut stored = Vec::new();
        for (seq, &len) in self.lengths.iter().enumerate() {
            stored.extend(d.read_kv(&kv, place.pages(seq), len)?.concat());
        }
        Ok(vec![("outputs", outputs.concat()), ("stored keys and values", stored)])
    }

    /// Scores are rounded before they are exponents, so an output's error is measured by the largest output. What is
    /// stored is rounded in one way only.
    fn allowed(&self, name: &str, want: &[f32], t: Tolerance) -> Vec<f32> {
        let allowed = if name == "outputs" { 10.0 * t.relative * largest(want) } else { 0.0 };
        vec![allowed; want.len()]
    }
}

fn move_page<D: Device>(d: &mut D, kv: &mut D::Kv, from: u32, to: u32, via: Via) -> Result<(), DeviceError> {
    match via {
        Via::Copy => d.kv_copy(kv, from, to),
        Via::Bytes => {
            let bytes = d.kv_export(kv, from)?;
            d.kv_import(kv, to, &bytes)?;
        }
    }
    d.kv_clear(kv, from);
    Ok(())
}

pub(super) fn attention<D: Device, R: Device>(s: &mut Suite<'_, D, R>) {
    let cases = [
        (1, 1, 64, 1.0, KvScheme::F32, vec![66]),
        (2, 1, 64, 1.0, KvScheme::F16, vec![300, 1, 70, 530]),
        (2, 2, 72, 8.0, KvScheme::F32, vec![257, 64]),
        (6, 2, 128, 2.0, KvScheme::F16, vec![100, 140]),
        (4, 1, 256, 1.0, KvScheme::F16, vec![40, 270]),
        (6, 2, 72, 2.0, KvScheme::Q8, vec![260, 5]),
    ];
    for (i, (heads, kv_heads, dim, sharp, scheme, lengths)) in cases.into_iter().enumerate() {
        let mut random = s.random(i as u64);
        let spec = AttentionSpec { heads, kv_heads, dim, scale: sharp / (dim as f32).sqrt() };
        let op = Attention::random(&lengths, spec, scheme, &mut random);
        let plans = plans(&lengths, &mut random);
        s.sequences(&format!("{heads} heads on {kv_heads} of {dim}, {scheme:?}, {lengths:?} tokens"), &op, plans);
    }
    let mut random = s.random(99);
    let spec = AttentionSpec { heads: 2, kv_heads: 1, dim: 64, scale: 0.125 };
    let starts: [&[usize]; 2] = [&[14, 60, 63, 127, 250, 252, 254, 255, 256], &[60, 255]];
    for (scheme, starts) in [KvScheme::F16, KvScheme::Q8].into_iter().zip(starts) {
        let op = Attention::random(&[270], spec, scheme, &mut random);
        let plans = accepted_at(270, starts);
        s.sequences(&format!("drafts at borders, {scheme:?}"), &op, plans);
    }
}
