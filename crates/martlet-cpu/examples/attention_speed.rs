//! Speed of attention over a context, as tokens per second of one layer, multiply-adds, and bytes of keys and values:
//!
//!     cargo run --release -p martlet-cpu --example attention_speed -- [heads] [kv heads] [dim] [keys before] [rows] [f32|f16|q8] [threads] [isa]

use martlet_cpu::{Cpu, CpuOptions};
use martlet_device::{AttentionSpec, Batch, Device, Heads, KvScheme, KvSpec, PAGE, SeqRows};
use std::time::Instant;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let number = |i: usize, default: usize| args.get(i).map_or(Ok(default), |a| a.parse());
    let (heads, kv_heads, dim) = (number(0, 16)?, number(1, 4)?, number(2, 256)?);
    let (before, rows) = (number(3, 16384)?, number(4, 1)?);
    let scheme = match args.get(5).map_or("f16", |a| a) {
        "f32" => KvScheme::F32,
        "q8" => KvScheme::Q8,
        _ => KvScheme::F16,
    };
    let threads = args.get(6).map(|a| a.parse()).transpose()?;
    let isa = args.get(7).map(|a| a.parse()).transpose()?;
    let mut cpu = Cpu::new(CpuOptions { threads, isa })?;

    let keys = Heads::packed(heads * dim, kv_heads, dim);
    let values = Heads::packed(keys.end(), kv_heads, dim);
    let cols = values.end();
    let pages: Vec<u32> = (0..(before + rows).div_ceil(PAGE) as u32).collect();
    let mut kv = cpu.kv(KvSpec { kv_heads, dim, scheme }, pages.len())?;
    let mut seed = 1u32;
    let mut random = || {
        seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (seed >> 8) as f32 / (1 << 23) as f32 - 1.0
    };
    let batch = |start: usize, rows: usize| Batch {
        tokens: vec![0; rows],
        seqs: vec![SeqRows { rows, start, certain: rows, pages: pages.clone(), state: 0 }],
        ..Batch::default()
    };
    let step = before.max(rows).min(512);
    let mut x = cpu.buffer(step, cols)?;
    let mut y = cpu.buffer(step, heads * dim)?;
    cpu.write(&mut x, 0, &(0..step * cols).map(|_| random()).collect::<Vec<_>>())?;
    for start in (0..before).step_by(step) {
        let b = cpu.batch(&batch(start, step.min(before - start)), 1)?;
        cpu.kv_append(&x, keys, values, &mut kv, &b);
    }
    let b = cpu.batch(&batch(before, rows), 1)?;
    let start = Instant::now();
    cpu.kv_append(&x, keys, values, &mut kv, &b);
    let append = start.elapsed().as_secs_f64();
    let spec = AttentionSpec { heads, kv_heads, dim, scale: (dim as f32).powf(-0.5) };
    let mut seconds = Vec::new();
    let begin = Instant::now();
    while seconds.len() < 3 || begin.elapsed().as_secs_f64() < 1.0 {
        let start = Instant::now();
        cpu.attention(&x, Heads::packed(0, heads, dim), &kv, spec, &b, &mut y);
        seconds.push(start.elapsed().as_secs_f64());
    }
    seconds.sort_by(f64::total_cmp);
    let (best, median) = (seconds[0], seconds[seconds.len() / 2]);
    let seen = rows * before + rows * (rows + 1) / 2;
    let bytes = (before + rows) * KvSpec { kv_heads, dim, scheme }.token_bytes();
    let sum = cpu.read(&y, rows)?.iter().fold(0u32, |h, v| h.rotate_left(5) ^ v.to_bits());
    println!(
        "{heads}/{kv_heads} heads of {dim}, {rows} rows after {before}, {scheme:?}, {} threads, {}: {:.3} ms (median {:.3}), {:.0} rows/s, {:.1} Gfma/s, {:.2} GB/s; append {:.3} ms; result {sum:08x}",
        cpu.threads(),
        cpu.isa(),
        best * 1e3,
        median * 1e3,
        rows as f64 / best,
        (2 * seen * heads * dim) as f64 / best / 1e9,
        bytes as f64 / best / 1e9,
        append * 1e3,
    );
    Ok(())
}
