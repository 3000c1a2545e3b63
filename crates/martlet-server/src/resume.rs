//! What a stream has said, and who reads it. A reader that goes away ends the turn, or, where the stream is kept, may
//! come back for a time and go on where it was.

use crate::auth::Client;
use crate::error::ApiError;
use crate::sse::Frame;
use bytes::{Bytes, BytesMut};
use std::cmp::Reverse;
use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
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

/// Cancels when it is dropped, unless somebody else has taken that over.
pub struct CancelOnDrop(Option<Arc<Cancel>>);

impl CancelOnDrop {
    pub fn new(cancel: Arc<Cancel>) -> CancelOnDrop {
        CancelOnDrop(Some(cancel))
    }
}

impl Drop for CancelOnDrop {
    fn drop(&mut self) {
        if let Some(cancel) = self.0.take() {
            cancel.now();
        }
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
    /// Bytes of them, about.
    held: usize,
    /// Frames forgotten before the first of `frames`, and the number of the last answer frame among them.
    forgotten: u64,
    forgotten_number: u64,
    /// Answer frames so far.
    numbered: u64,
    done: bool,
    /// It held more than there was room for: nothing of it is left.
    given_up: bool,
    /// A client has ended it.
    cancelled: bool,
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

impl Entry {
    fn size(&self) -> usize {
        size_of::<Entry>() + self.bytes.len()
    }
}

impl State {
    /// Forgets the first frames.
    fn forget(&mut self, frames: usize) {
        for entry in self.frames.drain(..frames) {
            self.held -= entry.size();
            self.forgotten_number = entry.number;
        }
        self.forgotten += frames as u64;
    }

    fn unread(&self) -> usize {
        self.frames.len() - (self.at - self.forgotten) as usize
    }
}

impl Log {
    /// False when nobody will read it.
    pub fn push(&self, frames: &mut Vec<Frame>) -> bool {
        let mut state = lock(&self.state);
        if state.given_up {
            frames.clear();
            return false;
        }
        if frames.is_empty() {
            return true;
        }
        for frame in frames.drain(..) {
            state.numbered += u64::from(frame.answer);
            let number = state.numbered;
            let id = (frame.answer && !self.keep.is_zero()).then_some((self.id.as_str(), number));
            let entry = Entry { number, bytes: frame.bytes(id) };
            state.held += entry.size();
            state.frames.push_back(entry);
        }
        drop(state);
        self.changed.notify_waiters();
        true
    }

    /// Nothing more will come.
    pub fn finish(&self) {
        lock(&self.state).done = true;
        self.changed.notify_waiters();
    }

    fn held(&self) -> usize {
        lock(&self.state).held
    }

    /// Forgets what was read; gives the bytes.
    fn forget_read(&self) -> usize {
        let mut state = lock(&self.state);
        let (before, read) = (state.held, state.frames.len() - state.unread());
        state.forget(read);
        before - state.held
    }

    /// Forgets all; its reader is cut off, and its turn ends. Gives the bytes.
    fn give_up(&self) -> usize {
        let mut state = lock(&self.state);
        let (before, frames) = (state.held, state.frames.len());
        state.forget(frames);
        state.at = state.forgotten;
        state.given_up = true;
        drop(state);
        self.changed.notify_waiters();
        before
    }
}

/// A stream was given up: what its reader did not take is lost.
#[derive(Debug, thiserror::Error)]
#[error("the client took too little of the stream")]
pub struct GivenUp;

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
        mut turn: CancelOnDrop,
        streams: Arc<Streams>,
        endpoint: &'static str,
        of: Client,
    ) -> Reader {
        // From here on the reader cancels.
        let cancel = turn.0.take().unwrap_or_default();
        if !log.keep.is_zero() {
            let kept = Kept { log: log.clone(), cancel: cancel.clone(), endpoint, of, until: None };
            streams.insert(kept);
        }
        Reader { log, cancel, streams, generation: 0 }
    }

    /// What came since the last call, joined; `None` at the end, or when another reader took over.
    pub async fn next(&mut self) -> Option<Result<Bytes, GivenUp>> {
        let log = self.log.clone();
        loop {
            let changed = log.changed.notified();
            tokio::pin!(changed);
            changed.as_mut().enable();
            match self.take() {
                Taken::Piece(bytes) => return Some(Ok(bytes)),
                Taken::End => return None,
                Taken::GivenUp => return Some(Err(GivenUp)),
                Taken::Nothing => changed.await,
            }
        }
    }

