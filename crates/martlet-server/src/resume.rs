//! What a stream has said, and who reads it. A reader that goes away ends the turn, or, where the stream is kept, may
//! come back for a time and go on where it was.

use crate::auth::Client;
use crate::error::ApiError;
use crate::sse::Frame;
use axum::http::StatusCode;
use bytes::{Bytes, BytesMut};
use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::Notify;

/// Most bytes that one read hands out.
const PIECE: usize = 64 << 10;

/// Calls that end the turns of a request.
#[derive(Default)]
pub struct Cancel(Mutex<Vec<Box<dyn Fn() + Send>>>);

impl Cancel {
    pub fn add(&self, call: impl Fn() + Send + 'static) {
        lock(&self.0).push(Box::new(call));
    }

    pub fn now(&self) {
        lock(&self.0).iter().for_each(|call| call());
    }
}

/// Cancels when it is dropped.
pub struct CancelOnDrop(pub Arc<Cancel>);

impl Drop for CancelOnDrop {
    fn drop(&mut self) {
        self.0.now();
    }
}

/// No code panics while it holds one of these locks; what is behind it is whole in any case.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The frames of one stream, from the turn to its reader.
pub struct Log {
    id: String,
    /// Zero: what was read is forgotten, and without a reader the turn ends.
    keep: Duration,
    state: Mutex<State>,
    changed: Notify,
}

#[derive(Default)]
struct State {
    frames: VecDeque<Entry>,
    /// Frames forgotten before the first of `frames`.
    forgotten: u64,
    /// Answer frames so far.
    numbered: u64,
    done: bool,
    /// Which reader is the present one.
    reader: u64,
    /// Where it is.
    at: u64,
}

struct Entry {
    /// Number of the last answer frame up to here.
    number: u64,
    bytes: Bytes,
}

impl Log {
    pub fn new(id: &str, keep: Duration) -> Arc<Log> {
        Arc::new(Log { id: id.to_string(), keep, state: Mutex::default(), changed: Notify::new() })
    }

    pub fn push(&self, frames: &mut Vec<Frame>) {
        if frames.is_empty() {
            return;
        }
        let mut state = lock(&self.state);
        for frame in frames.drain(..) {
            state.numbered += u64::from(frame.answer);
            let number = state.numbered;
            let id = (frame.answer && !self.keep.is_zero()).then_some((self.id.as_str(), number));
            let bytes = frame.bytes(id);
            state.frames.push_back(Entry { number, bytes });
        }
        drop(state);
        self.changed.notify_waiters();
    }

    /// Nothing more will come.
    pub fn finish(&self) {
        lock(&self.state).done = true;
        self.changed.notify_waiters();
    }
}

/// Reads a log to its end. Dropping it says that the client went away.
pub struct Reader {
    log: Arc<Log>,
    cancel: Arc<Cancel>,
    streams: Arc<Streams>,
    generation: u64,
}

impl Reader {
    /// The first reader of a stream, and its entry among the kept ones where it asks for it.
    pub fn first(
        log: Arc<Log>,
        cancel: Arc<Cancel>,
        streams: Arc<Streams>,
        endpoint: &'static str,
        of: Client,
    ) -> Reader {
        if !log.keep.is_zero() {
            let kept = Kept { log: log.clone(), cancel: cancel.clone(), endpoint, of, until: None };
            streams.insert(kept);
        }
        Reader { log, cancel, streams, generation: 0 }
    }

    /// What came since the last call, joined; `None` at the end, or when another reader took over.
    pub async fn next(&mut self) -> Option<Bytes> {
        let log = self.log.clone();
        loop {
            let changed = log.changed.notified();
            tokio::pin!(changed);
            changed.as_mut().enable();
            match self.take() {
                Taken::Piece(bytes) => return Some(bytes),
                Taken::End => return None,
                Taken::Nothing => changed.await,
            }
        }
    }

    fn take(&mut self) -> Taken {
        let mut state = lock(&self.log.state);
        if state.reader != self.generation {
            return Taken::End;
        }
        let from = (state.at - state.forgotten) as usize;
        let mut size = 0;
        let fits = |entry: &&Entry| {
            let first = size == 0;
            size += entry.bytes.len();
            first || size <= PIECE
        };
        let mut piece: Vec<Bytes> = state.frames.range(from..).take_while(fits).map(|e| e.bytes.clone()).collect();
        state.at += piece.len() as u64;
        if self.log.keep.is_zero() {
            state.frames.drain(..from + piece.len());
            state.forgotten = state.at;
        }
        match piece.len() {
            0 if state.done => Taken::End,
            0 => Taken::Nothing,
            1 => Taken::Piece(piece.swap_remove(0)),
            _ => {
                let mut joined = BytesMut::with_capacity(piece.iter().map(Bytes::len).sum());
                piece.iter().for_each(|bytes| joined.extend_from_slice(bytes));
                Taken::Piece(joined.freeze())
            }
        }
    }
}

