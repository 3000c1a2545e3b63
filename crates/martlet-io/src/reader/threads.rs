//! A pool of threads that read parts of pieces.

use super::{Busy, Done, Opened, Piece, ReadError, parts};
use crate::disk::forget;
use crate::slots::Slot;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread::JoinHandle;
use std::time::Duration;

pub(super) struct Threads {
    shared: Arc<Shared>,
    /// `None` once no more pieces come.
    parts: Option<Sender<Part>>,
    done: Receiver<Done>,
    threads: Vec<JoinHandle<()>>,
}

struct Shared {
    file: Arc<Opened>,
    busy: Mutex<Busy>,
}

/// A piece on its way. Whoever finishes the last of its parts holds the last reference.
struct Pending {
    piece: Piece,
    slot: Slot,
    failure: Mutex<Option<ReadError>>,
}

struct Part {
    pending: Arc<Pending>,
    range: Range<usize>,
}

impl Threads {
    pub fn new(file: Arc<Opened>, threads: usize) -> Result<Threads, ReadError> {
        let shared = Arc::new(Shared { file, busy: Mutex::new(Busy::new()) });
        let ((parts, jobs), (finished, done)) = (channel::<Part>(), channel());
        let jobs = Arc::new(Mutex::new(jobs));
        let mut all = Threads { shared, parts: Some(parts), done, threads: Vec::new() };
        for i in 0..threads.max(1) {
            let (shared, jobs, finished) = (all.shared.clone(), jobs.clone(), finished.clone());
            let thread = std::thread::Builder::new().name(format!("read {i}"));
            let thread = thread.spawn(move || shared.work(&jobs, &finished));
            let failed = |source| ReadError::Thread { path: all.shared.file.path.clone(), source };
            all.threads.push(thread.map_err(failed)?);
        }
        Ok(all)
    }

    pub fn submit(&mut self, piece: Piece, slot: Slot) {
        self.shared.busy().begin();
        let pending = Arc::new(Pending { piece, slot, failure: Mutex::new(None) });
        let all: Vec<Part> = parts(&piece).map(|range| Part { pending: pending.clone(), range }).collect();
        // The threads must see no reference but those of the parts.
        drop(pending);
        let parts = self.parts.as_ref().expect("only dropping takes it");
        for part in all {
            parts.send(part).expect("the threads wait as long as the reader lives");
        }
    }

    pub fn wait(&mut self) -> Done {
        self.done.recv().expect("a thread that reads does not end by itself")
    }

    pub fn poll(&mut self) -> Option<Done> {
        self.done.try_recv().ok()
    }

    pub fn busy(&self) -> Duration {
        self.shared.busy().time()
    }
}

impl Drop for Threads {
    fn drop(&mut self) {
        self.parts = None;
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

impl Shared {
    fn busy(&self) -> MutexGuard<'_, Busy> {
        // Nothing that holds it can panic.
        self.busy.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// What a thread does until no more parts come.
    fn work(&self, jobs: &Mutex<Receiver<Part>>, finished: &Sender<Done>) {
        loop {
            let job = jobs.lock().unwrap_or_else(|e| e.into_inner()).recv();
            let Ok(Part { pending, range }) = job else { return };
            if let Err(e) = self.read(&pending, range) {
                pending.failure.lock().unwrap_or_else(|e| e.into_inner()).get_or_insert(e);
            }
            // The last of the parts: the piece is whole.
            if let Some(Pending { piece, slot, failure }) = Arc::into_inner(pending) {
                let done = self.file.finish(piece, slot, failure.into_inner().unwrap_or_else(|e| e.into_inner()));
                self.busy().end();
                // Nobody listens when the reader is being dropped.
                let _ = finished.send(done);
            }
        }
    }

    /// Reads a part.
    #[allow(unsafe_code)]
    fn read(&self, pending: &Pending, range: Range<usize>) -> Result<(), ReadError> {
        let (file, piece) = (&self.file, &pending.piece);
        // SAFETY: the parts of a piece do not overlap, and the slot is looked at when all of them are done.
        let buffer = unsafe { pending.slot.part_mut(range.clone()) };
        let (start, mut read) = (piece.offset + range.start as u64, 0);
        while read < buffer.len() {
            match file.file.read_at(&mut buffer[read..], start + read as u64) {
                Ok(n) if file.ends(&range, read + n, n) => return file.ended(piece, &range, read + n),
                Ok(n) => read += n,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(source) => return Err(file.failed(piece, source)),
            }
        }
        if !file.direct {
            forget(&file.file, start..start + buffer.len() as u64);
        }
        Ok(())
    }
}
