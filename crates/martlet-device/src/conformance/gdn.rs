//! Convolution, recurrence and `gdn_commit`, which share one state: the first two are called in this order in every
//! step, the last settles both.

use super::sequences::{Arrays, DRAFTS, Place, SeqOp, Step, Via, accepted_at, largest, plans};
use super::{Random, Suite, Tolerance};
use crate::{DeltaSpec, Device, DeviceError};

/// Columns of the convolution's input before its own.
const BEFORE: usize = 3;

struct Delta {
    lengths: Vec<usize>,
    spec: DeltaSpec,
    taps: Vec<f32>,
    /// Of each sequence: inputs of the convolution [length, BEFORE + channels], q k v [length, channels], gates
    /// [length, 2 * value heads].
    x: Vec<Vec<f32>>,
    qkv: Vec<Vec<f32>>,
    gates: Vec<Vec<f32>>,
}

impl Delta {
    fn random(lengths: &[usize], spec: DeltaSpec, random: &mut Random) -> Delta {
        let (channels, heads) = (spec.channels(), spec.value_heads);
        Delta {
            lengths: lengths.to_vec(),
            spec,
            taps: random.normals(channels * spec.taps),
            x: lengths.iter().map(|l| random.normals(l * (BEFORE + channels))).collect(),
            qkv: lengths.iter().map(|l| qkv(*l, &spec, random)).collect(),
            gates: lengths.iter().map(|l| gates(l * heads, heads, random)).collect(),
        }
    }

    /// Clears a slot that was used: the sequence in it must be a new one.
    fn reused<D: Device>(&self, d: &mut D) -> Result<[Vec<f32>; 2], DeviceError> {
        let mut state = d.delta(self.spec, 3)?;
        let fresh = self.step(d, &mut state, 1)?;
        d.gdn_commit(&mut state, 1, 1);
        self.step(d, &mut state, 1)?;
        d.delta_clear(&mut state, 1); // drafts pending
        let again = self.step(d, &mut state, 1)?;
        Ok([fresh, again])
    }

    /// The first rows of the first sequence in a slot, the last of them tentative.
    fn step<D: Device>(&self, d: &mut D, state: &mut D::Delta, slot: u32) -> Result<Vec<f32>, DeviceError> {
        let rows = 8.min(self.lengths[0]);
        let batch = crate::Batch {
            tokens: vec![0; rows],
            seqs: vec![crate::SeqRows { rows, start: 0, certain: rows - 1, pages: vec![0], state: slot }],
            ..Default::default()
        };
        let b = d.batch(&batch, 1)?;
        let order: Vec<(usize, usize)> = (0..rows).map(|i| (0, i)).collect();
        let [conv, out] = self.compute(d, state, &b, &order)?;
        Ok([conv, out].concat())
    }

    /// Outputs of convolution and recurrence for rows (sequence, index).
    fn compute<D: Device>(
        &self,
        d: &mut D,
        state: &mut D::Delta,
        b: &D::Batch,
        rows: &[(usize, usize)],
    ) -> Result<[Vec<f32>; 2], DeviceError> {
        let (channels, heads, n) = (self.spec.channels(), self.spec.value_heads, rows.len());
        let fill = |d: &mut D, from: &[Vec<f32>], cols: usize| {
            let mut buffer = d.buffer(n, cols)?;
            let of_rows = rows.iter().flat_map(|&(seq, i)| &from[seq][i * cols..][..cols]);
            d.write(&mut buffer, 0, &of_rows.copied().collect::<Vec<_>>())?;
            Ok::<_, DeviceError>(buffer)
        };
        let taps = d.vector(&self.taps)?;
        let (x, qkv) = (fill(d, &self.x, BEFORE + channels)?, fill(d, &self.qkv, channels)?);
        let gates = fill(d, &self.gates, 2 * heads)?;
        let (mut conv, mut y) = (d.buffer(n, channels)?, d.buffer(n, heads * self.spec.value_dim)?);
        d.conv_silu(&x, BEFORE, &taps, state, b, &mut conv);
        d.gdn(&qkv, &gates, state, b, &mut y);
        Ok([d.read(&conv, n)?, d.read(&y, n)?])
    }
}

