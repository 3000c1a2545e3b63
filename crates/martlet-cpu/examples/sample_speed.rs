//! Time of one sampled token from a wide row of logits, for the usual settings:
//!
//!     cargo run --release -p martlet-cpu --example sample_speed -- [vocabulary] [threads]

use martlet_cpu::{Cpu, CpuOptions};
use martlet_device::Device;
use martlet_device::sampling::{SampleParams, SampleRow};
use std::time::Instant;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let vocabulary = args.first().map_or(Ok(248_320), |a| a.parse())?;
    let threads = args.get(1).map(|a| a.parse()).transpose()?;
    let mut cpu = Cpu::new(CpuOptions { threads, isa: None })?;
    let mut seed = 1u64;
    let mut unit = || {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (seed >> 40) as f32 / (1 << 24) as f32
    };
    let mut logits = cpu.buffer(1, vocabulary)?;
    for (name, peaks) in [("peaked", true), ("flat", false)] {
        let mut values: Vec<f32> = (0..vocabulary).map(|_| (0..4).map(|_| unit()).sum::<f32>() * 4.0 - 8.0).collect();
        if peaks {
            (0..300).for_each(|i| values[(i * 7919) % vocabulary] = 22.0 - (i as f32).sqrt());
        }
        cpu.write(&mut logits, 0, &values)?;
        for (setting, temperature, top_k, top_p, logprobs) in [
            ("greedy", 0.0, 0, 1.0, None),
            ("top_k 20, top_p 0.95", 0.6, 20, 0.95, None),
            ("top_p 0.95", 1.0, 0, 0.95, None),
            ("temperature 1", 1.0, 0, 1.0, None),
            ("greedy, 5 log-probabilities", 0.0, 0, 1.0, Some(5)),
        ] {
            let params = SampleParams {
                temperature,
                top_k,
                top_p,
                min_p: 0.0,
                repetition_penalty: 1.0,
                presence_penalty: 0.0,
                frequency_penalty: 0.0,
                seed: 7,
                choice: 0,
            };
            let mut seconds = Vec::new();
            let mut sum = 0u32;
            for position in 0..50 {
                let row = SampleRow { params: &params, position, seen: &[], bias: &[], mask: None, logprobs };
                let start = Instant::now();
                let sampled = cpu.sample(&logits, &[row])?;
                seconds.push(start.elapsed().as_secs_f64());
                sum = sum.rotate_left(5) ^ sampled[0].token ^ sampled[0].logprob.unwrap_or(0.0).to_bits();
            }
            seconds.sort_by(f64::total_cmp);
            let (best, median) = (seconds[0] * 1e3, seconds[seconds.len() / 2] * 1e3);
            println!("{name}, {setting}: {best:.3} ms (median {median:.3}), result {sum:08x}");
        }
    }
    Ok(())
}
