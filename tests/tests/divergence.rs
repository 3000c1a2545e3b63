//! What the CPU device's 8-bit activations cost, on a short text; `examples/kl.rs` measures every scheme on a long one.

use martlet_cpu::{Cpu, CpuOptions};
use martlet_device::KvScheme;
use martlet_device::reference::Reference;
use martlet_tests::divergence::{divergence, logits, texts};
use martlet_tests::{engines, fixtures};
use martlet_weights::Checkpoint;

const TOKENS: usize = 300;

#[test]
fn activations_cost_little_beside_four_bits() {
    let texts = texts(TOKENS);
    let source = Checkpoint::open(&fixtures::fledgling()).unwrap();
    let packed = engines::fledgling();
    let exact = |checkpoint| logits(Reference::new(), checkpoint, KvScheme::F32, &texts);
    let (base, exact) = std::thread::scope(|s| {
        let base = s.spawn(|| exact(&source));
        let exact = exact(&packed);
        (base.join().unwrap(), exact)
    });
    let cpu = |checkpoint| {
        let cpu = Cpu::new(CpuOptions { threads: Some(2), isa: None }).unwrap();
        logits(cpu, checkpoint, KvScheme::F32, &texts)
    };

    let own = divergence(&base, &exact).mean().value;
    let apart = divergence(&exact, &cpu(&packed)).mean().value;
    let plain = divergence(&base, &cpu(&source)).mean().value;
    eprintln!("4 bits: {own:.3e}; the CPU device beside it: {apart:.3e}, on plain weights {plain:.3e}");
    assert!((1e-3..5e-3).contains(&own), "4 bits against floats: {own}");
    // Errors of activations do not know those of weights, so that both add up in the mean. What one run has more than
    // the other shows the same with far more noise: too much for a text this short.
    assert!(apart < 0.02 * own, "8-bit activations: {apart}, 4 bits: {own}");
    assert!(apart > 1e-3 * own, "activations are not quantised: {apart}");
    assert!(plain < 1e-9, "activations of plain weights are not quantised: {plain}");
}
