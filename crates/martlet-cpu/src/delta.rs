//! The states of one Gated DeltaNet layer, and the operations that move them on.
//!
//! A slot is: for each value head the state at the last border and the list of rows since then (see `kernels/gdn.rs`);
//! the last inputs of the convolution; and, behind both, what tentative rows added.

use crate::buffer::{Buffer, failed, unsupported};
use crate::floats::Floats;
use crate::kernel_set::KernelSet;
use crate::kernels::conv_silu::{CHANNELS, Conv, ConvRows, MAX_TAPS};
use crate::kernels::gdn::{BORDER, Head, HeadRows, Pending};
use crate::lanes::LANES;
use crate::pool::{Pool, blocks};
use martlet_device::{Batch, DeltaSpec, DeviceError};
use std::ops::Range;

/// One slot for each sequence.
pub struct Delta {
    spec: DeltaSpec,
    slots: Vec<Slot>,
    /// For each slot and value head: S, then k, u and decay of `capacity` rows. One block for all slots, so that it lies in
    /// huge pages: every sequence reads its own states, many megabytes in each step.
    heads: Floats,
    /// For each slot the convolution's inputs [taps - 1 + max_tentative, channels]: the history, oldest first, then
    /// tentative rows.
    inputs: Floats,
}

/// How far a slot's lists are filled.
#[derive(Clone, Copy, Default)]
struct Slot {
    /// Certain rows since the last border, below [`BORDER`].
    pending: usize,
    /// Tentative rows behind them.
    tentative: usize,
    /// Tentative rows in `inputs`.
    tentative_inputs: usize,
}

/// First bytes of an exported state.
const MAGIC: &[u8; 8] = b"cpudelt1";

/// Rows that the list of a head has room for.
fn capacity(spec: &DeltaSpec) -> usize {
    BORDER + spec.max_tentative
}

/// Values of one head, filled up to whole lines.
fn head_len(spec: &DeltaSpec) -> usize {
    let values = spec.key_dim * spec.value_dim + capacity(spec) * (spec.key_dim + spec.value_dim + 1);
    values.next_multiple_of(LANES)
}

/// Values of all heads of a slot.
fn heads_len(spec: &DeltaSpec) -> usize {
    spec.value_heads * head_len(spec)
}

/// Values of the convolution's inputs.
fn inputs_len(spec: &DeltaSpec) -> usize {
    (spec.taps.saturating_sub(1) + spec.max_tentative) * spec.channels()
}

/// The parts of one head's values.
fn split<'a>(spec: &DeltaSpec, values: &'a mut [f32]) -> Head<'a> {
    let (s, rest) = values.split_at_mut(spec.key_dim * spec.value_dim);
    let (k, rest) = rest.split_at_mut(capacity(spec) * spec.key_dim);
    let (u, decay) = rest.split_at_mut(capacity(spec) * spec.value_dim);
    Head { s, k, u, decay }
}

impl Head<'_> {
    /// Drops the first `rows` of the `len` rows of the list.
    fn drop_rows(&mut self, spec: &DeltaSpec, rows: usize, len: usize) {
        self.k.copy_within(rows * spec.key_dim..len * spec.key_dim, 0);
        self.u.copy_within(rows * spec.value_dim..len * spec.value_dim, 0);
        self.decay.copy_within(rows..len, 0);
    }
}

impl Delta {
    pub(crate) fn new(spec: DeltaSpec, slots: usize) -> Result<Delta, DeviceError> {
        let DeltaSpec { key_heads, value_heads, taps, .. } = spec;
        if key_heads == 0 || !value_heads.is_multiple_of(key_heads) || taps == 0 || taps > MAX_TAPS {
            return Err(unsupported(format!(
                "use a convolution of {taps} taps (1 to {MAX_TAPS}) with {key_heads} key heads for {value_heads} value heads"
            )));
        }
        Ok(Delta {
            spec,
            slots: vec![Slot::default(); slots],
            heads: Floats::new("recurrent state", slots.saturating_mul(heads_len(&spec)))?,
            inputs: Floats::new("recurrent state", slots.saturating_mul(inputs_len(&spec)))?,
        })
    }

    /// Bytes of one slot.
    pub(crate) fn slot_bytes(spec: &DeltaSpec) -> usize {
        4 * (heads_len(spec) + inputs_len(spec))
    }

