//! `martlet bench`, `benchtest` and `synthetic`, as a person or a script runs them.

use serde_json::{Value, json};
use std::path::Path;
use std::process::{Command, Output};

fn martlet(args: &[&str]) -> Output {
    command(args).output().unwrap()
}

fn command(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_martlet"));
    let settings: Vec<_> = std::env::vars().map(|(name, _)| name).filter(|name| name.starts_with("MARTLET_")).collect();
    for name in settings {
        command.env_remove(name);
    }
    let nowhere = Path::new(env!("CARGO_TARGET_TMPDIR")).join("nobody");
    command.env("HOME", &nowhere).env("XDG_CONFIG_HOME", nowhere.join("config")).env("XDG_CACHE_HOME", nowhere);
    command.args(args);
    command
}

fn ok(args: &[&str]) -> String {
    let output = martlet(args);
    assert!(output.status.success(), "{args:?}: {output:?}");
    String::from_utf8(output.stdout).unwrap()
}

fn fails(args: &[&str], code: i32, words: &[&str]) {
    let output = martlet(args);
    let err = String::from_utf8(output.stderr).unwrap();
    assert_eq!((output.status.code(), output.stdout.len()), (Some(code), 0), "{args:?}: {err}");
    words.iter().for_each(|word| assert!(err.contains(word), "{word:?} is not in {err}"));
}

fn number(value: &Value, path: &str) -> f64 {
    value.pointer(path).and_then(Value::as_f64).unwrap_or_else(|| panic!("{path} in {value:#}"))
}

const SHORT: [&str; 12] = [
    "bench",
    "--prefill",
    "64,100",
    "--decode",
    "0,32",
    "--batch",
    "1,2",
    "--turn",
    "100,64297",
    "-n",
    "8",
    "--repeat",
];

#[test]
fn the_json_is_complete_and_its_figures_agree() {
    let other = Path::new(env!("CARGO_TARGET_TMPDIR")).join("other-engine.json");
    let tests = json!([
        {"n_prompt": 64, "n_gen": 0, "n_depth": 0, "n_threads": 2, "avg_ts": 1e9, "samples_ts": [2.0, 1.0, 4.0]},
        {"n_prompt": 0, "n_gen": 8, "n_depth": 32, "n_threads": 2, "avg_ts": 0.5},
        {"n_prompt": 65, "n_gen": 0, "n_depth": 0, "n_threads": 2, "avg_ts": 0.5},
    ]);
    std::fs::write(&other, tests.to_string()).unwrap();
    let mut args = SHORT.to_vec();
    args.extend(["2", "--context", "1024", "--threads", "1", "--json", "--vs", other.to_str().unwrap()]);
    let report: Value = serde_json::from_str(&ok(&args)).unwrap();
    let inspected: Value = serde_json::from_str(&ok(&["inspect", "--json"])).unwrap();

    assert_eq!((&report["model"], &report["threads"], &report["kv"]), (&"fledgling".into(), &1.into(), &"f16".into()));
    assert_eq!(report["weight_bytes_per_token"], inspected["weights"]["bytes_per_token"]);
    assert_eq!(report["interrupted"], false);
    for path in ["/machine/cores", "/machine/memory", "/read_bandwidth", "/peak_memory", "/kv_bytes_per_token"] {
        assert!(number(&report, path) > 0.0, "{path}");
    }
    for (list, count) in [("prefill", 2), ("decode", 2), ("batches", 2), ("turns", 1), ("versus", 1)] {
        assert_eq!(report[list].as_array().map(Vec::len), Some(count), "{list} of {report:#}");
    }
    assert_eq!(report["skipped"], json!(["a turn after 64297 tokens: the context holds 1024"]));

    let decode = &report["decode"][1];
    assert_eq!((&decode["context"], &decode["seconds"]["runs"]), (&32.into(), &2.into()));
    let bytes = number(&report, "/weight_bytes_per_token") + 36.0 * number(&report, "/kv_bytes_per_token");
    assert_eq!(number(decode, "/bytes_per_token"), bytes);
    let share = bytes / number(decode, "/seconds/median") / number(&report, "/read_bandwidth");
    assert!((number(decode, "/share_of_bandwidth") / share - 1.0).abs() < 1e-9);
    assert!(number(decode, "/seconds/min") <= number(decode, "/seconds/median"));

    let turn = &report["turns"][0];
    assert_eq!((&turn["prefix"], &turn["cached"], &turn["new"]), (&100.into(), &100.into(), &288.into()));
    for (name, operation) in [("prefill", "recurrence"), ("decode", "output head")] {
        let spent = &report["operations"][name];
        let kinds = spent["kinds"].as_array().unwrap();
        assert!(kinds.iter().any(|k| k["operation"] == operation), "{spent:#}");
        let sum: f64 = kinds.iter().map(|k| number(k, "/seconds")).sum();
        assert!((sum / number(spent, "/seconds") - 1.0).abs() < 1e-9, "{spent:#}");
    }
    let versus = &report["versus"][0];
    assert_eq!((&versus["name"], &versus["not_compared"]), (&"other-engine".into(), &json!(["pp65"])));
    assert_eq!((&versus["rows"][0]["test"], &versus["rows"][0]["theirs"]), (&"pp64".into(), &json!(2.0)));
    assert_eq!(versus["rows"][1]["test"], "tg8 @ d32");
    let ratio = number(&report, "/prefill/0/tokens_per_second") / 2.0;
    assert!((number(versus, "/rows/0/ratio") / ratio - 1.0).abs() < 1e-9);
}

