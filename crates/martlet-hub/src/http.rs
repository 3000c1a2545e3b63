//! Requests: redirects, who may see the token, how long to wait and how often to ask again.

use crate::error::HubError;
use crate::listing::{RemoteFile, Snapshot};
use std::io::Read;
use std::time::{Duration, SystemTime};
use ureq::Agent;
use ureq::http::header::{AUTHORIZATION, CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_RANGE, CONTENT_TYPE, HeaderName};
use ureq::http::header::{LOCATION, RANGE, RETRY_AFTER};
use ureq::http::{HeaderMap, Uri};

/// How patient to be.
#[derive(Clone, Copy, Debug)]
pub struct Timing {
    /// For a connection.
    pub connect: Duration,
    /// Without a byte: the connection is given up.
    pub stall: Duration,
    /// Bytes that must come within `stall`, or the connection is given up as too slow.
    pub least: u64,
    /// Before the second attempt; each further one waits twice as long.
    pub first_wait: Duration,
    /// Longest wait, unless the server asks for a longer one (at most ten times as long).
    pub longest_wait: Duration,
    /// Attempts in a row that bring nothing.
    pub attempts: u32,
}

impl Default for Timing {
    fn default() -> Timing {
        Timing {
            connect: Duration::from_secs(20),
            stall: Duration::from_secs(30),
            least: 16 << 10,
            first_wait: Duration::from_millis(500),
            longest_wait: Duration::from_secs(60),
            attempts: 8,
        }
    }
}

impl Timing {
    /// How long to wait after so many failures in a row.
    pub(crate) fn wait(&self, failures: u32, asked: Option<Duration>) -> Duration {
        let doubled = self.first_wait.saturating_mul(1 << failures.saturating_sub(1).min(16));
        // Several connections that failed together shall not come back together.
        let spread = 1.0 + f64::from(jitter()) / 1024.0;
        let own = doubled.min(self.longest_wait).mul_f64(spread);
        asked.map_or(own, |asked| asked.min(self.longest_wait * 10).max(own))
    }
}

/// 0 to 255, by the clock: no more chance is needed.
fn jitter() -> u8 {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    (now.subsec_nanos() >> 8) as u8
}

/// Redirects that are followed.
const REDIRECTS: usize = 10;
/// Attempts at something that says it is another thing altogether, such as a web page: waiting seldom helps.
const PAGES: u32 = 3;

/// Why a request has brought nothing, or not all.
#[derive(Debug)]
pub(crate) enum Trouble {
    /// It may be right the next time, of so many.
    Retry {
        what: String,
        after: Option<Duration>,
        attempts: u32,
    },
    /// The link to which the hub has sent us is no longer valid: ask the hub again.
    Expired {
        what: String,
    },
    Fatal(HubError),
}

/// The head of an answer, and its body.
pub(crate) struct Answer {
    pub status: u16,
    pub headers: HeaderMap,
    pub body: ureq::BodyReader<'static>,
    /// From where it came in the end.
    pub url: Uri,
}

#[derive(Debug)]
pub(crate) struct Client {
    agent: Agent,
    /// Without a slash at its end.
    endpoint: String,
    home: Uri,
    token: Option<String>,
    pub timing: Timing,
}

impl Client {
    pub fn new(endpoint: &str, token: Option<String>, timing: Timing) -> Result<Client, HubError> {
        let endpoint = endpoint.trim_end_matches('/').to_string();
        let wrong = |what: &str| HubError::Endpoint { url: endpoint.clone(), what: what.to_string() };
        let home: Uri = endpoint.parse().map_err(|_| wrong("is no address"))?;
        if !matches!(home.scheme_str(), Some("http" | "https")) || home.host().is_none() {
            return Err(wrong("does not begin with https:// or http:// and a host"));
        }
        let config = Agent::config_builder()
            .http_status_as_error(false)
            .max_redirects(0)
            .max_redirects_will_error(false)
            .user_agent(concat!("martlet/", env!("CARGO_PKG_VERSION")))
            .accept_encoding("identity")
            .timeout_connect(Some(timing.connect))
            .timeout_resolve(Some(timing.connect))
            .timeout_send_request(Some(timing.stall))
            .timeout_recv_response(Some(timing.stall))
            .timeout_per_read(Some(timing.stall))
            .max_idle_connections_per_host(16)
            .build();
        Ok(Client { agent: config.into(), endpoint, home, token, timing })
    }

