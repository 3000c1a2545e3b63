use super::scalar::scalar;
use super::*;
use crate::acts::Acts;
use crate::isa::Isa;
use crate::kernel_set::KernelSet;
use crate::lanes::LANES;
use crate::pool::Pool;
use crate::testing::{Random, every_scheme, random_matrix};
use crate::tiles::{Memory, Weights};
use martlet_tensor::{Matrix, Part, Scheme};

/// Every scheme, on shapes below, at and above tiles and slices, on every instruction set, one row and several:
/// the bits of `scalar`.
#[test]
fn every_isa_gives_the_bits_of_scalar() {
    let pool = Pool::new(1).unwrap();
    for scheme in every_scheme() {
        for (n, k) in [(1, 64), (16, 128), (17, 256), (40, 384), (3, 1088), (33, 80), (16, 7), (20, 300), (9, 96)] {
            if !scheme.fits(k) {
                continue;
            }
            let mut r = Random::new((n * k) as u64);
            let w = Weights::load(&random_matrix(&mut r, scheme, n, k).view(), false, false, &Memory::default(), &pool)
                .unwrap();
            let rows = 53;
            let x = r.vec(rows * k);
            check_every_isa(&w, &x, &format!("{scheme} {n}x{k}"));
        }
    }
    for isa in Isa::ALL {
        println!("matmul-{isa}: {}", if isa.available() { "ran" } else { "absent" });
    }
}

fn check_every_isa(w: &Weights, x: &[f32], what: &str) {
    let want: Vec<Vec<f32>> = x.chunks(w.cols).map(|x| (0..w.rows).map(|n| scalar(w, x, n)).collect()).collect();
    for isa in Isa::ALL.into_iter().filter(|isa| isa.available()) {
        check(&KernelSet::new(isa), w, x, &want, &format!("{what} {isa}"));
    }
}

/// `want`: [row][output]
fn check(kernels: &KernelSet, w: &Weights, x: &[f32], want: &[Vec<f32>], what: &str) {
    let (k, rows) = (w.cols, x.len() / w.cols);
    let mut acts = Acts::default();
    acts.shape(rows, k, w.act_group);
    let (tiles, groups) = (acts.tiles, acts.groups);
    for r in 0..rows {
        let codes = &mut acts.codes[r * tiles..(r + 1) * tiles];
        let (d, ds) = (&mut acts.d[r * groups..(r + 1) * groups], &mut acts.ds[r * groups..(r + 1) * groups]);
        (kernels.quantise)(&x[r * k..(r + 1) * k], w.act_group, codes, d, ds);
    }
    acts.starts.resize(rows * tiles, [0; 4]);
    (kernels.starts)(&acts.codes, &mut acts.starts);
    acts.arrange(&Pool::new(1).unwrap());
    // With the rows in blocks, and without.
    let of = |blocks| match w.kind {
        Kind::Codes(..) => {
            Input::Codes { codes: &acts.codes, blocks, starts: &acts.starts, d: &acts.d, ds: &acts.ds, tiles, groups }
        }
        _ => Input::Floats { x, stride: k },
    };
    let all: Vec<u32> = (0..rows as u32).collect();
    let mixed: Vec<u32> = all.iter().map(|r| r * 8 % rows as u32).collect();
    for picked in [
        &all[..],
        &mixed,
        &all[1..],
        &all[16..37],
        &all[1..9],
        &mixed[..8],
        &[0u32, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14][..],
        &[16],
        &[6, 0, 3, 3, 1, 15],
    ] {
        // Each strip by itself, and each with the one after it.
        let places =
            (0..w.strips()).flat_map(|i| (1..=STRIPS).map(move |n| (i, n))).filter(|(i, n)| i + n <= w.strips());
        for ((strip, strips), blocks) in places.flat_map(|place| [(place, &acts.blocks[..]), (place, &[])]) {
            let mut out = vec![[0.0; LANES]; strips * picked.len()];
            (kernels.matmul)(&Product { w, strip, strips, next: &[], x: of(blocks), rows: picked }, &mut out);
            for (i, got) in out.iter().enumerate() {
                let (strip, row) = (strip + i / picked.len(), picked[i % picked.len()]);
                for n in strip * LANES..w.rows.min((strip + 1) * LANES) {
                    let want = want[row as usize][n];
                    let got = got[n % LANES];
                    assert_eq!(got.to_bits(), want.to_bits(), "{what}: output {n} of row {row}: {got} {want}");
                }
            }
        }
    }
}

/// The sum is right, not only steady: compared with double precision.
#[test]
fn products_are_close_to_the_true_ones() {
    let pool = Pool::new(1).unwrap();
    for scheme in every_scheme() {
        let (n, k) = (4, 512);
        let mut r = Random::new(9);
        let stored = random_matrix(&mut r, scheme, n, k);
        let (w, true_w) = (
            Weights::load(&stored.view(), false, false, &Memory::default(), &pool).unwrap(),
            stored.view().dequantise(),
        );
        let x = r.vec(k);
        for o in 0..n {
            let row = &true_w[o * k..(o + 1) * k];
            let want: f64 = row.iter().zip(&x).map(|(w, x)| f64::from(*w) * f64::from(*x)).sum();
            let size = row.iter().map(|w| f64::from(*w).powi(2)).sum::<f64>().sqrt();
            let error = (f64::from(scalar(&w, &x, o)) - want).abs() / size;
            // Codes of 8 bits err by at most half a step of 1/127, about 0.0023 each on average; floats by rounding.
            let bound = if matches!(w.kind, Kind::Codes(..)) { 0.015 } else { 1e-5 };
            assert!(error < bound, "{scheme}: {error}");
        }
    }
}

#[test]
fn activations_that_are_not_finite_do_not_panic() {
    let pool = Pool::new(1).unwrap();
    for scheme in every_scheme() {
        let mut r = Random::new(1);
        let w = Weights::load(&random_matrix(&mut r, scheme, 16, 128).view(), false, false, &Memory::default(), &pool)
            .unwrap();
        for bad in [f32::NAN, f32::INFINITY] {
            let mut x = vec![1.0; 128];
            x[3] = bad;
            assert!(!scalar(&w, &x, 0).is_finite(), "{scheme}");
        }
    }
}

/// The largest codes against the largest activations of one sign: nothing saturates.
#[test]
fn the_largest_sums_are_exact() {
    let pool = Pool::new(1).unwrap();
    for (bits, group) in [(4, 32), (4, 64), (8, 32), (8, 64)] {
        let (n, k, scheme) = (16, 256, Scheme::Affine { bits, group, scale: Float::Bf16 });
        let codes = vec![0xff; n * scheme.code_bytes(k)];
        let scales = 0x3c00u16.to_le_bytes().repeat(n * scheme.scale_bytes(k) / 2);
        let stored = Matrix::new(scheme, k, vec![Part::new(n, &codes, &scales, &scales)]).unwrap();
        let w = Weights::load(&stored, false, false, &Memory::default(), &pool).unwrap();
        let x: Vec<f32> = (0..53 * k).map(|i| if i / k % 2 == 0 { 1.0 } else { -1.0 }).collect();
        check_every_isa(&w, &x, &scheme.to_string());
    }
}
