//! Packs: the bits of the checkpoint that they were made from, on every device; damage is told; a killed writer leaves
//! nothing that looks whole. This test binary runs itself as the victim.

use martlet_cpu::{Cpu, CpuOptions};
use martlet_device::KvScheme;
use martlet_device::reference::Reference;
use martlet_model::{expected_tensors, read_config};
use martlet_tests::law::{greedy, run, sampled};
use martlet_tests::random::Rng;
use martlet_tests::{fixtures, prefill_and_decode, random, runner};
use martlet_weights::quantise::{Mode, Options, quantise_in_memory};
use martlet_weights::{Checkpoint, Layout, pack};
use serde_json::Value;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

const DIR: &str = "MARTLET_PACK_TEST_DIR";

fn write(source: &Checkpoint, dst: &Path) -> pack::Summary {
    let spec = read_config(source.config()).unwrap();
    let expected = expected_tensors(&spec, source.has("mtp.fc.weight"));
    pack::pack(source, &expected, dst, None, &mut |_, _| {}).unwrap_or_else(|e| panic!("{e}"))
}

fn quantised(source: &Checkpoint, bits: u8, group: u16, mode: Mode) -> Checkpoint {
    let (files, _) = quantise_in_memory(source, Options { bits, group, mode }).unwrap_or_else(|e| panic!("{e}"));
    let leak = |bytes: Vec<u8>| -> &'static [u8] { Box::leak(bytes.into_boxed_slice()) };
    Checkpoint::from_files(files.into_iter().map(|(name, bytes)| (name, leak(bytes))).collect()).unwrap()
}

/// A sparse model with a draft head.
fn moe_config() -> Value {
    let mut config = random::moe_config();
    config["text_config"]["mtp_num_hidden_layers"] = 1.into();
    config
}

/// Every scheme that the project quantises to, dense and sparse; fledgling too.
fn checkpoints() -> Vec<(String, Checkpoint)> {
    let fledgling = Checkpoint::open(&fixtures::fledgling()).unwrap();
    let (dense, moe) = (random::checkpoint(&random::dense_config(), 1), random::checkpoint(&moe_config(), 2));
    let mut all = Vec::new();
    for bits in [1, 2, 3, 4, 5, 6, 8] {
        all.push((format!("moe, {bits} bits"), quantised(&moe, bits, 32, Mode::Affine)));
    }
    for (mode, bits, group) in [(Mode::Mxfp4, 4, 32), (Mode::Mxfp8, 8, 32), (Mode::Nvfp4, 4, 16)] {
        all.push((format!("moe, {mode:?}"), quantised(&moe, bits, group, mode)));
        all.push((format!("dense, {mode:?}"), quantised(&dense, bits, group, mode)));
    }
    all.push(("dense, 3 bits".into(), quantised(&dense, 3, 64, Mode::Affine)));
    all.push(("fledgling, 4 bits".into(), quantised(&fledgling, 4, 64, Mode::Affine)));
    all.push(("fledgling, 8 bits".into(), quantised(&fledgling, 8, 128, Mode::Affine)));
    all.extend([("fledgling".into(), fledgling), ("dense".into(), dense), ("moe".into(), moe)]);
    all
}

#[test]
fn a_pack_gives_the_bits_of_its_source() {
    let ids = Rng(3).ids(70, 347);
    for (name, source) in checkpoints() {
        let dir = tempfile::tempdir().unwrap();
        let folder = dir.path().join("packed");
        let summary = write(&source, &folder);
        assert!(summary.left_out.is_empty(), "{name}: {summary:?}");
        pack::verify(&folder, &mut |_, _| {}).unwrap_or_else(|e| panic!("{name}: {e}"));
        let packed = Checkpoint::open(&folder).unwrap();
        assert_eq!(packed.layout(), Layout::Pack);
        assert!(packed.names().eq(source.names()), "{name}: all tensors are there");
        let on_cpu = |checkpoint: &Checkpoint, copy| {
            let cpu = Cpu::new(CpuOptions { threads: Some(2), isa: None }).unwrap().with_copied_weights(copy);
            let mut runner = runner(cpu, checkpoint, KvScheme::F16, 64);
            [greedy(), sampled(11)].map(|p| run(&mut runner, &ids, 40, 6, &p, 3))
        };
        let expected = on_cpu(&source, false);
        for copy in [false, true] {
            assert!(on_cpu(&packed, copy) == expected, "{name}, copied: {copy}");
        }
        let on_reference = |checkpoint: &Checkpoint| {
            let mut runner = runner(Reference::new(), checkpoint, KvScheme::F32, 64);
            let (logits, tokens, _) = prefill_and_decode(&mut runner, &ids[..12], 12, 3);
            (logits.iter().map(|l| l.to_bits()).collect::<Vec<_>>(), tokens)
        };
        assert!(on_reference(&packed) == on_reference(&source), "{name} on the reference device");
    }
}

/// Does nothing unless it is called as a helper: then it packs, again and again, until it is killed.
#[test]
fn as_helper() {
    let Some(dir) = std::env::var_os(DIR) else { return };
    let source = quantised(&random::checkpoint(&moe_config(), 2), 4, 64, Mode::Affine);
    std::fs::write(Path::new(&dir).join("ready"), "").unwrap();
    for n in 0.. {
        write(&source, &Path::new(&dir).join(format!("pack-{n}")));
    }
}

#[test]
fn a_killed_writer_leaves_nothing_that_looks_whole() {
    let kills = if std::env::var_os("MARTLET_FULL").is_some() { 200 } else { 20 };
    let (mut rng, mut half) = (Rng(71), 0);
    for _ in 0..kills {
        let dir = tempfile::tempdir().unwrap();
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["as_helper", "--exact", "--test-threads=1"])
            .env(DIR, dir.path())
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        while !dir.path().join("ready").exists() {
            std::thread::sleep(Duration::from_millis(2));
        }
        std::thread::sleep(Duration::from_micros(rng.below(60_000) as u64));
        child.kill().unwrap();
        child.wait().unwrap();
        for entry in std::fs::read_dir(dir.path()).unwrap() {
            let path = entry.unwrap().path();
            let name = path.file_name().unwrap().to_str().unwrap().to_string();
            match Checkpoint::open(&path) {
                Ok(_) => pack::verify(&path, &mut |_, _| {}).unwrap_or_else(|e| panic!("{name}: {e}")),
                Err(_) if name == "ready" => {}
                Err(e) => {
                    assert!(name.starts_with(".pack-"), "{name} has its name, but: {e}");
                    half += 1;
                }
            }
        }
    }
    eprintln!("{half} of {kills} kills came in the middle");
    assert!(half > 0, "no kill came in the middle of a pack");
}