    /// An address at the endpoint; `path` begins with a slash.
    pub fn at(&self, path: &str) -> String {
        format!("{}{path}", self.endpoint)
    }

    /// The address of a file of a snapshot.
    pub fn file_url(&self, snapshot: &Snapshot, file: &RemoteFile) -> String {
        self.at(&format!("/{}/resolve/{}/{}", snapshot.repository, snapshot.commit, encoded(&file.name)))
    }

    pub fn has_token(&self) -> bool {
        self.token.is_some()
    }

    /// Asks for `url`, or for `range` of it (first byte, byte after the last), wherever it has moved to. An answer with an
    /// error status is trouble.
    pub fn get(&self, url: &str, range: Option<(u64, u64)>) -> Result<Answer, Trouble> {
        let mut at: Uri = url.parse().map_err(|_| retry(format!("\"{url}\" is no address")))?;
        for _ in 0..=REDIRECTS {
            let answer = self.one(&at, range)?;
            match answer.status {
                200..=299 => return Ok(answer),
                301 | 302 | 303 | 307 | 308 => at = next(&at, &answer.headers)?,
                _ => return Err(self.refusal(&answer)),
            }
        }
        Err(retry(format!("is redirected more than {REDIRECTS} times")))
    }

    fn one(&self, at: &Uri, range: Option<(u64, u64)>) -> Result<Answer, Trouble> {
        let mut request = self.agent.get(at.clone());
        if let Some((from, to)) = range {
            request = request.header(RANGE, format!("bytes={from}-{}", to.saturating_sub(1)));
        }
        if let Some(token) = self.token.as_ref().filter(|_| same_origin(at, &self.home)) {
            request = request.header(AUTHORIZATION, format!("Bearer {token}"));
        }
        let response = request.call().map_err(|e| retry(said(&e)))?;
        let (parts, body) = response.into_parts();
        let body = body.into_with_config().limit(u64::MAX).reader();
        Ok(Answer { status: parts.status.as_u16(), headers: parts.headers, body, url: at.clone() })
    }

    fn refusal(&self, answer: &Answer) -> Trouble {
        let (status, url) = (answer.status, answer.url.to_string());
        let ours = same_origin(&answer.url, &self.home);
        match status {
            429 | 408 | 500..=599 => Trouble::Retry {
                what: format!("the server answers with status {status}"),
                after: retry_after(&answer.headers),
                attempts: self.timing.attempts,
            },
            // A signed link that was good a while ago.
            400 | 401 | 403 | 404 | 410 if !ours => {
                Trouble::Expired { what: format!("{} answers with status {status}", host(&answer.url)) }
            }
            401 | 403 => Trouble::Fatal(HubError::Denied { url, status, token: self.has_token() }),
            404 => Trouble::Fatal(HubError::NotFound { what: "this".into(), url }),
            _ => Trouble::Fatal(HubError::Listing { url, what: format!("the server answers with status {status}") }),
        }
    }

    /// The body of an answer of at most `limit` bytes, asked for until it comes. Also its headers.
    pub fn whole(&self, url: &str, limit: u64) -> Result<(HeaderMap, Vec<u8>), HubError> {
        self.attempt(url, || {
            let mut answer = self.get(url, None)?;
            not_a_page(&answer.headers)?;
            let declared = number(&answer.headers, CONTENT_LENGTH);
            if let Some(length) = declared.filter(|n| *n > limit) {
                return Err(retry(format!("the answer has {length} bytes; at most {limit} are read")));
            }
            let mut bytes = Vec::new();
            let read = answer.body.by_ref().take(limit + 1).read_to_end(&mut bytes);
            read.map_err(|e| retry(format!("the connection broke: {e}")))?;
            if bytes.len() as u64 > limit {
                return Err(retry(format!("the answer has more than {limit} bytes")));
            }
            Ok((answer.headers, bytes))
        })
    }

