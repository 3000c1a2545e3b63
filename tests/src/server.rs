//! A server over fledgling in this process, and clients that send just what they are told.

use martlet_server::{Limits, Options, Server, Stop};
use martlet_session::{ModelSource, Session, Stats};
use serde_json::{Value, json};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// For what must come, however busy the machine is.
const PATIENCE: Duration = Duration::from_secs(120);

/// Fledgling in a gibibyte of memory, with so many sequences at a time and prompts in small steps.
pub fn session(sequences: usize) -> Arc<Session> {
    let source = ModelSource::Path(crate::fixtures::fledgling());
    Arc::new(Session::open(&source, &opened(sequences), &mut |_, _| {}).unwrap_or_else(|e| panic!("{e}")))
}

/// How [`session`] opens its model.
pub fn opened(sequences: usize) -> martlet_session::Options {
    martlet_session::Options {
        sequences,
        prefill_chunk: Some(64),
        context: Some(8192),
        memory: Some(1 << 30),
        ..martlet_session::Options::default()
    }
}

/// A server that does not think unless it is asked to.
pub fn options(limits: Limits) -> Options {
    Options { port: 0, quiet: true, think: Some(false), limits, ..Options::default() }
}

/// A server that runs. It ends with this value.
pub struct Running {
    pub address: SocketAddr,
    /// None where the server alone has it, so that it can be unloaded.
    held: Option<Arc<Session>>,
    pub stop: Stop,
    /// The first of its keys, for what is asked below.
    key: String,
    thread: Option<JoinHandle<()>>,
}

/// Says the answers of a script, see docs/server.md.
pub fn serve_script(session: Arc<Session>, options: Options, script: &str) -> Running {
    let file = tempfile::NamedTempFile::new().unwrap_or_else(|e| panic!("{e}"));
    std::fs::write(&file, script).unwrap_or_else(|e| panic!("{e}"));
    serve(session, Options { script: Some(file.path().to_path_buf()), ..options })
}

/// An answer that has no end before any limit of tokens that these tests set.
pub fn endless() -> String {
    let numbers: Vec<String> = (1..4000).map(|n| n.to_string()).collect();
    format!("=== answer repeat\n{}\n", numbers.join(" "))
}

pub fn serve(session: Arc<Session>, options: Options) -> Running {
    let key = options.api_keys.first().cloned().unwrap_or_default();
    run(session.clone(), Some(session), options, key)
}

/// A server that alone has its models.
pub fn serve_alone(session: Arc<Session>, options: Options) -> Running {
    let key = options.api_keys.first().cloned().unwrap_or_default();
    run(session, None, options, key)
}

fn run(session: Arc<Session>, held: Option<Arc<Session>>, options: Options, key: String) -> Running {
    let server = Server::bind(session, options).unwrap_or_else(|e| panic!("{e}"));
    let (address, stop) = (server.address(), server.stop());
    Running { address, held, stop, key, thread: Some(std::thread::spawn(move || server.run(false))) }
}

impl Running {
    /// The model of a server that [`serve`] has begun.
    pub fn session(&self) -> &Arc<Session> {
        self.held.as_ref().expect("a session that is held")
    }

    pub fn stats(&self) -> Stats {
        self.session().stats()
    }

    /// The sum of a metric over its labels, as far as they have `label` in them.
    pub fn metric(&self, name: &str, label: &str) -> f64 {
        let mut page = self.get("/metrics");
        // The connections that were closed just now may count still.
        while page.status == 503 {
            std::thread::sleep(Duration::from_millis(10));
            page = self.get("/metrics");
        }
        assert_eq!(page.status, 200);
        let page = page.text();
        let lines = page.lines().filter(|l| l.split('{').next() == Some(name) && l.contains(label));
        lines.map(|l| l.rsplit(' ').next().and_then(|n| n.parse::<f64>().ok()).expect("a number")).sum()
    }

    /// Turns that ended so.
    pub fn finished(&self, reason: &str) -> f64 {
        self.metric("martlet_finished_total", &format!("reason=\"{reason}\""))
    }

