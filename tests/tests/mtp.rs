//! The draft head's input convention is found by acceptance.

use martlet_cpu::{Cpu, CpuOptions};
use martlet_device::KvScheme;
use martlet_engine::{MtpReport, check_mtp};
use martlet_model::MtpConvention;
use martlet_tests::{fixtures, random, runner};
use martlet_weights::Checkpoint;
use serde_json::Value;

fn reports(checkpoint: &Checkpoint) -> Vec<MtpReport> {
    let case = std::fs::read(fixtures::path("fledgling-golden").join("11-story.json")).unwrap();
    let case: Value = serde_json::from_slice(&case).unwrap();
    let prompt: Vec<u32> = case["prompt_ids"].as_array().unwrap().iter().map(|v| v.as_u64().unwrap() as u32).collect();
    let cpu = Cpu::new(CpuOptions { threads: None, isa: None }).unwrap();
    check_mtp(&mut runner(cpu, checkpoint, KvScheme::F16, 512), &prompt, 60).unwrap()
}

#[test]
fn fledglings_head_is_of_the_family() {
    let fledgling = Checkpoint::open(&fixtures::fledgling()).unwrap();
    for checkpoint in [random::quantised(&fledgling, 4, 64), fledgling] {
        let reports = reports(&checkpoint);
        assert_eq!(reports[0].convention, MtpConvention::default());
        assert!(reports[0].acceptance() > 0.75, "{reports:?}");
        // The head norms its input again, so that only the weights of the final norm tell before from after.
        assert!(reports[1].logprob < reports[0].logprob, "{reports:?}");
        assert!(reports[2..].iter().all(|r| r.acceptance() < 0.5), "{reports:?}");
    }
}

/// Norms read as they are, where the file stores them less one: hardly a draft is right. This is how a converter's choice
/// is told.
#[test]
fn wrongly_read_norms_show_in_the_acceptance() {
    let mut fledgling = Checkpoint::open(&fixtures::fledgling()).unwrap();
    fledgling.set_mtp_norm_shift(false);
    let reports = reports(&fledgling);
    eprintln!("{reports:?}");
    assert!(reports[0].acceptance() < 0.6, "{reports:?}");
}
