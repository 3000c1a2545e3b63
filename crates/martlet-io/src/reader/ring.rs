//! Reads through io_uring: the thread that computes hands over all parts and goes on; nobody is woken but itself.

use super::{Busy, Done, Opened, Piece, ReadError, parts};
use crate::slots::Slot;
use io_uring::{IoUring, opcode, types};
use std::collections::VecDeque;
use std::io;
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Parts that the system has at a time.
const ENTRIES: u32 = 128;

/// For so long a wait looks again and again before it sleeps: a processor that sleeps takes long to wake, compared with
/// the read of one expert.
const SPIN: Duration = Duration::from_millis(2);

pub(super) struct Ring {
    ring: IoUring,
    file: Arc<Opened>,
    /// Pieces on their way; a number is used again when its piece is done.
    pieces: Vec<Option<Flight>>,
    /// Parts that the system does not have yet.
    waiting: VecDeque<Part>,
    /// Parts that the system has, by the number that it gives back.
    parts: Vec<Option<Part>>,
    /// Numbers of `parts` that are free.
    free: Vec<usize>,
    busy: Busy,
}

struct Flight {
    piece: Piece,
    slot: Slot,
    /// Parts that are not done.
    left: usize,
    failure: Option<ReadError>,
}

/// Bytes of a piece, of which `read` are there.
struct Part {
    piece: usize,
    range: Range<usize>,
    read: usize,
}

impl Ring {
    /// Fails where the system has no io_uring, or does not let this process use it.
    pub fn new(file: Arc<Opened>) -> io::Result<Ring> {
        let ring = IoUring::new(ENTRIES)?;
        let parts = (0..ENTRIES).map(|_| None).collect();
        let free = (0..ENTRIES as usize).rev().collect();
        Ok(Ring { ring, file, pieces: Vec::new(), waiting: VecDeque::new(), parts, free, busy: Busy::new() })
    }

    pub fn submit(&mut self, piece: Piece, slot: Slot) {
        self.busy.begin();
        let number = self.pieces.iter().position(Option::is_none).unwrap_or(self.pieces.len());
        let all = parts(&piece).map(|range| Part { piece: number, range, read: 0 });
        let before = self.waiting.len();
        self.waiting.extend(all);
        let flight = Some(Flight { piece, slot, left: self.waiting.len() - before, failure: None });
        match self.pieces.get_mut(number) {
            Some(place) => *place = flight,
            None => self.pieces.push(flight),
        }
        self.hand_over();
    }

    pub fn wait(&mut self) -> Done {
        assert!(self.pieces.iter().any(Option::is_some), "nothing is in flight");
        let started = Instant::now();
        loop {
            if let Some(done) = self.poll() {
                return done;
            }
            if started.elapsed() < SPIN {
                std::hint::spin_loop();
                continue;
            }
            // An error (a signal, or no room just now) leaves what is in flight as it is: look again.
            let _ = self.ring.submit_and_wait(1);
        }
    }

    pub fn poll(&mut self) -> Option<Done> {
        loop {
            let (number, result) = {
                let entry = self.ring.completion().next()?;
                (entry.user_data() as usize, entry.result())
            };
            if let Some(done) = self.take(number, result) {
                return Some(done);
            }
        }
    }

    pub fn busy(&self) -> Duration {
        self.busy.time()
    }

    /// Gives the system as many parts as it takes.
    #[allow(unsafe_code)]
    fn hand_over(&mut self) {
        while let Some(number) = self.free.last().copied() {
            let Some(part) = self.waiting.pop_front() else { break };
            let Some(flight) = &self.pieces[part.piece] else { continue };
            let range = part.range.start + part.read..part.range.end;
            // SAFETY: the parts of a piece do not overlap, and the slot is looked at when all of them are done.
            let buffer = unsafe { flight.slot.part_mut(range.clone()) };
            let read =
                opcode::Read::new(types::Fd(self.file.file.as_raw_fd()), buffer.as_mut_ptr(), range.len() as u32)
                    .offset(flight.piece.offset + range.start as u64)
                    .build()
                    .user_data(number as u64);
            // SAFETY: the file is open as long as this lives, and the slot stays in `pieces` until the system is done
            // with it: `take` lets go of it with its last part, and dropping waits for all.
            let pushed = unsafe { self.ring.submission().push(&read) };
            if pushed.is_err() {
                self.waiting.push_front(part);
                break;
            }
            self.free.pop();
            self.parts[number] = Some(part);
        }
        // What is refused now is handed over with the next wait.
        let _ = self.ring.submit();
    }

    /// What the system says of a part. Returns its piece where that was the last of it.
    fn take(&mut self, number: usize, result: i32) -> Option<Done> {
        let mut part = self.parts.get_mut(number)?.take()?;
        self.free.push(number);
        let flight = self.pieces[part.piece].as_mut()?;
        let more = match usize::try_from(result) {
            Ok(now) => {
                part.read += now;
                if self.file.ends(&part.range, part.read, now) {
                    let ended = self.file.ended(&flight.piece, &part.range, part.read);
                    flight.failure = flight.failure.take().or(ended.err());
                    false
                } else {
                    part.read < part.range.len()
                }
            }
            Err(_) if [libc::EINTR, libc::EAGAIN].contains(&-result) => true,
            Err(_) => {
                let error = self.file.failed(&flight.piece, io::Error::from_raw_os_error(-result));
                flight.failure.get_or_insert(error);
                false
            }
        };
        let at = part.piece;
        match more {
            true => self.waiting.push_front(part),
            false => flight.left -= 1,
        }
        let whole = flight.left == 0;
        if !self.waiting.is_empty() {
            self.hand_over();
        }
        let Flight { piece, slot, failure, .. } = if whole { self.pieces[at].take()? } else { return None };
        self.busy.end();
        Some(self.file.finish(piece, slot, failure))
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        // The system writes into slots until it says that it is done.
        self.waiting.clear();
        while self.parts.iter().any(Option::is_some) {
            let _ = self.ring.submit_and_wait(1);
            while let Some(entry) = self.ring.completion().next() {
                self.parts[entry.user_data() as usize] = None;
            }
        }
    }
}
