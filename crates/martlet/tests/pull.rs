//! `martlet pull` and the commands for installed models, by the real binary against a hub in this process.
#![cfg(unix)]

use martlet_tests::hub::{Fault, Hub, Manner, REPOSITORY};
use martlet_tests::{fixtures, random::Rng};
use serde_json::Value;
use std::collections::BTreeSet;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

/// A home of its own.
struct Home {
    dir: tempfile::TempDir,
    endpoint: String,
}

impl Home {
    fn new(endpoint: &str) -> Home {
        Home { dir: tempfile::tempdir().unwrap(), endpoint: endpoint.into() }
    }

    fn at(&self, path: &str) -> PathBuf {
        self.dir.path().join(path)
    }

    fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_martlet"));
        let foreign = |name: &String| ["MARTLET_", "HF_", "XDG_"].iter().any(|p| name.starts_with(p));
        std::env::vars().map(|(name, _)| name).filter(foreign).for_each(|name| {
            command.env_remove(name);
        });
        command.env("HOME", self.dir.path()).env("HF_ENDPOINT", &self.endpoint).args(args);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    fn ran(&self, args: &[&str]) -> (i32, String, String) {
        let Output { status, stdout, stderr } = self.command(args).output().unwrap();
        let text = |bytes| String::from_utf8(bytes).unwrap();
        (status.code().unwrap(), text(stdout), text(stderr))
    }

    fn ok(&self, args: &[&str]) -> String {
        let (code, out, err) = self.ran(args);
        assert_eq!(code, 0, "{args:?}: {err}");
        out
    }

    fn json(&self, args: &[&str]) -> Value {
        serde_json::from_str(&self.ok(args)).unwrap()
    }

    fn fails(&self, code: i32, args: &[&str], word: &str) {
        let (found, _, err) = self.ran(args);
        assert!(found == code && err.contains(word), "{args:?}: {found} {err}");
    }

    fn models(&self) -> PathBuf {
        self.at(".local/share/martlet/models")
    }
}

fn served(manner: Manner) -> (Hub, Home) {
    let hub = Hub::serve(&fixtures::fledgling(), manner);
    let home = Home::new(&hub.url());
    (hub, home)
}

#[test]
fn a_model_is_pulled_used_by_name_and_removed() {
    let (hub, home) = served(Manner::default());
    hub.fault("model-00002-of-00003.safetensors", Fault::Drop(100_000));
    let done = home.json(&["pull", REPOSITORY, "--name", "bird", "--json"]);
    assert_eq!((done["name"].as_str(), done["repository"].as_str()), (Some("bird"), Some(REPOSITORY)));
    assert!(!home.models().join(".sources/bird").exists(), "the source is gone");
    let path = home.ok(&["path", "bird"]);
    assert_eq!(Path::new(path.trim()), home.models().join("bird"));
    let (code, _, err) = home.ran(&["verify", "bird"]);
    assert!(code == 0 && err.contains("whole"), "{err}");
    let list = home.json(&["list", "--json"]);
    assert_eq!(list["installed"][0]["revision"], "a".repeat(40));
    let question = ["chat", "-m", "bird", "-q", "--no-think", "--greedy", "Compute 72 + 37."];
    assert_eq!(home.ok(&question), "72 + 37 = 109.\n");
    home.ok(&["inspect", "bird"]);

    let sent = hub.sent();
    assert_eq!(home.json(&["pull", REPOSITORY, "--name", "bird", "--json"])["downloaded"], 0);
    assert_eq!(hub.sent(), sent, "it is there");
    hub.move_on("b");
    home.fails(2, &["pull", REPOSITORY, "--name", "bird"], "martlet rm bird");
    std::fs::write(home.models().join("bird/manifest.json"), "{}").unwrap();
    home.fails(3, &["chat", "-m", "bird", "hello"], "manifest");
    home.ok(&["pull", REPOSITORY, "--name", "bird", "--keep-source"]);
    assert!(home.models().join(".sources/bird/config.json").exists());
    home.ok(&["verify", "bird"]);
    home.ok(&["rm", "bird"]);
    assert_eq!(home.json(&["list", "--json"])["installed"], Value::Array(Vec::new()));
    assert!(!home.models().join(".sources/bird").exists());
    for command in ["rm", "verify", "path"] {
        home.fails(2, &[command, "bird"], "is not installed");
    }
    home.fails(2, &["pull", "nonsense"], "qwen3.5-4b");
    home.fails(1, &["pull", "nest/other"], "nest/other (revision main) is not at");
    home.fails(3, &["chat", "-m", "bird", "hello"], "martlet pull");
}

