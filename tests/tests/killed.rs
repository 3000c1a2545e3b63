//! Engines that are killed while they serve and store states. This test binary runs itself as the victim.

use martlet_engine::{DrafterChoice, EngineOptions, Request};
use martlet_tests::engines::{all, compare, disk, greedy, plain, request, sampled, start};
use martlet_tests::random;
use martlet_tests::random::Rng;
use martlet_weights::Checkpoint;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

/// How the names of unfinished files end.
const TEMPORARY: &str = ".tmp";
const DIR: &str = "MARTLET_KILLED_TEST_DIR";
const SEED: &str = "MARTLET_KILLED_TEST_SEED";

fn checkpoint() -> Checkpoint {
    random::checkpoint(&random::tiny_config(), 41)
}

fn options(dir: &Path) -> EngineOptions {
    EngineOptions {
        sequences: 3,
        prefix_cache: true,
        disk: Some(disk(dir)),
        model_key: b"tiny".to_vec(),
        drafter: DrafterChoice::Auto,
        ..plain()
    }
}

/// Conversations that go on from each other: each prompt is another one, cut somewhere, and more.
fn requests() -> Vec<Request> {
    let mut rng = Rng(51);
    let mut prompts = vec![rng.ids(200, 24)];
    while prompts.len() < 24 {
        let base = &prompts[rng.below(prompts.len())];
        let cut = base.len() - rng.below(100);
        let more = 70 + rng.below(60);
        let prompt = [&base[..cut.min(500)], &rng.ids(more, 24)].concat();
        prompts.push(prompt);
    }
    let one = |(i, prompt): (usize, &Vec<u32>)| Request {
        borders: vec![0, prompt.len() / 2, prompt.len() - 4],
        stop: Vec::new(),
        ..request(prompt, if i % 2 == 0 { greedy() } else { sampled(i as u64) }, 12)
    };
    prompts.iter().enumerate().map(one).collect()
}

/// Does nothing unless it is called as a helper: then it serves requests in a random order until it is killed.
#[test]
fn as_helper() {
    let (Some(dir), Ok(seed)) = (std::env::var_os(DIR), std::env::var(SEED)) else { return };
    let engine = start(&checkpoint(), 1, options(Path::new(&dir)));
    let (requests, mut rng) = (requests(), Rng(seed.parse().unwrap()));
    for n in 0.. {
        let some: Vec<Request> = (0..3).map(|_| requests[rng.below(requests.len())].clone()).collect();
        all(&engine, &some);
        if rng.below(8) == 0 {
            engine.clear_cache();
        }
        println!("\nserved {n}");
        std::io::stdout().flush().unwrap();
    }
}

#[test]
fn a_killed_engine_leaves_nothing_that_makes_an_answer_wrong() {
    let kills: u64 = if std::env::var_os("MARTLET_FULL").is_some() { 100 } else { 10 };
    let (folder, requests) = (tempfile::tempdir().unwrap(), requests());
    let dir = folder.path().join("prefix");
    let expected = all(&start(&checkpoint(), 1, plain()), &requests);
    let (mut rng, mut hits, mut leftovers) = (Rng(61), 0, 0);
    for kill in 0..kills {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["as_helper", "--exact", "--nocapture", "--test-threads=1"])
            .env(DIR, &dir)
            .env(SEED, kill.to_string())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        // The pipe stays open: a helper that nobody listens to would end by itself.
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let served = 1 + rng.below(6);
        let heard = lines.by_ref().map(|l| l.expect("the helper lives")).filter(|l| l.starts_with("served "));
        assert_eq!(heard.take(served).count(), served, "the helper ended");
        std::thread::sleep(Duration::from_micros(rng.below(20_000) as u64));
        child.kill().unwrap();
        assert!(child.wait().unwrap().code().is_none(), "it was killed, and did not end by itself");
        let names = std::fs::read_dir(&dir).unwrap().map(|e| e.unwrap().file_name().to_string_lossy().into_owned());
        leftovers += names.filter(|n| n.ends_with(TEMPORARY)).count();

        let engine = start(&checkpoint(), 1, options(&dir));
        compare(&all(&engine, &requests), &expected, &format!("after kill {kill}"));
        hits += engine.stats().cache.disk_hits;
        drop(engine);
        if kill % 2 == 0 {
            std::fs::remove_dir_all(&dir).unwrap();
        }
    }
    println!("{kills} kills: {leftovers} leftovers, {hits} answers went on from disk");
    assert!(hits > kills, "{hits} answers went on from disk");
}
