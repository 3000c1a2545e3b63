use super::*;
use crate::tiles::{Layout, Tiles};
use crate::{Matrix, Part, Shared};
use std::sync::Arc;

/// Blocks with the values that the `gguf` Python package gives for them: for each type its number (u32), the bytes of
/// blocks (u32), the blocks, the values (f32). See tools/make_gguf_blocks.py.
const GOLDEN: &[u8] = include_bytes!("../../../../../tests/fixtures/gguf/blocks.bin");

fn golden() -> Vec<(BlockType, &'static [u8], Vec<f32>)> {
    let (mut all, mut rest) = (Vec::new(), GOLDEN);
    let mut take = |n: usize| {
        let (head, tail) = rest.split_at(n);
        rest = tail;
        head
    };
    let number = |b: &[u8]| u32::from_le_bytes(b.try_into().unwrap());
    for _ in 0..TYPES.len() {
        let kind = BlockType::from_number(number(take(4))).unwrap();
        let size = number(take(4)) as usize;
        let blocks = take(size);
        let values = take(size / kind.bytes() * kind.weights() * 4);
        all.push((kind, blocks, crate::read_floats(Float::F32, values)));
    }
    assert!(rest.is_empty());
    all
}

#[test]
fn every_type_decodes_to_the_bits_of_the_gguf_package() {
    let all = golden();
    for kind in BlockType::all() {
        let (_, blocks, want) = all.iter().find(|(k, ..)| *k == kind).expect("a type without golden blocks");
        assert!(want.len() >= 8 * kind.weights());
        let mut found = vec![0.0; want.len()];
        kind.dequantise(blocks, &mut found);
        for (i, (a, b)) in found.iter().zip(want).enumerate() {
            assert_eq!(a.to_bits(), b.to_bits(), "{} at {i}: {a} {b}", kind.name());
        }
    }
}

#[test]
fn planes_hold_the_same_numbers() {
    for (kind, blocks, want) in golden() {
        for scheme in [kind.scheme(), kind.plain_scheme()] {
            let mut planes = Planes::default();
            kind.planes(blocks, scheme, &mut planes).unwrap();
            let mut codes = Vec::new();
            pack(&planes.codes, scheme.bits(), &mut codes);
            let (rows, cols) = (4, want.len() / 4);
            let part = Part::new(rows, &codes, &planes.scales, &planes.biases);
            let matrix = Matrix::new(scheme, cols, vec![part]).unwrap();
            // Equal as numbers: of -0 the sum with a bias keeps no sign.
            assert_eq!(matrix.dequantise(), want, "{} as {scheme}", kind.name());
            let layout = Layout::new(scheme, false, rows, cols).unwrap();
            let mut strip = vec![0; layout.bytes()];
            layout.pack(&matrix, 0, &mut strip);
            let tiles = Tiles::new(layout, &Shared::new(Arc::new(strip))).unwrap();
            assert_eq!(Matrix::tiled(scheme, tiles).dequantise(), want, "{} as {scheme} in tiles", kind.name());
        }
    }
}

#[test]
fn scales_that_are_no_numbers_are_refused() {
    let refused = |kind: BlockType, good: Vec<u8>, bad: &[u8]| {
        let blocks = [&good, bad].concat();
        [kind.scheme(), kind.plain_scheme()].map(|scheme| {
            let all = kind.planes(&blocks, scheme, &mut Planes::default());
            assert!(
                kind.planes(&good, scheme, &mut Planes::default()).is_ok()
                    && all.is_ok() != (all == Err(ScaleError { block: 1 }))
            );
            all.is_err()
        })
    };
    // (type, where its factors are, what they may not be: infinite, not a number, and for some too large)
    for (kind, places) in [
        (BlockType::Q4_0, &[0][..]),
        (BlockType::Iq4Nl, &[0]),
        (BlockType::Q4K, &[0, 2]),
        (BlockType::Q5K, &[0, 2]),
        (BlockType::Q6K, &[208]),
    ] {
        for &at in places {
            // Scales of 1, so that the plain scheme shows the factor too.
            let good: Vec<u8> = (0..kind.bytes()).map(|i| if i + 2 > kind.bytes().min(208) { 0 } else { 1 }).collect();
            for value in [0x7c00u16, 0x7e00, 0x7bff, 0x3c00] {
                let mut bad = good.clone();
                bad[at..at + 2].copy_from_slice(&value.to_le_bytes());
                // 65504 is a good factor; but 128 times that is no f16.
                let want = value == 0x7c00 || value == 0x7e00 || value == 0x7bff && kind == BlockType::Iq4Nl;
                assert_eq!(refused(kind, good.clone(), &bad), [want; 2], "{} {value:x} at {at}", kind.name());
            }
        }
    }
    // The upper four bits of bytes 49, 51, 53, 55 are the scale of IQ1_M.
    for (bytes, want) in [([0xff, 0xff, 0xbf, 0x7f], false), ([0x0f, 0x0f, 0xcf, 0x7f], true)] {
        let mut block = [0; 56];
        bytes.iter().enumerate().for_each(|(i, &byte)| block[49 + 2 * i] = byte);
        assert_eq!(refused(BlockType::Iq1M, vec![0; 56], &block), [want; 2]);
    }
    assert_eq!(refused(BlockType::Mxfp4, vec![0; 17], &[0xff; 17]), [true; 2]);
}
