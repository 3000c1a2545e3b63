//! A check of `channel.rs` by a scheduler that tries many orders of its threads' steps. It ends with a failure when all
//! threads wait for each other (a command or the end was lost) or an assertion fails.
//!
//!     cargo test --release -p martlet-engine queue
//!
//! The scheduler takes every atomic operation as sequentially consistent, which those of the protocol are.

#[allow(clippy::duplicate_mod, dead_code, reason = "the same text, for other primitives; not all of it is asked for")]
#[path = "channel.rs"]
mod channel;

/// As `sync.rs`.
mod sync {
    pub use shuttle::sync::{Arc, atomic, mpsc};
}

use channel::{Inbox, Next, NotSent, Outbox, channel};
use shuttle::sync::mpsc::{Receiver, Sender};
use shuttle::sync::{Arc, mpsc};
use shuttle::thread::{JoinHandle, spawn, yield_now};
use std::time::Duration;

/// A request: where its one event goes.
type Request = Sender<usize>;

/// Orders that are tried of each case, half of them at random, half with few changes of thread at the worst places.
const ORDERS: usize = 10_000;

fn check(case: impl Fn() + Send + Sync + 'static) {
    let case = Arc::new(case);
    for changes in 1..=4 {
        let case = case.clone();
        shuttle::check_pct(move || case(), ORDERS / 8, changes);
    }
    shuttle::check_random(move || case(), ORDERS / 2);
}

/// The thread: takes what there is, waits when there is nothing, and answers each request; gives how many there were.
fn worker(inbox: Inbox<Request>, limit: usize) -> JoinHandle<usize> {
    spawn(move || {
        let (mut held, mut answered) = (Vec::<Request>::new(), 0);
        loop {
            // This waiting has no end but a command: a lost one is a standstill.
            let next = inbox.next(held.is_empty().then_some(Duration::MAX));
            assert!(inbox.waiting() <= limit, "{} wait", inbox.waiting());
            match next {
                Next::Command(request) => held.push(request),
                Next::End => return answered,
                Next::Nothing => {
                    let request = held.pop().expect("something is held, or it would have waited");
                    inbox.begun(1);
                    yield_now();
                    let _ = request.send(answered);
                    answered += 1;
                }
            }
        }
    })
}

/// Sends a request; what its handle hears of it, if it was let in.
fn ask(outbox: &Outbox<Request>) -> Result<Receiver<usize>, NotSent> {
    let (events, handle) = mpsc::channel();
    outbox.request(events).map(|()| handle)
}

#[test]
fn no_more_wait_than_may_and_all_of_them_are_answered() {
    check(|| {
        const LIMIT: usize = 2;
        let (outbox, inbox) = channel(LIMIT);
        let outbox = Arc::new(outbox);
        let worker = worker(inbox, LIMIT);
        let clients: Vec<_> = (0..3)
            .map(|_| {
                let outbox = outbox.clone();
                spawn(move || match ask(&outbox) {
                    Ok(handle) => usize::from(handle.recv().is_ok()),
                    Err(refused) => {
                        assert!(matches!(refused, NotSent::Full(waiting) if waiting >= LIMIT), "{refused:?}");
                        0
                    }
                })
            })
            .collect();
        let heard: usize = clients.into_iter().map(|c| c.join().expect("a client")).sum();
        outbox.stop();
        assert!(heard >= LIMIT, "two places were free for two of three");
        assert_eq!(worker.join().expect("the thread"), heard);
    });
}

/// Requests that come while the engine ends are answered, dropped or refused; their clients do not wait for ever. (The
/// system's channel drops what it holds with its receiver; the scheduler's only when the sender is gone too.)
#[test]
fn an_end_is_seen_by_all() {
    check(|| {
        let (outbox, inbox) = channel(8);
        let outbox = Arc::new(outbox);
        let worker = worker(inbox, 8);
        let client = {
            let outbox = outbox.clone();
            spawn(move || {
                let handles = [ask(&outbox), ask(&outbox)];
                handles.into_iter().filter_map(|asked| asked.map_err(|e| assert_eq!(e, NotSent::Ended)).ok()).collect()
            })
        };
        outbox.stop();
        let answered = worker.join().expect("the thread");
        let handles: Vec<_> = client.join().expect("the client");
        assert!(matches!(ask(&outbox), Err(NotSent::Ended)));
        drop(outbox);
        assert_eq!(handles.iter().filter(|handle| handle.recv().is_ok()).count(), answered);
    });
}

/// Dropping the way in ends the thread too.
#[test]
fn who_has_no_senders_ends() {
    check(|| {
        let (outbox, inbox) = channel(1);
        let worker = worker(inbox, 1);
        let handle = ask(&outbox).expect("a free place");
        drop(outbox);
        worker.join().expect("the thread");
        let _ = handle.recv();
    });
}
