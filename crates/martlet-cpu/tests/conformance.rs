//! The conformance suite: against the reference within rounding, and against itself byte for byte, whatever the
//! number of threads and the instruction set.

use martlet_cpu::{Cpu, CpuOptions, Isa};
use martlet_device::conformance::{self, Options, Tolerance};

fn cpu(threads: usize, isa: Isa) -> Cpu {
    Cpu::new(CpuOptions { threads: Some(threads), isa: Some(isa) }).expect("a CPU device")
}

#[test]
fn conforms_to_the_reference() {
    conformance::run(&|| cpu(2, Isa::best()), &Options::new(Tolerance::INT8_ACTIVATIONS));
}

#[test]
fn every_instruction_set_and_any_threads_give_the_same_bits() {
    for isa in Isa::ALL {
        println!("instruction set {isa}: {}", if isa.available() { "ran" } else { "absent" });
        if isa.available() {
            conformance::run_against(&|| cpu(3, isa), &|| cpu(1, Isa::best()), &Options::new(Tolerance::EXACT));
        }
    }
}