/// q and k of length 1, as the model gives them (q times dim^-0.5), v about normal.
fn qkv(length: usize, spec: &DeltaSpec, random: &mut Random) -> Vec<f32> {
    let mut all = Vec::new();
    for _ in 0..length {
        for size in [1.0 / (spec.key_dim as f32).sqrt(), 1.0] {
            for _ in 0..spec.key_heads {
                let head = random.normals(spec.key_dim);
                let norm = head.iter().map(|x| x * x).sum::<f32>().sqrt();
                all.extend(head.iter().map(|x| x / norm * size));
            }
        }
        all.extend(random.normals(spec.value_heads * spec.value_dim));
    }
    all
}

/// Decays mostly near 1, some forgetting all; strengths from 0 to 1.
fn gates(values: usize, heads: usize, random: &mut Random) -> Vec<f32> {
    let mut all = Vec::new();
    for _ in 0..values / heads {
        all.extend((0..heads).map(|_| match random.below(12) {
            0 => random.pick(&[0.0, 1e-30, 1.0]),
            1 => random.unit(),
            _ => random.between(0.95, 1.0),
        }));
        all.extend((0..heads).map(|_| if random.below(12) == 0 { random.pick(&[0.0, 1.0]) } else { random.unit() }));
    }
    all
}

impl SeqOp for Delta {
    fn lengths(&self) -> &[usize] {
        &self.lengths
    }

    fn run<D: Device>(&self, d: &mut D, plan: &[Step]) -> Result<Arrays, DeviceError> {
        let widths = [self.spec.channels(), self.spec.value_heads * self.spec.value_dim];
        let mut place = Place::new(&self.lengths);
        let mut state = d.delta(self.spec, place.slot_count())?;
        let mut outputs = [vec![Vec::new(); self.lengths.len()], vec![Vec::new(); self.lengths.len()]];
        for step in plan {
            let (batch, rows) = place.batch(step);
            let b = d.batch(&batch, 1)?;
            let order: Vec<(usize, usize)> = rows.iter().map(|r| (r.seq, r.index)).collect();
            let computed = self.compute(d, &mut state, &b, &order)?;
            for ((outputs, computed), width) in outputs.iter_mut().zip(&computed).zip(widths) {
                for (row, y) in rows.iter().zip(computed.chunks(width)).filter(|(row, _)| row.counts) {
                    outputs[row.seq].extend(y);
                }
            }
            for part in &step.parts {
                if let Some(via) = step.via {
                    let (_, [from, to]) = place.moved(part.seq);
                    move_slot(d, &mut state, from, to, via)?;
                }
                d.gdn_commit(&mut state, place.slot(part.seq), part.accepted);
            }
            place.advance(step);
        }
        let (mut histories, mut matrices) = (Vec::new(), Vec::new());
        for seq in 0..self.lengths.len() {
            let [history, s] = d.read_delta(&state, place.slot(seq))?;
            histories.extend(history);
            matrices.extend(s);
        }
        let [conv, y] = outputs.map(|o| o.concat());
        Ok(vec![("convolution", conv), ("recurrence", y), ("history", histories), ("state", matrices)])
    }

    /// Errors live on in the state, so all is measured by the largest value. The history is a copy.
    fn allowed(&self, name: &str, want: &[f32], t: Tolerance) -> Vec<f32> {
        let allowed = if name == "history" { 0.0 } else { 10.0 * t.relative * largest(want) };
        vec![allowed; want.len()]
    }
}

fn move_slot<D: Device>(d: &mut D, state: &mut D::Delta, from: u32, to: u32, via: Via) -> Result<(), DeviceError> {
    match via {
        Via::Copy => d.delta_copy(state, from, to),
        Via::Bytes => {
            let bytes = d.delta_export(state, from)?;
            d.delta_import(state, to, &bytes)?;
        }
    }
    d.delta_clear(state, from);
    Ok(())
}

