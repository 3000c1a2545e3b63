//! Depthwise causal convolution and silu, some channels of all rows of all sequences:
//!   y[t, c] = silu(sum over j < taps of w[c, j] * x[t - (taps - 1) + j, c]).
//! bytes: x and y once, taps and history once. A row's block of channels is read from memory for its own y and from L1
//!   for the rows after it; taps are turned round to lie by channels once for all rows.
//! order: acc = fma(w, x, acc) for j in order, from zero; a lane is a channel.

use crate::lanes::{LANES, take};
use crate::pool::Columns;
use martlet_tensor::math::silu;

/// Most taps.
pub const MAX_TAPS: usize = 8;
/// Most channels of one call: some lines of each row, so that a page of memory is looked up for more than one. With 256
/// a token took three times as long here: taps that were turned round did not stay near.
pub const CHANNELS: usize = 64;

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

/// Channels `first..first + count`, at most [`CHANNELS`].
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
    match c.taps {
        // A number that the compiler knows: all models of the family have it.
        4 => with_taps(c, 4),
        taps => with_taps(c, taps),
    }
}

#[inline(always)]
fn with_taps(c: &mut Conv<'_, '_>, taps: usize) {
    let (channels, history) = (c.first..c.first + c.count, taps - 1);
    let w = by_channel(&c.w[channels.start * taps..channels.end * taps], taps);
    for seq in c.seqs {
        let x = |r: usize| &c.x[(seq.row + r) * c.stride..][channels.clone()];
        for r in 0..seq.rows {
            let mut window = [&[][..]; MAX_TAPS];
            for (j, window) in window[..taps].iter_mut().enumerate() {
                let at = r + j;
                *window = if at < history { c.inputs.get(seq.history + at) } else { x(at - history) };
            }
            let y = c.y.row(seq.row + r);
            let whole = y.len() / LANES * LANES;
            for at in (0..whole).step_by(LANES) {
                some::<LANES>(&w[..taps], &window[..taps], at, y);
            }
            for at in whole..y.len() {
                some::<1>(&w[..taps], &window[..taps], at, y);
            }
        }
        // Of history and inputs together, what comes before row `certain` falls out at the front.
        for place in 0..history + seq.rows - seq.certain {
            let from = seq.certain + place;
            let mut row = [0.0; CHANNELS];
            let row = &mut row[..channels.len()];
            row.copy_from_slice(if from < history { c.inputs.get(seq.history + from) } else { x(from - history) });
            c.inputs.row(seq.history + place).copy_from_slice(row);
        }
    }
}

/// [channels, taps] as [taps, channels].
#[inline(always)]
fn by_channel(w: &[f32], taps: usize) -> [[f32; CHANNELS]; MAX_TAPS] {
    let mut out = [[0.0; CHANNELS]; MAX_TAPS];
    let [a, b, c, d, ..] = &mut out;
    if taps == 4 {
        for (of, (((a, b), c), d)) in w.chunks_exact(4).zip(a.iter_mut().zip(b).zip(c).zip(d)) {
            (*a, *b, *c, *d) = (of[0], of[1], of[2], of[3]);
        }
    } else {
        for (i, of) in w.chunks_exact(taps).enumerate() {
            of.iter().zip(&mut out).for_each(|(w, out)| out[i] = *w);
        }
    }
    out
}

/// `W` channels of a row.
#[inline(always)]
fn some<const W: usize>(w: &[[f32; CHANNELS]], window: &[&[f32]], at: usize, y: &mut [f32]) {
    let mut acc = [0.0; W];
    for (w, x) in w.iter().zip(window) {
        let (w, x): ([f32; W], [f32; W]) = (take(w, at), take(x, at));
        for i in 0..W {
            acc[i] = w[i].mul_add(x[i], acc[i]);
        }
    }
    let y = &mut y[at..at + W];
    for i in 0..W {
        y[i] = silu(acc[i]);
    }
}
