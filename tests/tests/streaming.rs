//! Experts read from disk as they are chosen: the bits of those that lie in memory, whatever the number of slots and the
//! grouping; what can not be read fails cleanly.

use martlet_cpu::{Cpu, CpuOptions};
use martlet_device::KvScheme;
use martlet_engine::{Capacity, DrafterChoice, Engine, EngineOptions, Event, Runner, SeqInput};
use martlet_model::{Model, expected_tensors, read_config};
use martlet_stream::{Control, LookAhead, StreamStats, Streamed, slot_bytes};
use martlet_tests::engines::{self, START};
use martlet_tests::law::{greedy, run, sampled};
use martlet_tests::{fixtures, random, runner};
use martlet_weights::{Checkpoint, pack};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

fn packed(source: Checkpoint, dst: &Path) -> Checkpoint {
    let spec = read_config(source.config()).unwrap();
    let expected = expected_tensors(&spec, source.has("mtp.fc.weight"));
    pack::pack(&source, &expected, dst, None, &mut |_, _| {}).unwrap_or_else(|e| panic!("{e}"));
    Checkpoint::open(dst).unwrap()
}

fn fledgling(dst: &Path) -> Checkpoint {
    packed(random::quantised(&Checkpoint::open(&fixtures::fledgling()).unwrap(), 4, 64), dst)
}

/// 512 experts, of which 10 are chosen.
fn many_experts(dst: &Path) -> Checkpoint {
    let mut config = random::moe_config();
    let text = &mut config["text_config"];
    (text["num_experts"], text["num_experts_per_tok"]) = (512.into(), 10.into());
    (text["num_hidden_layers"], text["shared_expert_intermediate_size"]) = (2.into(), 64.into());
    packed(random::quantised(&random::checkpoint(&config, 5), 4, 64), dst)
}

fn cpu() -> Cpu {
    Cpu::new(CpuOptions { threads: Some(2), isa: None }).unwrap()
}

/// Model and experts in `slots` slots.
fn streamed(checkpoint: &Checkpoint, slots: u64, ahead: LookAhead) -> (Model<Cpu>, Streamed<Cpu>, Cpu) {
    let cpu = cpu();
    let spec = read_config(checkpoint.config()).unwrap();
    let bytes = slots * slot_bytes(checkpoint).unwrap();
    let experts = Streamed::new(&cpu, &spec, checkpoint, bytes, ahead).unwrap_or_else(|e| panic!("{e}"));
    let model = Model::load_dense(&cpu, checkpoint, spec, &mut |_, _| {}).unwrap();
    (model, experts, cpu)
}

fn streaming_runner(checkpoint: &Checkpoint, slots: u64, ahead: LookAhead) -> (Runner<Cpu>, Arc<Control>) {
    let (model, experts, cpu) = streamed(checkpoint, slots, ahead);
    let control = experts.control();
    let capacity = Capacity { kv: KvScheme::F16, pages: 160, sequences: 8, rows: 320, outputs: 320 };
    (Runner::new(cpu, model, Box::new(experts), capacity).unwrap(), control)
}

