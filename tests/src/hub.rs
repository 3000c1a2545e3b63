//! A hub in this process that serves a folder as a repository, and misbehaves when it is told to.

use sha2::{Digest, Sha256};
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::{BufRead, BufReader, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// The one repository that is there.
pub const REPOSITORY: &str = "nest/fledgling";

/// What a request for a file's bytes may get instead of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The connection breaks after so many bytes.
    Drop(u64),
    /// Nothing more comes after so many bytes.
    Stall(u64),
    /// A byte at a time, slowly.
    Trickle,
    /// This status, and to ask again after so many seconds.
    Status(u16, Option<u32>),
    /// A web page with status 200.
    Page,
    /// A web page that says to be bytes.
    DisguisedPage,
    /// More or fewer bytes than were asked for, and a head that says so.
    Length(i64),
    /// A bit is wrong.
    Flip,
    /// The file of another revision, of another size.
    OtherRevision,
}

/// How it serves when nothing is wrong.
#[derive(Clone, Copy, Debug, Default)]
pub struct Manner {
    /// Files lie on another machine, to which signed links lead that are good for so many requests.
    pub links: Option<u64>,
    /// Ranges are not known: every answer is the whole file.
    pub whole: bool,
    /// Answers do not say how long they are.
    pub lengthless: bool,
    /// Microseconds of rest after each 64 KiB.
    pub rest: u64,
    /// Whoever shows no token is refused.
    pub private: bool,
}

struct Shared {
    files: BTreeMap<String, Arc<Vec<u8>>>,
    ids: BTreeMap<String, String>,
    manner: Manner,
    faults: Mutex<Vec<(String, Fault)>>,
    /// Bytes of files that were sent.
    sent: AtomicU64,
    /// Requests for files.
    requests: AtomicU64,
    /// (uses, number) of the links.
    links: AtomicU64,
    /// What came to the machine of the files with a token.
    leaked: AtomicU64,
    commit: Mutex<String>,
    /// Of the machine of the files.
    store: SocketAddr,
}

/// It ends with this value.
pub struct Hub {
    shared: Arc<Shared>,
    address: SocketAddr,
}

fn listener() -> TcpListener {
    TcpListener::bind("127.0.0.1:0").unwrap_or_else(|e| panic!("{e}"))
}

fn address(listener: &TcpListener) -> SocketAddr {
    listener.local_addr().unwrap_or_else(|e| panic!("{e}"))
}

fn sha256(bytes: &[u8]) -> String {
    let mut text = String::new();
    Sha256::digest(bytes).iter().for_each(|b| {
        let _ = write!(text, "{b:02x}");
    });
    text
}

