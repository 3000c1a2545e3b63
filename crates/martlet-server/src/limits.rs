//! Bodies of requests: what is too large, too slow or of the wrong type is refused.

use crate::error::ApiError;
use crate::json;
use crate::options::Limits;
use axum::body::Body;
use axum::http::{HeaderMap, StatusCode, header};
use futures_util::StreamExt;
use serde_json::{Map, Value};
use std::sync::Arc;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Unit in which the bytes of bodies are counted.
const KIB: usize = 1024;

/// Bytes that a value takes once it is parsed, about: the dearest are small objects, with some 300 for two of them.
const VALUE: usize = 128;

/// A body that was read, and its share of the bytes that all bodies may take.
pub struct ReadBody {
    bytes: Vec<u8>,
    share: Option<OwnedSemaphorePermit>,
}

impl ReadBody {
    fn add(&mut self, more: OwnedSemaphorePermit) {
        match &mut self.share {
            Some(share) => share.merge(more),
            none => *none = Some(more),
        }
    }
}

/// Reads bodies within limits.
pub struct Bodies {
    limits: Limits,
    room: Arc<Semaphore>,
}

impl Bodies {
    pub fn new(limits: &Limits) -> Bodies {
        Bodies { limits: limits.clone(), room: Arc::new(Semaphore::new(limits.bodies / KIB)) }
    }

    /// The body of a request that should be JSON.
    pub async fn json(&self, headers: &HeaderMap, body: Body) -> Result<ReadBody, ApiError> {
        if !is_json(headers) {
            let message = "the body's content-type must be application/json";
            return Err(ApiError::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, "unsupported_media_type", message));
        }
        if headers.get(header::CONTENT_ENCODING).is_some_and(|e| e != "identity") {
            let message = "the body must not be compressed (content-encoding)";
            return Err(ApiError::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, "unsupported_encoding", message));
        }
        let told = headers.get(header::CONTENT_LENGTH).and_then(|n| n.to_str().ok()?.parse::<usize>().ok());
        if told.is_some_and(|told| told > self.limits.body) {
            return Err(self.too_large());
        }
        match tokio::time::timeout(self.limits.body_time, self.read(body)).await {
            Ok(read) => read,
            Err(_) => {
                let message = format!("the body did not come within {} seconds", self.limits.body_time.as_secs());
                Err(ApiError::new(StatusCode::REQUEST_TIMEOUT, "body_timeout", message))
            }
        }
    }

    async fn read(&self, body: Body) -> Result<ReadBody, ApiError> {
        let mut read = ReadBody { bytes: Vec::new(), share: None };
        let mut held = 0;
        let mut pieces = body.into_data_stream();
        while let Some(piece) = pieces.next().await {
            let piece = piece.map_err(|e| {
                ApiError::bad_request("body_broken", format!("the body could not be read to its end: {e}"))
            })?;
            let size = read.bytes.len() + piece.len();
            if size > self.limits.body {
                return Err(self.too_large());
            }
            // Doubling, as the vector does.
            if size > held {
                let wanted = size.max(2 * held).min(self.limits.body).max(16 * KIB);
                let more = self.take(wanted - held)?;
                read.add(more);
                held = wanted;
                read.bytes.reserve_exact(held - read.bytes.len());
            }
            read.bytes.extend_from_slice(&piece);
        }
        Ok(read)
    }

    /// Parses a body. Small values take many times their bytes, so that room is taken for them too, as long as the body is.
    pub fn object(&self, body: &mut ReadBody) -> Result<Map<String, Value>, ApiError> {
        let values = values(&body.bytes);
        let needed = VALUE * values;
        if needed > self.limits.bodies {
            let most = self.limits.bodies / VALUE;
            let message = format!("the body has about {values} values; at most {most} are read");
            return Err(ApiError::new(StatusCode::PAYLOAD_TOO_LARGE, "too_many_values", message));
        }
        body.add(self.take(needed)?);
        json::object(&body.bytes)
    }

    fn take(&self, bytes: usize) -> Result<OwnedSemaphorePermit, ApiError> {
        let units = u32::try_from(bytes.div_ceil(KIB)).unwrap_or(u32::MAX);
        self.room.clone().try_acquire_many_owned(units).map_err(|_| {
            let message = format!("bodies of {} bytes in all are being read, as many as may", self.limits.bodies);
            let error = ApiError::new(StatusCode::SERVICE_UNAVAILABLE, "too_many_bodies", message);
            ApiError { retry_after: Some(5), ..error }
        })
    }

    fn too_large(&self) -> ApiError {
        let message = format!("the body is larger than {} bytes, the most that this server reads", self.limits.body);
        ApiError::new(StatusCode::PAYLOAD_TOO_LARGE, "body_too_large", message)
    }
}

