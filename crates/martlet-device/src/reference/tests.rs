//! Small cases computed by hand: the conformance suite compares devices with the reference, these the reference with
//! its formulas.

use super::*;
use crate::{KvScheme, NO_SLOT, Rope, SeqRows};
use martlet_tensor::{Float, Part, Scheme};

/// A batch of one sequence at slot 0, its pages in descending order.
fn batch(start: usize, rows: usize, certain: usize) -> Batch {
    let pages = (start + rows).div_ceil(64) as u32;
    Batch {
        tokens: vec![0; rows],
        seqs: vec![SeqRows { rows, start, certain, pages: (0..pages).rev().collect(), state: 0 }],
        rope: Rope::default(),
        outputs: vec![],
    }
}

fn filled(cols: usize, values: &[f32]) -> Buffer {
    Buffer { cols, values: values.to_vec() }
}

fn dense(rows: usize, cols: usize, value: impl Fn(usize, usize) -> f32) -> Matrix {
    let at = |i: usize| value(i / cols, i % cols);
    let bytes: Vec<u8> = (0..rows * cols).flat_map(|i| at(i).to_le_bytes()).collect();
    let part = Part::new(rows, &bytes, &[], &[]);
    Matrix::new(&Stored::new(Scheme::Dense(Float::F32), cols, vec![part]).unwrap()).unwrap()
}

#[test]
fn matmul_adds_slices_of_256_in_order() {
    // 2^24 + 1 is not an f32: a one that is added to 2^24 alone is lost, 256 of them summed first are not.
    let w = dense(17, 600, |n, k| if n == 16 { if k == 0 { 16777216.0 } else { 1.0 } } else { n as f32 });
    let mut y = Buffer { cols: 18, values: vec![-1.0; 36] };
    matmul::matmul(&w, &filled(600, &[1.0; 1200]), 2, &mut y, 1);
    let want = 16777216.0 + 256.0 + 88.0;
    assert_eq!(y.row(1)[17], want);
    assert_eq!(y.row(0), y.row(1));
    assert_eq!(y.row(0)[..4], [-1.0, 0.0, 600.0, 1200.0]);
}

#[test]
fn embed_reads_any_row() {
    let table = dense(40, 3, |n, k| (10 * n + k) as f32);
    let mut y = filled(3, &[0.0; 6]);
    embed::embed(&table, &[39, 16], &mut y);
    assert_eq!(y.values, [390.0, 391.0, 392.0, 160.0, 161.0, 162.0]);
}

#[test]
fn attention_of_equal_keys_is_the_mean_of_the_values() {
    let spec = KvSpec { kv_heads: 1, dim: 2, scheme: KvScheme::F32 };
    let (rows, b) = (600, batch(0, 600, 600));
    let x = Buffer { cols: 6, values: (0..rows).flat_map(|i| [1.0, 0.0, 0.0, 2.0, i as f32, 1.0]).collect() };
    let mut kv = Kv::new(spec, 10).unwrap();
    kv_append::kv_append(&x, Heads::packed(2, 1, 2), Heads::packed(4, 1, 2), &mut kv, &b);
    let mut y = filled(4, &vec![0.0; 4 * rows]);
    let spec = AttentionSpec { heads: 2, kv_heads: 1, dim: 2, scale: 1.0 };
    let queries = Heads { first: 0, stride: 1, count: 2, dim: 2 };
    attention::attention(&x, queries, &kv, spec, &b, &mut y);
    for i in [0, 1, 255, 256, 599] {
        let want = i as f32 / 2.0;
        assert!((y.row(i)[0] - want).abs() <= 1e-5 * want && y.row(i)[3] == 1.0, "{:?}", y.row(i));
    }
}

