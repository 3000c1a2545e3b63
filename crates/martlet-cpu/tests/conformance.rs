//! The conformance suite: against the reference within rounding, and against itself byte for byte, whatever the
//! number of threads and the instruction set.

use martlet_cpu::{Cpu, CpuOptions, Isa};
use martlet_device::conformance::{self, Options, Tolerance};

fn cpu(threads: usize, isa: Isa) -> Cpu {
    Cpu::new(CpuOptions { threads: Some(threads), isa: Some(isa) }).expect("a CPU device")
}

/// Operations that multiply by matrices of every scheme, and those over whole sequences: by far the longest on the
/// reference device, all the more where the processor is emulated.
const PRODUCTS: [&str; 5] = ["matmul", "experts_forward", "project", "norm_project", "project_add"];
const SEQUENCES: [&str; 4] = ["kv", "attention", "gdn", "qk_norm_rope_append"];

fn conforms(choose: impl Fn(Options) -> Options) {
    conformance::run(&|| cpu(2, Isa::best()), &choose(Options::new(Tolerance::INT8_ACTIVATIONS)));
}

#[test]
fn products_conform_to_the_reference() {
    conforms(|options| options.only(&PRODUCTS));
}

#[test]
fn sequences_conform_to_the_reference() {
    conforms(|options| options.only(&SEQUENCES));
}

#[test]
fn the_rest_conforms_to_the_reference() {
    conforms(|options| options.except(&[&PRODUCTS[..], &SEQUENCES].concat()));
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
