//! A server in the background, asked by `martlet stats` and kept by `martlet service`.

use serde_json::Value;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};

fn martlet(home: &Path, args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_martlet"));
    for (name, _) in std::env::vars_os() {
        let text = name.to_string_lossy();
        if text.starts_with("MARTLET_") || text.starts_with("XDG_") {
            command.env_remove(name);
        }
    }
    command.env("HOME", home).args(args).stdin(Stdio::null());
    command
}

/// Exit code, standard output, standard error.
fn ends(command: &mut Command) -> (i32, String, String) {
    let output = command.output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (output.status.code().unwrap(), text(output.stdout), text(output.stderr))
}

/// A server on a port of its own; it ends with the test.
struct Served(Child, String);

impl Served {
    fn new(home: &Path, args: &[&str]) -> Served {
        let mut command = martlet(home, &["serve", "--quiet", "--port", "0"]);
        let mut child = command.args(args).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        Served(child, line.trim().to_string())
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

/// An address that says `answer` to whoever comes.
fn says(answer: &'static str) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let mut head = [0; 1000];
        let _ = stream.read(&mut head).unwrap();
        stream.write_all(answer.as_bytes()).unwrap();
    });
    url
}

#[test]
fn a_running_server_tells_what_it_does() {
    let home = tempfile::tempdir().unwrap();
    let log = home.path().join("log");
    let served =
        Served::new(home.path(), &["--alias", "other", "--sequences", "3", "--log-file", log.to_str().unwrap()]);
    let url = served.1.as_str();
    let (code, out, err) = ends(&mut martlet(home.path(), &["stats", "--url", url, "--json"]));
    assert_eq!((code, err.as_str()), (0, ""), "{out}");
    let stats: Value = serde_json::from_str(&out).unwrap();
    assert_eq!((&stats["model"], &stats["aliases"][0]), (&"fledgling".into(), &"other".into()));
    assert_eq!((&stats["sequences"], &stats["requests"]["turns"]), (&3.into(), &0.into()));

    let (code, text, _) = ends(&mut martlet(home.path(), &["stats", "--url", url]));
    assert!(code == 0 && text.starts_with(&format!("server        {url}, martlet ")), "{text}");
    assert!(text.contains("\nmodel         fledgling (qwen3_5_moe) on ") && text.contains(", also other\n"), "{text}");
    assert!(text.contains("\nfinished      none\n"), "{text}");

    // The same settings find it without its URL.
    let port = url.rsplit(':').next().unwrap();
    let (code, text, _) = ends(martlet(home.path(), &["stats"]).env("MARTLET_PORT", port));
    assert!(code == 0 && text.contains(url), "{text}");
    let log = std::fs::read_to_string(log).unwrap();
    assert_eq!(log.matches(" method=GET path=/stats status=200 ").count(), 3, "{log}");
}

/// Asks a server's model; gives status and body.
fn ask(served: &Served, model: &str) -> (u16, Value) {
    let body = format!(
        r#"{{"model": "{model}", "temperature": 0, "messages": [{{"role": "user", "content": "Compute 72 + 37."}}],
            "chat_template_kwargs": {{"enable_thinking": false}}}}"#
    );
    let mut stream = TcpStream::connect(served.1.trim_start_matches("http://")).unwrap();
    let head =
        "POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\nconnection: close";
    write!(stream, "{head}\r\ncontent-length: {}\r\n\r\n{body}", body.len()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    (head.split(' ').nth(1).unwrap().parse().unwrap(), serde_json::from_str(body).unwrap())
}