#[test]
fn kv_values_are_finite_and_rounded() {
    let stored = |scheme, x: &[f32]| {
        let mut y = vec![9.0; x.len()];
        let scale = kv::store(scheme, x, &mut y);
        (scale, y)
    };
    let halves = [f32::NAN, 1e9, f32::NEG_INFINITY, 65519.0, 1.0 + 2f32.powi(-11)];
    assert_eq!(stored(KvScheme::F16, &halves).1, [0.0, 65504.0, -65504.0, 65504.0, 1.0]);
    assert_eq!(stored(KvScheme::F32, &[f32::INFINITY]).1, [f32::MAX]);
    // Scale 2; halves go to the even number.
    let (scale, y) = stored(KvScheme::Q8, &[254.0, 1.0, 3.0, -5.0, -0.5, f32::NAN]);
    assert_eq!((scale, y), (2.0, vec![254.0, 0.0, 4.0, -4.0, 0.0, 0.0]));
    let largest = 127.0 * 2f32.powi(120);
    let (scale, y) = stored(KvScheme::Q8, &[1.0, f32::NEG_INFINITY, f32::MAX]);
    assert_eq!((scale, y), (2f32.powi(120), vec![0.0, -largest, largest]));
    // The smallest scale, and what is below it.
    let (scale, y) = stored(KvScheme::Q8, &[127.0 * f32::MIN_POSITIVE, -f32::MIN_POSITIVE]);
    assert_eq!((scale, y), (f32::MIN_POSITIVE, vec![127.0 * f32::MIN_POSITIVE, -f32::MIN_POSITIVE]));
    assert_eq!(stored(KvScheme::Q8, &[126.0 * f32::MIN_POSITIVE, -1e-40]), (0.0, vec![0.0; 2]));
}

#[test]
fn pages_that_hold_no_values_of_the_scheme_are_refused() {
    let spec = KvSpec { kv_heads: 1, dim: 4, scheme: KvScheme::Q8 };
    let mut kv = Kv::new(spec, 1).unwrap();
    let x = Buffer { cols: 8, values: [1.0, -3.0, 0.3, 5.0, 0.0, 0.0, -0.0, 0.0].repeat(64) };
    kv_append::kv_append(&x, Heads::packed(0, 1, 4), Heads::packed(4, 1, 4), &mut kv, &batch(0, 64, 64));
    let bytes = kv.export(0).unwrap();
    assert_eq!(bytes.len(), spec.page_bytes());
    let mut with = |at: usize, new: &[u8]| {
        let mut bytes = bytes.clone();
        bytes[at..at + new.len()].copy_from_slice(new);
        kv.import(0, &bytes).is_ok()
    };
    for scale in [f32::NAN, f32::INFINITY, -1.0, -0.0, 1e-40, 2f32.powi(121)] {
        assert!(!with(0, &scale.to_le_bytes()), "{scale}");
    }
    assert!(!with(5, &[0x80]), "a code of -128");
    assert!(with(0, &2f32.powi(120).to_le_bytes()) && with(0, &0f32.to_le_bytes()) && with(0, &[]));
    assert_eq!(kv.export(0).unwrap(), bytes);
}

const DELTA: DeltaSpec =
    DeltaSpec { key_heads: 1, value_heads: 1, key_dim: 1, value_dim: 1, taps: 3, max_tentative: 4 };

#[test]
fn the_delta_rule_by_hand() {
    let mut state = Delta::new(DELTA, 1).unwrap();
    // q, k, v and decay, beta of two rows.
    let (qkv, gates) = (filled(3, &[2.0, 1.0, 4.0, 1.0, 2.0, 3.0]), filled(2, &[0.5, 0.5, 0.5, 0.25]));
    let mut y = filled(1, &[0.0; 2]);
    gdn::gdn(&qkv, &gates, &mut state, &batch(0, 2, 1), &mut y);
    // S = 0.5 * (4 - 0) = 2, y = 4; then S = 1, u = 0.25 * (3 - 2) = 0.25, S = 1.5.
    assert_eq!(y.values, [4.0, 1.5]);
    assert_eq!(state.read(0).unwrap()[1], [2.0]);
    gdn::gdn_commit(&mut state, 0, 1);
    assert_eq!(state.read(0).unwrap()[1], [1.5]);
}