    /// A slot's counts, the values of its heads, and its convolution's inputs.
    fn slot(&self, slot: u32) -> Result<(&Slot, &[f32], &[f32]), DeviceError> {
        let found = self.slots.get(slot as usize);
        let counts = found.ok_or_else(|| failed(format!("use slot {slot} of {}", self.slots.len())))?;
        let (heads, inputs) = (self.heads_of(slot), self.inputs_of(slot));
        Ok((counts, &self.heads[heads], &self.inputs[inputs]))
    }

    fn slot_mut(&mut self, slot: u32) -> (&mut Slot, &mut [f32], &mut [f32]) {
        let (heads, inputs) = (self.heads_of(slot), self.inputs_of(slot));
        (&mut self.slots[slot as usize], &mut self.heads[heads], &mut self.inputs[inputs])
    }

    fn heads_of(&self, slot: u32) -> Range<usize> {
        let len = heads_len(&self.spec);
        slot as usize * len..(slot as usize + 1) * len
    }

    fn inputs_of(&self, slot: u32) -> Range<usize> {
        let len = inputs_len(&self.spec);
        slot as usize * len..(slot as usize + 1) * len
    }

    /// Convolution and silu of every row; see `kernels/conv_silu.rs`.
    pub(crate) fn conv_silu(
        &mut self,
        kernels: &KernelSet,
        pool: &Pool,
        x: &Buffer,
        col: usize,
        w: &[f32],
        b: &Batch,
        y: &mut Buffer,
    ) {
        let (channels, taps) = (self.spec.channels(), self.spec.taps);
        assert!(
            w.len() == channels * taps && col + channels <= x.cols && channels <= y.cols,
            "convolution of {channels}"
        );
        let (width, rows, most) = (y.cols, b.rows(), self.spec.max_tentative);
        let mut seqs = Vec::with_capacity(b.seqs.len());
        for (row, seq) in b.iter_seqs() {
            let slot = &mut self.slots[seq.state as usize];
            assert_eq!(slot.tentative_inputs, 0, "tentative rows of an earlier step are not settled");
            assert!(seq.rows - seq.certain <= most, "more than {most} tentative rows");
            slot.tentative_inputs = seq.rows - seq.certain;
            let history = inputs_len(&self.spec) / channels * seq.state as usize;
            seqs.push(ConvRows { row, rows: seq.rows, certain: seq.certain, history });
        }
        // Work is shared out by blocks of channels; a block takes all rows of all sequences, and moves their history on.
        let block = CHANNELS;
        let span = |i: usize| i * block..channels.min((i + 1) * block);
        let tables = [(y.first(rows), width), (&mut self.inputs[..], channels)];
        pool.columns_of(tables, channels.div_ceil(block), block * rows / 4, span, |i, [y, inputs]| {
            (kernels.conv_silu)(&mut Conv {
                x: &x.values[col..],
                stride: x.cols,
                seqs: &seqs,
                w,
                taps,
                first: span(i).start,
                count: span(i).len(),
                inputs,
                y,
            });
        });
    }

    /// The delta rule for every row; see `kernels/gdn.rs`. Work is shared out by sequence and value head.
    pub(crate) fn gdn(
        &mut self,
        kernels: &KernelSet,
        pool: &Pool,
        qkv: &Buffer,
        gates: &Buffer,
        b: &Batch,
        y: &mut Buffer,
    ) {
        let spec = self.spec;
        let DeltaSpec { value_heads, key_dim, value_dim, .. } = spec;
        assert!(spec.channels() <= qkv.cols && 2 * value_heads <= gates.cols, "columns of qkv and gates");
        let [q, k, v] = spec.qkv(0);
        let (width, rows) = (y.cols, b.rows());
        assert!(
            value_heads * value_dim <= width && rows <= qkv.rows() && rows <= gates.rows(),
            "rows of qkv and gates"
        );
        let runs = b.iter_seqs().map(|(first, seq)| first..first + seq.rows);
        let heads = (0..value_heads).map(|h| h * value_dim..(h + 1) * value_dim);
        let mut outputs = blocks(y.first(rows), width, runs, heads).into_iter();
        let states = self.slots.iter_mut().zip(self.heads.chunks_exact_mut(heads_len(&spec)));
        let mut slots: Vec<Option<(&mut Slot, &mut [f32])>> = states.map(Some).collect();
        let mut work = Vec::with_capacity(b.seqs.len() * value_heads);
        for (first, seq) in b.iter_seqs() {
            let slot = slots[seq.state as usize].take();
            let (slot, heads) = slot.unwrap_or_else(|| panic!("slot {} is given to two sequences", seq.state));
            let tentative = seq.rows - seq.certain;
            assert!(tentative <= spec.max_tentative, "{tentative} tentative rows, at most {}", spec.max_tentative);
            assert_eq!(slot.tentative, 0, "tentative rows of an earlier step are not settled");
            for (h, (values, y)) in heads.chunks_exact_mut(head_len(&spec)).zip(&mut outputs).enumerate() {
                let key_head = h / (value_heads / spec.key_heads);
                work.push(HeadRows {
                    head: split(&spec, values),
                    key_dim,
                    value_dim,
                    pending: slot.pending,
                    rows: seq.rows,
                    certain: seq.certain,
                    qkv: &qkv.values[first * qkv.cols..],
                    width: qkv.cols,
                    at: [q.at(key_head), k.at(key_head), v.at(h)],
                    gates: &gates.values[first * gates.cols..],
                    gate_width: gates.cols,
                    gate_at: [h, value_heads + h],
                    y,
                });
            }
            slot.pending = (slot.pending + seq.certain) % BORDER;
            slot.tentative = tentative;
        }
        let each = key_dim * value_dim * rows / b.seqs.len().max(1) / 8;
        pool.items(&mut work, each, |_, rows| (kernels.gdn)(rows));
    }

