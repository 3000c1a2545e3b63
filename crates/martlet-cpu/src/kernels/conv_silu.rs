//! Depthwise causal convolution and silu, some channels of all rows of one sequence:
//!   y[t, c] = silu(sum over j < taps of w[c, j] * x[t - (taps - 1) + j, c]).
//! bytes: x and y once; history and taps stay in registers over the rows.
//! order: acc = fma(w, x, acc) for j in order, from zero; a lane is a channel.

use crate::lanes::take;
use crate::pool::Columns;
use martlet_tensor::math::silu;

/// Most taps.
pub const MAX_TAPS: usize = 8;

/// Channels `first..first + y's columns` of one sequence.
pub struct Conv<'a, 'b> {
    /// Row r of the sequence is `x[r * stride..]`, from channel 0 on.
    pub x: &'a [f32],
    pub stride: usize,
    pub rows: usize,
    /// [taps - 1, channels], oldest first.
    pub history: &'a [f32],
    pub channels: usize,
    /// [channels, taps]
    pub w: &'a [f32],
    pub taps: usize,
    pub first: usize,
    pub count: usize,
    /// The batch's row of the sequence's first row.
    pub row: usize,
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
    let (mut w, mut window) = ([[0.0; W]; MAX_TAPS], [[0.0f32; W]; MAX_TAPS]);
    for j in 0..taps {
        for i in 0..W {
            w[j][i] = c.w[(channel + i) * taps + j];
        }
        if j + 1 < taps {
            window[j + 1] = take(c.history, j * c.channels + channel);
        }
    }
    for r in 0..c.rows {
        for j in 1..taps {
            window[j - 1] = window[j];
        }
        window[taps - 1] = take(c.x, r * c.stride + channel);
        let mut acc = [0.0; W];
        for j in 0..taps {
            for i in 0..W {
                acc[i] = w[j][i].mul_add(window[j][i], acc[i]);
            }
        }
        let y = &mut c.y.row(c.row + r)[at..at + W];
        for i in 0..W {
            y[i] = silu(acc[i]);
        }
    }
}
