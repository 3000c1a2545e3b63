//! The states of one Gated DeltaNet layer: what is certain, and the tentative rows that wait for `gdn_commit`.

use super::DeviceError;
use super::buffer::{failed, zeros};
use crate::DeltaSpec;

/// One slot for each sequence.
#[derive(Clone, Debug)]
pub struct Delta {
    pub(super) spec: DeltaSpec,
    slots: Vec<Slot>,
}

/// The state of one sequence. `inputs` and `rows` are empty but for drafts that are not yet settled.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Slot {
    /// The last inputs of the convolution [taps - 1, channels], oldest first.
    pub history: Vec<f32>,
    /// S [value_heads, key_dim, value_dim].
    pub s: Vec<f32>,
    /// Convolution inputs of the tentative rows, [channels] each.
    pub inputs: Vec<Vec<f32>>,
    /// What the recurrence takes from the tentative rows.
    pub rows: Vec<DeltaRow>,
}

/// What one row does to S.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct DeltaRow {
    /// [key_heads, key_dim]
    pub k: Vec<f32>,
    /// [value_heads, value_dim]
    pub v: Vec<f32>,
    /// Decay of each value head, then beta of each value head.
    pub gates: Vec<f32>,
}

/// First bytes of an exported state.
const MAGIC: &[u8; 8] = b"refdelt1";

impl Slot {
    fn new(spec: &DeltaSpec) -> Result<Slot, DeviceError> {
        Ok(Slot {
            history: zeros("convolution history", &[spec.taps - 1, spec.channels()])?,
            s: zeros("recurrent state", &[spec.value_heads, spec.key_dim, spec.value_dim])?,
            inputs: Vec::new(),
            rows: Vec::new(),
        })
    }
}

impl Delta {
    pub(super) fn new(spec: DeltaSpec, slots: usize) -> Result<Delta, DeviceError> {
        if spec.taps == 0 || spec.key_heads == 0 || !spec.value_heads.is_multiple_of(spec.key_heads) {
            return Err(DeviceError::Unsupported {
                device: super::NAME,
                what: format!(
                    "use a convolution of {} taps with {} key heads for {} value heads",
                    spec.taps, spec.key_heads, spec.value_heads
                ),
            });
        }
        let slots = (0..slots).map(|_| Slot::new(&spec)).collect::<Result<_, _>>()?;
        Ok(Delta { spec, slots })
    }

    /// Bytes of one slot, with as many drafts as it may hold.
    pub(super) fn slot_bytes(spec: &DeltaSpec) -> usize {
        let row = spec.key_heads * spec.key_dim + spec.value_heads * (spec.value_dim + 2);
        let inputs = (spec.taps.saturating_sub(1) + spec.max_tentative) * spec.channels();
        4 * (spec.value_heads * spec.key_dim * spec.value_dim + inputs + spec.max_tentative * row)
    }

    /// The slot of a sequence that is about to get `tentative` drafts. Drafts of an earlier step must be settled:
    /// `pending` counts them.
    pub(super) fn settled(&mut self, slot: u32, tentative: usize, pending: fn(&Slot) -> usize) -> &mut Slot {
        let (most, slot) = (self.spec.max_tentative, &mut self.slots[slot as usize]);
        assert!(tentative <= most, "{tentative} tentative rows, at most {most}");
        assert_eq!(pending(slot), 0, "tentative rows of an earlier step are not settled");
        slot
    }

    pub(super) fn slot_mut(&mut self, slot: u32) -> &mut Slot {
        &mut self.slots[slot as usize]
    }

    fn slot(&self, slot: u32) -> Result<&Slot, DeviceError> {
        self.slots.get(slot as usize).ok_or_else(|| failed(format!("use slot {slot} of {}", self.slots.len())))
    }