    pub fn small_file(&self, snapshot: &Snapshot, file: &RemoteFile) -> Result<Vec<u8>, HubError> {
        let url = self.file_url(snapshot, file);
        self.attempt(&url, || {
            let (_, bytes) = self.whole(&url, file.size).map_err(Trouble::Fatal)?;
            match file.digest.is_of(&bytes) {
                true => Ok(bytes),
                false => {
                    let (found, expected) = (bytes.len(), file.size);
                    Err(retry(format!("{found} bytes have come, not the {expected} whose hash the hub lists")))
                }
            }
        })
    }

    /// The first `wanted` bytes of a file, no more than it has.
    pub fn beginning(&self, snapshot: &Snapshot, file: &RemoteFile, wanted: u64) -> Result<Vec<u8>, HubError> {
        let url = self.file_url(snapshot, file);
        self.attempt(&url, || {
            let mut answer = self.get(&url, Some((0, wanted)))?;
            not_a_page(&answer.headers)?;
            let (found, expected) = match (answer.status, content_range(&answer.headers)) {
                (206, Some((from, to, size))) => ((from, to, size), (0, wanted, file.size)),
                (206, None) => return Err(retry("a part of the file has come, and it is not said which".into())),
                // It knows no ranges: the rest is not read.
                _ => {
                    ((0, wanted, number(&answer.headers, CONTENT_LENGTH).unwrap_or(file.size)), (0, wanted, file.size))
                }
            };
            if found != expected {
                return Err(retry(format!("bytes {expected:?} (from, to, of) were asked for, {found:?} have come")));
            }
            let mut bytes = Vec::new();
            let read = answer.body.by_ref().take(wanted).read_to_end(&mut bytes);
            read.map_err(|e| retry(format!("the connection broke: {e}")))?;
            if bytes.len() as u64 != wanted {
                return Err(retry("the file has ended too early".into()));
            }
            begins_right(&file.name, &bytes)?;
            Ok(bytes)
        })
    }

    /// `work` until it succeeds, as often as the timing allows.
    fn attempt<T>(&self, url: &str, mut work: impl FnMut() -> Result<T, Trouble>) -> Result<T, HubError> {
        let mut failures = 0;
        loop {
            failures += 1;
            let (what, after, attempts) = match work() {
                Ok(found) => return Ok(found),
                Err(Trouble::Fatal(e)) => return Err(e),
                Err(Trouble::Expired { what }) => (what, None, self.timing.attempts),
                Err(Trouble::Retry { what, after, attempts }) => (what, after, attempts.min(self.timing.attempts)),
            };
            if failures >= attempts {
                return Err(HubError::Transport { url: url.to_string(), what, attempts: failures });
            }
            std::thread::sleep(self.timing.wait(failures, after));
        }
    }
}

pub(crate) fn retry(what: String) -> Trouble {
    Trouble::Retry { what, after: None, attempts: u32::MAX }
}

fn page() -> Trouble {
    let what = "a web page has come instead of the file: a login of the network, or a mirror that is none?".into();
    Trouble::Retry { what, after: None, attempts: PAGES }
}

/// A server that is asked for weights or JSON has no web pages for us.
pub(crate) fn not_a_page(headers: &HeaderMap) -> Result<(), Trouble> {
    let text = |name: HeaderName| headers.get(name).and_then(|v| v.to_str().ok()).unwrap_or_default();
    let kind = text(CONTENT_TYPE).to_ascii_lowercase();
    if kind.starts_with("text/html") || kind.starts_with("application/xhtml") {
        return Err(page());
    }
    match text(CONTENT_ENCODING) {
        "" | "identity" => Ok(()),
        other => Err(retry(format!("the answer is encoded as {other:?}, which was not asked for"))),
    }
}

