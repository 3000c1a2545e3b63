//! Server-sent events as bytes. Nothing else writes them.

use axum::body::Body;
use axum::http::{HeaderValue, header};
use axum::response::Response;
use bytes::Bytes;
use futures_util::stream;
use serde::Serialize;
use std::fmt::Write as _;
use std::time::Duration;

use crate::resume::Reader;

/// An event of a stream; its data is one line.
#[derive(Clone, Debug, PartialEq)]
pub struct Frame {
    pub event: Option<&'static str>,
    pub data: String,
    /// Whether it is part of the answer, rather than news on the way: only then it has an id, and comes again on resume.
    pub answer: bool,
}

impl Frame {
    /// A nameless event, as chat completions have them.
    pub fn data(data: &impl Serialize) -> Frame {
        Frame { event: None, data: json(data), answer: true }
    }

    pub fn named(event: &'static str, data: &impl Serialize) -> Frame {
        Frame { event: Some(event), data: json(data), answer: true }
    }

    /// Data that is no JSON.
    pub fn word(word: &str) -> Frame {
        Frame { event: None, data: word.to_string(), answer: true }
    }

    /// How far the prompt is.
    pub fn progress(done: usize, total: usize) -> Frame {
        let data = format!("{{\"type\":\"progress\",\"done\":{done},\"total\":{total}}}");
        Frame { event: Some("progress"), data, answer: false }
    }

    /// The bytes; `id`: stream and number, for those who may come back.
    pub fn bytes(&self, id: Option<(&str, u64)>) -> Bytes {
        let mut out = String::with_capacity(self.data.len() + 64);
        if let Some(event) = self.event {
            out.push_str("event: ");
            out.push_str(event);
            out.push('\n');
        }
        if let Some((stream, number)) = id {
            // Writing to a String does not fail.
            let _ = writeln!(out, "id: {stream}:{number}");
        }
        debug_assert!(!self.data.contains(['\n', '\r']), "an event's data is one line");
        out.push_str("data: ");
        out.push_str(&self.data);
        out.push_str("\n\n");
        Bytes::from(out)
    }
}

/// Types of ours always serialise: their keys are strings.
fn json(value: &impl Serialize) -> String {
    serde_json::to_string(value).unwrap_or_default()
}

/// The comment or event that says that the server is alive.
pub const COMMENT: &[u8] = b": ping\n\n";
pub const PING_EVENT: &[u8] = b"event: ping\ndata: {\"type\": \"ping\"}\n\n";

/// A response that sends what the reader gives as it comes, and `ping` after each silence.
pub fn response(reader: Reader, ping: &'static [u8], silence: Duration) -> Response {
    let pieces = stream::unfold(reader, move |mut reader| async move {
        let piece = match tokio::time::timeout(silence, reader.next()).await {
            Ok(piece) => piece?,
            Err(_) => Ok(Bytes::from_static(ping)),
        };
        Some((piece, reader))
    });
    // A stream that was given up must not look like one that ended: its connection breaks.
    let mut response = Response::new(Body::from_stream(pieces));
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    // Proxies would hold events back.
    headers.insert("x-accel-buffering", HeaderValue::from_static("no"));
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_as_bytes() {
        let frame = Frame::data(&serde_json::json!({"text": "a\nb\r"}));
        assert_eq!(&frame.bytes(None)[..], b"data: {\"text\":\"a\\nb\\r\"}\n\n");
        let named = Frame::named("message_stop", &serde_json::json!({}));
        assert_eq!(&named.bytes(Some(("msg_1", 7)))[..], b"event: message_stop\nid: msg_1:7\ndata: {}\n\n");
        assert_eq!(&Frame::word("[DONE]").bytes(None)[..], b"data: [DONE]\n\n");
    }
}
