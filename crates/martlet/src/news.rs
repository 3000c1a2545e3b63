//! One line on the terminal when a newer version is out.
//!
//! Only in builds that know where releases are (the variable `MARTLET_RELEASE_URL` when martlet is built), only where a
//! person reads, and unless `update_check` is off. While a model runs, the server is asked in a thread of its own, at most
//! once a day; nobody waits for it. What it says is kept in a file, and told when a command ends, at most once a day.

use crate::paths;
use crate::settings::Settings;
use crate::terminal::Terminal;
use martlet_hub::release::{Version, latest};
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

/// Where releases are.
pub const RELEASES: Option<&str> = option_env!("MARTLET_RELEASE_URL");

const DAY: u64 = 24 * 60 * 60;
/// For an answer.
const TIME: Duration = Duration::from_secs(5);
/// Bytes of the file; a longer one is none of ours.
const LIMIT: u64 = 1000;

/// What the file says. Times in seconds since 1970.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
struct Known {
    /// When the server was asked last.
    asked: u64,
    /// The newest version then.
    newest: Option<String>,
    /// When the person was told last.
    told: u64,
}

/// When it is dropped, at the end of a command, it tells what is known.
pub struct News {
    file: PathBuf,
    url: &'static str,
    terminal: Terminal,
}

impl News {
    /// `None` where nobody wants to know, or this build does not know where to look.
    pub fn new(settings: &Settings, terminal: Terminal) -> Option<News> {
        let url = RELEASES.filter(|url| !url.is_empty())?;
        let wanted = settings.update_check && !settings.quiet && terminal.is_live();
        let file = paths::news_file().filter(|_| wanted)?;
        Some(News { file, url, terminal })
    }

    /// Asks, unless that was done today.
    pub fn ask(&self) {
        if let Some(known) = self.due(now()) {
            let (file, url) = (self.file.clone(), self.url);
            // Where no thread can be had there is no news.
            let _ = std::thread::Builder::new().name("news".into()).spawn(move || hear(&file, url, known));
        }
    }

    /// Whether to ask: what is known, with the time noted. Where that can not be written it would be asked every time.
    fn due(&self, now: u64) -> Option<Known> {
        let known = Known::read(&self.file);
        let known = Known { asked: now, ..known.filter_due(now)? };
        known.write(&self.file).then_some(known)
    }

    /// What to tell, if it was not told today.
    fn line(&self, now: u64) -> Option<String> {
        let known = Known::read(&self.file);
        let newest: Version = known.newest.as_ref()?.parse().ok()?;
        let this: Version = env!("CARGO_PKG_VERSION").parse().ok()?;
        if newest <= this || !a_day_ago(known.told, now) || !(Known { told: now, ..known }).write(&self.file) {
            return None;
        }
        Some(format!("martlet {newest} is out (this is {this}): {}; update_check = false ends this notice", self.url))
    }
}

impl Drop for News {
    fn drop(&mut self) {
        if let Some(line) = self.line(now()) {
            self.terminal.note(&line);
        }
    }
}

/// Asks the server, and notes what it says.
fn hear(file: &Path, url: &str, known: Known) {
    if let Some(newest) = latest(url, TIME) {
        Known { newest: Some(newest.to_string()), ..known }.write(file);
    }
}

impl Known {
    /// What can not be read is not known.
    fn read(file: &Path) -> Known {
        let small = std::fs::metadata(file).is_ok_and(|m| m.is_file() && m.len() <= LIMIT);
        let text = if small { std::fs::read(file).unwrap_or_default() } else { Vec::new() };
        serde_json::from_slice(&text).unwrap_or_default()
    }

    /// False where it can not be written.
    fn write(&self, file: &Path) -> bool {
        let new = file.with_extension("new");
        let Ok(text) = serde_json::to_vec(self) else { return false };
        let folder = file.parent().map_or(Ok(()), std::fs::create_dir_all);
        folder.and_then(|()| std::fs::write(&new, text)).and_then(|()| std::fs::rename(&new, file)).is_ok()
    }