/// Values of a JSON text, about: a comma or a bracket stands before each.
fn values(text: &[u8]) -> usize {
    let (mut count, mut in_string, mut escaped) = (0, false, false);
    for byte in text {
        match byte {
            _ if escaped => escaped = false,
            b'\\' => escaped = in_string,
            b'"' => in_string = !in_string,
            b',' | b'[' | b'{' if !in_string => count += 1,
            _ => {}
        }
    }
    count
}

/// `application/json` and `application/...+json`, with any parameters.
fn is_json(headers: &HeaderMap) -> bool {
    let Some(said) = headers.get(header::CONTENT_TYPE).and_then(|v| v.to_str().ok()) else { return false };
    let essence = said.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
    essence == "application/json" || (essence.starts_with("application/") && essence.ends_with("+json"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn read(limits: Limits, kind: Option<&str>, body: Body) -> Result<usize, u16> {
        let mut headers = HeaderMap::new();
        kind.into_iter().for_each(|kind| drop(headers.insert(header::CONTENT_TYPE, kind.parse().unwrap())));
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        let read = runtime.block_on(Bodies::new(&limits).json(&headers, body));
        read.map(|b| b.bytes.len()).map_err(|e| e.status.as_u16())
    }

    #[test]
    fn bodies_are_bounded() {
        let small = || Limits { body: 100 << 10, bodies: 64 << 10, ..Limits::default() };
        let json = Some("application/json; charset=utf-8");
        assert_eq!(read(small(), json, Body::from(vec![b' '; 20_000])), Ok(20_000));
        assert_eq!(read(small(), json, Body::from(vec![b' '; 70_000])), Err(503));
        assert_eq!(read(small(), json, Body::from(vec![b' '; 200_000])), Err(413));
        assert_eq!(read(small(), Some("application/vnd.api+json"), Body::empty()), Ok(0));
        assert_eq!(read(small(), Some("text/plain"), Body::from("{}")), Err(415));
        assert_eq!(read(small(), None, Body::from("{}")), Err(415));
    }

    #[test]
    fn values_take_room_while_they_are_used() {
        assert_eq!(values(br#"{"a, [\"{": [1, 2, {}], "b": "\\"}"#), 6);
        let bodies = Bodies::new(&Limits { bodies: 100 * VALUE + 2 * KIB, ..Limits::default() });
        let body = |values: usize| {
            let bytes = format!("{{\"a\": [{}]}}", vec!["1"; values].join(",")).into_bytes();
            ReadBody { bytes, share: None }
        };
        let mut first = body(90);
        assert!(bodies.object(&mut first).is_ok());
        let refused = |values: usize| bodies.object(&mut body(values)).err().map(|e| e.status.as_u16());
        assert_eq!(refused(90), Some(503));
        assert_eq!(refused(200), Some(413));
        drop(first);
        assert_eq!(refused(90), None);
    }

    #[test]
    fn a_body_that_does_not_come_times_out() {
        let limits = Limits { body_time: Duration::from_millis(10), ..Limits::default() };
        let endless = futures_util::stream::pending::<Result<bytes::Bytes, std::convert::Infallible>>();
        assert_eq!(read(limits, Some("application/json"), Body::from_stream(endless)), Err(408));
    }
}