/// Whether a file begins as its name says. `bytes` are its first ones, at least nine unless it is shorter.
pub(crate) fn begins_right(name: &str, bytes: &[u8]) -> Result<(), Trouble> {
    let first = bytes.iter().find(|b| !b.is_ascii_whitespace());
    let right = match name.rsplit_once('.').map_or("", |(_, e)| e) {
        "safetensors" => bytes.get(8) == Some(&b'{'),
        "gguf" => bytes.starts_with(b"GGUF"),
        "json" => matches!(first, Some(b'{' | b'[')),
        _ => return Ok(()),
    };
    match first {
        _ if right => Ok(()),
        Some(b'<') => Err(page()),
        _ => Err(Trouble::Retry {
            what: "the first bytes are not those of such a file".into(),
            after: None,
            attempts: PAGES,
        }),
    }
}

/// "bytes FIRST-LAST/SIZE" of a partial answer: (first byte, byte after the last, size of the file).
pub(crate) fn content_range(headers: &HeaderMap) -> Option<(u64, u64, u64)> {
    let text = headers.get(CONTENT_RANGE)?.to_str().ok()?;
    let (range, size) = text.strip_prefix("bytes ")?.split_once('/')?;
    let (first, last) = range.split_once('-')?;
    Some((first.parse().ok()?, last.parse::<u64>().ok()?.checked_add(1)?, size.parse().ok()?))
}

pub(crate) fn number(headers: &HeaderMap, name: HeaderName) -> Option<u64> {
    headers.get(name)?.to_str().ok()?.trim().parse().ok()
}

/// Seconds, or a date.
fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    let text = headers.get(RETRY_AFTER)?.to_str().ok()?.trim();
    match text.parse() {
        Ok(seconds) => Some(Duration::from_secs(seconds)),
        Err(_) => httpdate::parse_http_date(text).ok()?.duration_since(SystemTime::now()).ok(),
    }
}

fn said(error: &ureq::Error) -> String {
    match error {
        ureq::Error::HostNotFound => "the host is not known".into(),
        ureq::Error::ConnectionFailed => "no connection can be made".into(),
        ureq::Error::Timeout(_) => "nothing has come for too long".into(),
        other => format!("the connection broke: {other}"),
    }
}

fn host(at: &Uri) -> &str {
    at.host().unwrap_or("the server")
}

fn same_origin(a: &Uri, b: &Uri) -> bool {
    let port = |uri: &Uri| uri.port_u16().unwrap_or(if uri.scheme_str() == Some("https") { 443 } else { 80 });
    let host = |uri: &Uri| uri.host().map(str::to_ascii_lowercase);
    a.scheme() == b.scheme() && host(a) == host(b) && port(a) == port(b)
}

/// Where an answer sends us.
fn next(at: &Uri, headers: &HeaderMap) -> Result<Uri, Trouble> {
    let Some(location) = headers.get(LOCATION).and_then(|v| v.to_str().ok()) else {
        return Err(retry("is redirected to nowhere".into()));
    };
    let location = location.split('#').next().unwrap_or_default();
    let (scheme, authority) = (at.scheme_str().unwrap_or("https"), at.authority().map_or("", |a| a.as_str()));
    let text = if location.contains("://") {
        location.to_string()
    } else if location.starts_with("//") {
        format!("{scheme}:{location}")
    } else if location.starts_with('/') {
        format!("{scheme}://{authority}{location}")
    } else {
        let folder = at.path().rsplit_once('/').map_or("", |(folder, _)| folder);
        format!("{scheme}://{authority}{folder}/{location}")
    };
    let to = text.parse::<Uri>().ok().filter(|to| matches!(to.scheme_str(), Some("http" | "https")));
    let Some(to) = to.filter(|to| to.host().is_some()) else {
        return Err(retry(format!("is redirected to \"{location}\", which is no address")));
    };
    // What began encrypted stays so.
    if scheme == "https" && to.scheme_str() == Some("http") {
        return Err(retry(format!("is redirected from https to {to}, without encryption")));
    }
    Ok(to)
}