    fn take(&mut self) -> Taken {
        let mut state = lock(&self.log.state);
        if state.reader != self.generation {
            return Taken::End;
        }
        if state.given_up {
            return Taken::GivenUp;
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
            state.forget(from + piece.len());
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
    GivenUp,
}

impl Drop for Reader {
    fn drop(&mut self) {
        match self.log.keep.is_zero() {
            true => self.cancel.now(),
            false => self.streams.leave(&self.log, self.generation),
        }
    }
}

/// Streams that are kept for readers who come back.
pub struct Streams {
    kept: Mutex<HashMap<String, Kept>>,
    limit: usize,
    /// All streams, kept or not, and the bytes that they may hold together.
    logs: Mutex<Vec<Weak<Log>>>,
    room: usize,
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
    /// At most `limit` streams are kept without a reader: then the one that would be given up first goes. `room`: bytes that
    /// may wait for readers.
    pub fn new(limit: usize, room: usize) -> Arc<Streams> {
        Arc::new(Streams { kept: Mutex::default(), limit, logs: Mutex::default(), room })
    }

    /// A new stream, kept for so long when it has no reader.
    pub fn log(&self, id: &str, keep: Duration) -> Arc<Log> {
        let log = Arc::new(Log { id: id.to_string(), keep, state: Mutex::default(), changed: Notify::new() });
        lock(&self.logs).push(Arc::downgrade(&log));
        log
    }

    fn insert(&self, stream: Kept) {
        lock(&self.kept).insert(stream.log.id.clone(), stream);
    }

    /// A reader goes away.
    fn leave(&self, log: &Log, generation: u64) {
        let mut kept = lock(&self.kept);
        let (current, read) = {
            let state = lock(&log.state);
            (state.reader == generation, state.done && state.unread() == 0)
        };
        if !current {
            return; // another took over
        }
        if read && generation > 0 {
            // It came back and has all of it: that was the one time.
            kept.remove(&log.id);
        } else if let Some(stream) = kept.get_mut(&log.id) {
            stream.until = Some(Instant::now() + log.keep);
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

    /// Gives up the streams to which nobody came back, and those for which there is no room.
    pub fn sweep(&self, now: Instant) {
        self.make_room();
        lock(&self.kept).retain(|_, stream| {
            let stays = stream.until.is_none_or(|until| now < until);
            if !stays {
                stream.cancel.now();
            }
            stays
        });
    }

    /// While more waits for readers than there is room for, the streams that hold most forget what was read, in case it
    /// did not arrive; then the largest are given up.
    fn make_room(&self) {
        let mut logs: Vec<Arc<Log>> = {
            let mut logs = lock(&self.logs);
            logs.retain(|log| log.strong_count() > 0);
            logs.iter().filter_map(Weak::upgrade).collect()
        };
        let mut held: usize = logs.iter().map(|log| log.held()).sum();
        logs.sort_by_cached_key(|log| Reverse(log.held()));
        for log in &logs {
            if held > self.room {
                held -= log.forget_read().min(held);
            }
        }
        for log in &logs {
            if held > self.room {
                held -= log.give_up().min(held);
                lock(&self.kept).remove(&log.id);
            }
        }
    }

    /// The stream `id` behind the answer frame `after`; 0: from its beginning. Nobody but the client knows what has arrived. A
    /// reader that is still there (its connection may be dead without anybody having noticed) ends.
    pub fn resume(
        self: &Arc<Streams>,
        id: &str,
        after: u64,
        endpoint: &'static str,
        of: &Client,
    ) -> Result<Reader, ApiError> {
        let mut kept = lock(&self.kept);
        let stream = kept.get_mut(id).filter(|stream| stream.of == *of && stream.endpoint == endpoint);
        let stream = stream.ok_or_else(|| not_found(id))?;
        let (log, cancel) = (stream.log.clone(), stream.cancel.clone());
        let mut state = lock(&log.state);
        if after > state.numbered {
            let message = format!("stream {id} has {} events so far, and {after} is asked for", state.numbered);
            return Err(ApiError::field("last-event-id", message));
        }
        if after < state.forgotten_number {
            let message = format!("of stream {id} only what follows event {} is kept", state.forgotten_number);
            return Err(ApiError::field("last-event-id", message));
        }
        stream.until = None;
        state.at = state.forgotten + state.frames.partition_point(|e| e.number <= after) as u64;
        state.reader += 1;
        let generation = state.reader;
        drop(state);
        log.changed.notify_waiters();
        Ok(Reader { log, cancel, streams: self.clone(), generation })
    }

    /// Ends the answer of a kept stream; what it said so far can still be fetched. False if it had ended by itself.
    pub fn cancel(&self, id: &str, of: &Client) -> Result<bool, ApiError> {
        let kept = lock(&self.kept);
        let stream = kept.get(id).filter(|stream| stream.of == *of).ok_or_else(|| not_found(id))?;
        let mut state = lock(&stream.log.state);
        state.cancelled |= !state.done;
        let cancelled = state.cancelled;
        drop(state);
        stream.cancel.now();
        Ok(cancelled)
    }
}

fn not_found(id: &str) -> ApiError {
    let message = format!("there is no stream {id}: it is not kept, was fetched, or its time passed");
    ApiError::not_found("stream_not_found", message)
}

#[cfg(test)]
mod tests;
