//! For every (row, rank) whose expert e has a slot:
//!
//!   y[r * chosen + rank] = down(silu(gate x[r]) * up x[r]), each product as in `matmul`.
//!
//! Pairs whose expert has none are left alone.

use super::buffer::failed;
use super::{Buffer, DeviceError, ExpertShape, Matrix, RouteTable, Stored, silu};
use crate::NO_SLOT;

/// Slots for experts of one shape.
#[derive(Clone, Debug)]
pub struct Experts {
    shape: ExpertShape,
    slots: Vec<Option<Expert>>,
}

#[derive(Clone, Debug)]
struct Expert {
    gate: Matrix,
    up: Matrix,
    down: Matrix,
}

impl Experts {
    pub(super) fn new(shape: ExpertShape, slots: usize) -> Experts {
        Experts { shape, slots: vec![None; slots] }
    }

    pub(super) fn load(
        &mut self,
        slot: usize,
        gate: &Stored<'_>,
        up: &Stored<'_>,
        down: &Stored<'_>,
    ) -> Result<(), DeviceError> {
        let ExpertShape { hidden, width } = self.shape;
        let slots = self.slots.len();
        for (name, m, want) in
            [("gate", gate, [width, hidden]), ("up", up, [width, hidden]), ("down", down, [hidden, width])]
        {
            if [m.rows(), m.cols()] != want {
                return Err(failed(format!(
                    "load an expert: {name} is [{}, {}], expected {want:?}",
                    m.rows(),
                    m.cols()
                )));
            }
        }
        let Some(place) = self.slots.get_mut(slot) else {
            return Err(failed(format!("load an expert into slot {slot} of {slots}")));
        };
        *place = Some(Expert { gate: Matrix::new(gate)?, up: Matrix::new(up)?, down: Matrix::new(down)? });
        Ok(())
    }

    pub(super) fn unload(&mut self, slot: usize) {
        self.slots[slot] = None;
    }
}

pub(super) fn experts_forward(
    experts: &Experts,
    slots: &[u32],
    x: &Buffer,
    routes: &RouteTable,
    rows: usize,
    y: &mut Buffer,
) {
    let ExpertShape { hidden, width } = experts.shape;
    let (mut gate, mut up) = (vec![0.0; width], vec![0.0; width]);
    for (pair, &e) in routes.experts[..rows * routes.chosen].iter().enumerate() {
        let slot = slots[e as usize];
        if slot == NO_SLOT {
            continue;
        }
        let Some(expert) = &experts.slots[slot as usize] else {
            panic!("slot {slot} of expert {e} was never filled");
        };
        let x = &x.row(pair / routes.chosen)[..hidden];
        expert.gate.times(x, &mut gate);
        expert.up.times(x, &mut up);
        for (g, u) in gate.iter_mut().zip(&up) {
            *g = silu(*g) * u;
        }
        expert.down.times(&gate, &mut y.row_mut(pair)[..hidden]);
    }
}