/// Everything but letters, digits and `-._~` as `%XX`.
pub(crate) fn encoded(text: &str) -> String {
    let mut out = String::new();
    for byte in text.bytes() {
        match byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
            true => out.push(byte as char),
            false => out.push_str(&format!("%{byte:02X}")),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn uri(text: &str) -> Uri {
        text.parse().unwrap()
    }

    fn headers(name: HeaderName, value: &str) -> HeaderMap {
        HeaderMap::from_iter([(name, value.parse().unwrap())])
    }

    #[test]
    fn redirects_are_resolved_as_browsers_do() {
        let to = |from: &str, location: &str| next(&uri(from), &headers(LOCATION, location)).map(|u| u.to_string());
        let from = "https://hub.example/a/b?c=1";
        for (location, expected) in [
            ("https://cdn.example/x?sig=1#part", "https://cdn.example/x?sig=1"),
            ("//cdn.example/x", "https://cdn.example/x"),
            ("/c/d", "https://hub.example/c/d"),
            ("d?e", "https://hub.example/a/d?e"),
        ] {
            assert_eq!(to(from, location).unwrap(), expected);
        }
        for location in ["http://hub.example/a", "ftp://hub.example/a", "https://"] {
            assert!(to(from, location).is_err(), "{location}");
        }
        assert!(to("http://mirror.local/a", "https://cdn.example/x").is_ok());
    }

    #[test]
    fn the_token_goes_to_its_own_host_alone() {
        let home = uri("https://hub.example");
        assert!(same_origin(&uri("https://HUB.example:443/x"), &home));
        for other in ["https://cdn.hub.example/x", "http://hub.example/x", "https://hub.example:8443/x"] {
            assert!(!same_origin(&uri(other), &home), "{other}");
        }
    }

    #[test]
    fn waiting_grows_and_obeys_the_server() {
        let timing = Timing::default();
        let seconds = |failures, asked| timing.wait(failures, asked).as_secs_f64();
        assert!((0.5..0.7).contains(&seconds(1, None)));
        assert!((2.0..2.6).contains(&seconds(3, None)));
        assert!((60.0..76.0).contains(&seconds(30, None)));
        assert_eq!(seconds(1, Some(Duration::from_secs(100))), 100.0);
        assert_eq!(seconds(1, Some(Duration::from_secs(100_000))), 600.0);
        assert_eq!(retry_after(&headers(RETRY_AFTER, "7")), Some(Duration::from_secs(7)));
        let date = httpdate::fmt_http_date(SystemTime::now() + Duration::from_secs(90));
        let wait = retry_after(&headers(RETRY_AFTER, &date)).unwrap().as_secs();
        assert!((85..=90).contains(&wait), "{wait}");
        assert_eq!(retry_after(&headers(RETRY_AFTER, "soon")), None);
    }

    #[test]
    fn ranges_are_read_strictly() {
        let range = |text: &str| content_range(&headers(CONTENT_RANGE, text));
        assert_eq!(range("bytes 0-9/100"), Some((0, 10, 100)));
        for text in ["bytes */100", "bytes 0-9/*", "0-9/100", "bytes 9/100", "bytes 0-18446744073709551615/1"] {
            assert_eq!(range(text), None, "{text}");
        }
    }

    #[test]
    fn pages_are_no_weights() {
        assert!(begins_right("m.safetensors", b"\x10\0\0\0\0\0\0\0{\"a\"").is_ok());
        assert!(begins_right("config.json", b" \n{}").is_ok());
        assert!(begins_right("m.gguf", b"GGUF\x03").is_ok());
        assert!(begins_right("merges.txt", b"a b").is_ok());
        for name in ["m.safetensors", "config.json", "m.gguf"] {
            let trouble = begins_right(name, b"<!doctype html><html>").unwrap_err();
            assert!(matches!(trouble, Trouble::Retry { what, .. } if what.contains("web page")), "{name}");
        }
        assert!(begins_right("m.safetensors", b"version https://git-lfs").is_err());
        assert!(not_a_page(&headers(CONTENT_TYPE, "text/html; charset=utf-8")).is_err());
        assert!(not_a_page(&headers(CONTENT_ENCODING, "gzip")).is_err());
        assert!(not_a_page(&headers(CONTENT_TYPE, "application/octet-stream")).is_ok());
    }

    #[test]
    fn names_are_encoded() {
        assert_eq!(encoded("a b/\u{e9}+.json"), "a%20b%2F%C3%A9%2B.json");
    }
}