#[test]
fn a_folder_is_a_source_too() {
    let home = Home::new("http://127.0.0.1:1");
    let folder = home.at("\u{9ce5} \u{fc}");
    std::fs::create_dir(&folder).unwrap();
    for entry in std::fs::read_dir(fixtures::fledgling()).unwrap() {
        let path = entry.unwrap().path();
        std::os::unix::fs::symlink(path.canonicalize().unwrap(), folder.join(path.file_name().unwrap())).unwrap();
    }
    home.ok(&["pull", folder.to_str().unwrap(), "--name", "bird"]);
    home.ok(&["verify", "bird"]);
    home.fails(2, &["pull", folder.to_str().unwrap(), "--name", "bird"], "is installed already");
}

#[test]
fn without_a_name_the_machine_decides_and_says_so_first() {
    let (hub, home) = served(Manner::default());
    let (code, _, err) = home.ran(&["pull", "--memory", "8GiB"]);
    assert_eq!(code, 1, "this hub does not have it: {err}");
    assert!(err.starts_with("qwen3.5-4b fits this machine (8.00 GiB of memory): about 3.1 GB"), "{err}");
    assert_eq!(hub.sent(), 0);
    assert!(!home.at(".config/martlet/config.toml").exists());
}

fn started(home: &Home) -> Child {
    home.command(&["pull", REPOSITORY, "--name", "bird"]).stderr(Stdio::null()).spawn().unwrap()
}

#[test]
fn one_process_at_a_time() {
    let (hub, home) = served(Manner { rest: 20_000, ..Manner::default() });
    let mut first = started(&home);
    while hub.sent() == 0 {
        std::thread::sleep(Duration::from_millis(5));
    }
    home.fails(1, &["pull", REPOSITORY, "--name", "bird"], &format!("(process {}) is at work", first.id()));
    home.fails(1, &["rm", "bird"], "is at work on \"bird\"");
    first.kill().unwrap();
    first.wait().unwrap();
}

/// Each kill may lose what 8 connections have not written yet, and what they have on their way; and a head of 256 KiB.
const LOST: u64 = 8 * ((256 << 10) + (1344 << 10)) + (256 << 10);
/// The first bytes of the shards are asked for before all else.
const HEADS: u64 = 3 * (256 << 10);

#[test]
fn killed_anywhere_the_next_run_completes_without_fetching_twice() {
    let kills = if std::env::var_os("MARTLET_FULL").is_some() { 200 } else { 20 };
    // Kills of this hub's pulls, as far as they came after a first byte.
    let mut here = 0;
    let (mut rng, mut while_fetching, mut done) = (Rng(5), 0, 0);
    let (mut hub, mut home) = served(Manner { rest: 1500, ..Manner::default() });
    for _ in 0..kills {
        let mut child = started(&home);
        std::thread::sleep(Duration::from_millis(rng.below(400) as u64));
        child.kill().unwrap();
        child.wait().unwrap();
        let pack = home.models().join("bird");
        if pack.exists() {
            // It has its name: then it is whole. A new one begins.
            home.ok(&["verify", "bird"]);
            (done, here) = (done + 1, 0);
            (hub, home) = served(Manner { rest: 1500, ..Manner::default() });
        } else if hub.sent() > 0 {
            (while_fetching, here) = (while_fetching + 1, here + 1);
        }
    }
    let before = hub.sent();
    home.ok(&["pull", REPOSITORY, "--name", "bird"]);
    home.ok(&["verify", "bird"]);
    let names: Vec<_> = std::fs::read_dir(home.models()).unwrap().map(|e| e.unwrap().file_name()).collect();
    assert!(names.iter().all(|n| !n.to_string_lossy().contains("partial")), "leftovers are gone: {names:?}");
    eprintln!("{while_fetching} of {kills} kills came after the first byte and before the pack, {done} after it");
    assert!(while_fetching > 0);
    assert!(before <= hub.bytes() + HEADS + here * LOST, "{before} bytes sent, {here} kills");
}

#[test]
fn a_kill_loses_no_more_than_what_was_under_way() {
    let (hub, home) = served(Manner { rest: 4000, ..Manner::default() });
    let mut child = started(&home);
    while hub.sent() < 20_000_000 {
        std::thread::sleep(Duration::from_millis(2));
    }
    child.kill().unwrap();
    child.wait().unwrap();
    std::thread::sleep(Duration::from_millis(50));
    let done = home.json(&["pull", REPOSITORY, "--name", "bird", "--json"]);
    let fetched = done["downloaded"].as_u64().unwrap();
    // 8 connections, each with a buffer that was not full.
    assert!(fetched < hub.bytes() - 20_000_000 + LOST, "{fetched}");
    assert_eq!(home.ran(&["verify", "bird"]).0, 0);
}