#[test]
fn streamed_experts_give_the_bits_of_resident_ones() {
    let dir = tempfile::tempdir().unwrap();
    let small = fledgling(&dir.path().join("fledgling"));
    let large = many_experts(&dir.path().join("many"));
    // Slots for 4, 9 and 31 experts of each of fledgling's layers; few and many of 1024.
    let layers = read_config(small.config()).unwrap().layers.len() as u64 + 1;
    for (name, checkpoint, slots) in
        [("fledgling", &small, [4, 4 * layers, 9 * layers, 31 * layers]), ("512 experts", &large, [4, 40, 200, 900])]
    {
        let vocabulary = read_config(checkpoint.config()).unwrap().vocabulary;
        let ids = random::Rng(3).ids(150, vocabulary.min(500));
        let mut resident = runner(cpu(), checkpoint, KvScheme::F16, 320);
        let expected = [greedy(), sampled(11)].map(|p| run(&mut resident, &ids, 64, 12, &p, 0));
        for (slots, ahead) in slots.into_iter().flat_map(|s| AHEAD.map(|ahead| (s, ahead))) {
            let what = format!("{name}, {slots} slots, look-ahead {ahead:?}");
            let (mut runner, control) = streaming_runner(checkpoint, slots, ahead);
            for (chunk, others) in [(64, 0), (1, 0), (150, 0), (33, 5)] {
                let found = [greedy(), sampled(11)].map(|p| run(&mut runner, &ids, chunk, 12, &p, others));
                assert!(found == expected, "{what}, chunks of {chunk} among {others} others");
            }
            let stats = control.stats();
            eprintln!("{what}: {stats:?}");
            assert!(stats.reads > 0 && stats.hits + stats.reads == stats.needed, "{what}: {stats:?}");
            assert!(slots < 30 || stats.hits > 0, "{what}: {stats:?}");
            check_ahead(&stats, slots, ahead);
        }
    }
}

const AHEAD: [LookAhead; 3] = [LookAhead::Off, LookAhead::Auto, LookAhead::Always];

/// Whether experts were read ahead as it was asked for, and are counted.
fn check_ahead(stats: &StreamStats, slots: u64, ahead: LookAhead) {
    match ahead {
        LookAhead::Off => assert!(stats.ahead == 0 && stats.guesses == 0, "{stats:?}"),
        LookAhead::Auto => assert!(stats.ahead <= stats.guesses, "{stats:?}"),
        // An eighth of few slots is none.
        LookAhead::Always => assert!(slots < 8 || stats.ahead_used > 0, "{stats:?}"),
    }
    assert!(stats.ahead_used <= stats.ahead && stats.ahead_used <= stats.guesses_right, "{stats:?}");
    assert!(stats.guesses_right <= stats.guesses && stats.guesses_right <= stats.guess_missing, "{stats:?}");
    assert!(stats.ahead == stats.ahead_used || stats.bytes_wasted > 0, "{stats:?}");
}

/// Drafts, several sequences, prefix hits; and a budget that changes at random while they run.
#[test]
fn engines_answer_the_same_while_slots_come_and_go() {
    let dir = tempfile::tempdir().unwrap();
    let checkpoint = fledgling(&dir.path().join("pack"));
    let mut rng = random::Rng(9);
    let shared = [&[START][..], &rng.ids(90, 4000)].concat();
    let requests: Vec<_> = (0..6)
        .map(|i| {
            let prompt = [&shared[..], &[START], &rng.ids(5 + 11 * i, 4000)].concat();
            let sampling = if i % 2 == 0 { engines::greedy() } else { engines::sampled(i as u64) };
            engines::request(&prompt, sampling, 24)
        })
        .collect();
    let plain = engines::start(&checkpoint, 2, engines::plain());
    let expected: Vec<_> = requests.iter().map(|r| engines::run(&plain, r.clone()).0).collect();
    for (drafter, slots, sequences, ahead) in [
        (DrafterChoice::Mtp, 14, 1, LookAhead::Off),
        (DrafterChoice::Mtp, 14, 1, LookAhead::Always),
        (DrafterChoice::Auto, 60, 4, LookAhead::Auto),
        (DrafterChoice::Auto, 60, 4, LookAhead::Always),
    ] {
        let (model, experts, cpu) = streamed(&checkpoint, slots, ahead);
        let (control, bytes) = (experts.control(), slots * slot_bytes(&checkpoint).unwrap());
        let options = EngineOptions { drafter, sequences, prefix_cache: true, prefill_chunk: 48, ..engines::plain() };
        let engine = Engine::start(cpu, model, Box::new(experts), options).unwrap();
        let stop = AtomicBool::new(false);
        std::thread::scope(|s| {
            s.spawn(|| {
                let mut rng = random::Rng(4);
                while !stop.load(Ordering::Relaxed) {
                    control.set_bytes(rng.below(bytes as usize + 1) as u64);
                    std::thread::sleep(std::time::Duration::from_millis(1));
                }
            });
            for round in 0..3 {
                let found = engines::all(&engine, &requests);
                engines::compare(&found, &expected, &format!("{drafter:?}, {slots} slots, {ahead:?}, round {round}"));
            }
            stop.store(true, Ordering::Relaxed);
        });
    }
}