    pub(super) fn clear(&mut self, slot: u32) {
        let slot = self.slot_mut(slot);
        slot.history.fill(0.0);
        slot.s.fill(0.0);
        slot.inputs.clear();
        slot.rows.clear();
    }

    pub(super) fn copy(&mut self, from: u32, to: u32) {
        self.slots[to as usize] = self.slots[from as usize].clone();
    }

    pub(super) fn read(&self, slot: u32) -> Result<[Vec<f32>; 2], DeviceError> {
        let slot = self.slot(slot)?;
        Ok([slot.history.clone(), slot.s.clone()])
    }

    /// What a state of this shape begins with: magic, then the shape, each number a u32.
    fn header(&self) -> Vec<u8> {
        let s = &self.spec;
        let shape = [s.key_heads, s.value_heads, s.key_dim, s.value_dim, s.taps];
        let mut bytes = MAGIC.to_vec();
        bytes.extend(shape.iter().flat_map(|&n| (n as u32).to_le_bytes()));
        bytes
    }

    /// Header, number of tentative convolution inputs and of tentative rows (u32 each), then all values as f32: history,
    /// S, inputs, and k, v, gates of each row.
    pub(super) fn export(&self, slot: u32) -> Result<Vec<u8>, DeviceError> {
        let slot = self.slot(slot)?;
        let mut bytes = self.header();
        for n in [slot.inputs.len(), slot.rows.len()] {
            bytes.extend((n as u32).to_le_bytes());
        }
        let rows = slot.rows.iter().flat_map(|r| [&r.k, &r.v, &r.gates]);
        for values in [&slot.history, &slot.s].into_iter().chain(&slot.inputs).chain(rows) {
            bytes.extend(values.iter().flat_map(|v| v.to_le_bytes()));
        }
        Ok(bytes)
    }

    pub(super) fn import(&mut self, slot: u32, bytes: &[u8]) -> Result<(), DeviceError> {
        self.slot(slot)?;
        let header = self.header();
        let Some(rest) = bytes.strip_prefix(header.as_slice()) else {
            return Err(DeviceError::State(format!(
                "it does not begin with the {} bytes that a state of {:?} begins with on this device",
                header.len(),
                self.spec
            )));
        };
        let (counts, values) = rest.split_at(rest.len().min(8));
        let count = |i: usize| counts.get(4 * i..4 * i + 4).map(|n| u32::from_le_bytes([n[0], n[1], n[2], n[3]]));
        let (Some(inputs), Some(rows)) = (count(0), count(1)) else {
            return Err(DeviceError::State(format!("it ends after {} bytes", bytes.len())));
        };
        let (inputs, rows) = (inputs as usize, rows as usize);
        if inputs.max(rows) > self.spec.max_tentative {
            return Err(DeviceError::State(format!(
                "it holds {} tentative rows, at most {}",
                inputs.max(rows),
                self.spec.max_tentative
            )));
        }
        let s = self.spec;
        let (keys, channels) = (s.key_heads * s.key_dim, s.channels());
        let (rest, heads) = (s.value_heads * s.value_dim, s.value_heads);
        let (history, matrix) = ((s.taps - 1) * channels, heads * s.key_dim * s.value_dim);
        let expected = 4 * (history + matrix + inputs * channels + rows * (keys + rest + 2 * heads));
        if values.len() != expected {
            return Err(DeviceError::State(format!("its values take {expected} bytes, found {}", values.len())));
        }
        let values = martlet_tensor::read_floats(martlet_tensor::Float::F32, values);
        let mut values = values.into_iter();
        let mut take = |n: usize| values.by_ref().take(n).collect::<Vec<f32>>();
        self.slots[slot as usize] = Slot {
            history: take(history),
            s: take(matrix),
            inputs: (0..inputs).map(|_| take(channels)).collect(),
            rows: (0..rows).map(|_| DeltaRow { k: take(keys), v: take(rest), gates: take(2 * heads) }).collect(),
        };
        Ok(())
    }
}