#[test]
fn convolution_remembers_certain_rows_only() {
    let mut state = Delta::new(DELTA, 1).unwrap();
    let w: Vec<f32> = [[4.0, 2.0, 1.0]; 3].concat();
    let x = filled(3, &[1.0, 10.0, 100.0, 2.0, 20.0, 200.0, 3.0, 30.0, 300.0]);
    let mut y = filled(3, &[0.0; 9]);
    conv_silu::conv_silu(&x, 0, &w, &mut state, &batch(0, 3, 2), &mut y);
    assert_eq!(y.row(2)[1], silu(4.0 * 10.0 + 2.0 * 20.0 + 30.0));
    assert_eq!(state.read(0).unwrap()[0], [1.0, 10.0, 100.0, 2.0, 20.0, 200.0]);
    gdn::gdn_commit(&mut state, 0, 1);
    assert_eq!(state.read(0).unwrap()[0], [2.0, 20.0, 200.0, 3.0, 30.0, 300.0]);
}

#[test]
fn stored_states_of_another_form_are_refused() {
    let mut state = Delta::new(DELTA, 2).unwrap();
    let x = filled(3, &[1.0; 6]);
    let mut y = filled(3, &[0.0; 6]);
    conv_silu::conv_silu(&x, 0, &[1.0; 9], &mut state, &batch(0, 2, 1), &mut y);
    let bytes = state.export(0).unwrap();
    let before = state.export(1).unwrap();
    for cut in 0..bytes.len() {
        assert!(state.import(1, &bytes[..cut]).is_err(), "{cut} bytes");
    }
    let mut longer = bytes.clone();
    longer.push(0);
    assert!(state.import(1, &longer).is_err());
    let mut huge = bytes.clone();
    huge[28..32].fill(0xff);
    assert!(state.import(1, &huge).is_err());
    let mut other = Delta::new(DeltaSpec { taps: 4, ..DELTA }, 1).unwrap();
    assert!(other.import(0, &bytes).is_err());
    assert_eq!(state.export(1).unwrap(), before);
    state.import(1, &bytes).unwrap();
    assert_eq!(state.export(1).unwrap(), bytes);
}

#[test]
fn route_prefers_the_lower_of_equals_and_any_number_to_nan() {
    let spec = RouteSpec { experts: 5, chosen: 3, renormalise: true };
    let mut routes = RouteTable::new(2, spec);
    let x = filled(5, &[0.0, 1.0, 1.0, -1.0, 1.0, 0.0, 0.0, 0.0, 0.0, 2.0]);
    route::route(&x, spec, 2, &mut routes);
    assert_eq!(routes.experts, [1, 2, 4, 4, 0, 1]);
    assert!((routes.weights[0] - 1.0 / 3.0).abs() < 1e-6);
    let x = filled(5, &[f32::NAN, 1.0, f32::NAN, 2.0, 3.0]);
    route::route(&x, spec, 1, &mut routes);
    assert_eq!(routes.experts[..3], [4, 3, 1]);
}

#[test]
fn experts_without_a_slot_are_left_alone() {
    let shape = ExpertShape { hidden: 1, width: 1 };
    let mut experts = Experts::new(shape, 1);
    let bytes = 2f32.to_le_bytes();
    let m = Stored::new(Scheme::Dense(Float::F32), 1, vec![Part::new(1, &bytes, &[], &[])]).unwrap();
    experts.load(0, &m, &m, &m).unwrap();
    assert!(experts.load(1, &m, &m, &m).is_err());
    let routes = RouteTable { chosen: 2, experts: vec![1, 0], weights: vec![0.75, 0.25] };
    let mut y = filled(1, &[7.0, 7.0]);
    experts_forward::experts_forward(&experts, &[NO_SLOT, 0], &filled(1, &[1.0]), &routes, 1, &mut y);
    assert_eq!(y.values, [2.0 * silu(2.0) * 2.0, 7.0]);
    let mut x = filled(1, &[1.0]);
    combine::combine(&y, &routes, &filled(1, &[3.0]), &filled(1, &[0.0]), 0, 1, &mut x);
    assert_eq!(x.values[0], 1.0 + (0.75 * y.values[0] + 0.25 * 7.0 + 0.5 * 3.0));
}

#[test]
fn batches_that_contradict_themselves_are_refused() {
    let d = Reference::new();
    let mut b = batch(0, 2, 2);
    b.tokens[1] = 9;
    assert!(d.batch(&b, 10).is_ok());
    assert!(matches!(d.batch(&b, 9), Err(DeviceError::Token { token: 9, row: 1, .. })));
    b.seqs[0].pages.clear();
    assert!(matches!(d.batch(&b, 10), Err(DeviceError::Batch(_))));
}
