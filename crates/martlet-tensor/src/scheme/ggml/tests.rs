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
        let mut planes = Planes::default();
        kind.planes(blocks, &mut planes).unwrap();
        let mut codes = Vec::new();
        pack(&planes.codes, kind.scheme().bits(), &mut codes);
        let (rows, cols) = (4, want.len() / 4);
        let part = Part::new(rows, &codes, &planes.scales, &planes.biases);
        let matrix = Matrix::new(kind.scheme(), cols, vec![part]).unwrap();
        // Equal as numbers: of -0 the sum with a bias keeps no sign.
        assert_eq!(matrix.dequantise(), want, "{}", kind.name());
        let layout = Layout::new(kind.scheme(), false, rows, cols).unwrap();
        let mut strip = vec![0; layout.bytes()];
        layout.pack(&matrix, 0, &mut strip);
        let tiles = Tiles::new(layout, &Shared::new(Arc::new(strip))).unwrap();
        assert_eq!(Matrix::tiled(kind.scheme(), tiles).dequantise(), want, "{} in tiles", kind.name());
    }
}

#[test]
fn scales_that_are_no_numbers_are_refused() {
    let mut block = [0; 18];
    let mut error = |scale: u16| {
        block[..2].copy_from_slice(&scale.to_le_bytes());
        BlockType::Q4_0.planes(&[[0; 18], block].concat(), &mut Planes::default())
    };
    assert_eq!(error(0x7c00), Err(ScaleError { block: 1 })); // infinite
    assert_eq!(error(0x7e00), Err(ScaleError { block: 1 })); // NaN
    assert_eq!(error(0x7bff), Err(ScaleError { block: 1 })); // 65504: eight times that is no f16
    assert_eq!(error(0x3c00), Ok(()));
    // The upper four bits of bytes 49, 51, 53, 55 are the scale of IQ1_M.
    let mut block = [0; 56];
    let mut error = |bytes: [u8; 4]| {
        bytes.iter().enumerate().for_each(|(i, &byte)| block[49 + 2 * i] = byte);
        BlockType::Iq1M.planes(&[[0; 56], block].concat(), &mut Planes::default())
    };
    assert_eq!(error([0xff, 0xff, 0xbf, 0x7f]), Ok(()));
    assert_eq!(error([0x0f, 0x0f, 0xcf, 0x7f]), Err(ScaleError { block: 1 }));
    assert_eq!(BlockType::Mxfp4.planes(&[0xff; 17], &mut Planes::default()), Err(ScaleError { block: 0 }));
}