#[test]
fn installed_models_are_had_by_name_unless_that_is_off() {
    let home = tempfile::tempdir().unwrap();
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/fledgling");
    let (code, _, err) = ends(&mut martlet(home.path(), &["pull", source.to_str().unwrap(), "--name", "bird"]));
    assert_eq!(code, 0, "{err}");

    let served = Served::new(home.path(), &["--models", "one"]);
    let (status, answer) = ask(&served, "bird");
    let message = answer["error"]["message"].as_str().unwrap();
    assert!(status == 404 && message.contains("this server has \"fledgling\""), "{message}");
    drop(served);

    let served = Served::new(home.path(), &[]);
    for model in ["bird", "fledgling", "bird"] {
        let (status, answer) = ask(&served, model);
        assert_eq!((status, answer["model"].as_str()), (200, Some(model)), "{answer}");
        assert_eq!(answer["choices"][0]["message"]["content"], "72 + 37 = 109.");
    }
    let (status, answer) = ask(&served, "robin");
    let message = answer["error"]["message"].as_str().unwrap();
    assert!(status == 404 && message.contains("\"fledgling\", \"bird\""), "{message}");
    assert_eq!(ends(&mut martlet(home.path(), &["rm", "bird"])).0, 0);
    assert_eq!(ask(&served, "bird").0, 404);
    assert_eq!(ask(&served, "fledgling").0, 200);
    let (_, text, _) = ends(&mut martlet(home.path(), &["stats", "--url", &served.1]));
    assert!(text.contains("\nswitching     4 loaded, 0 could not be; 0 requests wait\n"), "{text}");
}

#[test]
fn a_server_with_keys_wants_one() {
    let home = tempfile::tempdir().unwrap();
    let served = Served::new(home.path(), &["--api-key", "one,two"]);
    let stats = |more: &[&str]| martlet(home.path(), &[&["stats", "--url", &served.1], more].concat());
    let (code, out, err) = ends(&mut stats(&[]));
    assert_eq!((code, out.as_str()), (4, ""), "{err}");
    assert!(err.contains("refuses to tell: 401, an API key is needed") && err.contains("MARTLET_API_KEY"), "{err}");
    assert_eq!(ends(&mut stats(&["--api-key", "three"])).0, 4);
    assert_eq!(ends(&mut stats(&["--api-key", "two"])).0, 0);
    assert_eq!(ends(stats(&[]).env("MARTLET_API_KEY", "one")).0, 0);
}

#[test]
fn what_is_no_martlet_is_said() {
    let home = tempfile::tempdir().unwrap();
    let fails = |args: &[&str], code: i32, word: &str| {
        let (found, out, err) = ends(&mut martlet(home.path(), &[&["stats"], args].concat()));
        assert_eq!((found, out.as_str()), (code, ""), "{err}");
        assert!(err.starts_with("error: ") && err.contains(word), "{err}");
    };
    let page = says("HTTP/1.1 200 OK\r\ncontent-length: 6\r\n\r\n<html>");
    fails(&["--url", &page], 1, "is no martlet");
    let other = says("HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n");
    fails(&["--url", &other], 1, "is no martlet, or can not tell now: 404");
    fails(&["--url", &says("220 mail ready\r\n")], 1, "does not answer in HTTP");
    fails(&["--port", "1"], 1, "nothing answers at http://127.0.0.1:1: ");
    fails(&["--url", "https://box.lan"], 2, "only http://");
    fails(&["--port", "0"], 2, "--url");
    assert_eq!(ends(&mut martlet(home.path(), &["stats", "--url", "x", "--port", "1"])).0, 2);
}

#[cfg(target_os = "linux")]
mod service {
    use super::*;
    use std::fs;
    use std::os::unix::fs::PermissionsExt;
    use std::path::PathBuf;
    use tempfile::TempDir;

    /// Programs that do as systemd's would, and write down how they were called: `show` prints a file, and while the
    /// file "broken" is there nothing works.
    const SYSTEMCTL: &str = r#"#!/bin/sh
here=$(dirname "$0")
echo "$(basename "$0") $*" >> "$here/calls"
[ ! -e "$here/broken" ] || { echo "Failed to connect to bus" >&2; exit 1; }
[ "$2" != show ] || cat "$here/state"
"#;

    /// A home, and such programs before all others.
    struct Home {
        dir: TempDir,
    }

    impl Home {
        fn new() -> Home {
            let dir = tempfile::tempdir().unwrap();
            fs::create_dir(dir.path().join("bin")).unwrap();
            for name in ["systemctl", "journalctl"] {
                let path = dir.path().join("bin").join(name);
                fs::write(&path, SYSTEMCTL).unwrap();
                fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
            }
            Home { dir }
        }

        fn at(&self, path: &str) -> PathBuf {
            self.dir.path().join(path)
        }

        fn run(&self, args: &[&str]) -> (i32, String, String) {
            self.run_with(args, &[])
        }

