//! Which version of martlet is the newest, by the folder of a web server that holds releases (tools/release.sh).

use std::fmt;
use std::str::FromStr;
use std::time::Duration;
use ureq::Agent;

/// Bytes of the longest answer that is read.
const LIMIT: u64 = 256;

/// A version of martlet, such as 1.12.0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Version([u32; 3]);

impl FromStr for Version {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Version, &'static str> {
        let number = |part: &str| match part.bytes().all(|b| b.is_ascii_digit()) {
            true => part.parse().ok(),
            false => None,
        };
        let parts: Option<Vec<u32>> = text.split('.').map(number).collect();
        let parts = parts.and_then(|parts| parts.try_into().ok());
        parts.map(Version).ok_or("a version of three numbers is expected, such as 1.12.0")
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [major, minor, patch] = self.0;
        write!(f, "{major}.{minor}.{patch}")
    }
}

/// What `url`/latest names as the newest version. `None` where nothing comes within `time`, or something else than a
/// version does. Nothing is sent but the question.
pub fn latest(url: &str, time: Duration) -> Option<Version> {
    let config = Agent::config_builder()
        .timeout_global(Some(time))
        .max_redirects(4)
        // What begins encrypted stays so.
        .https_only(url.starts_with("https://"))
        .user_agent("martlet")
        .accept_encoding("identity")
        .build();
    let mut answer = Agent::from(config).get(format!("{}/latest", url.trim_end_matches('/'))).call().ok()?;
    let text = answer.body_mut().with_config().limit(LIMIT).read_to_string().ok()?;
    text.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::net::TcpListener;

    #[test]
    fn versions_are_three_numbers_in_their_order() {
        let version = |text: &str| text.parse::<Version>();
        assert!(version("0.10.0").unwrap() > version("0.9.12").unwrap());
        assert_eq!(version("1.2.3").unwrap().to_string(), "1.2.3");
        for wrong in ["", "1", "1.2", "1.2.3.4", "v1.2.3", "1.2.x", "+1.2.3", "1.2.4294967296", "1..3", "1.2.3-rc1"] {
            assert!(version(wrong).is_err(), "{wrong}");
        }
    }

    /// A server that answers once; the thread gives what it was asked. `None`: it never says anything.
    fn server(answer: Option<String>) -> (String, std::thread::JoinHandle<String>) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}/releases/", listener.local_addr().unwrap());
        let thread = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut head = Vec::new();
            let mut byte = [0];
            while !head.ends_with(b"\r\n\r\n") && stream.read(&mut byte).unwrap() == 1 {
                head.push(byte[0]);
            }
            match answer {
                Some(answer) => drop(stream.write_all(answer.as_bytes())),
                // Until the other side has had enough.
                None => drop(stream.read(&mut byte)),
            }
            String::from_utf8(head).unwrap()
        });
        (url, thread)
    }

    const PATIENT: Duration = Duration::from_secs(60);

    fn answered(head: &str, body: &str) -> Option<Version> {
        let (url, thread) = server(Some(format!("HTTP/1.1 {head}\r\nconnection: close\r\n\r\n{body}")));
        let found = latest(&url, PATIENT);
        thread.join().unwrap();
        found
    }

    #[test]
    fn the_question_says_nothing_about_who_asks() {
        let (url, thread) = server(Some("HTTP/1.1 200 OK\r\ncontent-length: 6\r\n\r\n1.2.3\n".into()));
        assert_eq!(latest(&url, PATIENT), "1.2.3".parse().ok());
        let asked = thread.join().unwrap().to_lowercase();
        assert!(asked.starts_with("get /releases/latest http/1.1\r\n"), "{asked}");
        let names: Vec<&str> = asked.lines().skip(1).filter_map(|l| l.split_once(':')).map(|(name, _)| name).collect();
        assert!(names.iter().all(|n| ["host", "accept", "accept-encoding", "user-agent"].contains(n)), "{asked}");
        assert!(asked.contains("user-agent: martlet\r\n"), "{asked}");
    }

    #[test]
    fn anything_but_a_version_is_nothing() {
        assert_eq!(answered("200 OK", "0.4.0"), "0.4.0".parse().ok());
        for (head, body) in [
            ("404 Not Found", "1.2.3"),
            ("500 No", "1.2.3"),
            ("200 OK", "<html>1.2.3</html>"),
            ("200 OK", "\x1b[2J1.2.3"),
            ("200 OK", ""),
            ("302 Found\r\nlocation: ftp://127.0.0.1/", "1.2.3"),
            ("200 OK\r\ncontent-length: 3000000000", "1.2.3"),
        ] {
            assert_eq!(answered(head, body), None, "{head} {body}");
        }
        assert_eq!(answered("200 OK", &"1".repeat(100_000)), None);
        assert_eq!(latest("http://127.0.0.1:1", PATIENT), None);
        assert_eq!(latest("no address", PATIENT), None);
    }

    #[test]
    fn a_server_that_says_nothing_is_not_waited_for() {
        let (url, thread) = server(None);
        assert_eq!(latest(&url, Duration::from_millis(50)), None);
        thread.join().unwrap();
    }
}
