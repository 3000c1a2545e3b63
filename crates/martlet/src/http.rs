//! One question to a running server, in plain HTTP, within a time and a number of bytes.

use http_body_util::{BodyExt, LengthLimitError, Limited};
use hyper::client::conn::http1;
use hyper::header::{AUTHORIZATION, HOST};
use hyper::{Request, Uri};
use hyper_util::rt::TokioIo;
use std::fmt;
use std::io;
use std::time::Duration;
use tokio::net::TcpStream;

/// What an answer may cost.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// From the connection to the answer's last byte.
    pub time: Duration,
    /// Bytes of the answer's body.
    pub body: usize,
}

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub enum HttpError {
    #[error("\"{url}\" is no address of a server: {what}")]
    Url { url: String, what: &'static str },
    #[error("the API key has characters that can not be sent")]
    Key,
    #[error("nothing answers at {at}: {source}")]
    Connect { at: Address, source: io::Error },
    #[error("{at} has not answered within {seconds} s")]
    Time { at: Address, seconds: f32 },
    #[error("{at} does not answer in HTTP: {source}")]
    Http { at: Address, source: hyper::Error },
    #[error("{at} answers with more than {limit} bytes")]
    Body { at: Address, limit: usize },
    #[error("{at} broke its answer off: {what}")]
    Cut { at: Address, what: String },
    #[error("no connection can be made: {0}")]
    Runtime(io::Error),
}

/// Where a server is: `http://host:port`, and the path under which it lies.
#[derive(Clone, Debug, PartialEq)]
pub struct Address {
    host: String,
    port: u16,
    path: String,
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "http://{}:{}{}", self.host, self.port, self.path)
    }
}

impl Address {
    /// Reads `http://HOST:PORT/PATH`; only the host is needed.
    pub fn parse(url: &str) -> Result<Address, HttpError> {
        let wrong = |what| HttpError::Url { url: url.to_string(), what };
        let full = if url.contains("://") { url.to_string() } else { format!("http://{url}") };
        let uri: Uri = full.parse().map_err(|_| wrong("http://HOST:PORT is expected"))?;
        if uri.scheme_str() != Some("http") {
            return Err(wrong("only http:// is spoken here; ask a server behind https with `curl URL/stats`"));
        }
        let host = uri.host().filter(|host| !host.is_empty()).ok_or_else(|| wrong("the host is missing"))?;
        let port = uri.port_u16().unwrap_or(80);
        Ok(Address { host: host.to_string(), port, path: uri.path().trim_end_matches('/').to_string() })
    }
}

/// Status and body of `GET path`. With a key, that is shown.
pub fn get(at: &Address, path: &str, key: Option<&str>, limits: Limits) -> Result<(u16, Vec<u8>), HttpError> {
    let request = Request::get(format!("{}{path}", at.path)).header(HOST, format!("{}:{}", at.host, at.port));
    let request = match key {
        Some(key) => request.header(AUTHORIZATION, format!("Bearer {key}")),
        None => request,
    };
    // Everything else was read from a URL.
    let request = request.body(String::new()).map_err(|_| HttpError::Key)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(HttpError::Runtime)?;
    let late = |_| HttpError::Time { at: at.clone(), seconds: limits.time.as_secs_f32() };
    let answer = runtime.block_on(async { tokio::time::timeout(limits.time, ask(at, request, limits.body)).await });
    // A name that is still being looked up is not waited for.
    runtime.shutdown_background();
    answer.map_err(late)?
}