        fn run_with(&self, args: &[&str], env: &[(&str, &str)]) -> (i32, String, String) {
            let path = format!("{}:{}", self.at("bin").display(), std::env::var("PATH").unwrap());
            let mut command = martlet(self.dir.path(), &[&["service"], args].concat());
            ends(command.current_dir(self.dir.path()).env("PATH", path).envs(env.iter().copied()))
        }

        fn unit(&self) -> PathBuf {
            self.at(".config/systemd/user/martlet.service")
        }

        fn keys(&self) -> PathBuf {
            self.at(".config/martlet/service.env")
        }

        /// The calls since the last time.
        fn calls(&self) -> Vec<String> {
            let calls = fs::read_to_string(self.at("bin/calls")).unwrap_or_default();
            let _ = fs::remove_file(self.at("bin/calls"));
            calls.lines().map(str::to_string).collect()
        }
    }

    #[test]
    fn it_is_installed_again_and_removed() {
        let home = Home::new();
        fs::create_dir(home.at("my model")).unwrap();
        let install = ["install", "-m", "my model", "--port", "9000", "--sequences", "2"];
        let (code, out, err) = home.run_with(&install, &[("MARTLET_API_KEY", "s\"ecret"), ("MARTLET_THREADS", "2")]);
        assert_eq!((code, err.as_str()), (0, ""), "{out}");
        assert!(out.starts_with(&format!("{}: written\n", home.unit().display())), "{out}");
        assert_eq!(home.calls(), ["systemctl --user daemon-reload", "systemctl --user enable --now martlet.service"]);
        let unit = fs::read_to_string(home.unit()).unwrap();
        let command = format!(
            "\nExecStart={} serve \"--model={}\" --port=9000 --sequences=2\n",
            env!("CARGO_BIN_EXE_martlet"),
            home.at("my model").display()
        );
        assert!(unit.contains(&command), "{unit}");
        assert!(unit.contains("\nEnvironment=MARTLET_THREADS=2\n"), "{unit}");
        assert!(unit.contains(&format!("\nEnvironmentFile={}\n", home.keys().display())), "{unit}");
        assert!(!unit.contains("ecret"), "{unit}");
        let keys = fs::read_to_string(home.keys()).unwrap();
        assert!(keys.ends_with("\nMARTLET_API_KEY=\"s\\\"ecret\"\n"), "{keys}");
        assert_eq!(fs::metadata(home.keys()).unwrap().permissions().mode() & 0o777, 0o600);

        let (code, out, _) = home.run(&["install"]);
        assert!(code == 0 && out.contains(": written over\n"), "{out}");
        let again = ["daemon-reload", "enable martlet.service", "restart martlet.service"];
        assert_eq!(home.calls(), again.map(|step| format!("systemctl --user {step}")));
        assert!(!home.keys().exists(), "keys that nobody named are not kept");
        assert!(!fs::read_to_string(home.unit()).unwrap().contains("EnvironmentFile"));

        let (code, out, _) = home.run(&["remove"]);
        assert!(code == 0 && out.ends_with(": deleted\n"), "{out}");
        assert_eq!(home.calls(), ["systemctl --user disable --now martlet.service", "systemctl --user daemon-reload"]);
        assert!(!home.unit().exists());
        let (code, _, err) = home.run(&["remove"]);
        assert!(code == 6 && err.contains("not installed"), "{err}");
    }

    #[test]
    fn what_is_not_wanted_is_not_written() {
        let home = Home::new();
        let (code, out, _) = home.run(&["install", "--dry-run", "--port", "9000", "--api-key", "secret"]);
        assert!(code == 0 && out.contains(" serve --port=9000\n") && !out.contains("secret"), "{out}");
        for (args, word) in [
            (["install", "--host", "0.0.0.0"], "--no-auth"),
            (["install", "-m", "nowhere"], "there is no such thing"),
            (["install", "--port", "none"], "port"),
            (["install", "--alias", "a\nb"], "line breaks"),
        ] {
            let (code, out, err) = home.run(&args);
            assert_eq!((code, out.as_str()), (2, ""), "{err}");
            assert!(err.contains(word), "{err}");
        }
        assert!(home.calls().is_empty() && !home.at(".config").exists());

        fs::create_dir_all(home.unit().parent().unwrap()).unwrap();
        fs::write(home.unit(), "[Service]\nExecStart=/bin/mine\n").unwrap();
        for command in ["install", "remove"] {
            let (code, _, err) = home.run(&[command]);
            assert!(code == 2 && err.contains("is not by martlet"), "{err}");
        }
        assert!(fs::read_to_string(home.unit()).unwrap().contains("/bin/mine") && home.calls().is_empty());
        let (code, out, _) = home.run(&["install", "--force"]);
        assert!(code == 0 && out.contains("written over"), "{out}");
        fs::create_dir_all(home.keys().parent().unwrap()).unwrap();
        fs::write(home.keys(), "MINE=1\n").unwrap();
        let (code, _, err) = home.run(&["remove"]);
        assert!(code == 2 && err.contains("service.env is not by martlet") && home.unit().exists(), "{err}");
    }

