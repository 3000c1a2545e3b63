//! Responses that clients may come back to: in memory, bounded in bytes and time.

use crate::auth::Client;
use martlet_chat::Message;
use serde_json::Value;
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// A response with the conversation that it ends.
#[derive(Debug)]
pub struct Stored {
    pub id: String,
    pub response: Value,
    /// The request's own input, as items with ids.
    pub input: Vec<Value>,
    /// All messages up to and with the answer; the instructions are not among them.
    pub messages: Vec<Message>,
}

/// The newest responses.
pub struct Store {
    entries: Mutex<VecDeque<Entry>>,
    bytes: usize,
    time: Duration,
}

struct Entry {
    stored: Arc<Stored>,
    of: Client,
    bytes: usize,
    since: Instant,
}

impl Store {
    pub fn new(bytes: usize, time: Duration) -> Store {
        Store { entries: Mutex::default(), bytes, time }
    }

    fn entries(&self) -> MutexGuard<'_, VecDeque<Entry>> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Keeps a response; the oldest make room. One that is larger than all the room is not kept.
    pub fn put(&self, stored: Stored, of: Client) {
        let said: usize = stored.messages.iter().map(|m| m.to_json().to_string().len()).sum();
        let bytes =
            said + stored.response.to_string().len() + stored.input.iter().map(|i| i.to_string().len()).sum::<usize>();
        let mut entries = self.entries();
        entries.push_back(Entry { stored: Arc::new(stored), of, bytes, since: Instant::now() });
        let mut all: usize = entries.iter().map(|e| e.bytes).sum();
        while all > self.bytes {
            all -= entries.pop_front().map_or(all, |e| e.bytes);
        }
    }

    /// The response of an id, for the client that it was made for.
    pub fn get(&self, id: &str, of: &Client) -> Option<Arc<Stored>> {
        let entries = self.entries();
        let entry = entries.iter().find(|e| e.stored.id == id && e.of == *of && e.since.elapsed() < self.time);
        entry.map(|e| e.stored.clone())
    }

    /// An item of any response.
    pub fn item(&self, id: &str, of: &Client) -> Option<Value> {
        let entries = self.entries();
        let mine = entries.iter().filter(|e| e.of == *of && e.since.elapsed() < self.time);
        let mut items = mine.flat_map(|e| {
            let output = e.stored.response.get("output").and_then(Value::as_array).into_iter().flatten();
            output.chain(&e.stored.input)
        });
        items.find(|item| item.get("id").and_then(Value::as_str) == Some(id)).cloned()
    }

    /// Forgets a response; false if there is none.
    pub fn remove(&self, id: &str, of: &Client) -> bool {
        let mut entries = self.entries();
        let before = entries.len();
        entries.retain(|e| e.stored.id != id || e.of != *of);
        entries.len() < before
    }

    /// Forgets those whose time has passed.
    pub fn sweep(&self, now: Instant) {
        self.entries().retain(|e| now.saturating_duration_since(e.since) < self.time);
    }

    /// Responses and their bytes.
    pub fn size(&self) -> (usize, usize) {
        let entries = self.entries();
        (entries.len(), entries.iter().map(|e| e.bytes).sum())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use martlet_chat::Role;

    fn stored(id: &str) -> Stored {
        let messages = vec![Message::text(Role::User, "x".repeat(100))];
        Stored { id: id.into(), response: Value::Null, input: Vec::new(), messages }
    }

    #[test]
    fn the_oldest_make_room_and_old_ones_go() {
        let store = Store::new(300, Duration::from_secs(60));
        let me = Client::of_key("me");
        for id in ["a", "b", "c"] {
            store.put(stored(id), me.clone());
        }
        assert!(store.get("a", &me).is_none() && store.get("c", &me).is_some());
        assert!(store.get("c", &Client::of_key("other")).is_none());
        assert!(!store.remove("c", &Client::default()) && store.remove("c", &me) && !store.remove("c", &me));
        store.sweep(Instant::now() + Duration::from_secs(61));
        assert_eq!(store.size(), (0, 0));
    }

    #[test]
    fn what_is_larger_than_the_room_is_not_kept() {
        let store = Store::new(50, Duration::from_secs(60));
        store.put(stored("a"), Client::default());
        assert_eq!(store.size(), (0, 0));
    }
}