    fn filter_due(self, now: u64) -> Option<Known> {
        a_day_ago(self.asked, now).then_some(self)
    }
}

/// A time that is yet to come is of a clock that was wrong.
fn a_day_ago(then: u64, now: u64) -> bool {
    now.checked_sub(then).is_none_or(|seconds| seconds >= DAY)
}

fn now() -> u64 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::terminal::ColorChoice;
    use std::io::{Read, Write};
    use std::net::TcpListener;

    const NOW: u64 = 2_000_000_000;

    fn news(dir: &Path) -> News {
        // Only what `due` and `line` do is looked at; dropping it writes to a quiet terminal.
        let terminal = Terminal::new(ColorChoice::Never, true, &|_| None);
        News { file: dir.join("martlet/news.json"), url: "http://127.0.0.1:1/r", terminal }
    }

    #[test]
    fn asked_once_a_day() {
        let dir = tempfile::tempdir().unwrap();
        let news = news(dir.path());
        assert_eq!(news.due(NOW), Some(Known { asked: NOW, ..Known::default() }));
        assert_eq!(news.due(NOW + 1), None);
        assert_eq!(news.due(NOW + DAY - 1), None);
        assert!(news.due(NOW + DAY).is_some());
        assert!(news.due(NOW - 5).is_some(), "the clock was wrong");
        std::fs::write(&news.file, "{").unwrap();
        assert!(news.due(NOW).is_some(), "a damaged file is renewed");
        assert!(news.due(NOW).is_none());
        std::fs::write(&news.file, format!("{{\"asked\": {NOW}, \"told\": 0, \"x\": \"{}\"}}", "y".repeat(2000)))
            .unwrap();
        assert!(news.due(NOW).is_some(), "a file that is none of ours");
    }

    #[test]
    fn what_can_not_be_noted_is_not_asked() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("martlet"), "a file where the folder would be").unwrap();
        assert_eq!(news(dir.path()).due(NOW), None);
    }

    #[test]
    fn told_once_a_day_and_only_of_what_is_newer() {
        let dir = tempfile::tempdir().unwrap();
        let news = news(dir.path());
        assert_eq!(news.line(NOW), None);
        let knows = |newest: &str| Known { newest: Some(newest.into()), ..Known::default() }.write(&news.file);
        for old in [env!("CARGO_PKG_VERSION"), "0.0.1", "not a version", "\u{1b}[2J"] {
            assert!(knows(old));
            assert_eq!(news.line(NOW), None, "{old}");
        }
        assert!(knows("4000.0.0"));
        let line = news.line(NOW).unwrap();
        assert!(line.starts_with("martlet 4000.0.0 is out") && line.contains(news.url), "{line}");
        assert!(!line.contains('\n'));
        assert_eq!(news.line(NOW + DAY - 1), None);
        assert!(news.line(NOW + DAY).is_some());
    }

    #[test]
    fn what_the_server_says_is_noted() {
        let dir = tempfile::tempdir().unwrap();
        let news = news(dir.path());
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let server = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut head = Vec::new();
            let mut byte = [0];
            while !head.ends_with(b"\r\n\r\n") && stream.read(&mut byte).unwrap() == 1 {
                head.push(byte[0]);
            }
            stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\n4000.0.1\n").unwrap();
        });
        hear(&news.file, &url, news.due(NOW).unwrap());
        server.join().unwrap();
        let known = Known { asked: NOW, newest: Some("4000.0.1".into()), told: 0 };
        assert_eq!(Known::read(&news.file), known);
        assert!(news.line(NOW).unwrap().contains("4000.0.1"));
        // A server that is away changes nothing.
        let known = Known::read(&news.file);
        hear(&news.file, "http://127.0.0.1:1", known.clone());
        assert_eq!(Known::read(&news.file), known);
    }
}