async fn ask(at: &Address, request: Request<String>, limit: usize) -> Result<(u16, Vec<u8>), HttpError> {
    let http = |source| HttpError::Http { at: at.clone(), source };
    let host = at.host.trim_matches(['[', ']']);
    let stream = TcpStream::connect((host, at.port)).await;
    let stream = stream.map_err(|source| HttpError::Connect { at: at.clone(), source })?;
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await.map_err(http)?;
    // It ends with the runtime; what goes wrong there is an error of the answer.
    tokio::spawn(connection);
    let answer = sender.send_request(request).await.map_err(http)?;
    let status = answer.status().as_u16();
    let body =
        Limited::new(answer.into_body(), limit).collect().await.map_err(|e| match e.is::<LengthLimitError>() {
            true => HttpError::Body { at: at.clone(), limit },
            false => HttpError::Cut { at: at.clone(), what: e.to_string() },
        })?;
    Ok((status, body.to_bytes().to_vec()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::net::{Shutdown, TcpListener};

    const LIMITS: Limits = Limits { time: Duration::from_secs(60), body: 1000 };

    /// A server that reads one request's head and says `answer`; the thread gives the request.
    fn server(answer: &'static str) -> (Address, std::thread::JoinHandle<String>) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let at = Address::parse(&format!("{}/here/", listener.local_addr().unwrap())).unwrap();
        let thread = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut head = Vec::new();
            while !head.ends_with(b"\r\n\r\n") {
                let mut byte = [0];
                stream.read_exact(&mut byte).unwrap();
                head.push(byte[0]);
            }
            stream.write_all(answer.as_bytes()).unwrap();
            stream.shutdown(Shutdown::Write).unwrap();
            String::from_utf8(head).unwrap()
        });
        (at, thread)
    }

    #[test]
    fn addresses_are_read_in_every_usual_form() {
        for (url, shown) in [
            ("http://127.0.0.1:8080", "http://127.0.0.1:8080"),
            ("localhost:9000/", "http://localhost:9000"),
            ("HTTP://[::1]:8080/", "http://[::1]:8080"),
            ("box.lan", "http://box.lan:80"),
            ("http://box.lan/models/", "http://box.lan:80/models"),
        ] {
            assert_eq!(Address::parse(url).unwrap().to_string(), shown, "{url}");
        }
        for (url, word) in
            [("https://x", "only http://"), ("", "HOST:PORT"), ("http://:80", "host is missing"), ("a b", "HOST:PORT")]
        {
            let error = Address::parse(url).unwrap_err().to_string();
            assert!(error.contains(word), "{url}: {error}");
        }
    }

    #[test]
    fn a_question_shows_its_key_and_brings_status_and_body() {
        let (at, asked) = server("HTTP/1.1 401 No\r\ncontent-length: 3\r\n\r\nwho");
        assert_eq!(get(&at, "/stats", Some("k"), LIMITS).unwrap(), (401, b"who".to_vec()));
        let asked = asked.join().unwrap();
        assert!(asked.starts_with("GET /here/stats HTTP/1.1\r\n"), "{asked}");
        assert!(asked.contains("authorization: Bearer k\r\n"), "{asked}");
        let (at, asked) = server("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n3\r\nyes\r\n0\r\n\r\n");
        assert_eq!(get(&at, "/stats", None, LIMITS).unwrap(), (200, b"yes".to_vec()));
        assert!(!asked.join().unwrap().contains("authorization"));
        assert!(matches!(get(&at, "/stats", Some("a\nb"), LIMITS), Err(HttpError::Key)));
    }

    #[test]
    fn answers_are_bounded_and_whole() {
        let answered = |answer| get(&server(answer).0, "/stats", None, Limits { body: 4, ..LIMITS });
        let long = answered("HTTP/1.1 200 OK\r\n\r\nmore than four");
        assert!(matches!(long, Err(HttpError::Body { limit: 4, .. })), "{long:?}");
        let cut = answered("HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\ncu");
        assert!(matches!(cut, Err(HttpError::Cut { .. })), "{cut:?}");
        for other in ["SSH-2.0-OpenSSH_9.2\r\n", ""] {
            let found = answered(other);
            assert!(matches!(found, Err(HttpError::Http { .. })), "{found:?}");
        }
    }

    #[test]
    fn who_does_not_answer_is_left() {
        let silent = TcpListener::bind("127.0.0.1:0").unwrap();
        let at = Address::parse(&silent.local_addr().unwrap().to_string()).unwrap();
        let late = get(&at, "/stats", None, Limits { time: Duration::from_millis(20), ..LIMITS });
        assert!(matches!(late, Err(HttpError::Time { .. })), "{late:?}");
        // Nobody has the port that multiplexes others.
        let at = Address::parse("127.0.0.1:1").unwrap();
        let gone = get(&at, "/stats", None, LIMITS).unwrap_err();
        assert!(gone.to_string().starts_with(&format!("nothing answers at {at}: ")), "{gone}");
    }
}