impl Hub {
    /// Serves the files of a folder.
    pub fn serve(folder: &Path, manner: Manner) -> Hub {
        let entries = std::fs::read_dir(folder).unwrap_or_else(|e| panic!("{}: {e}", folder.display()));
        let files = entries.map(|entry| {
            let path = entry.unwrap_or_else(|e| panic!("{e}")).path();
            let bytes = std::fs::read(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
            let name = path.file_name().map(|n| n.to_string_lossy().into_owned()).unwrap_or_default();
            (name, Arc::new(bytes))
        });
        let files: BTreeMap<_, _> = files.collect();
        let ids = files.iter().map(|(name, bytes)| (name.clone(), sha256(bytes))).collect();
        let (front, back) = (listener(), listener());
        let shared = Arc::new(Shared {
            files,
            ids,
            manner,
            faults: Mutex::default(),
            sent: AtomicU64::new(0),
            requests: AtomicU64::new(0),
            links: AtomicU64::new(0),
            leaked: AtomicU64::new(0),
            commit: Mutex::new("a".repeat(40)),
            store: address(&back),
        });
        let address = address(&front);
        for (listener, is_store) in [(front, false), (back, true)] {
            let shared = shared.clone();
            // Ends with the process: tests are short.
            std::thread::spawn(move || {
                for stream in listener.incoming().flatten() {
                    let shared = shared.clone();
                    std::thread::spawn(move || {
                        let _ = shared.talk(&stream, is_store);
                        let _ = stream.shutdown(Shutdown::Both);
                    });
                }
            });
        }
        Hub { shared, address }
    }

    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// The next request for bytes of this file (any, if it is empty) gets this.
    pub fn fault(&self, file: &str, fault: Fault) {
        lock(&self.shared.faults).push((file.to_string(), fault));
    }

    /// Faults that nobody has met.
    pub fn faults_left(&self) -> usize {
        lock(&self.shared.faults).len()
    }

    /// Bytes of files that were sent so far.
    pub fn sent(&self) -> u64 {
        self.shared.sent.load(Ordering::Relaxed)
    }

    pub fn requests(&self) -> u64 {
        self.shared.requests.load(Ordering::Relaxed)
    }

    /// Requests with a token that came to the machine to which the hub sent us.
    pub fn leaked(&self) -> u64 {
        self.shared.leaked.load(Ordering::Relaxed)
    }

    /// From now on the branch is at another commit.
    pub fn move_on(&self, digit: &str) {
        *lock(&self.shared.commit) = digit.repeat(40);
    }

    /// Bytes of all files.
    pub fn bytes(&self) -> u64 {
        self.shared.files.values().map(|f| f.len() as u64).sum()
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

struct Request {
    path: String,
    range: Option<(u64, u64)>,
    token: bool,
}

fn request(reader: &mut impl BufRead) -> Option<Request> {
    let mut line = String::new();
    reader.read_line(&mut line).ok()?;
    let path = line.split(' ').nth(1)?.to_string();
    let mut request = Request { path, range: None, token: false };
    loop {
        let mut line = String::new();
        if reader.read_line(&mut line).ok()? == 0 {
            return None;
        }
        let line = line.trim().to_ascii_lowercase();
        if line.is_empty() {
            return Some(request);
        }
        if let Some(range) = line.strip_prefix("range: bytes=") {
            let (from, last) = range.split_once('-')?;
            request.range = Some((from.parse().ok()?, last.parse::<u64>().ok()? + 1));
        }
        request.token |= line.starts_with("authorization:");
    }
}

impl Shared {
    fn talk(&self, stream: &TcpStream, is_store: bool) -> std::io::Result<()> {
        stream.set_nodelay(true)?;
        let mut reader = BufReader::new(stream);
        while let Some(request) = request(&mut reader) {
            if is_store && request.token {
                self.leaked.fetch_add(1, Ordering::Relaxed);
            }
            let go_on = match is_store {
                true => self.store(stream, &request)?,
                false => self.front(stream, &request)?,
            };
            if !go_on {
                break;
            }
        }
        Ok(())
    }

    /// The hub itself: listings, and files or the links to them.
    fn front(&self, stream: &TcpStream, request: &Request) -> std::io::Result<bool> {
        let api = format!("/api/models/{REPOSITORY}");
        let commit = lock(&self.commit).clone();
        if self.manner.private && !request.token {
            return simple(stream, "401 Unauthorized", "text/plain", "", b"no");
        }
        if let Some(revision) = request.path.strip_prefix(&format!("{api}/revision/")) {
            let known = revision == "main" || revision == "a".repeat(40) || revision == commit;
            let sha = if revision == "main" { &commit } else { revision };
            return match known {
                true => json(stream, "", &format!("{{\"sha\": \"{sha}\"}}")),
                false => simple(stream, "404 Not Found", "application/json", "", b"{}"),
            };
        }
        if let Some(tree) = request.path.strip_prefix(&format!("{api}/tree/")) {
            return self.listing(stream, tree);
        }
        let Some(rest) = request.path.strip_prefix(&format!("/{REPOSITORY}/resolve/")) else {
            return simple(stream, "404 Not Found", "text/html", "", b"<html>");
        };
        let name = rest.split_once('/').map_or("", |(_, name)| name);
        if self.manner.links.is_none() {
            return self.file(stream, request, name);
        }
        let number = self.links.fetch_add(1, Ordering::Relaxed) / self.manner.links.unwrap_or(1);
        let location = format!("Location: http://{}/{number}/{name}\r\n", self.store);
        simple(stream, "302 Found", "text/plain", &location, b"")
    }

    /// In pages of five.
    fn listing(&self, stream: &TcpStream, tree: &str) -> std::io::Result<bool> {
        let (commit, page) = tree.split_once("?page=").unwrap_or((tree, "0"));
        let page: usize = page.parse().unwrap_or(0);
        let entry = |(name, bytes): (&String, &Arc<Vec<u8>>)| {
            let (id, size) = (&self.ids[name], bytes.len());
            let lfs = format!("{{\"oid\": \"{id}\", \"size\": {size}, \"pointerSize\": 134}}");
            format!(
                "{{\"type\": \"file\", \"oid\": \"{}\", \"size\": {size}, \"path\": \"{name}\", \"lfs\": {lfs}}}",
                "0".repeat(40)
            )
        };
        let all: Vec<String> = self.files.iter().map(entry).collect();
        let mut shown: Vec<String> = all.iter().skip(5 * page).take(5).cloned().collect();
        shown.push("{\"type\": \"directory\", \"oid\": \"1\", \"size\": 0, \"path\": \"figures\"}".into());
        shown.push("{\"type\": \"file\", \"oid\": \"1\", \"size\": 9, \"path\": \"../escape.json\"}".into());
        let home = stream.local_addr()?;
        let link = match all.len() > 5 * (page + 1) {
            true => format!(
                "Link: <http://{home}/api/models/{REPOSITORY}/tree/{commit}?page={}>; rel=\"next\"\r\n",
                page + 1
            ),
            false => String::new(),
        };
        json(stream, &link, &format!("[{}]", shown.join(",")))
    }

    /// The machine of the files.
    fn store(&self, stream: &TcpStream, request: &Request) -> std::io::Result<bool> {
        let (number, name) = request.path.trim_start_matches('/').split_once('/').unwrap_or(("", ""));
        let now = self.links.fetch_add(1, Ordering::Relaxed) / self.manner.links.unwrap_or(1);
        match number.parse() == Ok(now) {
            true => self.file(stream, request, name),
            false => simple(stream, "403 Forbidden", "application/xml", "", b"<Error>Request has expired</Error>"),
        }
    }

    fn take_fault(&self, name: &str) -> Option<Fault> {
        let mut faults = lock(&self.faults);
        let at = faults.iter().position(|(file, _)| file.is_empty() || file == name)?;
        Some(faults.remove(at).1)
    }

    fn file(&self, stream: &TcpStream, request: &Request, name: &str) -> std::io::Result<bool> {
        let Some(bytes) = self.files.get(name) else {
            return simple(stream, "404 Not Found", "text/plain", "", b"");
        };
        self.requests.fetch_add(1, Ordering::Relaxed);
        let size = bytes.len() as u64;
        let range = request.range.filter(|_| !self.manner.whole);
        let (from, to) = range.unwrap_or((0, size));
        let to = to.min(size);
        let fault = self.take_fault(name);
        match fault {
            Some(Fault::Status(status, after)) => {
                let after = after.map_or_else(String::new, |s| format!("Retry-After: {s}\r\n"));
                return simple(stream, &format!("{status} Not now"), "text/plain", &after, b"later");
            }
            Some(Fault::Page) => return simple(stream, "200 OK", "text/html; charset=utf-8", "", PAGE),
            Some(Fault::DisguisedPage) => {
                // As long as what was asked for.
                let mut page = PAGE.to_vec();
                page.resize((to - from) as usize, b' ');
                let range = format!("Content-Range: bytes {from}-{}/{size}\r\n", to - 1);
                return simple(stream, "206 Partial Content", "application/octet-stream", &range, &page);
            }
            Some(Fault::OtherRevision) => {
                let range = format!("Content-Range: bytes {from}-{}/{}\r\n", to - 1, size + 8);
                let body = vec![7; (to - from) as usize];
                return simple(stream, "206 Partial Content", "application/octet-stream", &range, &body);
            }
            Some(Fault::Length(more)) => {
                let body = vec![7; (to - from).saturating_add_signed(more) as usize];
                let range = format!("Content-Range: bytes {from}-{}/{size}\r\n", to - 1);
                return simple(stream, "206 Partial Content", "application/octet-stream", &range, &body);
            }
            _ => {}
        }
        self.bytes_of(stream, &bytes[from as usize..to as usize], range.map(|_| (from, to, size)), fault)
    }

    fn bytes_of(
        &self,
        mut stream: &TcpStream,
        body: &[u8],
        range: Option<(u64, u64, u64)>,
        fault: Option<Fault>,
    ) -> std::io::Result<bool> {
        let status = if range.is_some() { "206 Partial Content" } else { "200 OK" };
        let range = range.map_or_else(String::new, |(f, t, s)| format!("Content-Range: bytes {f}-{}/{s}\r\n", t - 1));
        let length = match self.manner.lengthless {
            true => "Connection: close\r\n".to_string(),
            false => format!("Content-Length: {}\r\n", body.len()),
        };
        let head = format!("HTTP/1.1 {status}\r\nContent-Type: application/octet-stream\r\n{range}{length}\r\n");
        stream.write_all(head.as_bytes())?;
        let (stop, mut sent) = match fault {
            Some(Fault::Drop(n) | Fault::Stall(n)) => (n, 0),
            _ => (u64::MAX, 0),
        };
        for chunk in body.chunks(64 << 10) {
            let mut chunk = chunk.to_vec();
            if sent == 0 && fault == Some(Fault::Flip) {
                chunk[20.min(body.len() - 1)] ^= 4;
            }
            if fault == Some(Fault::Trickle) {
                for byte in &chunk {
                    stream.write_all(&[*byte])?;
                    std::thread::sleep(Duration::from_millis(5));
                }
            }
            chunk.truncate((stop - sent).min(chunk.len() as u64) as usize);
            // Counted first: a client that has it all may look at the count at once.
            self.sent.fetch_add(chunk.len() as u64, Ordering::Relaxed);
            stream.write_all(&chunk)?;
            sent += chunk.len() as u64;
            if sent == stop {
                if matches!(fault, Some(Fault::Stall(_))) {
                    std::thread::sleep(Duration::from_secs(8));
                }
                return Ok(false);
            }
            std::thread::sleep(Duration::from_micros(self.manner.rest));
        }
        Ok(!self.manner.lengthless)
    }
}

const PAGE: &[u8] = b"<!doctype html><html><body>Please log in to this network</body></html>";

fn json(stream: &TcpStream, more: &str, text: &str) -> std::io::Result<bool> {
    simple(stream, "200 OK", "application/json", more, text.as_bytes())
}

fn simple(mut stream: &TcpStream, status: &str, kind: &str, more: &str, body: &[u8]) -> std::io::Result<bool> {
    let length = body.len();
    let head = format!("HTTP/1.1 {status}\r\nContent-Type: {kind}\r\n{more}Content-Length: {length}\r\n\r\n");
    stream.write_all(head.as_bytes())?;
    stream.write_all(body)?;
    Ok(true)
}
