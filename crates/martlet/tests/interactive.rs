//! A conversation at a terminal: the real binary on a pseudo-terminal.
#![cfg(unix)]

use nix::pty::{Winsize, openpty};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::fs::File;
use std::io::{Read, Write};
use std::path::Path;
use std::process::{Child, Command};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

/// A person at a terminal.
struct Person {
    child: Child,
    keys: File,
    screen: Receiver<Vec<u8>>,
    /// Read, and not yet looked at.
    text: String,
}

/// Only so that a hanging program fails the test: nothing is measured.
const FOREVER: Duration = Duration::from_secs(120);

impl Person {
    fn starts(args: &[&str], home: &Path) -> Person {
        let size = Winsize { ws_row: 40, ws_col: 200, ws_xpixel: 0, ws_ypixel: 0 };
        let pty = openpty(Some(&size), None).unwrap();
        let end = || pty.slave.try_clone().unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_martlet"));
        command.args(args).stdin(end()).stdout(end()).stderr(end());
        command.env("HOME", home).env("XDG_DATA_HOME", home.join("data")).env("XDG_CONFIG_HOME", home.join("config"));
        command.env("TERM", "xterm").env_remove("NO_COLOR").env_remove("MARTLET_CONFIG").env_remove("MARTLET_MODEL");
        let child = command.spawn().unwrap();
        drop(command);
        drop(pty.slave);
        let keys = File::from(pty.master);
        let mut reader = keys.try_clone().unwrap();
        let (sender, screen) = channel();
        std::thread::spawn(move || {
            let mut buffer = [0; 4096];
            // An error is how a pseudo-terminal tells that the program is gone.
            while let Ok(n @ 1..) = reader.read(&mut buffer) {
                if sender.send(buffer[..n].to_vec()).is_err() {
                    break;
                }
            }
        });
        Person { child, keys, screen, text: String::new() }
    }

    /// Waits until `words` appear; gives what came before and forgets it.
    fn sees(&mut self, words: &str) -> String {
        loop {
            if let Some(at) = self.text.find(words) {
                let before = self.text[..at].to_string();
                self.text.drain(..at + words.len());
                return before;
            }
            match self.screen.recv_timeout(FOREVER) {
                Ok(bytes) => self.text += &String::from_utf8_lossy(&bytes),
                Err(_) => panic!("{words:?} did not appear after {:?}", self.text),
            }
        }
    }

    fn types(&mut self, keys: &str) {
        self.keys.write_all(keys.as_bytes()).unwrap();
    }

    /// Types a line at the prompt.
    fn says(&mut self, line: &str) {
        self.sees(">>> ");
        self.types(line);
        self.types("\r");
    }

    fn leaves(&mut self) -> i32 {
        self.child.wait().unwrap().code().unwrap()
    }
}

impl Drop for Person {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn a_conversation_remembers_is_saved_and_goes_on() {
    let home = tempfile::tempdir().unwrap();
    let file = home.path().join("chat.json");
    let file = file.to_str().unwrap();
    let mut person = Person::starts(&["chat", "--greedy", "--no-think"], home.path());
    person.sees("fledgling speaks");
    person.sees("/help");
    person.says("My name is Uma.");
    person.sees("Nice to meet you, Uma!");
    person.sees("tok/s");
    person.says("/nonsense");
    person.sees("is no command");
    person.says("/system two\\\rlines");
    person.says(&format!("/save {file}"));
    person.sees("written to");
    let saved: serde_json::Value = serde_json::from_str(&std::fs::read_to_string(file).unwrap()).unwrap();
    assert_eq!(saved["enable_thinking"], false);
    let messages = saved["messages"].as_array().unwrap();
    assert_eq!(messages.len(), 3, "{saved}");
    assert_eq!(messages[0]["content"], "two\nlines");

    person.says("/system");
    person.says("/clear");
    person.sees("empty");
    person.says(&format!("/load {file}"));
    person.sees("3 messages");
    person.says("/system");
    person.says("What is my name?");
    person.sees("Your name is Uma.");
    person.says("/think");
    person.says("/temp hot");
    person.sees("\"hot\"");
    person.says("How long is the word lazo?");
    person.sees("\x1b[2ml\x1b[0m"); // reasoning, dimmed: l1, a2, z3, o4.
    person.sees("\n4.\r\n"); // the answer, not dimmed
    person.says("/quit");
    assert_eq!(person.leaves(), 0);
    let history = std::fs::read_to_string(home.path().join("data/martlet/history.txt")).unwrap();
    assert!(history.contains("What is my name?"), "{history}");
}

#[test]
fn ctrl_c_stops_the_answer_and_keeps_the_session() {
    let home = tempfile::tempdir().unwrap();
    let endless = ["chat", "--greedy", "--no-think", "--logit-bias", "4098=-inf", "--logit-bias", "4096=-inf"];
    let mut person = Person::starts(&endless, home.path());
    person.says("hello");
    person.sees("Hello!");
    kill(Pid::from_raw(person.child.id() as i32), Signal::SIGINT).unwrap();
    person.sees("cancelled");
    person.sees(">>> ");
    // At the prompt it clears the line; the second time in a row it leaves.
    person.types("half a line\x03");
    person.sees(">>> ");
    person.types("/help\r");
    person.sees("/nothink");
    person.sees(">>> ");
    person.types("\x03");
    person.sees(">>> ");
    person.types("\x03");
    assert_eq!(person.leaves(), 0);
}

#[test]
fn ctrl_c_ends_a_single_answer_with_its_own_code() {
    let home = tempfile::tempdir().unwrap();
    let mut person = Person::starts(&["generate", "--ids", "1", "--ignore-eos", "--logit-bias", "13=100"], home.path());
    person.sees(".......");
    kill(Pid::from_raw(person.child.id() as i32), Signal::SIGINT).unwrap();
    person.sees("| cancelled |");
    assert_eq!(person.leaves(), 130);
}

#[test]
fn ctrl_d_leaves() {
    let home = tempfile::tempdir().unwrap();
    let mut person = Person::starts(&["chat"], home.path());
    person.sees(">>> ");
    person.types("\x04");
    assert_eq!(person.leaves(), 0);
}