    /// Settles the tentative rows of a slot: folds again, from the certain state, what drafts had folded into a copy.
    pub(crate) fn commit(&mut self, kernels: &KernelSet, pool: &Pool, slot: u32, accepted: usize) {
        let spec = self.spec;
        let (slot, heads, inputs) = self.slot_mut(slot);
        let held = slot.tentative.max(slot.tentative_inputs);
        assert!(held == 0 || accepted <= held, "{accepted} accepted of {held} tentative rows");
        if slot.tentative_inputs > 0 {
            let channels = spec.channels();
            let from = accepted.min(slot.tentative_inputs);
            inputs.copy_within(from * channels..(from + spec.taps - 1) * channels, 0);
            slot.tentative_inputs = 0;
        }
        if slot.tentative > 0 {
            let before = slot.pending + accepted.min(slot.tentative);
            if before >= BORDER {
                let cost = before / BORDER * BORDER * spec.key_dim * spec.value_dim / 16;
                let mut heads: Vec<&mut [f32]> = heads.chunks_exact_mut(head_len(&spec)).collect();
                pool.items(&mut heads, cost, |_, values| {
                    let (mut head, mut rows) = (split(&spec, values), before);
                    while rows >= BORDER {
                        let list = Pending {
                            k: &head.k[..BORDER * spec.key_dim],
                            u: &head.u[..BORDER * spec.value_dim],
                            decay: &head.decay[..BORDER],
                        };
                        (kernels.gdn_fold)(head.s, list);
                        head.drop_rows(&spec, BORDER, rows);
                        rows -= BORDER;
                    }
                });
            }
            slot.pending = before % BORDER;
            slot.tentative = 0;
        }
    }

    /// (history, S with all certain rows folded in).
    pub(crate) fn read(&self, kernels: &KernelSet, slot: u32) -> Result<[Vec<f32>; 2], DeviceError> {
        let (spec, (slot, heads, inputs)) = (self.spec, self.slot(slot)?);
        let mut states = Vec::with_capacity(spec.value_heads * spec.key_dim * spec.value_dim);
        for values in heads.chunks_exact(head_len(&spec)) {
            let mut values = values.to_vec();
            let head = split(&spec, &mut values);
            let (k, u) = (&head.k[..slot.pending * spec.key_dim], &head.u[..slot.pending * spec.value_dim]);
            (kernels.gdn_fold)(head.s, Pending { k, u, decay: &head.decay[..slot.pending] });
            states.extend_from_slice(head.s);
        }
        Ok([inputs[..(spec.taps - 1) * spec.channels()].to_vec(), states])
    }

    pub(crate) fn clear(&mut self, slot: u32) {
        let spec = self.spec;
        let (slot, heads, inputs) = self.slot_mut(slot);
        *slot = Slot::default();
        // Lists without rows mean nothing, whatever they hold.
        for head in heads.chunks_exact_mut(head_len(&spec)) {
            head[..spec.key_dim * spec.value_dim].fill(0.0);
        }
        inputs[..(spec.taps - 1) * spec.channels()].fill(0.0);
    }

    pub(crate) fn copy(&mut self, from: u32, to: u32) {
        self.slots[to as usize] = self.slots[from as usize];
        let [(from, to), (from_inputs, to_inputs)] =
            [(self.heads_of(from), self.heads_of(to)), (self.inputs_of(from), self.inputs_of(to))];
        self.heads.copy_within(from, to.start);
        self.inputs.copy_within(from_inputs, to_inputs.start);
    }