    #[test]
    fn without_a_manager_it_says_what_to_do() {
        let home = Home::new();
        fs::write(home.at("bin/broken"), "").unwrap();
        let (code, out, err) = home.run(&["install"]);
        assert!(code == 1 && out.contains(": written\n") && home.unit().exists(), "{out}{err}");
        for words in [
            "error: the service is written, but was not started: systemctl --user daemon-reload ended with exit status: 1",
            ": Failed to connect to bus\n",
            "\n  do      systemctl --user daemon-reload && systemctl --user enable --now martlet.service\n",
        ] {
            assert!(err.contains(words), "{err}");
        }
        let (code, _, err) = home.run(&["status"]);
        assert!(code == 1 && err.contains("Failed to connect to bus"), "{err}");
        let (code, out, err) = home.run(&["remove"]);
        assert!(code == 1 && out.ends_with(": deleted\n") && err.contains("may still run"), "{out}{err}");
        assert!(!home.unit().exists());

        let (code, _, err) = home.run_with(&["install"], &[("PATH", "/nowhere")]);
        assert!(code == 1 && err.contains("systemctl can not be run"), "{err}");
    }

    #[test]
    fn its_state_is_an_exit_code() {
        let home = Home::new();
        let (code, out, _) = home.run(&["status", "--json"]);
        assert_eq!((code, out.as_str()), (6, "{\"installed\": false}\n"));
        assert_eq!(home.run(&["logs"]).0, 6);

        home.run(&["install"]);
        fs::write(
            home.at("bin/state"),
            "LoadState=loaded\nActiveState=active\nSubState=running\nMainPID=47\nUnitFileState=enabled\n",
        )
        .unwrap();
        let (code, out, err) = home.run(&["status"]);
        assert_eq!((code, err.as_str()), (0, ""));
        assert!(out.starts_with("state     active (running)\nprocess   47\nat login  yes\nfile      "), "{out}");
        let failed = "LoadState=loaded\nActiveState=failed\nSubState=failed\nResult=exit-code\nExecMainStatus=3\n";
        fs::write(home.at("bin/state"), failed).unwrap();
        let (code, out, err) = home.run(&["status", "--json"]);
        let state: Value = serde_json::from_str(&out).unwrap();
        assert_eq!((code, &state["installed"], &state["running"]), (5, &true.into(), &false.into()), "{state}");
        assert_eq!(state["failure"], "exit-code, exit status 3");
        assert!(err.contains("does not run"), "{err}");

        // These work where the settings are wrong.
        let wrong = [("MARTLET_PORT", "none")];
        assert_eq!((home.run_with(&["status"], &wrong).0, home.run_with(&["remove"], &wrong).0), (5, 0));
    }

    #[test]
    fn its_log_is_a_file_or_the_journal() {
        let home = Home::new();
        home.run(&["install"]);
        home.calls();
        assert_eq!(home.run(&["logs", "-f", "-n", "5"]).0, 0);
        assert_eq!(home.calls(), ["journalctl --no-pager --user-unit=martlet.service --lines=5 --follow"]);

        home.run(&["install", "--log-file", "my 100% log"]);
        let unit = fs::read_to_string(home.unit()).unwrap();
        assert!(unit.contains(&format!(" \"--log-file={}/my 100%% log\"\n", home.dir.path().display())), "{unit}");
        fs::write(home.at("my 100% log"), "one\ntwo\nthree\n").unwrap();
        let (code, out, _) = home.run(&["logs", "-n", "2"]);
        assert_eq!((code, out.as_str()), (0, "two\nthree\n"));
        fs::remove_file(home.at("my 100% log")).unwrap();
        assert_eq!(home.run(&["logs"]).0, 1);
    }
}