    /// Waits for what comes by itself.
    pub fn until(&self, what: &str, come: impl Fn(&Running) -> bool) {
        let began = Instant::now();
        while !come(self) {
            if began.elapsed() > PATIENCE {
                let page = self.get("/metrics").text();
                let ours = page.lines().filter(|l| l.starts_with("martlet_") && !l.contains("_bucket"));
                panic!("never came: {what}\n{}", ours.collect::<Vec<_>>().join("\n"));
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Waits until no turn runs or waits, then sees that nothing is held but by the cache, and that only this connection is
    /// left.
    pub fn nothing_is_left(&self) {
        let gauges = [
            "martlet_turns",
            "martlet_answers",
            "martlet_engine_running",
            "martlet_engine_waiting",
            "martlet_streams_detached",
        ];
        self.until("the end of all turns", |s| gauges.iter().all(|gauge| s.metric(gauge, "") == 0.0));
        self.until("the end of all connections", |s| s.metric("martlet_connections", "") == 1.0);
        self.session().clear_cache();
        self.until("pages given back", |s| s.stats().pages == 0);
        assert_eq!(self.stats().cache.entries, 0);
    }

    pub fn client(&self) -> Client {
        Client::connect(self.address)
    }

    pub fn get(&self, path: &str) -> Response {
        let mut client = self.client();
        let head = format!("GET {path} HTTP/1.1\r\nhost: localhost\r\nx-api-key: {}\r\n", self.key);
        client.send(format!("{head}connection: close\r\n\r\n").as_bytes());
        client.response()
    }

    /// Posts JSON on a connection of its own.
    pub fn post(&self, path: &str, headers: &[(&str, &str)], body: &Value) -> Client {
        let mut client = self.client();
        client.post(path, headers, body);
        client
    }

    /// Waits for the end of a server that was stopped.
    pub fn join(mut self) {
        self.thread.take().expect("it runs").join().expect("it ends well");
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.stop.stop();
        self.stop.stop();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// One connection.
pub struct Client {
    stream: BufReader<TcpStream>,
    /// Bytes left of the chunk of the body that is being read.
    chunk: usize,
}

/// A response with its whole body.
#[derive(Debug)]
pub struct Response {
    pub status: u16,
    pub head: String,
    pub body: Vec<u8>,
}

/// One event of a stream.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Event {
    pub name: String,
    pub id: String,
    pub data: String,
}

impl Event {
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.data).unwrap_or_else(|e| panic!("{e}: {}", self.data))
    }
}

impl Response {
    pub fn text(&self) -> String {
        String::from_utf8(self.body.clone()).expect("UTF-8")
    }

    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|e| panic!("{e}: {}", self.text()))
    }

    pub fn header(&self, name: &str) -> Option<&str> {
        let lines = self.head.lines().filter_map(|line| line.split_once(": "));
        lines.filter(|(n, _)| n.eq_ignore_ascii_case(name)).map(|(_, value)| value).next()
    }
}

impl Client {
    pub fn connect(address: SocketAddr) -> Client {
        let stream = TcpStream::connect(address).unwrap_or_else(|e| panic!("{e}"));
        stream.set_read_timeout(Some(PATIENCE)).expect("a time");
        Client { stream: BufReader::new(stream), chunk: 0 }
    }

    pub fn send(&mut self, bytes: &[u8]) {
        self.try_send(bytes).unwrap_or_else(|e| panic!("{e}"));
    }

    pub fn try_send(&mut self, bytes: &[u8]) -> std::io::Result<()> {
        self.stream.get_mut().write_all(bytes)
    }

    pub fn post(&mut self, path: &str, headers: &[(&str, &str)], body: &Value) {
        self.send(&request(path, headers, body.to_string().as_bytes()));
    }

    /// A head up to its empty line, status and all; `None` if the connection ended before it.
    fn head(&mut self) -> Option<String> {
        let mut head = String::new();
        loop {
            let mut line = String::new();
            if self.stream.read_line(&mut line).unwrap_or(0) == 0 {
                assert!(head.is_empty(), "a head that was cut off: {head}");
                return None;
            }
            if line == "\r\n" {
                return Some(head);
            }
            head += &line;
        }
    }

    /// The next response, up to its end.
    pub fn response(&mut self) -> Response {
        self.try_response().expect("a response")
    }

    /// The next response; `None` if the connection ended.
    pub fn try_response(&mut self) -> Option<Response> {
        let mut response = self.begun()?;
        match response.header("content-length").map(|n| n.parse::<usize>().expect("a length")) {
            Some(length) => {
                response.body = vec![0; length];
                self.stream.read_exact(&mut response.body).expect("the body");
            }
            None if response.header("transfer-encoding").is_some() => {
                while let Some(line) = self.line() {
                    response.body.extend(line.as_bytes());
                }
            }
            None => drop(self.stream.read_to_end(&mut response.body).expect("the body")),
        }
        Some(response)
    }

