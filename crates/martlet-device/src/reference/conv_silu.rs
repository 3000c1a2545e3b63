//! Depthwise causal convolution and silu:
//!
//!   y[t, c] = silu(sum over j < taps of w[c, j] * x[t - (taps - 1) + j, c]), the sum in the order of j.
//!
//! The inputs before the first row are the slot's history, zeros for an empty sequence. Certain rows move into the
//! history at once; tentative rows are seen by the rows after them, and wait for `gdn_commit`.

use super::delta::Delta;
use super::{Buffer, silu};
use crate::Batch;

pub(super) fn conv_silu(x: &Buffer, col: usize, w: &[f32], state: &mut Delta, b: &Batch, y: &mut Buffer) {
    let (channels, taps) = (state.spec.channels(), state.spec.taps);
    for (first, seq) in b.iter_seqs() {
        let slot = state.settled(seq.state, seq.rows - seq.certain, |s| s.inputs.len());
        let mut scratch = Vec::new();
        for i in 0..seq.rows {
            let input = &x.row(first + i)[col..col + channels];
            if i == seq.certain {
                scratch = slot.history.clone();
            }
            let history = if i < seq.certain {
                &mut slot.history
            } else {
                slot.inputs.push(input.to_vec());
                &mut scratch
            };
            convolve(history, input, w, taps, &mut y.row_mut(first + i)[..channels]);
            remember(history, input);
        }
    }
}

fn convolve(history: &[f32], input: &[f32], w: &[f32], taps: usize, y: &mut [f32]) {
    let channels = input.len();
    for c in 0..channels {
        let w = &w[c * taps..(c + 1) * taps];
        let mut sum = 0.0;
        for j in 0..taps - 1 {
            sum += w[j] * history[j * channels + c];
        }
        y[c] = silu(sum + w[taps - 1] * input[c]);
    }
}

/// Drops the oldest row of the history and appends `input`.
pub(super) fn remember(history: &mut Vec<f32>, input: &[f32]) {
    if !history.is_empty() {
        history.drain(..input.len());
        history.extend(input);
    }
}
