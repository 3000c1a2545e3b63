//! The protocol of the queue. Whoever has sent a command finds it taken, or dropped with the inbox: nobody waits for ever.

use super::sync::Arc;
use super::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use super::sync::mpsc::{Receiver, RecvTimeoutError, Sender, TryRecvError, channel as unbounded};
use std::time::Duration;

#[derive(Default)]
struct Counts {
    stopping: AtomicBool,
    /// Requests that were sent and not begun.
    waiting: AtomicUsize,
}

/// Where commands are sent; at most `limit` requests wait.
pub(crate) struct Outbox<C> {
    commands: Sender<Option<C>>,
    counts: Arc<Counts>,
    limit: usize,
}

/// Where the thread takes them.
pub(crate) struct Inbox<C> {
    commands: Receiver<Option<C>>,
    counts: Arc<Counts>,
}

/// Why a request was not sent.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum NotSent {
    /// So many wait.
    Full(usize),
    /// The thread has ended.
    Ended,
}

#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Next<C> {
    Command(C),
    Nothing,
    End,
}

pub(crate) fn channel<C>(limit: usize) -> (Outbox<C>, Inbox<C>) {
    let (sender, receiver) = unbounded();
    let counts = Arc::new(Counts { stopping: AtomicBool::new(false), waiting: AtomicUsize::new(0) });
    (Outbox { commands: sender, counts: counts.clone(), limit }, Inbox { commands: receiver, counts })
}

impl<C> Outbox<C> {
    /// Sends a command that waits for its turn.
    pub fn request(&self, command: C) -> Result<(), NotSent> {
        let one_more = |waiting| (waiting < self.limit).then_some(waiting + 1);
        let waiting = &self.counts.waiting;
        waiting.fetch_update(Ordering::SeqCst, Ordering::SeqCst, one_more).map_err(NotSent::Full)?;
        self.commands.send(Some(command)).map_err(|_| {
            waiting.fetch_sub(1, Ordering::SeqCst);
            NotSent::Ended
        })
    }

    /// Requests that may wait.
    pub fn limit(&self) -> usize {
        self.limit
    }

    /// Sends a command that is done at once, unless the thread has ended.
    pub fn tell(&self, command: C) {
        let _ = self.commands.send(Some(command));
    }

    /// Ends the thread, after the step in flight.
    pub fn stop(&self) {
        self.counts.stopping.store(true, Ordering::SeqCst);
        // The flag is seen by who is busy, this by who waits.
        let _ = self.commands.send(None);
    }
}

impl<C> Inbox<C> {
    /// The next command; `wait`: how long one is waited for.
    pub fn next(&self, wait: Option<Duration>) -> Next<C> {
        let next = match wait {
            Some(time) => self.commands.recv_timeout(time).map_err(|e| e == RecvTimeoutError::Timeout),
            None => self.commands.try_recv().map_err(|e| e == TryRecvError::Empty),
        };
        match next {
            Ok(Some(command)) => Next::Command(command),
            Ok(None) | Err(false) => Next::End,
            Err(true) if self.counts.stopping.load(Ordering::SeqCst) => Next::End,
            Err(true) => Next::Nothing,
        }
    }

    /// So many requests wait no longer.
    pub fn begun(&self, requests: usize) {
        self.counts.waiting.fetch_sub(requests, Ordering::SeqCst);
    }

    /// A request that had begun waits again, beyond the limit if need be.
    pub fn again(&self) {
        self.counts.waiting.fetch_add(1, Ordering::SeqCst);
    }

    /// For `model.rs`, which compiles this file a second time.
    #[cfg(test)]
    #[allow(dead_code, reason = "the first copy is not asked")]
    pub fn waiting(&self) -> usize {
        self.counts.waiting.load(Ordering::SeqCst)
    }
}