    /// What a state of this shape begins with: magic, then the shape, each number a u32.
    fn header(&self) -> Vec<u8> {
        let s = &self.spec;
        let mut bytes = MAGIC.to_vec();
        for n in [s.key_heads, s.value_heads, s.key_dim, s.value_dim, s.taps] {
            bytes.extend((n as u32).to_le_bytes());
        }
        bytes
    }

    /// The parts of a slot that mean something, in the order in which they are stored.
    fn parts(spec: &DeltaSpec, [pending, tentative, inputs]: [usize; 3]) -> (Vec<Range<usize>>, usize) {
        let (state, rows) = (spec.key_dim * spec.value_dim, pending + tentative);
        let k = state + capacity(spec) * spec.key_dim;
        let u = k + capacity(spec) * spec.value_dim;
        let mut parts = Vec::new();
        for h in 0..spec.value_heads {
            let at = h * head_len(spec);
            parts.push(at..at + state + rows * spec.key_dim);
            parts.push(at + k..at + k + rows * spec.value_dim);
            parts.push(at + u..at + u + rows);
        }
        (parts, (spec.taps - 1 + inputs) * spec.channels())
    }

    /// Header; rows since the border, tentative rows, tentative inputs (u32 each); then all values as f32: S, k, u and
    /// decays of each head, convolution inputs.
    pub(crate) fn export(&self, slot: u32) -> Result<Vec<u8>, DeviceError> {
        let (slot, heads, values) = self.slot(slot)?;
        let counts = [slot.pending, slot.tentative, slot.tentative_inputs];
        let (parts, inputs) = Delta::parts(&self.spec, counts);
        let mut bytes = self.header();
        bytes.reserve_exact(12 + 4 * (parts.iter().map(|p| p.len()).sum::<usize>() + inputs));
        for n in counts {
            bytes.extend((n as u32).to_le_bytes());
        }
        for values in parts.into_iter().map(|p| &heads[p]).chain([&values[..inputs]]) {
            // By blocks of known size: value by value the vector's end would be written each time.
            let (blocks, rest) = values.as_chunks::<16>();
            for block in blocks {
                bytes.extend_from_slice(block.map(f32::to_le_bytes).as_flattened());
            }
            rest.iter().for_each(|v| bytes.extend_from_slice(&v.to_le_bytes()));
        }
        Ok(bytes)
    }

    pub(crate) fn import(&mut self, slot: u32, bytes: &[u8]) -> Result<(), DeviceError> {
        self.slot(slot)?;
        let (spec, header) = (self.spec, self.header());
        let Some(rest) = bytes.strip_prefix(header.as_slice()) else {
            let len = header.len();
            return Err(DeviceError::State(format!(
                "it does not begin with the {len} bytes that a state of {spec:?} begins with on this device"
            )));
        };
        let Some((counts, values)) = rest.split_first_chunk::<12>() else {
            return Err(DeviceError::State(format!("it ends after {} bytes", bytes.len())));
        };
        let count = |i: usize| u32::from_le_bytes([counts[i], counts[i + 1], counts[i + 2], counts[i + 3]]) as usize;
        let counts @ [pending, tentative, inputs] = [count(0), count(4), count(8)];
        if pending >= BORDER || tentative.max(inputs) > spec.max_tentative {
            return Err(DeviceError::State(format!(
                "it holds {pending} rows since a border (below {BORDER}) and {} tentative rows (at most {})",
                tentative.max(inputs),
                spec.max_tentative
            )));
        }
        let (parts, input_len) = Delta::parts(&spec, counts);
        let expected = 4 * (parts.iter().map(|p| p.len()).sum::<usize>() + input_len);
        if values.len() != expected {
            return Err(DeviceError::State(format!("its values take {expected} bytes, found {}", values.len())));
        }
        self.clear(slot);
        let (slot, heads, held) = self.slot_mut(slot);
        let (mut words, _) = values.as_chunks::<4>();
        let mut take = |values: &mut [f32]| {
            let (here, rest) = words.split_at(values.len());
            values.iter_mut().zip(here).for_each(|(v, word)| *v = f32::from_le_bytes(*word));
            words = rest;
        };
        parts.into_iter().for_each(|part| take(&mut heads[part]));
        take(&mut held[..input_len]);
        [slot.pending, slot.tentative, slot.tentative_inputs] = counts;
        Ok(())
    }
}
