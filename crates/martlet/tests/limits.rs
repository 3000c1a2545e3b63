//! Values at the edges of what can be asked for, and an environment that is not as one hopes.

use std::ffi::OsStr;
use std::path::Path;
use std::process::{Command, Output, Stdio};

fn martlet(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_martlet"));
    for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("MARTLET_")) {
        command.env_remove(name);
    }
    let nowhere = Path::new(env!("CARGO_TARGET_TMPDIR")).join("nobody");
    command.env("HOME", &nowhere).env("XDG_CONFIG_HOME", nowhere.join("config"));
    command.args(args).stdin(Stdio::null());
    command
}

/// Exit code, standard output, standard error.
fn ends(mut command: Command) -> (i32, String, String) {
    let Output { status, stdout, stderr } = command.output().unwrap();
    (status.code().unwrap(), String::from_utf8(stdout).unwrap(), String::from_utf8(stderr).unwrap())
}

fn generate(flag: &str, value: &str) -> (i32, String, String) {
    ends(martlet(&["generate", "-q", "--ids", "50,51", "--greedy", "-n", "2", flag, value]))
}

#[test]
fn the_largest_numbers_are_used_or_refused_in_words() {
    let largest = usize::MAX.to_string();
    let (_, usual, _) = generate("--seed", "0");
    for (flag, value) in [("--prefill-chunk", largest.as_str()), ("--prefill-chunk", "1000000000"), ("--threads", "9")]
    {
        let (code, out, err) = generate(flag, value);
        assert_eq!((code, out.as_str()), (0, usual.as_str()), "{flag} {value}: {err}");
    }
    for (flag, value, code, word) in [
        ("--threads", largest.as_str(), 3, "1024"),
        ("--threads", "100000", 3, "1024"),
        ("--context", largest.as_str(), 3, "the longest that fits"),
        ("--context", "9007199254740993k", 3, "the longest that fits"),
        ("--max-tokens", "9223372036854775807", 4, "9223372036854775809"),
    ] {
        let (found, out, err) = generate(flag, value);
        assert_eq!((found, out.as_str()), (code, ""), "{flag} {value}: {err}");
        assert!(err.starts_with("error: ") && err.contains(word), "{flag} {value}: {err}");
    }
}

#[test]
fn a_flag_goes_before_the_variables_of_a_chat_file() {
    let file = Path::new(env!("CARGO_TARGET_TMPDIR")).join("thinking.json");
    let chat =
        r#"{"messages": [{"role": "user", "content": "hi"}], "chat_template_kwargs": {"enable_thinking": false}}"#;
    std::fs::write(&file, chat).unwrap();
    let file = file.to_str().unwrap();
    let (_, without, _) = ends(martlet(&["template", file]));
    let (_, with, _) = ends(martlet(&["template", file, "--think"]));
    assert!(without.ends_with("</think>\n\n") && with.ends_with("<think>\n"), "{without} {with}");
}

#[test]
fn a_source_that_can_not_be_opened_has_the_code_of_a_model() {
    let (code, _, err) = ends(martlet(&["quantize", "nowhere", "copy"]));
    assert!(code == 3 && err.contains("nowhere"), "{code} {err}");
}

#[cfg(unix)]
#[test]
fn a_variable_that_is_not_utf8_is_not_passed_over() {
    use std::os::unix::ffi::OsStrExt;
    let mut command = martlet(&["generate", "--ids", "1"]);
    command.env("MARTLET_MODEL", OsStr::from_bytes(b"/mod\xffel"));
    let (code, out, err) = ends(command);
    assert_eq!((code, out.as_str()), (3, ""), "{err}");
    assert!(err.contains("/mod\u{fffd}el"), "{err}");
}

#[cfg(unix)]
#[test]
fn the_answer_does_not_need_a_reader_of_standard_error() {
    let mut command = martlet(&["chat", "--greedy", "--no-think", "hello"]);
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    command.stdout(Stdio::piped()).stderr(writer);
    let output = command.spawn().unwrap().wait_with_output().unwrap();
    assert!(output.status.success());
    assert_eq!(String::from_utf8(output.stdout).unwrap(), "Hello! How can I help you today?\n");
}

#[test]
fn an_answer_without_any_possible_token_is_an_error() {
    let model = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/dense");
    let bans: Vec<String> = (0..384).map(|id| format!("--logit-bias={id}=-inf")).collect();
    let generate = |bans: &[String]| {
        let mut command = martlet(&["generate", "--ids", "1,2,3", "-n", "2", "--ignore-eos", "--json", "-m"]);
        command.arg(&model).args(bans);
        ends(command)
    };
    let (code, out, err) = generate(&bans[1..]);
    assert!(code == 0 && out.contains("\"token_ids\":[0,0]"), "{code} {out} {err}");
    let (code, out, err) = generate(&bans);
    assert_eq!((code, out.as_str()), (1, ""), "{err}");
    assert!(err.contains("no token is possible at position 3"), "{err}");
}