pub(super) fn gdn<D: Device, R: Device>(s: &mut Suite<'_, D, R>) {
    let spec = |key_heads, value_heads, key_dim, value_dim, taps| DeltaSpec {
        key_heads,
        value_heads,
        key_dim,
        value_dim,
        taps,
        max_tentative: DRAFTS,
    };
    let cases = [
        (spec(1, 1, 16, 16, 4), vec![1, 300, 66]),
        (spec(2, 4, 128, 128, 4), vec![70, 130]),
        (spec(1, 3, 64, 32, 4), vec![211, 3, 100]),
        (spec(2, 2, 32, 48, 2), vec![65, 64, 63]),
        (spec(2, 6, 20, 12, 3), vec![129, 40]),
    ];
    for (i, (spec, lengths)) in cases.into_iter().enumerate() {
        let mut random = s.random(i as u64);
        let op = Delta::random(&lengths, spec, &mut random);
        let case = format!("{spec:?}, {lengths:?} tokens");
        let plans = plans(&lengths, &mut random);
        s.sequences(&case, &op, plans);
        let result = op.reused(&mut (s.make)());
        if let Some([fresh, again]) = s.done(&case, result) {
            s.same(&format!("{case}, a cleared slot"), &again, &fresh);
        }
    }
    let mut random = s.random(99);
    let op = Delta::random(&[150], spec(1, 2, 32, 32, 4), &mut random);
    s.sequences("drafts at borders", &op, accepted_at(150, &[1, 13, 14, 15, 16, 28, 31, 47, 58, 60, 62, 63, 64, 126]));
    bytes(s, spec(1, 2, 32, 16, 4));
}

/// Bytes that are no state are refused, and change nothing.
fn bytes<D: Device, R: Device>(s: &mut Suite<'_, D, R>, spec: DeltaSpec) {
    let mut random = s.random(100);
    let op = Delta::random(&[8], spec, &mut random);
    let mut d = (s.make)();
    let result = refusals(&op, &mut d);
    for (what, good) in s.done("states as bytes", result).unwrap_or_default() {
        s.holds("states as bytes", good, &what);
    }
}

/// Bytes that an export may have beside the state's own.
const HEADER: usize = 256;

/// What must hold, and whether it does.
fn refusals<D: Device>(op: &Delta, d: &mut D) -> Result<Vec<(String, bool)>, DeviceError> {
    let mut state = d.delta(op.spec, 2)?;
    let mut wider = d.delta(DeltaSpec { value_dim: 2 * op.spec.value_dim, ..op.spec }, 1)?;
    op.step(d, &mut state, 0)?;
    let (bytes, before) = (d.delta_export(&state, 0)?, d.delta_export(&state, 1)?);
    let longer = [bytes.as_slice(), &[0]].concat();
    let what = format!("a slot takes {} bytes, its export {}", d.delta_slot_bytes(op.spec), bytes.len());
    let mut found = vec![(what, d.delta_slot_bytes(op.spec) + HEADER >= bytes.len())];
    for cut in [&bytes[..0], &bytes[..4], &bytes[..bytes.len() / 2], &bytes[..bytes.len() - 1], &bytes[1..], &longer] {
        let what = format!("{} bytes were taken for a state of {}", cut.len(), bytes.len());
        found.push((what, d.delta_import(&mut state, 1, cut).is_err()));
    }
    let what = "a state was taken into a layer of another shape".to_string();
    found.push((what, d.delta_import(&mut wider, 0, &bytes).is_err()));
    let what = "a refused import changed the slot".to_string();
    found.push((what, d.delta_export(&state, 1)? == before));
    d.delta_import(&mut state, 1, &bytes)?;
    found.push(("bytes differ after import".to_string(), d.delta_export(&state, 1)? == bytes));
    Ok(found)
}