    /// The head of the next response; its body is read by [`Client::event`].
    pub fn begun(&mut self) -> Option<Response> {
        let head = self.head()?;
        let status = head.split(' ').nth(1).and_then(|s| s.parse().ok()).unwrap_or_else(|| panic!("a status: {head}"));
        Some(Response { status, head, body: Vec::new() })
    }

    /// Reads the head of a stream, which must have begun.
    pub fn stream(&mut self) {
        let mut begun = self.begun().expect("a response");
        if begun.status != 200 {
            let _ = self.stream.get_ref().set_read_timeout(Some(Duration::from_millis(100)));
            let _ = self.stream.read_to_end(&mut begun.body);
            panic!("{}\n{}", begun.head, begun.text());
        }
        assert_eq!(begun.header("content-type"), Some("text/event-stream"));
    }

    /// A line of a body in chunks; `None` at its end.
    fn line(&mut self) -> Option<String> {
        self.try_line().expect("a stream that is not cut off")
    }

    fn try_line(&mut self) -> std::io::Result<Option<String>> {
        let mut line = Vec::new();
        while line.last() != Some(&b'\n') {
            if self.chunk == 0 {
                self.chunk = self.chunk_size()?;
                if self.chunk == 0 {
                    return Ok((!line.is_empty()).then(|| String::from_utf8_lossy(&line).into_owned()));
                }
            }
            let before = line.len();
            (&mut self.stream).take(self.chunk as u64).read_until(b'\n', &mut line)?;
            self.chunk -= line.len() - before;
            if line.len() == before {
                return Err(std::io::ErrorKind::UnexpectedEof.into());
            }
            if self.chunk == 0 {
                self.stream.read_exact(&mut [0; 2])?;
            }
        }
        Ok(Some(String::from_utf8_lossy(&line).into_owned()))
    }

    fn chunk_size(&mut self) -> std::io::Result<usize> {
        let mut size = String::new();
        self.stream.read_line(&mut size)?;
        let size = usize::from_str_radix(size.trim(), 16).map_err(|_| std::io::ErrorKind::UnexpectedEof)?;
        if size == 0 {
            self.stream.read_exact(&mut [0; 2])?;
        }
        Ok(size)
    }

    /// The next event, comments left out; `None` at the end of the stream.
    pub fn event(&mut self) -> Option<Event> {
        self.try_event().expect("a stream that is not cut off")
    }

    pub fn try_event(&mut self) -> std::io::Result<Option<Event>> {
        let mut event = Event::default();
        while let Some(line) = self.try_line()? {
            match line.trim_end_matches('\n').split_once(": ") {
                Some(("event", name)) => event.name = name.into(),
                Some(("id", id)) => event.id = id.into(),
                Some(("data", data)) => event.data = data.into(),
                Some(_) => {}
                None if event.data.is_empty() || event.name == "ping" => event = Event::default(),
                None => return Ok(Some(event)),
            }
        }
        Ok(None)
    }

    /// All events that are left.
    pub fn events(&mut self) -> Vec<Event> {
        std::iter::from_fn(|| self.event()).collect()
    }

    /// Whether the other end has closed; waits for it.
    pub fn is_closed(&mut self) -> bool {
        matches!(self.stream.read(&mut [0; 1]), Ok(0) | Err(_))
    }
}

/// A request to post JSON.
pub fn request(path: &str, headers: &[(&str, &str)], body: &[u8]) -> Vec<u8> {
    let mut head = format!("POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n");
    headers.iter().for_each(|(name, value)| head += &format!("{name}: {value}\r\n"));
    head += &format!("content-length: {}\r\n\r\n", body.len());
    [head.as_bytes(), body].concat()
}

/// An API that generates.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Api {
    Chat,
    Responses,
    Messages,
}

pub const APIS: [Api; 3] = [Api::Chat, Api::Responses, Api::Messages];

