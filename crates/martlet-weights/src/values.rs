//! Scales, biases and small tensors must be finite numbers: one NaN there would spread over every answer.
//!
//! The large tensors themselves are not looked at; every code of a packed matrix is a number if its scale is.

use crate::checkpoint::Checkpoint;
use crate::error::Problem;
use martlet_tensor::{Dtype, Scheme};
use std::sync::atomic::{AtomicUsize, Ordering};

/// A tensor of so many elements or fewer is small: no matrix of a real model is.
const SMALL: usize = 1 << 16;

/// Bytes of scales below which one thread is fastest.
const ONE_THREAD: usize = 8 << 20;

/// One problem for each tensor that holds a value which is no number or infinite.
pub(crate) fn not_finite(checkpoint: &Checkpoint) -> Vec<Problem> {
    let source = &checkpoint.source;
    let mut tensors: Vec<(usize, Dtype)> = Vec::new();
    // Tiles were looked at when they were packed.
    for m in checkpoint.modules.iter().filter(|m| m.tiles.is_none()) {
        let dense = matches!(m.scheme, Some(Scheme::Dense(_)));
        if dense && m.shape.iter().product::<usize>() <= SMALL {
            tensors.push((m.weight, source.tensors[m.weight].dtype));
        }
        let parts = [m.scales, m.biases, m.global].into_iter().flatten();
        tensors.extend(parts.map(|t| match (m.scheme, source.tensors[t].dtype) {
            (Some(Scheme::Nvfp4), Dtype::U8) => (t, Dtype::F8E4m3),
            (_, dtype) => (t, dtype),
        }));
    }
    let bytes: usize = tensors.iter().map(|(t, _)| source.tensors[*t].range.len()).sum();
    let threads = match bytes < ONE_THREAD {
        true => 1,
        false => martlet_io::topology::physical_cores(),
    };
    let next = AtomicUsize::new(0);
    let work = || {
        let mut found = Vec::new();
        while let Some(&(t, dtype)) = tensors.get(next.fetch_add(1, Ordering::Relaxed)) {
            if let Some(i) = first_not_finite(dtype, source.bytes(t)) {
                found.push((t, i));
            }
        }
        found
    };
    let mut found: Vec<(usize, usize)> = std::thread::scope(|scope| {
        let workers: Vec<_> = (1..threads).map(|_| scope.spawn(work)).collect();
        let mut found = work();
        for worker in workers {
            found.extend(worker.join().expect("looking at numbers does not panic"));
        }
        found
    });
    found.sort_unstable();
    let problem = |(t, i)| {
        let text = format!("value {i} is no finite number: the file is damaged, fetch it again");
        source.problem(&source.tensors[t], text)
    };
    found.into_iter().map(problem).collect()
}

/// Index of the first element that is NaN or infinite. U8 is an E8M0 scale.
fn first_not_finite(dtype: Dtype, bytes: &[u8]) -> Option<usize> {
    match dtype {
        Dtype::F32 => first(bytes, |e: &[u8; 4]| u32::from_le_bytes(*e) & 0x7f80_0000 == 0x7f80_0000),
        Dtype::Bf16 => first(bytes, |e: &[u8; 2]| u16::from_le_bytes(*e) & 0x7f80 == 0x7f80),
        Dtype::F16 => first(bytes, |e: &[u8; 2]| u16::from_le_bytes(*e) & 0x7c00 == 0x7c00),
        Dtype::F8E4m3 => first(bytes, |e: &[u8; 1]| e[0] & 0x7f == 0x7f),
        Dtype::U8 => first(bytes, |e: &[u8; 1]| e[0] == 0xff),
        Dtype::U32 | Dtype::I64 => None,
    }
}

fn first<const N: usize>(bytes: &[u8], bad: impl Fn(&[u8; N]) -> bool) -> Option<usize> {
    // Whole blocks first, without branches inside: nearly every tensor is clean.
    const BLOCK: usize = 1024;
    let dirty = |block: &[[u8; N]]| block.iter().fold(false, |any, e| any | bad(e));
    let (blocks, place) = (bytes.as_chunks::<N>().0.chunks(BLOCK), |block: &[[u8; N]]| block.iter().position(&bad));
    blocks.enumerate().find(|(_, b)| dirty(b)).and_then(|(i, b)| Some(i * BLOCK + place(b)?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use martlet_tensor::Float;

    #[test]
    fn every_kind_of_bad_number_is_found() {
        let place = 5000;
        for float in [Float::F32, Float::F16, Float::Bf16] {
            for value in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, -f32::NAN] {
                let mut bytes = Vec::new();
                (0..6000).for_each(|i| float.put(if i == place { value } else { 65000.0 }, &mut bytes));
                assert_eq!(first_not_finite(float.into(), &bytes), Some(place), "{float:?} {value}");
                assert_eq!(first_not_finite(float.into(), &bytes[..place * float.size()]), None);
            }
        }
        let mut bytes = vec![0x7e; 6000];
        bytes[place] = 0xff;
        assert_eq!(first_not_finite(Dtype::F8E4m3, &bytes), Some(place));
        assert_eq!(first_not_finite(Dtype::U8, &bytes), Some(place));
        bytes[place] = 0x7f;
        assert_eq!(first_not_finite(Dtype::F8E4m3, &bytes), Some(place));
        assert_eq!(first_not_finite(Dtype::U8, &bytes), None);
    }
}