#[test]
fn random_weights_give_the_same_tokens_from_memory_and_from_files() {
    let dir = tempfile::tempdir().unwrap();
    let made = dir.path().join("tiny");
    let made = made.to_str().unwrap();
    ok(&["synthetic", "TINY", made, "--bits", "2", "--weight-seed", "5"]);
    let inspected: Value = serde_json::from_str(&ok(&["inspect", made, "--json"])).unwrap();
    let print = |source: &[&str]| {
        let short = ["bench", "--prefill", "none", "--batch", "none", "--turn", "none", "--decode", "16", "-n", "4"];
        let args = [&short[..], &["--repeat", "1", "--json"], source].concat();
        let report: Value = serde_json::from_str(&ok(&args)).unwrap();
        assert_eq!(report["weight_bytes_per_token"], inspected["weights"]["bytes_per_token"]);
        report["decode"][0]["fingerprint"].as_str().unwrap().to_string()
    };
    let file = print(&["-m", made]);
    assert_eq!(file, print(&["--synthetic", "tiny", "--bits", "2", "--weight-seed", "5"]));
    assert_ne!(file, print(&["--synthetic", "tiny", "--bits", "2", "--weight-seed", "6"]));
    fails(&["synthetic", "tiny", made], 1, &["is there and not empty"]);
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1, "nothing half made is left");
    let packed = dir.path().join("packed");
    ok(&["synthetic", "tiny", packed.to_str().unwrap(), "--pack", "--bits", "2", "--weight-seed", "5"]);
    ok(&["pack", "--verify", packed.to_str().unwrap()]);
    let again = dir.path().join("again");
    ok(&["pack", made, again.to_str().unwrap()]);
    let weights = |of: &std::path::Path| std::fs::read(of.join("weights.bin")).unwrap();
    assert!(weights(&packed) == weights(&again), "with and without files between");
    fails(&["trace-experts", "-m", packed.to_str().unwrap()], 3, &["has no experts"]);
}

#[test]
fn what_can_not_be_measured_is_refused_before_any_work() {
    fails(&["bench", "--synthetic", "397b-a17b", "--memory", "8GiB"], 3, &["of weights", "8192.0 MiB may be used"]);
    fails(&["bench", "--synthetic", "7b"], 2, &["7b", "35b-a3b"]);
    fails(&["bench", "--synthetic", "tiny", "--bits", "7"], 2, &["no 7 bits"]);
    fails(&["bench", "--prefill", "many"], 2, &["\"many\" is no number"]);
    fails(&["synthetic", "tiny", "x", "--mode", "bf16", "--skewed"], 1, &["routers with scales"]);
    fails(&["bench", "--bits", "4"], 2, &["add --synthetic SHAPE"]);
    fails(&["bench", "--batch", "0"], 2, &["--batch holds 0"]);
    fails(&["bench", "--vs", "nowhere.json"], 2, &["--vs nowhere.json"]);
    fails(&["synthetic", "tiny", "x", "--mode", "bf16", "--bits", "4"], 2, &["no choice of bits"]);
}

/// A stop while the model loads ends it at once: then it is tried again, later.
#[cfg(unix)]
#[test]
fn ctrl_c_ends_the_measuring_and_shows_what_there_is() {
    use nix::sys::signal::{Signal, kill};
    use std::process::Stdio;
    let report = [2, 4, 8, 16, 32].into_iter().find_map(|seconds| {
        let mut command = command(&["bench", "--prefill", "64", "--decode", "0", "--batch", "none", "--turn", "none"]);
        let child = command.args(["--repeat", "60000", "--json"]).stdout(Stdio::piped()).spawn().unwrap();
        std::thread::sleep(std::time::Duration::from_secs(seconds));
        kill(nix::unistd::Pid::from_raw(child.id() as i32), Signal::SIGINT).unwrap();
        let output = child.wait_with_output().unwrap();
        assert_eq!(output.status.code(), Some(130));
        (!output.stdout.is_empty()).then(|| serde_json::from_slice::<Value>(&output.stdout).unwrap())
    });
    let report = report.expect("it was measuring in the end");
    assert_eq!(report["interrupted"], true);
    assert!(report["prefill"].is_array() && report["operations"]["decode"].is_null(), "{report:#}");
}

#[test]
fn reports_become_one_table() {
    let output = martlet(&["benchtest", "--no-disk", "--threads", "1"]);
    assert!(output.status.success(), "{output:?}");
    let (report, notes) = (String::from_utf8(output.stdout).unwrap(), String::from_utf8(output.stderr).unwrap());
    for row in ["| model | fledgling |", "| device | cpu, 1 threads |", "| disk read | not measured |"] {
        assert!(report.contains(row), "{row}\n{report}");
    }
    assert!(notes.contains("Nothing was sent"), "{notes}");
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("report.md");
    std::fs::write(&file, format!("some words\n\n{report}\nand {}", report.replace("| fledgling |", "| other |")))
        .unwrap();
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tools/benchtests.py");
    let table = match Command::new("python3").arg(script).arg(&file).output() {
        Ok(output) => output,
        Err(e) => return eprintln!("NOT RUN: tools/benchtests.py, there is no python3: {e}"),
    };
    assert!(table.status.success(), "{table:?}");
    let table = String::from_utf8(table.stdout).unwrap();
    let rows: Vec<&str> = table.lines().collect();
    assert_eq!(rows.len(), 4, "names, a line, two reports: {table}");
    assert!(rows[2].contains("| fledgling |") && rows[3].contains("| other |"), "{table}");
    assert!(rows[0].starts_with("| processor | cores |") && rows[2].contains("tokens/s"), "{table}");
}