impl Api {
    pub fn path(self) -> &'static str {
        match self {
            Api::Chat => "/v1/chat/completions",
            Api::Responses => "/v1/responses",
            Api::Messages => "/v1/messages",
        }
    }

    /// A greedy request for `tokens` tokens after what a user said.
    pub fn ask(self, said: &str, tokens: usize, stream: bool) -> Value {
        let messages = json!([{"role": "user", "content": said}]);
        match self {
            Api::Chat => json!({"messages": messages, "max_tokens": tokens, "temperature": 0, "stream": stream}),
            Api::Responses => {
                json!({"input": messages, "max_output_tokens": tokens, "temperature": 0, "stream": stream})
            }
            Api::Messages => json!({"messages": messages, "max_tokens": tokens, "temperature": 0, "stream": stream}),
        }
    }

    /// The text of a response.
    pub fn text(self, response: &Value) -> String {
        let text = match self {
            Api::Chat => &response["choices"][0]["message"]["content"],
            Api::Responses => &response["output"][0]["content"][0]["text"],
            Api::Messages => &response["content"][0]["text"],
        };
        text.as_str().unwrap_or_else(|| panic!("no text in {response}")).to_string()
    }

    /// The text of a stream, which must have its end.
    pub fn streamed(self, events: &[Event]) -> String {
        let mut text = String::new();
        for event in events.iter().filter(|e| e.data.starts_with('{')).map(Event::json) {
            let piece = match self {
                Api::Chat => &event["choices"][0]["delta"]["content"],
                Api::Responses if event["type"] == "response.output_text.delta" => &event["delta"],
                Api::Messages => &event["delta"]["text"],
                Api::Responses => continue,
            };
            text += piece.as_str().unwrap_or_default();
        }
        assert!(self.is_end(events.last().expect("an event")), "{:?}", events.last());
        text
    }

    pub fn is_end(self, event: &Event) -> bool {
        match self {
            Api::Chat => event.data == "[DONE]",
            Api::Responses => ["response.completed", "response.incomplete"].contains(&event.name.as_str()),
            Api::Messages => event.name == "message_stop",
        }
    }

    /// The arguments of the first tool call of a stream.
    pub fn arguments(self, events: &[Event]) -> Value {
        let mut text = String::new();
        for event in events.iter().filter(|e| e.data.starts_with('{')).map(Event::json) {
            let piece = match self {
                Api::Chat => &event["choices"][0]["delta"]["tool_calls"][0]["function"]["arguments"],
                Api::Responses if event["type"] == "response.function_call_arguments.delta" => &event["delta"],
                Api::Messages => &event["delta"]["partial_json"],
                Api::Responses => continue,
            };
            text += piece.as_str().unwrap_or_default();
        }
        serde_json::from_str(&text).unwrap_or_else(|e| panic!("{e}: {text}"))
    }

    /// The response's id, which one of the first events has.
    pub fn id(self, first: &Event) -> String {
        let event = first.json();
        let id = match self {
            Api::Chat => &event["id"],
            Api::Responses => &event["response"]["id"],
            Api::Messages => &event["message"]["id"],
        };
        id.as_str().unwrap_or_else(|| panic!("no id in {event}")).to_string()
    }

    /// With one tool, `look`, of a text and a number.
    pub fn with_tool(self, mut body: Value) -> Value {
        let schema = json!({"type": "object", "required": ["text"],
            "properties": {"text": {"type": "string"}, "days": {"type": "integer"}}});
        body["tools"] = match self {
            Api::Chat => json!([{"type": "function", "function": {"name": "look", "parameters": schema}}]),
            Api::Responses => json!([{"type": "function", "name": "look", "parameters": schema}]),
            Api::Messages => json!([{"name": "look", "input_schema": schema}]),
        };
        body
    }

    /// Held to a JSON schema.
    pub fn with_schema(self, mut body: Value, schema: Value) -> Value {
        match self {
            Api::Chat => {
                body["response_format"] =
                    json!({"type": "json_schema", "json_schema": {"name": "answer", "schema": schema}});
            }
            Api::Responses => {
                body["text"] = json!({"format": {"type": "json_schema", "name": "answer", "schema": schema}});
            }
            Api::Messages => body["output_config"] = json!({"format": {"type": "json_schema", "schema": schema}}),
        }
        body
    }
}

/// Memory of this process.
pub mod memory {
    /// Bytes that are resident now.
    pub fn resident() -> u64 {
        status("VmRSS:")
    }

    /// Most bytes that were, since the start or [`forget_peak`].
    pub fn peak() -> u64 {
        status("VmHWM:")
    }

    /// Lets [`peak`] begin anew.
    pub fn forget_peak() {
        std::fs::write("/proc/self/clear_refs", "5").expect("Linux has /proc");
    }

    fn status(name: &str) -> u64 {
        let text = std::fs::read_to_string("/proc/self/status").expect("Linux has /proc");
        let line = text.lines().find_map(|l| l.strip_prefix(name)).expect("a line");
        line.trim().trim_end_matches(" kB").trim().parse::<u64>().expect("a number") << 10
    }
}