enum Taken {
    Piece(Bytes),
    Nothing,
    End,
}

impl Drop for Reader {
    fn drop(&mut self) {
        let (current, read) = {
            let state = lock(&self.log.state);
            (state.reader == self.generation, state.done && state.at == state.forgotten + state.frames.len() as u64)
        };
        if !current {
            return;
        }
        if self.log.keep.is_zero() {
            self.cancel.now();
        } else if read && self.generation > 0 {
            // It came back and has all of it: that was the one time.
            self.streams.remove(&self.log.id);
        } else {
            self.streams.detach(&self.log.id, Instant::now() + self.log.keep);
        }
    }
}

/// Streams that are kept for readers who come back.
pub struct Streams {
    kept: Mutex<HashMap<String, Kept>>,
    limit: usize,
}

struct Kept {
    log: Arc<Log>,
    cancel: Arc<Cancel>,
    endpoint: &'static str,
    /// Only who asked may come back.
    of: Client,
    /// When it is given up; `None` while somebody reads.
    until: Option<Instant>,
}

impl Streams {
    /// At most `limit` streams are kept without a reader: then the one that would be given up first goes.
    pub fn new(limit: usize) -> Arc<Streams> {
        Arc::new(Streams { kept: Mutex::default(), limit })
    }

    fn insert(&self, stream: Kept) {
        lock(&self.kept).insert(stream.log.id.clone(), stream);
    }

    fn remove(&self, id: &str) {
        lock(&self.kept).remove(id);
    }

    fn detach(&self, id: &str, until: Instant) {
        let mut kept = lock(&self.kept);
        if let Some(stream) = kept.get_mut(id) {
            stream.until = Some(until);
        }
        if kept.values().filter(|k| k.until.is_some()).count() > self.limit {
            let first = kept.values().filter(|k| k.until.is_some()).min_by_key(|k| k.until).map(|k| k.log.id.clone());
            if let Some(stream) = first.and_then(|id| kept.remove(&id)) {
                stream.cancel.now();
            }
        }
    }

    /// Streams without a reader.
    pub fn detached(&self) -> usize {
        lock(&self.kept).values().filter(|k| k.until.is_some()).count()
    }

    /// Gives up the streams to which nobody came back.
    pub fn sweep(&self, now: Instant) {
        lock(&self.kept).retain(|_, stream| {
            let stays = stream.until.is_none_or(|until| now < until);
            if !stays {
                stream.cancel.now();
            }
            stays
        });
    }

    /// The stream `id` from where its reader was, or behind the answer frame `after`. A reader that is still there (its
    /// connection may be dead without anybody having noticed) ends.
    pub fn resume(
        self: &Arc<Streams>,
        id: &str,
        after: Option<u64>,
        endpoint: &'static str,
        of: &Client,
    ) -> Result<Reader, ApiError> {
        let mut kept = lock(&self.kept);
        let stream = kept.get_mut(id).filter(|stream| stream.of == *of && stream.endpoint == endpoint);
        let Some(stream) = stream else {
            let message = format!("there is no stream {id} to go on with: it ended, was fetched, or its time passed");
            return Err(ApiError {
                status: StatusCode::NOT_FOUND,
                ..ApiError::bad_request("stream_not_found", message)
            });
        };
        stream.until = None;
        let (log, cancel) = (stream.log.clone(), stream.cancel.clone());
        let mut state = lock(&log.state);
        if let Some(after) = after {
            if after > state.numbered {
                let message = format!("stream {id} has {} events so far, and {after} is asked for", state.numbered);
                return Err(ApiError::field("last-event-id", message));
            }
            state.at = state.forgotten + state.frames.partition_point(|e| e.number <= after) as u64;
        }
        state.reader += 1;
        let generation = state.reader;
        drop(state);
        log.changed.notify_waiters();
        Ok(Reader { log, cancel, streams: self.clone(), generation })
    }
}

#[cfg(test)]
mod tests;
