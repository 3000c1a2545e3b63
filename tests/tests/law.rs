//! The law on the reference device: the same bits however tokens are grouped. (The CPU device: law_cpu.rs.)

use martlet_device::KvScheme;
use martlet_device::reference::Reference;
use martlet_tests::law::identities;
use martlet_tests::{fixtures, random, runner};
use martlet_weights::Checkpoint;

#[test]
fn fledgling() {
    let checkpoint = Checkpoint::open(&fixtures::fledgling()).unwrap();
    identities(|| runner(Reference::new(), &checkpoint, KvScheme::F32, 230), 211);
}

#[test]
fn fledgling_past_several_key_blocks() {
    let checkpoint = Checkpoint::open(&fixtures::fledgling()).unwrap();
    identities(|| runner(Reference::new(), &checkpoint, KvScheme::F32, 1320), 1300);
}

#[test]
fn random_dense_and_sparse() {
    for (config, seed) in [(random::dense_config(), 1), (random::moe_config(), 2)] {
        let checkpoint = random::checkpoint(&config, seed);
        for prompt in [211, 1300] {
            identities(|| runner(Reference::new(), &checkpoint, KvScheme::F32, 1320), prompt);
        }
    }
}
