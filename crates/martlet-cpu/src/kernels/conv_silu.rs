//! Depthwise causal convolution and silu, some channels of all rows of all sequences:
//!   y[t, c] = silu(sum over j < taps of w[c, j] * x[t - (taps - 1) + j, c]).
//! bytes: x and y once, taps once for all sequences; history and taps stay in registers over the rows.
//! order: acc = fma(w, x, acc) for j in order, from zero; a lane is a channel.

use crate::lanes::take;
use crate::pool::Columns;
use martlet_tensor::math::silu;

/// Most taps.
pub const MAX_TAPS: usize = 8;

/// The rows of one sequence.
pub struct ConvRows {
    /// The batch's row of its first one.
    pub row: usize,
    pub rows: usize,
    /// Rows that move the history on; the inputs of those behind them are kept apart.
    pub certain: usize,
    /// The row of `inputs` where its history begins: taps - 1 rows, oldest first, then room for tentative ones.
    pub history: usize,
}

/// Channels `first..first + count`.
pub struct Conv<'a, 'b> {
    /// Row r of the batch is `x[r * stride..]`, from channel 0 on.
    pub x: &'a [f32],
    pub stride: usize,
    pub seqs: &'a [ConvRows],
    /// [channels, taps]
    pub w: &'a [f32],
    pub taps: usize,
    pub first: usize,
    pub count: usize,
    /// These channels of what is kept of all sequences' inputs.
    pub inputs: &'a mut Columns<'b>,
    pub y: &'a mut Columns<'b>,
}

#[inline(always)]
pub fn conv_silu(c: &mut Conv<'_, '_>) {
    let mut at = 0;
    while at + 16 <= c.count {
        some::<16>(c, at);
        at += 16;
    }
    while at < c.count {
        some::<1>(c, at);
        at += 1;
    }
}

#[inline(always)]
fn some<const W: usize>(c: &mut Conv<'_, '_>, at: usize) {
    let (channel, taps) = (c.first + at, c.taps);
    let mut w = [[0.0; W]; MAX_TAPS];
    for j in 0..taps {
        for i in 0..W {
            w[j][i] = c.w[(channel + i) * taps + j];
        }
    }
    for seq in c.seqs {
        let mut window = [[0.0f32; W]; MAX_TAPS];
        for j in 1..taps {
            window[j] = take(c.inputs.row(seq.history + j - 1), at);
        }
        for r in 0..seq.rows {
            for j in 1..taps {
                window[j - 1] = window[j];
            }
            window[taps - 1] = take(c.x, (seq.row + r) * c.stride + channel);
            let mut acc = [0.0; W];
            for j in 0..taps {
                for i in 0..W {
                    acc[i] = w[j][i].mul_add(window[j][i], acc[i]);
                }
            }
            let y = &mut c.y.row(seq.row + r)[at..at + W];
            for i in 0..W {
                y[i] = silu(acc[i]);
            }
        }
        remember::<W>(c.inputs, at, seq, taps - 1, |r| take(c.x, (seq.row + r) * c.stride + channel));
    }
}

/// Of history and inputs together, what comes before row `certain` falls out at the front.
#[inline(always)]
fn remember<const W: usize>(
    inputs: &mut Columns<'_>,
    at: usize,
    seq: &ConvRows,
    history: usize,
    x: impl Fn(usize) -> [f32; W],
) {
    for place in 0..history + seq.rows - seq.certain {
        let from = seq.certain + place;
        let input = if from < history { take(inputs.row(seq.history + from), at) } else { x(from - history) };
        inputs.row(seq.history + place)[at..at + W].copy_from_slice(&input);
    }
}
