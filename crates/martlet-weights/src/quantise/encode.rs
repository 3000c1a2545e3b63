//! The bytes of one planned tensor, made by all cores.

use super::plan::{How, Item};
use crate::checkpoint::Checkpoint;
use crate::error::WeightsError;
use martlet_tensor::scheme::{self, Encoded};
use martlet_tensor::{Float, Matrix, Scheme};
use std::ops::Range;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Weights that a thread takes at a time: enough to hide the cost of taking, few enough to end together.
const CHUNK: usize = 1 << 17;

/// The tensors of `item`, in the order of [`Item::tensors`].
pub(super) fn encode(src: &Checkpoint, item: &Item) -> Result<Vec<Vec<u8>>, WeightsError> {
    match item.how {
        How::Packed(scheme) => packed(src, item, scheme),
        How::Plain(float) => Ok(vec![plain(&values(src, item)?, float)]),
        How::ChannelsLast(float) => Ok(vec![plain(&channels_last(&values(src, item)?, &item.shape), float)]),
    }
}

fn plain(values: &[f32], float: Float) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(values.len() * float.size());
    values.iter().for_each(|&v| float.put(v, &mut bytes));
    bytes
}

fn values(src: &Checkpoint, item: &Item) -> Result<Vec<f32>, WeightsError> {
    let mut all = Vec::new();
    for (name, rows) in &item.rows {
        let part = match rows.is_empty() {
            true => src.vector(name)?,
            false => src.rows(name, rows.clone())?.matrix().dequantise(),
        };
        finite(src, name, &part)?;
        all.extend(part);
    }
    Ok(all)
}

fn finite(src: &Checkpoint, name: &str, values: &[f32]) -> Result<(), WeightsError> {
    match values.iter().all(|v| v.is_finite()) {
        true => Ok(()),
        false => Err(src.problem(name, "holds a value that is no finite number; it can not be quantised").into()),
    }
}

/// From [O, C, ..] to `shape` = [O, .., C].
fn channels_last(values: &[f32], shape: &[usize]) -> Vec<f32> {
    let channels = shape.last().copied().unwrap_or(1).max(1);
    let inner: usize = shape.iter().skip(1).rev().skip(1).product();
    let outputs = values.chunks((channels * inner).max(1));
    let moved = outputs.flat_map(|o| (0..inner).flat_map(move |i| (0..channels).map(move |c| o[c * inner + i])));
    moved.collect()
}

fn packed(src: &Checkpoint, item: &Item, scheme: Scheme) -> Result<Vec<Vec<u8>>, WeightsError> {
    let read = |(name, rows): &(String, Range<usize>)| src.rows(name, rows.clone());
    let held = item.rows.iter().map(read).collect::<Result<Vec<_>, _>>()?;
    let mut matrices: Vec<_> = held.iter().map(|rows| rows.matrix()).collect();
    let error = |e: martlet_tensor::ShapeError| src.problem(&item.rows[0].0, e.to_string());
    let first = matrices.remove(0);
    let matrix = first.stack(&matrices).map_err(error)?;
    let step = (CHUNK / matrix.cols().max(1)).max(1);
    let chunks = matrix.rows().div_ceil(step);
    let next = AtomicUsize::new(0);
    let done = Mutex::new(Vec::with_capacity(chunks));
    let work = || {
        loop {
            let chunk = next.fetch_add(1, Ordering::Relaxed);
            if chunk >= chunks {
                return;
            }
            let rows = chunk * step..((chunk + 1) * step).min(matrix.rows());
            let encoded = encode_rows(&matrix.slice(rows), scheme);
            done.lock().unwrap_or_else(|e| e.into_inner()).push((chunk, encoded));
        }
    };
    std::thread::scope(|scope| {
        let threads = martlet_io::topology::physical_cores().min(chunks);
        (1..threads).for_each(|_| drop(scope.spawn(work)));
        work();
    });
    let mut parts = done.into_inner().unwrap_or_else(|e| e.into_inner());
    parts.sort_by_key(|(chunk, _)| *chunk);
    let mut all = Encoded::default();
    for (_, part) in parts {
        let Some(part) = part else {
            let text = "holds a value that is no finite number; it can not be quantised";
            return Err(src.problem(&item.rows[0].0, text).into());
        };
        all.codes.extend(part.codes);
        all.scales.extend(part.scales);
        all.biases.extend(part.biases);
    }
    let mut tensors = vec![all.codes, all.scales];
    if !all.biases.is_empty() {
        tensors.push(all.biases);
    }
    Ok(tensors)
}

/// `None` when a value is no finite number.
fn encode_rows(matrix: &Matrix<'_>, scheme: Scheme) -> Option<Encoded> {
    let mut row = vec![0.0; matrix.cols()];
    let mut encoded = Encoded::default();
    for r in 0..matrix.rows() {
        matrix.row(r).dequantise(&mut row);
        if !row.iter().all(|v| v.is_finite()) {
            return None;
        }
        scheme::encode(scheme, &row, &mut encoded);
    }
    Some(encoded)
}