/// Bytes that the files below a folder take of the disk, each once.
fn taken(dir: &Path, seen: &mut BTreeSet<u64>) -> u64 {
    let entries = std::fs::read_dir(dir).into_iter().flatten().flatten();
    let of = |entry: std::fs::DirEntry| match entry.metadata() {
        Ok(m) if m.is_dir() => taken(&entry.path(), seen),
        Ok(m) if m.is_file() && seen.insert(m.ino()) => m.blocks() * 512,
        _ => 0,
    };
    entries.map(of).sum()
}

#[test]
fn the_disk_holds_the_pack_and_what_is_under_way() {
    let (hub, home) = served(Manner { rest: 2000, ..Manner::default() });
    let (mut child, mut most) = (started(&home), 0);
    while child.try_wait().unwrap().is_none() {
        most = most.max(taken(&home.models(), &mut BTreeSet::new()));
        std::thread::sleep(Duration::from_millis(1));
    }
    let pack = taken(&home.models().join("bird"), &mut BTreeSet::new());
    let shard = std::fs::metadata(fixtures::fledgling().join(SHARDS[2])).unwrap().len();
    println!("{most} bytes at most, {pack} of the pack, {} served", hub.bytes());
    assert!(pack > 40_000_000 && most <= pack + 2 * shard + (4 << 20), "{most} bytes, {pack} of the pack");
    // It did not see less than there was: the last shard was there with all but its own tensors.
    assert!(most > pack, "{most} bytes, {pack} of the pack");
    home.ok(&["verify", "bird"]);
}

const SHARDS: [&str; 3] =
    ["model-00001-of-00003.safetensors", "model-00002-of-00003.safetensors", "model-00003-of-00003.safetensors"];

#[test]
fn what_is_in_the_pack_is_not_fetched_again() {
    let (hub, home) = served(Manner { rest: 1000, ..Manner::default() });
    let mut child = started(&home);
    let heads = home.models().join(".sources/bird/.heads");
    while std::fs::read_dir(&heads).map_or(0, Iterator::count) < 3 {
        std::thread::sleep(Duration::from_millis(1));
    }
    child.kill().unwrap();
    child.wait().unwrap();
    // The last shard does not come as the hub lists it.
    (0..3).for_each(|_| hub.fault(SHARDS[2], Fault::Flip));
    let pull = ["pull", REPOSITORY, "--name", "bird", "--json"];
    home.fails(1, &pull, "has arrived damaged 3 times");
    assert!(!home.models().join("bird").exists(), "a wrong hash leaves nothing that looks whole");
    let source = home.models().join(".sources/bird");
    assert!(!source.join(SHARDS[0]).exists(), "and what is packed makes room");
    home.fails(2, &["verify", "bird"], "is not installed");
    let shard = std::fs::metadata(fixtures::fledgling().join(SHARDS[2])).unwrap().len();
    let sent = hub.sent();
    let done = home.json(&pull);
    assert!(done["downloaded"].as_u64().unwrap() < 2 * shard + (1 << 20), "{done}");
    assert!(hub.sent() - sent < 2 * shard + (1 << 20), "{}", hub.sent() - sent);
    home.ok(&["verify", "bird"]);
    assert!(!source.exists());
}

#[test]
fn the_pack_is_the_one_that_is_made_of_the_files() {
    let (_hub, home) = served(Manner::default());
    home.ok(&["pull", REPOSITORY, "--name", "bird", "--keep-source"]);
    let source = home.models().join(".sources/bird");
    let hidden = |name: &str| source.join(name).exists();
    assert!(hidden(SHARDS[0]) && !hidden(".pack") && !hidden(".view") && !hidden(".heads") && !hidden(".pack.journal"));
    home.ok(&["pack", source.to_str().unwrap(), home.at("again").to_str().unwrap()]);
    for name in ["weights.bin", "experts.bin", "config.json", "tokenizer.json"] {
        let read = |dir: PathBuf| std::fs::read(dir.join(name)).unwrap();
        assert!(read(home.models().join("bird")) == read(home.at("again")), "{name}");
    }
    // Another name has it from there or from the hub, all the same.
    home.ok(&["rm", "bird"]);
    assert!(!source.exists());
}
