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
    let cpu = Cpu::new(CpuOptions { threads: Some(2), isa: None }).unwrap();
    let cpu = logits(cpu, &packed, KvScheme::F32, &texts);

    let (own, all) = (divergence(&base, &exact), divergence(&base, &cpu));
    let (more, apart) = (all.over(&own), divergence(&exact, &cpu).mean());
    let own = own.mean().value;
    eprintln!("4 bits: {own:.3e}, added {more:?}, apart {apart:?}");
    assert!(own > 0.0);
}
