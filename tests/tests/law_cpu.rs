//! The law on the CPU device: the same bits however tokens are grouped, with any number of threads, on every
//! instruction set that the machine has.

use martlet_cpu::{Cpu, CpuOptions, Isa};
use martlet_device::KvScheme;
use martlet_engine::Runner;
use martlet_tests::law::{greedy, identities, run, sampled};
use martlet_tests::{fixtures, random, runner};
use martlet_weights::Checkpoint;

fn cpu(checkpoint: &Checkpoint, threads: usize, isa: Option<Isa>) -> Runner<Cpu> {
    let cpu = Cpu::new(CpuOptions { threads: Some(threads), isa }).unwrap();
    runner(cpu, checkpoint, KvScheme::F16, 1320)
}

/// fledgling in bf16 and at 4 bits, and two random models: plain, and in the widths that cross byte borders.
fn checkpoints() -> Vec<(&'static str, Checkpoint)> {
    let fledgling = Checkpoint::open(&fixtures::fledgling()).unwrap();
    let (dense, moe) = (random::dense_config(), random::moe_config());
    vec![
        ("fledgling, 4 bits", random::quantised(&fledgling, 4, 64)),
        ("fledgling", fledgling),
        ("random dense", random::checkpoint(&dense, 1)),
        ("random moe, 3 bits", random::quantised(&random::checkpoint(&moe, 2), 3, 32)),
        ("random moe, 8 bits", random::quantised(&random::checkpoint(&moe, 2), 8, 128)),
    ]
}

#[test]
fn grouping_changes_nothing() {
    for (name, checkpoint) in checkpoints() {
        for prompt in [211, 1300] {
            eprintln!("{name}, {prompt} tokens");
            identities(|| cpu(&checkpoint, 2, None), prompt);
        }
    }
}

#[test]
fn threads_and_instruction_sets_change_nothing() {
    for (name, checkpoint) in checkpoints() {
        let ids = random::Rng(3).ids(300, 347);
        let outcome = |threads, isa| {
            let mut runner = cpu(&checkpoint, threads, isa);
            [greedy(), sampled(11)].map(|p| run(&mut runner, &ids, 64, 10, &p, 3))
        };
        let plain = outcome(1, Some(Isa::best()));
        for threads in [2, 3] {
            assert!(outcome(threads, None) == plain, "{name}: {threads} threads");
        }
        for isa in Isa::ALL {
            if isa.available() {
                assert!(outcome(2, Some(isa)) == plain, "{name}: {isa:?}");
            } else {
                eprintln!("NOT RUN: {isa:?} is not on this machine");
            }
        }
    }
}
