//! Speed of one matrix product of quantised weights, as bytes of weights per second, beside what as many threads read:
//!
//!     cargo run --release -p martlet-cpu --example matmul_speed -- [rows] [outputs] [inputs] [threads] [isa] [MiB] [scheme]
//!
//! `MiB` of weights in all, 600 unless told: more than any cache holds. 1 shows the arithmetic alone. `scheme`: as
//! `martlet inspect` names it, "affine4 g64 bf16" unless told.

use martlet_cpu::{Cpu, CpuOptions};
use martlet_device::{Batch, Device, Rows, SeqRows};
use martlet_io::bandwidth::read_bandwidth;
use martlet_tensor::{Matrix, Part, Scheme};
use std::time::Instant;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let number = |i: usize, default: usize| args.get(i).map_or(Ok(default), |a| a.parse());
    let (rows, n, k) = (number(0, 1)?, number(1, 9216)?, number(2, 2560)?);
    let threads = args.get(3).map(|a| a.parse()).transpose()?;
    let isa = args.get(4).map(|a| a.parse()).transpose()?;
    let mut cpu = Cpu::new(CpuOptions { threads, isa })?;

    let mib = number(5, 600)?;
    let scheme: Scheme = args.get(6).map_or("affine4 g64 bf16", |a| a).parse()?;
    let mut seed = 1u32;
    let mut bytes = |len: usize| -> Vec<u8> {
        let next = || {
            seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (seed >> 24) as u8
        };
        std::iter::repeat_with(next).take(len).collect()
    };
    let codes = bytes(n * scheme.code_bytes(k));
    // A number near 1 as f16, near 0.01 as bf16 and f32.
    let scales = 0x3c00u16.to_le_bytes().repeat(n * scheme.scale_bytes(k) / 2);
    let stored = Matrix::new(scheme, k, vec![Part::new(n, &codes, &scales, &scales[..n * scheme.bias_bytes(k)])])?;
    let count = (mib << 20) / stored.bytes() + 1;
    let mats = (0..count).map(|_| cpu.matrix(&stored, false)).collect::<Result<Vec<_>, _>>()?;

    let seqs = vec![SeqRows { rows, certain: rows, pages: (0..rows as u32 / 64 + 1).collect(), ..SeqRows::default() }];
    let batch = cpu.batch(&Batch { tokens: vec![0; rows], seqs, ..Batch::default() }, 1)?;
    let (mut x, mut y) = (cpu.buffer(rows, k)?, cpu.buffer(rows, n)?);
    let values: Vec<f32> = (0..rows * k).map(|i| (i as f32 * 0.37).sin()).collect();
    cpu.write(&mut x, 0, &values)?;

    let mut seconds = Vec::new();
    let begin = Instant::now();
    while seconds.is_empty() || begin.elapsed().as_secs_f64() < 1.0 {
        for m in &mats {
            let start = Instant::now();
            cpu.matmul(m, &x, Rows::All, &batch, &mut y, 0);
            seconds.push(start.elapsed().as_secs_f64());
        }
    }
    seconds.sort_by(f64::total_cmp);
    let (best, median) = (seconds[0], seconds[seconds.len() / 2]);
    let sum = cpu.read(&y, rows)?.iter().fold(0u32, |h, v| h.rotate_left(5) ^ v.to_bits());
    println!(
        "{n}x{k} {scheme}, {rows} rows, {} threads, {}: {:.2} GB/s and {:.3} Top/s (median {:.2} GB/s), read {:.1} GB/s, result {sum:08x}",
        cpu.threads(),
        cpu.isa(),
        mats[0].bytes() as f64 / best / 1e9,
        (2 * n * k * rows) as f64 / best / 1e12,
        mats[0].bytes() as f64 / median / 1e9,
        read_bandwidth(cpu.threads(), mib << 20)? / 1e9,
    );
    Ok(())
}
