//! `martlet simulate`, by the real binary. What this machine lets nobody hold is looked at as far as it goes, and said.
#![cfg(unix)]

use serde_json::Value;
use std::path::Path;
use std::process::{Command, Output, Stdio};

const MARTLET: &str = env!("CARGO_BIN_EXE_martlet");

/// Exit code, standard output, standard error.
fn ran(args: &[&str]) -> (i32, String, String) {
    let mut command = Command::new(MARTLET);
    std::env::vars().map(|(name, _)| name).filter(|name| name.starts_with("MARTLET_")).for_each(|name| {
        command.env_remove(name);
    });
    let nobody = Path::new(env!("CARGO_TARGET_TMPDIR")).join("nobody");
    command.env("HOME", &nobody).env("XDG_CONFIG_HOME", nobody.join("config"));
    let Output { status, stdout, stderr } = command.args(args).stdin(Stdio::null()).output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (status.code().unwrap(), text(stdout), text(stderr))
}

/// Whether a limit of this kind ("memory", "disk") is held, by what was said.
fn held(said: &str, kind: &str) -> bool {
    let line = said.lines().find(|l| l.starts_with(kind)).unwrap_or_else(|| panic!("no line for {kind}: {said}"));
    let held = line.contains("held by Linux");
    assert!(held != line.contains("NOT held"), "{line}");
    if !held {
        eprintln!("not tested, since nobody may hold it here: {line}");
    }
    held
}

#[test]
fn the_command_is_told_what_the_system_does_not_hold() {
    let show = "echo \"$MARTLET_MEMORY $MARTLET_DISK_LIMIT\"; exit 7";
    let (code, out, said) = ran(&["simulate", "--memory", "64MiB", "--disk", "50MB/s", "--", "sh", "-c", show]);
    assert_eq!(code, 7, "{said}");
    let memory = if held(&said, "memory") { "" } else { "58720256B" };
    let disk = if held(&said, "disk") { "" } else { "50000000B/s" };
    assert_eq!(out, format!("{memory} {disk}\n"));
    let (code, _, said) = ran(&["simulate", "--memory", "64MiB", "--", "sh", "-c", "kill -TERM $$"]);
    assert_eq!(code, 128 + 15, "{said}");
}

#[test]
fn what_can_not_be_simulated_is_refused() {
    for (args, code, word) in [
        (&["simulate", "--", "true"][..], 2, "--memory 8GiB, --disk 1.5GB/s"),
        (&["simulate", "--memory", "1GiB"][..], 2, "COMMAND"),
        (&["simulate", "--disk", "0", "--", "true"][..], 2, "above 0"),
        (
            &["simulate", "--memory", "1GiB", "--", "no-such-program-here"][..],
            1,
            "no-such-program-here can not be started",
        ),
    ] {
        let (found, out, said) = ran(args);
        assert!((found, out.as_str()) == (code, "") && said.contains(word), "{args:?}: {found} {said}");
    }
}

#[test]
fn martlet_sees_the_smaller_machine() {
    let (code, out, said) = ran(&["simulate", "--memory", "512MiB", "--", "martlet", "plan", "--json"]);
    assert_eq!(code, 0, "{said}");
    let plan: Value = serde_json::from_str(&out).unwrap();
    let (memory, free) = (plan["memory"].as_u64().unwrap(), plan["free"].as_u64().unwrap());
    assert!(memory <= 512 << 20, "{plan}");
    if held(&said, "memory") {
        assert!(free <= 512 << 20, "{plan}");
    }
}

#[test]
fn who_takes_more_memory_is_ended() {
    let greedy = "head -c 400000000 /dev/zero | tail -c 400000000 | wc -c";
    let (_, out, said) = ran(&["simulate", "--memory", "1GiB", "--", "sh", "-c", greedy]);
    assert_eq!(out.trim(), "400000000", "{said}");
    if held(&said, "memory") {
        let (code, out, said) = ran(&["simulate", "--memory", "100MiB", "--", "sh", "-c", &format!("exec {greedy}")]);
        assert_ne!(out.trim(), "400000000", "{code} {said}");
        assert!(said.contains("the limit of memory was reached"), "{said}");
        assert!(said.contains("memory at its peak") && said.contains("100.00 MiB"), "{said}");
    }
}

/// Experts come later from a slower disk, and are the same.
#[test]
fn a_slower_disk_changes_no_text() {
    let dir = tempfile::tempdir().unwrap();
    let pack = dir.path().join("pack");
    let pack = pack.to_str().unwrap();
    let model = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/fledgling");
    let (code, _, said) = ran(&["pack", model.to_str().unwrap(), pack]);
    assert_eq!(code, 0, "{said}");
    let ask = ["generate", "-q", "-m", pack, "--experts", "stream", "--greedy", "-n", "12", "Once upon a time"];
    let (code, fast, said) = ran(&ask);
    assert_eq!(code, 0, "{said}");
    let plan = ["plan", pack, "--experts", "stream", "--speed", "--json"];
    let limited = ["simulate", "--memory", "1GiB", "--", "env", "MARTLET_DISK_LIMIT=1MB/s", MARTLET];
    let (code, out, said) = ran(&[&limited[..], &plan].concat());
    assert_eq!(code, 0, "{said}");
    let speed = serde_json::from_str::<Value>(&out).unwrap()["speed"].take();
    let number =
        |path: &str| speed.pointer(path).and_then(Value::as_f64).unwrap_or_else(|| panic!("{path} in {speed}"));
    assert!(number("/streaming/disk") <= 1e6 && number("/memory") > 1e6, "{speed}");
    let (even, favourites) = (number("/tokens_per_second/0"), number("/tokens_per_second/1"));
    assert!(even > 0.0 && favourites >= even, "{speed}");
    let slow = [&["simulate", "--disk", "20MB/s", "--", "martlet"][..], &ask].concat();
    let (code, slow, said) = ran(&slow);
    assert_eq!((code, &slow), (0, &fast), "{said}");
    let limited =
        [&["simulate", "--disk", "900MB/s", "--", "env", "MARTLET_DISK_LIMIT=20MB/s", MARTLET][..], &ask].concat();
    let (code, limited, said) = ran(&limited);
    assert_eq!((code, &limited), (0, &fast), "{said}");
}