fn cut(path: &Path, bytes: u64) {
    std::fs::OpenOptions::new().write(true).open(path).unwrap().set_len(bytes).unwrap();
}

/// What the next step of a fresh sequence gives: the bits of its logits, or the error.
fn step(runner: &mut Runner<Cpu>) -> Result<Vec<u32>, String> {
    let mut seq = runner.open().unwrap();
    let tokens = random::Rng(1).ids(40, 400);
    let result = runner.step(&mut [SeqInput { seq: &mut seq, tokens: &tokens, tentative: 0, outputs: 1 }]);
    let logits = result.map(|()| runner.logits(1).unwrap().iter().map(|x| x.to_bits()).collect());
    runner.close(seq);
    logits.map_err(|e| e.to_string())
}

/// The files themselves are damaged while they are in use: cut, changed in place, and replaced under their name.
#[test]
fn damaged_files_fail_the_step_and_no_later_one() {
    let dir = tempfile::tempdir().unwrap();
    let checkpoint = many_experts(&dir.path().join("pack"));
    let path = dir.path().join("pack").join(pack::EXPERTS_FILE);
    let good = std::fs::read(&path).unwrap();
    for ahead in AHEAD {
        let (runner, _) = streaming_runner(&checkpoint, 40, ahead);
        damage(runner, &path, dir.path(), &good);
        std::fs::write(&path, &good).unwrap();
    }
}

fn damage(mut runner: Runner<Cpu>, path: &Path, dir: &Path, good: &[u8]) {
    let expected = step(&mut runner).unwrap();
    let told = |error: String, what: &str| {
        assert!(error.contains("experts.bin") && error.contains("at byte") && error.contains(what), "{error}");
    };
    let flipped: Vec<u8> = good.iter().enumerate().map(|(i, b)| if i % 16384 == 100 { b ^ 4 } else { *b }).collect();
    std::fs::write(path, &flipped).unwrap();
    told(step(&mut runner).unwrap_err(), "xxh3");
    std::fs::write(path, good).unwrap();
    assert!(step(&mut runner).unwrap() == expected, "after a flipped bit");
    cut(path, good.len() as u64 / 3);
    told(step(&mut runner).unwrap_err(), "ends at byte");
    std::fs::write(path, good).unwrap();
    assert!(step(&mut runner).unwrap() == expected, "after a cut file");
    // Replaced by renaming: the file that was opened is still there.
    std::fs::write(dir.join("new"), &flipped).unwrap();
    std::fs::rename(dir.join("new"), path).unwrap();
    assert!(step(&mut runner).unwrap() == expected, "beside a new file");
}

#[test]
fn a_request_fails_and_the_engine_goes_on() {
    let dir = tempfile::tempdir().unwrap();
    let checkpoint = fledgling(&dir.path().join("pack"));
    let path = dir.path().join("pack").join(pack::EXPERTS_FILE);
    let good = std::fs::read(&path).unwrap();
    let (model, experts, cpu) = streamed(&checkpoint, 12, LookAhead::Always);
    let engine = Engine::start(cpu, model, Box::new(experts), engines::plain()).unwrap();
    let request = engines::request(&[START, 5, 6, 7], engines::greedy(), 8);
    let expected = engines::run(&engine, request.clone()).0;
    cut(&path, 16384);
    let handle = engine.submit(request.clone()).unwrap();
    let error = loop {
        match handle.next() {
            Event::Failed(e) => break e.to_string(),
            Event::Finished { .. } => panic!("an answer from a cut file"),
            _ => {}
        }
    };
    assert!(error.contains("experts.bin") && error.contains("ends at byte 16384"), "{error}");
    std::fs::write(&path, &good).unwrap();
    assert!(engines::run(&engine, request).0 == expected);
}
